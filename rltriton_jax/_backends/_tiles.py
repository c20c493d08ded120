"""The table of tiles: how many runs, steps and columns a program holds, by layout and shape."""

from __future__ import annotations

from typing import NamedTuple

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


def tile_for(view: View) -> Tile:
    """The tile measured to be fastest near this shape."""
    length, columns = view.length, view.columns
    if view.time_is_last:
        runs = min(64, max(8, _power_of_2(-(-length // 4))))
        block = max(1, 64 // runs)
        return Tile(runs, 4, block, 1, True)
    block = min(32, max(8, _power_of_2(view.dims[-1])))
    if columns >= 65536:
        return Tile(4, min(8, _power_of_2(length)), max(block, 64), 2, False)
    runs = min(16, max(2, _power_of_2(-(-length // 8))))
    return Tile(runs, 8, block, max(1, min(8, runs * block // 32 // 2)), False)
