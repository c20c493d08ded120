"""Tables and progress on the terminal, by rich where it is installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table on stdout, as wide as its content where stdout is no terminal."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        print(title)
        for line in (heads, *lines):
            print("  ".join(cell or "-" for cell in line))
        return
    built: Any = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
    for k, head in enumerate(heads):
        built.add_column(head, justify="left" if k < 2 or k == len(heads) - 1 else "right", overflow="fold")
    for k, line in enumerate(lines):
        if line[0] and k:
            built.add_section()
        bad = line[-1].startswith(("WRONG", "failed", "below", "SLOWER"))
        built.add_row(*(Text(cell) for cell in line), style="red" if bad else "bold" if line[0] else "")
    wide = None if sys.stdout.isatty() else 190
    Console(width=wide).print(built)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """A function of (done, text) that moves a bar on stderr."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield lambda done, text: print(f"[{done}/{total}] {text}", file=sys.stderr)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def move(done: int, text: str) -> None:
            bar.update(task, completed=done, description=text)
            if not console.is_terminal:
                print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

        yield move
