"""Plots of a run: the fraction of copy speed against bytes, and the speed-up over each peer by shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._extras import install
from ._measure import Row
from ._peers import OURS
from ._report import grouped, own_row

FONT = 9


def write(folder: Path, rows: Sequence[Row]) -> Iterator[Path]:
    """Writes every plot that the rows can fill; yields the paths."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"--plots needs matplotlib; install it with: {install('benchmark')}") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    timed = [row for row in rows if "time" in row]
    if timed:
        yield _save(_fraction_of_copy(timed), folder / "fraction_of_copy.png")
    for peer in dict.fromkeys(row["implementation"] for row in timed if row["implementation"] not in OURS):
        pairs = list(speedups(timed, peer))
        if pairs:
            yield _save(
                _speedup(peer, pairs), folder / f"speedup_{''.join(c if c.isalnum() else '_' for c in peer)}.png"
            )


def speedups(rows: Sequence[Row], peer: str) -> Iterator[tuple[str, float]]:
    """(case, peer's time over ours), by device time where both have it."""
    for case, members in grouped(rows).items():
        own = own_row(members)
        for row in members:
            if own is None or row["implementation"] != peer or row is own or "time" not in row or "time" not in own:
                continue
            key = "time" if row["time"]["method"] == own["time"]["method"] else "call"
            yield case, row[key]["median"] / own[key]["median"]


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150, bbox_inches="tight")
    from matplotlib import pyplot

    pyplot.close(figure)
    return path


def _fraction_of_copy(rows: Sequence[Row]) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    groups: dict[str, list[Row]] = {}
    for members in grouped(rows).values():
        own = own_row(members)
        if own is not None and "time" in own:
            kind = f"{own['layout']}-major" if own["layout"] != "inner" else "[outer, T, inner]"
            groups.setdefault(kind + (", gradient" if own["gradient"] else ""), []).append(own)
    for (kind, members), marker in zip(sorted(groups.items()), "osD^v<>pP*hX" * 4, strict=False):
        axes.scatter(
            [row["bytes"] / 1e6 for row in members],
            [row["of_copy"] for row in members],
            s=28,
            marker=marker,
            label=kind,
            alpha=0.8,
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhline(0.95, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("MB moved (each input read once, each output written once)")
    axes.set_ylabel("fraction of the speed of a copy of the same bytes")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=FONT, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _speedup(peer: str, pairs: Sequence[tuple[str, float]]) -> Any:
    from matplotlib import pyplot

    ordered = sorted(pairs, key=lambda pair: pair[1])
    if len(ordered) > 60:  # labels stay readable: every k-th case, the least and the greatest among them
        ordered = [ordered[round(k * (len(ordered) - 1) / 59)] for k in range(60)]
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.24 * len(ordered)))
    places = range(len(ordered))
    axes.barh(
        places, [ratio for _, ratio in ordered], color=["tab:red" if ratio < 1 else "tab:blue" for _, ratio in ordered]
    )
    axes.set_yticks(places, [case for case, _ in ordered], fontsize=FONT)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    for place, (_, ratio) in zip(places, ordered, strict=True):
        axes.annotate(
            f"{ratio:.3g}x", (ratio, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=FONT
        )
    axes.margins(x=0.15, y=0.01)
    low, high = axes.get_xlim()
    ticks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"times as fast as {peer}")
    axes.grid(axis="x", alpha=0.3)
    return figure
