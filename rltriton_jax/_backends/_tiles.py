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
_MANY = 5  # numbers a step: adjoints of V-trace and its like read so many, and fill the registers


def tile_for(view: View) -> Tile:
    """The tile measured to be fastest near this shape, or what `rltriton_jax.tune` found on this GPU."""
    return _tuned.override_for(view) or (_rows(view) if view.time_is_last else _columns(view))


def _heavy(view: View) -> bool:
    """Whether registers are what a program runs out of: it reads many numbers, or the rows beside them too."""
    return view.numbers >= _MANY or view.mirrored and view.numbers > 2


def _segments(programs: int, least: int, length: int, chunk: int, most: int) -> int:
    """Into how many segments to cut time so that the GPU is full; 1 where `least` programs fill it already.

    Segments read twice, which is at best 0.65 of copy speed; one pass by enough programs reaches 0.8 and more.
    """
    if programs >= least:
        return 1
    return max(1, min(-(-length // chunk), -(-32 * _FULL // programs), most))


def _rows(view: View) -> Tile:
    """Steps adjacent in memory: a thread loads 4 at once, or 16 bytes of narrow ones; short series share a program.

    A series that fits one program's registers is held there whole: no chunk waits for another.
    """
    length, numbers = view.length, view.numbers
    if length <= 512:
        steps = 8 if view.narrow and length >= 256 else 4
        runs = max(8, _power_of_2(-(-length // steps)))
        if runs == 128:
            return Tile(128, 4, 1, 4, True) if numbers < _MANY else Tile(64, 4, 1, 2, True, 1, True)
        columns, warps = {64: (2, 4 if steps == 8 else 2), 32: (2, 1)}.get(runs, (128 // runs, 2))
        return Tile(runs, steps, columns, warps, True)
    segments = _segments(view.columns, 2 * _FULL, length, 1024, 8 * _FULL)
    if segments > 1:
        return Tile(128, 8, 1, 4, True, segments)
    if numbers >= _MANY:
        return Tile(256, 4, 1, 8, True) if length <= 1024 else Tile(64, 4, 1, 2, True, 1, True)
    many = view.columns >= 2048  # enough for small programs to fill the GPU
    if many and _heavy(view):
        return Tile(32, 8, 1, 1, True, 1, True)
    if length <= 1024:
        return Tile(128, 8, 1, 4, True)
    if many and numbers > 2:
        return Tile(64, 8, 1, 2, True, 1, True)
    if view.skips and 1024 <= view.columns < 4096:
        return Tile(32, 8, 1, 1, True, 1, True)
    if length <= 2048 and numbers <= 2:
        return Tile(256, 8, 1, 8, True)
    if length <= 4096 <= view.columns:
        return Tile(256, 16, 1, 8, True)
    if numbers == 1 and view.columns >= 4 * _FULL:  # a step reads so little that a thread must ask for more of them
        return Tile(64, 16, 1, 2, True) if view.skips else Tile(64, 8, 1, 2, True, 1, True)
    return Tile(128, 8, 1, 4, True, 1, True)


def _columns(view: View) -> Tile:
    """Columns adjacent in memory, 32 or more to a program; the fewer they are, the more of time a program holds at once.

    The fewer numbers a step reads, the more steps a thread must ask for; the more it reads, the fewer its registers hold.
    Where 32 to a program leave multiprocessors idle, 16 or 8 fill more of them.
    """
    inner, length, numbers = view.dims[-1], view.length, view.numbers
    if len(view.dims) > 1 and inner < 32:
        return _few_inside(inner, length)
    width = min(32, _power_of_2(view.columns))
    programs = -(-view.columns // width)
    if programs >= 1024 and width == 32:
        return _many_columns(view)
    few = programs <= _FULL - 4
    if length <= 256 and (length <= 128 or few):
        steps = 4 if length <= 64 else 8
        runs = max(4, _power_of_2(-(-length // steps)))
        width = min(width, 16) if few or numbers > 2 else width
        return Tile(runs, steps, width, max(1, min(runs * width // 32, 8 if length <= 128 else 16)), False)
    if length <= 512 and few and not _heavy(view):
        width = min(width, 8 if programs <= 32 else 16)
        return Tile(16, 8, width, max(1, width // 2), False, 1, True)
    segments = _segments(programs, _FULL - 4, length, 64, 256)
    if segments > 1:
        return Tile(8, 8, width, max(1, width // 8), False, segments)
    if numbers >= _MANY:
        return Tile(8, 4, width, 8 if numbers < 7 else 4, False, 1, True)  # of 7, Retrace's, 8 warps were slower
    if numbers == 1 and not view.skips:
        return Tile(4, 16, 32, 4, False, 1, True) if programs >= 384 else Tile(8, 16, 16, 4, False, 1, True)
    if programs >= 384 or _heavy(view):  # 16 steps are faster, by 10 to 20 %, and compile in 10 to 15 s
        return Tile(4, 8, width, 4, False, 1, True)
    if few and numbers == 2:
        return Tile(16, 8, 16, 8, False, 1, True)
    return Tile(8, 8, width, 8, False, 1, True)


def _many_columns(view: View) -> Tile:
    """Enough of them that small programs fill the GPU."""
    if view.numbers == 1:
        return Tile(4, 4, 64, 4, False, 1, view.length > 16)
    if view.narrow and not view.skips:
        return Tile(4, 4, 64, 4, False)
    if _heavy(view) and view.numbers < _MANY:
        return Tile(2, 4, 128, 8, False)
    wide = view.numbers < _MANY and not view.skips
    return Tile(2, 4, 128 if wide else 64, 4, False, 1, view.length > 8)


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
