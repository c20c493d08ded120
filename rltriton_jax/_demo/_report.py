"""The results as a table on stdout, as a bar on stderr while they come, and as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import rltriton_jax

from ._measure import TOLERANCE, Result


def environment() -> dict[str, Any]:
    """Device and versions."""
    versions = {"rltriton-jax": rltriton_jax.__version__}
    for name in ("jax", "jaxlib", "jax-triton", "triton", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    device = jax.devices()[0]
    return dict(
        platform=device.platform, device=device.device_kind, python=platform.python_version(), versions=versions
    )


@contextlib.contextmanager
def bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr where that is a terminal, and a function that moves it to the next of `total` jobs."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=-1)

        def advance(text: str) -> None:
            progress.update(task, advance=1, description=text)

        yield advance


def _error(x: float | None) -> str:
    return "-" if x is None else f"{x:.1e}"


def _wall(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    size, unit = next((k, u) for k, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if seconds >= k or u == "us")
    return f"{seconds / size:.{0 if seconds >= 100 * size else 1 if seconds >= 10 * size else 2}f} {unit}"


def show(results: list[Result], origin: str, shape: tuple[int, int], dtype: str, left_out: dict[str, str]) -> None:
    """Prints the table and what it does not say."""
    env = environment()
    versions = ", ".join(f"{name} {version}" for name, version in env["versions"].items())
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("estimator", "implementation"):
        table.add_column(head, no_wrap=True)
    for head in ("error to\nfloat64\nloop", "error to\nassociative\nscan", "wall\nper call"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    previous = None
    for r in results:
        if previous not in (None, r.estimator):
            table.add_section()
        cut = f" {r.shape[0]} x {r.shape[1]}" if r.shape != shape else ""
        verdict = Text("ok", "green") if r.ok else Text("FAILED" if r.failure else "WRONG", "bold red")
        table.add_row(
            "" if r.estimator == previous else r.estimator,
            r.implementation + cut,
            _error(r.error_loop),
            _error(r.error_associative_scan),
            _wall(r.wall_seconds),
            verdict,
        )
        previous = r.estimator
    notes = [
        "An error is the largest difference over the largest output (over 1 where that is less); for "
        f"{dtype}, {TOLERANCE[dtype]:.0e} is ok.",
        "wall: the median of several calls after the first, launch and synchronisation included.",
    ]
    checked = {r.columns_checked for r in results if r.shape == shape}
    if checked and max(checked) < shape[1]:
        notes.append(f"The float64 loop checked {max(checked)} of {shape[1]} columns, drawn at random.")
    if any(r.shape != shape for r in results):
        notes.append("Triton's interpreter is slow: interpret ran on the last steps of a few columns.")
    notes += [f"{name} did not run: {reason}." for name, reason in left_out.items()]
    notes += [f"{r.estimator} by {r.implementation} failed: {r.failure}" for r in results if r.failure]
    console = Console(soft_wrap=True, highlight=False)
    device = env["device"] if env["device"] == env["platform"] else f"{env['device']} ({env['platform']})"
    console.print(f"{device}, Python {env['python']}, {versions}", markup=False)
    console.print(f"{origin}, {dtype}\n", markup=False)
    console.print(table, soft_wrap=False)
    console.print("\n".join(["", *notes]), markup=False)


def write(path: Path, results: list[Result], **described: Any) -> None:
    rows = [dataclasses.asdict(r) for r in results]
    path.write_text(json.dumps({**environment(), **described, "results": rows}, indent=1) + "\n")
