"""Searches for faster tiles on the GPU at hand: `python -m rltriton_jax.tune --shape 128x4096 --layout time`.

A tile is admitted for a bucket of shapes (layout, log2 of time and of columns) only after it ran, was right against a
float64 reference, and was faster in every one of several repetitions on fresh inputs, interleaved with the tile that it
would replace. Every candidate and its verdict go to a log (JSON lines) beside the file of tiles, which is read from then on:
~/.cache/rltriton_jax/tiles-DEVICE.json, or what RLTRITON_JAX_TILES names; `off` there leaves tiles to the package's table.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax

from ._backends import _tiles, _tuned
from ._backends._tiles import Tile
from .benchmark import _cli, _data, _show, _timing
from .benchmark._cases import LAYOUTS, Case
from .benchmark._estimators import ESTIMATORS, ours
from .benchmark._gate import TOLERANCE, Gate

LEAST = 1.03
UNHARMED = 0.99  # what the estimators after the first must keep of their speed

# Starting points beside the table's own tile: (runs, steps, columns, warps).
SEEDS = {
    False: [(4, 4, 32, 4), (16, 8, 32, 8), (4, 8, 64, 2), (2, 8, 128, 2), (8, 16, 32, 4)],
    True: [(8, 4, 16, 1), (32, 4, 2, 2), (64, 4, 2, 1), (128, 4, 1, 1), (256, 4, 1, 2)],
}


class Bench(Protocol):
    """What can be asked about a tile; `which` counts the estimators. Any exception rejects the tile."""

    estimators: tuple[str, ...]

    def error(self, tile: Tile, which: int, repetition: int) -> float:
        """Over what is tolerated, against the reference, on the inputs of this repetition: at most 1 is right."""

    def seconds(self, tile: Tile, which: int, repetition: int) -> float:
        """The time of one call on the inputs of this repetition."""


@dataclasses.dataclass
class Verdict:
    """Whether a tile may replace another, why, and what was measured."""

    tile: Tile
    admitted: bool
    reason: str
    speedups: list[float] = dataclasses.field(default_factory=list)
    error: float | None = None


def ratio(bench: Bench, base: Tile, tile: Tile, which: int, repetition: int) -> float:
    """How many times as fast `tile` is, timed between two timings of `base` so that a drift hits both alike."""
    times = [bench.seconds(each, which, repetition) for each in (base, tile, tile, base)]
    if not all(math.isfinite(t) and t > 0 for t in times):
        raise ValueError(f"timings of {times}")
    return (times[0] + times[3]) / (times[1] + times[2])


def judge(bench: Bench, base: Tile, tile: Tile, least: float = LEAST, repetitions: int = _tuned.REPETITIONS) -> Verdict:
    """Admits `tile` instead of `base` if it is right and faster in every repetition."""
    verdict = Verdict(tile, False, "")
    try:
        for repetition in range(repetitions):
            for which, estimator in enumerate(bench.estimators):
                error = bench.error(tile, which, repetition)
                verdict.error = error if verdict.error is None else max(verdict.error, error)
                if not error <= 1:  # a NaN is wrong
                    verdict.reason = f"wrong: {estimator} is off by {error:.3g} times what is tolerated"
                    return verdict
                gain = ratio(bench, base, tile, which, repetition)
                if which == 0:
                    verdict.speedups.append(gain)
                needed = least if which == 0 else UNHARMED
                if not gain >= needed:
                    verdict.reason = (
                        f"not faster: {estimator} {gain:.3f}x in repetition {repetition + 1}, {needed:.2f}x is needed"
                    )
                    return verdict
    except Exception as error:  # a tile that does not compile or run is an answer
        verdict.reason = f"failed: {type(error).__name__}: {str(error)[:300]}"
        return verdict
    verdict.admitted, verdict.reason = True, f"faster in {repetitions} of {repetitions} repetitions"
    return verdict


def neighbours(tile: Tile) -> Iterator[Tile]:
    """Every tile with one size doubled or halved, or one switch turned; `rows` is the layout's."""
    fields = tile._asdict()
    for name, value in fields.items():
        others = (not value,) if isinstance(value, bool) else tuple(n for n in (value * 2, value // 2) if n)
        if name != "rows":
            yield from (Tile(**{**fields, name: other}) for other in others)


def sensible(tile: Tile) -> bool:
    """At least an element of the tile scan a thread, and no more in registers than a thread has."""
    threads = 32 * tile.warps
    return (
        tile.warps <= 32
        and threads <= tile.runs * tile.columns
        and tile.runs * tile.columns * tile.steps <= 64 * threads
    )


def search(
    bench: Bench,
    table: Tile,
    log: Callable[[Verdict], None],
    over: Callable[[], bool] = lambda: False,
    least: float = LEAST,
    repetitions: int = _tuned.REPETITIONS,
) -> Verdict | None:
    """The best admitted tile: starting points first, then the neighbours of the best until none is better."""
    tried = {table}
    best, found = table, None
    seeds = [Tile(**{**table._asdict(), **dict(zip(_tuned.SIZES, sizes))}) for sizes in SEEDS[table.rows]]
    waiting = [*seeds, *neighbours(table)]
    while waiting and not over():
        tile = waiting.pop(0)
        if tile in tried or not sensible(tile):
            continue
        tried.add(tile)
        # against the best so far, so that each step of the climb is a gain; then against the table
        verdict = judge(bench, best, tile, least, repetitions)
        if verdict.admitted and best != table:
            verdict = judge(bench, table, tile, least, repetitions)
        log(verdict)
        if verdict.admitted:
            best, found = tile, verdict
            waiting = [*neighbours(tile), *waiting]
    return found


def store(path: Path, device: str, key: str, verdict: Verdict, about: dict[str, Any]) -> None:
    """Adds an admitted tile to the file, whose other tiles stay if they can be trusted; written whole or not at all."""
    try:
        _tuned.read(path, device)
        content = json.loads(path.read_text())
    except ValueError:
        content = {**_tuned.identity(device), "tiles": {}}
    entry = {"tile": verdict.tile._asdict(), "speedups": verdict.speedups, "error": verdict.error, **about}
    content["tiles"][key] = entry
    _tuned.parse(json.loads(json.dumps(content)), _tuned.identity(device))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(draft, path)


class OnDevice:
    """A bench on the device at hand; `implementation` is "triton" but in tests."""

    def __init__(self, cases: Sequence[Case], implementation: str = "triton"):
        self.cases, self.implementation = tuple(cases), implementation
        self.estimators = tuple(case.estimator for case in cases)
        self.view = self._lowered(None, 0)[1]
        # a program and its inputs are kept for the tiles at hand, not for all that were tried
        self._program = functools.lru_cache(maxsize=8)(lambda tile, which: self._lowered(tile, which)[0].compile())
        self._inputs = functools.lru_cache(maxsize=len(cases))(self._draw)

    def _lowered(self, tile: Tile | None, which: int) -> tuple[Any, Any]:
        case = self.cases[which]
        function = jax.jit(lambda args: ours(case.estimator, args, case.time_axis, self.implementation))
        with _tuned.forcing(tile) as forced:
            lowered = function.lower(jax.eval_shape(lambda: _data.draw(case)))
        if not forced.seen:
            raise RuntimeError(
                "rltriton_jax._backends._tiles.tile_for did not ask for tuned tiles; nothing can be tuned"
            )
        return lowered, forced.seen[0]

    def _draw(self, which: int, repetition: int) -> tuple[list[Any], Gate]:
        args = _data.draw(self.cases[which], seed=100 + repetition)
        gate = Gate(self.cases[which], args)
        return _timing.rotated([(args,)], _timing.rotation(_data.moved(self.cases[which], args))), gate

    def table(self) -> Tile:
        with _tuned.forcing(None):
            return _tiles.tile_for(self.view)

    def error(self, tile: Tile, which: int, repetition: int) -> float:
        sets, gate = self._inputs(which, repetition)
        return gate.error(self._program(tile, which)(*sets[0])) / TOLERANCE[self.cases[which].dtype]

    def seconds(self, tile: Tile, which: int, repetition: int) -> float:
        sets, _ = self._inputs(which, repetition)
        wall = _timing.call_time(self._program(tile, which), sets, seconds=0.02, rounds=3)
        device, _ = _timing.device_time(self._program(tile, which), sets, wall.median / 1e6, 1 << 20)
        return (device or wall).median / 1e6


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m rltriton_jax.tune", description=__doc__)
    p.add_argument("--shape", type=_cli.shape, action="append", required=True, metavar="TxB", help="time x columns")
    p.add_argument("--layout", choices=LAYOUTS, action="append", help="default: time and batch")
    p.add_argument("--inner", type=int, default=4, help="the inner size of --layout inner")
    p.add_argument(
        "--estimator",
        choices=ESTIMATORS,
        action="append",
        help="the first must gain, others must not lose (default: gae)",
    )
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    p.add_argument("--least", type=float, default=LEAST, help=f"the speed-up a tile must show every time ({LEAST})")
    p.add_argument("--repetitions", type=int, default=_tuned.REPETITIONS, help="how many times (3, and no fewer)")
    p.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help="for each shape and layout (300)")
    p.add_argument("--dry-run", action="store_true", help="write the log, not the tiles")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    if args.repetitions < _tuned.REPETITIONS or args.least <= 1.0:
        p.error(f"--repetitions must be at least {_tuned.REPETITIONS} and --least above 1")
    if jax.default_backend() != "gpu":
        p.error(
            "tiles are those of the Triton kernels, and JAX sees no GPU here; run this where jax.devices() lists one"
        )
    device = jax.devices()[0].device_kind
    path = _tuned.path_for(device)
    if path is None:
        p.error(f"{_tuned.VARIABLE} is off; unset it, or name the file to write")
    for length, columns in args.shape:
        for layout in args.layout or ["time", "batch"]:
            inner = args.inner if layout == "inner" else 1
            if columns % inner:
                p.error(f"--inner {inner} does not divide the columns of --shape")
            names = dict.fromkeys(args.estimator or ["gae"])
            tune([Case(name, layout, length, columns, inner, args.dtype) for name in names], device, path, args)
    return 0


def tune(cases: Sequence[Case], device: str, path: Path, args: argparse.Namespace) -> Verdict | None:
    """Searches for one shape and layout, stores what was admitted and prints every verdict."""
    bench = OnDevice(cases)
    key, table = _tuned.key_of(bench.view), bench.table()
    lines: list[tuple[str, ...]] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".log.jsonl").open("a") as stream:

        def log(verdict: Verdict) -> None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            about = {"time": now, "key": key, "cases": [case.label for case in cases], "table": table._asdict()}
            record = {**_tuned.identity(device), **about, **dataclasses.asdict(verdict), "tile": verdict.tile._asdict()}
            stream.write(json.dumps(record) + "\n")
            stream.flush()
            gains = " ".join(f"{gain:.3f}" for gain in verdict.speedups)
            lines.append((" ".join(map(str, verdict.tile)), gains, verdict.reason))
            print(*lines[-1], sep=" | ", file=sys.stderr)

        end = time.monotonic() + args.budget
        found = search(bench, table, log, lambda: time.monotonic() > end, args.least, args.repetitions)
    if found is not None and not args.dry_run:
        about = {"shape": list(cases[0].shape), "estimators": list(bench.estimators), "dtype": cases[0].dtype}
        store(path, device, key, found, about)
    tuned = " ".join(map(str, found.tile)) if found else "none better"
    title = f"{cases[0].label}: table {' '.join(map(str, table))}, tuned {tuned}"
    _show.table(title, ("tile: " + " ".join(Tile._fields), "speed-ups", "verdict"), lines)
    return found


if __name__ == "__main__":
    sys.exit(main())
