"""The table of tiles: how many runs, steps and columns a program holds, by layout and shape."""

from __future__ import annotations

from typing import NamedTuple

from . import _tuned
from ._view import View


class Tile(NamedTuple):
    """`runs` of `steps` beside each other in time, over `columns`, by `warps` warps; `rows`: steps are adjacent in memory."""

    runs: int
    steps: int
    columns: int
    warps: int
    rows: bool
    segments: int = 1  # time is cut into so many, a program each
    early: bool = False  # load a chunk while the one before it is computed


def _power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


_FULL = 132  # multiprocessors to keep busy: an H200's, and about those of its neighbours
_MANY = 5  # numbers a step: adjoints of V-trace and its like read so many, and spill registers where others do not


def tile_for(view: View) -> Tile:
    """The tile measured to be fastest near this shape, or what `rltriton_jax.tune` found on this GPU."""
    return _tuned.override_for(view) or (_rows(view) if view.time_is_last else _columns(view))


def _segments(programs: int, least: int, length: int, chunk: int, most: int) -> int:
    """Into how many segments to cut time so that the GPU is full; 1 where `least` programs fill it already.

    Segments read twice, which is at best 0.65 of copy speed; one pass by enough programs reaches 0.8 and more.
    """
    if programs >= least:
        return 1
    return max(1, min(-(-length // chunk), -(-32 * _FULL // programs), most))


def _rows(view: View) -> Tile:
    """Steps adjacent in memory: a thread loads 4 at once, or 16 bytes of narrow ones; short series share a program."""
    thin = view.numbers == 1 and view.length >= 1024  # a step reads so little that a thread must ask for more of them
    steps = 8 if thin or view.narrow and view.length >= 256 else 4
    runs = min(128, max(8, _power_of_2(-(-view.length // steps))))
    if runs < 128:
        columns, warps = {64: (2, 4 if steps == 8 else 2), 32: (2, 1)}.get(runs, (128 // runs, 2))
        return Tile(runs, steps, columns, warps, True)
    segments = _segments(view.columns, 2 * _FULL, view.length, 8 * runs, 8 * _FULL)
    if segments > 1:
        return Tile(runs, 8, 1, 4, True, segments, view.length > 8 * runs * segments)
    if thin and view.columns >= 4 * _FULL:
        return Tile(64, 16, 1, 2, True) if view.skips else Tile(64, 8, 1, 2, True, 1, True)
    if view.numbers >= _MANY:
        return Tile(64, 4, 1, 2, True, 1, True)
    few_programs = view.columns < 2048 and view.length >= 4096  # too few to hide the latency of memory
    if few_programs or view.skips:
        steps = 8
    return Tile(runs, steps, 1, 4, True, 1, view.length > steps * runs)


def _columns(view: View) -> Tile:
    """Columns adjacent in memory, 32 or more to a program; the fewer they are, the more of time a program holds at once.

    The fewer numbers a step reads, the more steps a thread must ask for; the more it reads, the fewer its registers hold.
    """
    inner = view.dims[-1]
    if len(view.dims) > 1 and inner < 32:
        return _few_inside(inner, view.length)
    width = min(32, _power_of_2(view.columns))
    warps = max(1, width // 4)
    programs = -(-view.columns // width)
    if programs >= 1024 and width == 32:
        return _many_columns(view)
    segments = _segments(programs, _FULL - 4, view.length, 64, 256)
    if segments > 1:
        return Tile(8, 8, width, max(1, width // 8), False, segments)
    if view.length <= 16:
        return Tile(4, 4, width, max(1, width // 8), False)
    if view.length <= 128:
        runs = min(16, _power_of_2(-(-view.length // 8)))
        return Tile(runs, 8, width, max(1, runs * width // (64 if view.numbers < _MANY else 32)), False)
    if programs >= 384 or view.numbers >= _MANY:
        return Tile(4, 8, width, max(1, width // 8), False, 1, True)
    if view.numbers == 1:
        return Tile(8, 16, width, warps, False, 1, True)
    if view.numbers == 2:
        return Tile(8, 8, width, warps, False, 1, True)
    return Tile(4, 16, width, max(1, warps // 2), False, 1, True)


def _many_columns(view: View) -> Tile:
    """Enough of them that small programs fill the GPU."""
    if view.numbers == 1:
        return Tile(4, 4, 64, 4, False, 1, view.length > 16)
    if view.skips:
        return Tile(2, 4, 64, 2, False, 1, view.length > 8)
    if view.narrow:
        return Tile(4, 4, 64, 4, False)
    if view.numbers == 2:
        return Tile(2, 4, 64, 4, False)
    return Tile(2, 4, 128, 8, False) if view.numbers < _MANY else Tile(2, 4, 64, 4, False, 1, view.length > 8)


def _few_inside(inner: int, length: int) -> Tile:
    """A few columns side by side, then more steps: tiles that cover whole stretches of memory."""
    if inner <= 4 and length > 128:
        return Tile(32, 4, 4, 4, False, 1, True)
    if inner <= 4:
        runs = min(64, max(8, _power_of_2(-(-length // 2))))
        return Tile(runs, 2, 8, max(1, runs // 8), False)
    width = _power_of_2(inner)
    runs = min(16, max(4, _power_of_2(-(-length // 8))))
    return Tile(runs, 8, width, max(1, runs * width // 64), False)
