"""What was measured, as a table and as JSON, and against an earlier run."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import rltriton_jax

from ._measure import Row as Row
from ._peers import OURS

FORMAT = 1
HEADS = (
    "case", "implementation", "us", "quartiles", "GB/s", "of copy", "call us", "in graph us", "temp", "kernels",
    "compile s", "note",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Device and versions."""
    versions: dict[str, str | None] = {}
    for name in ("jax", "jaxlib", "jax-triton", "triton", "numpy", "rlax"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "format": FORMAT,
        "device": jax.devices()[0].device_kind,
        "platform": jax.default_backend(),
        "python": platform.python_version(),
        "rltriton_jax": rltriton_jax.__version__,
        "versions": versions,
    }


def write(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "rows": list(rows)}, indent=1, default=str) + "\n")


def read(path: Path) -> dict[str, Any]:
    """An earlier run; ValueError where the file is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"--compare {path}: not readable as JSON ({error}); pass a file that --json wrote") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("rows"), list):
        raise ValueError(f"--compare {path}: not of format {FORMAT}; pass a file that --json of this version wrote")
    return found


def size(n: int | None) -> str:
    if n is None:
        return ""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n} B"


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.0f}" if x >= 1000 else f"{x:.3g}"


def cells(row: Row) -> list[str]:
    """A row of the table, in the order of HEADS."""
    timing, copy = row.get("time"), row["copy"]
    fraction = row.get("of_copy")
    note = "" if row["status"] == "ok" else f"{row['status']}: {row['why']}"
    if fraction is not None and row["implementation"] in OURS and row["floor"] and fraction < row["floor"]:
        note = f"below {row['floor']:.2f}"
    if timing and timing["method"] != copy["method"] and not note:
        note = f"{timing['method']}; copy: {copy['method']}"
    return [
        f"{row['case']} {size(row['bytes'])}",
        row["implementation"],
        _number(timing and timing["median"]),
        timing and f"{_number(timing['low'])}-{_number(timing['high'])}" or "",
        _number(row.get("gb_per_s")),
        "" if fraction is None else f"{fraction:.2f}",
        _number(row["call"]["median"]) if "call" in row else "",
        _number(row["chain"]["median"]) if "chain" in row else "",
        size(row.get("temp_bytes")),
        str(row.get("kernels") or (f"{row['ops']} ops" + (" +loop" if row["loops"] else "") if "ops" in row else "")),
        f"{row['compile_s']:.2f}" if "compile_s" in row else "",
        note,
    ]


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["case"], []).append(row)
    return found


def own_row(members: Sequence[Row]) -> Row | None:
    """The package's row of a case: the kernels where they ran, else its own choice."""
    own = [row for name in OURS for row in members if row["implementation"] == name]
    return next((row for row in own if "time" in row), own[0] if own else None)


def tables(rows: Sequence[Row]) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
    """(title, heads, lines) of each table of a run."""
    lines = []
    for case, members in grouped(rows).items():
        copy = members[0]["copy"]
        cold = "from memory" if members[0]["sets"] * members[0]["bytes"] > 60e6 else "from cache"
        reads = f"{members[0]['sets']} sets of inputs, {cold}"
        spread = f"{_number(copy['low'])}-{_number(copy['high'])}"
        rate = _number(members[0]["bytes"] / copy["median"] / 1e3)
        lines.append(
            [
                f"{case} {size(members[0]['bytes'])}",
                "copy",
                _number(copy["median"]),
                spread,
                rate,
                "1",
                "",
                "",
                "",
                "",
                "",
                reads,
            ]
        )
        lines += [["", *cells(row)[1:]] for row in members]
    return [("Time and memory", HEADS, lines)]


def summary(rows: Sequence[Row]) -> tuple[str, tuple[str, ...], list[list[str]]]:
    """A table of how the package stands: against the floors of the design, and against each peer."""
    reached: list[bool] = []
    ratios: dict[str, list[tuple[float, str]]] = {}
    for case, members in grouped(rows).items():
        own = own_row(members)
        if own is None or "time" not in own:
            continue
        if own["floor"]:
            reached.append(own["of_copy"] >= own["floor"])
        for row in members:
            if row["implementation"] in OURS:
                continue
            for kind in ("time", "call", "chain"):
                if kind == "time" and own["time"]["method"] != "cupti":
                    continue  # it is the time of a call again
                same = kind in row and kind in own and row[kind]["method"].split()[0] == own[kind]["method"].split()[0]
                if same and min(row[kind]["median"], own[kind]["median"]) > 0:  # a slope may be lost in noise
                    heading = {"time": "device time", "call": "calls back to back", "chain": "in graph"}[kind]
                    ratio = row[kind]["median"] / own[kind]["median"]
                    ratios.setdefault(f"{row['implementation']}, {heading}", []).append((ratio, case))
    lines = (
        [["copy speed that the design asks for", f"{sum(reached)} of {len(reached)} cases", "", "", ""]]
        if reached
        else []
    )
    for name, found in ratios.items():
        found.sort()
        worst = ", ".join(f"{case} {ratio:.2g}x" for ratio, case in found[:3] if ratio < 1)
        wins = sum(ratio >= 1 for ratio, _ in found)
        middle = found[len(found) // 2][0]
        lines.append([name, f"{wins} of {len(found)} cases", f"{middle:.3g}x", f"{found[0][0]:.3g}x", worst])
    return "Against peers", ("measure", "not slower", "median speed-up", "least", "slower at"), lines


def compared(old: Sequence[Row], new: Sequence[Row]) -> tuple[str, tuple[str, ...], list[list[str]]]:
    """A table of the time before and now, of every row that both runs hold."""
    before = {(row["case"], row["implementation"]): row for row in old if "time" in row}
    lines = []
    for row in new:
        was = before.get((row["case"], row["implementation"]))
        if was is None or "time" not in row:
            continue
        was_us, now_us = was["time"]["median"], row["time"]["median"]
        spread = max(t["high"] - t["low"] for t in (was["time"], row["time"]))
        verdict = "within the spread" if abs(was_us - now_us) <= spread else "faster" if now_us < was_us else "SLOWER"
        lines.append(
            [row["case"], row["implementation"], _number(was_us), _number(now_us), f"{was_us / now_us:.2f}x",
             f"{was['of_copy']:.2f}", f"{row['of_copy']:.2f}", verdict]
        )  # fmt: skip
    heads = ("case", "implementation", "us before", "us now", "speed-up", "of copy before", "of copy now", "verdict")
    return "Before and now", heads, lines
