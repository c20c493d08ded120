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


def tile_for(view: View) -> Tile:
    """The tile measured to be fastest near this shape, or what `rltriton_jax.tune` found on this GPU."""
    return _tuned.override_for(view) or (_rows(view) if view.time_is_last else _columns(view))


def _segments(programs: int, length: int, chunk: int, most: int) -> int:
    """Into how many segments to cut time so that the GPU is full, 1 where its columns fill it already."""
    if programs >= 2 * _FULL:
        return 1  # two passes read twice: below 0.65 of copy, where one pass with so many programs reaches 0.8
    return max(1, min(-(-length // chunk), -(-16 * _FULL // programs), most))


def _rows(view: View) -> Tile:
    """Steps adjacent in memory: a thread loads 4 of them at once; short series share a program, long ones prefetch."""
    runs = min(128, max(8, _power_of_2(-(-view.length // 4))))
    if runs >= 128:
        columns, warps = 1, 4
    elif runs == 64:
        columns, warps = 2, 2
    elif runs == 32:
        columns, warps = 2, 1
    else:
        columns, warps = 128 // runs, 2
    segments = _segments(-(-view.columns // columns), view.length, 4 * runs, 1024)
    return Tile(runs, 4, columns, warps, True, segments, view.length > 4 * runs * segments)


def _columns(view: View) -> Tile:
    """Columns adjacent in memory, 32 or 64 to a program; the fewer they are, the more of time a program holds at once."""
    width = min(32, _power_of_2(view.columns))
    programs = -(-view.columns // width)
    if programs >= 1024 and width == 32:
        return Tile(2, 4, 64, 4, False)
    runs = min(16, _power_of_2(-(-view.length // 8)))
    segments = _segments(programs, view.length, 64, 256)
    if segments > 1:
        return Tile(8, 8, width, max(1, width // 8), False, segments)
    if view.length <= 16:
        return Tile(4, 4, width, max(1, width // 8), False)
    if view.length <= 128:
        return Tile(runs, 8, width, max(1, runs * width // 64), False)
    return Tile(8, 8, width, max(1, width // 8), False, 1, True)
