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
    once: bool = False  # where time is cut, read it once: `segments` programs take its chunks in order


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


def _segments(view: View, programs: int, wanted: int, chunk: int) -> int:
    """Into how many segments to cut time for about `wanted` programs in all."""
    return max(1, min(-(-view.length // chunk), wanted // programs))


def _rows(view: View) -> Tile:
    """Steps adjacent in memory: a thread loads 4 at once, or 16 bytes of narrow ones; short series share a program.

    Segments are read twice where no episode ends, 0.65 of copy speed; a program for each series, if enough, reaches 0.9.
    """
    length, numbers = view.length, view.numbers
    if length <= 512:
        steps = 8 if view.narrow and length >= 256 else 4
        runs = max(8, _power_of_2(-(-length // steps)))
        if runs == 128:
            return Tile(128, 4, 1, 4, True) if numbers < _MANY else Tile(64, 4, 1, 2, True, 1, True)
        columns, warps = {64: (2, 4 if steps == 8 else 2), 32: (1 if numbers > 2 else 2, 1)}.get(runs, (128 // runs, 2))
        return Tile(runs, steps, columns, warps, True)
    whole = _whole(view)
    if whole is not None:
        return whole
    if length > 8192 and view.columns < 3 * _FULL and view.once:
        return _once(view)
    if view.columns <= _FULL or view.columns < 2 * _FULL and length > 8192:
        # each is read twice from its end to where nothing earlier counts, and all before a program's own are composed
        if view.columns < 32 or view.mirrored or length <= 8192:
            segments = _segments(view, view.columns, 4 * _FULL, 1024)
            return Tile(128, 8, 1, 4, True, segments, segments > 1)
        # a warp each: where all is read twice, that is faster by half; but there are more of them to compose
        segments = min(64, _segments(view, view.columns, 16 * _FULL, 1024))
        return Tile(32, 8, 1, 1, True, segments, segments > 1)
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
    if length <= 4096 <= view.columns:
        return Tile(256, 16, 1, 8, True)
    if numbers == 1 and view.columns >= 4 * _FULL:  # a step reads so little that a thread must ask for more of them
        return Tile(64, 16, 1, 2, True) if view.skips else Tile(64, 8, 1, 2, True, 1, True)
    return Tile(64, 8, 1, 2, True, 1, True) if _heavy(view) else Tile(128, 8, 1, 4, True, 1, True)


def _whole(view: View) -> Tile | None:
    """A tile that holds all of a series, where that beats smaller ones: nothing waits, and few series need no cut."""
    length, columns, light = view.length, view.columns, view.numbers <= 2
    alone, few = columns <= _FULL, columns < 2 * _FULL  # alone: a multiprocessor gets one program
    if length <= 1024:
        return None
    if length <= 2048:
        if _heavy(view):
            return Tile(512, 4, 1, 16, True) if columns < 1024 else None
        return Tile(256, 8, 1, 8, True) if few or light and not view.skips else None
    if length <= 4096:
        return Tile(512, 8, 1, 16, True) if alone or light and not view.skips and columns < 4096 else None
    if length <= 8192 and alone:  # half of it at a time where a thread's share of registers is too small
        return Tile(512, 8, 1, 16, True) if view.numbers >= _MANY else Tile(1024, 8, 1, 32, True)
    if not (few and light) or view.mirrored:
        return None
    if length <= 8192:
        return Tile(512, 8, 1, 16, True)
    if length <= 16384 and columns >= 96 and not view.skips and (alone or not view.once):
        return Tile(512, 16, 1, 16, True, 1, True)
    return None


def _once(view: View) -> Tile:
    """Few long series, read once: as many programs as a GPU holds, which wait for each other.

    A program waits for the slowest of those before it in its series. Where they are few, a warp with small chunks waits
    least; where they are many, large chunks tell less. Registers for an early chunk would leave fewer programs, of steps
    that read much.
    """
    columns, numbers = view.columns, view.numbers
    early = numbers <= 3 and not _heavy(view) and not (view.mirrored and columns < 48)
    if columns >= 48 or columns >= 12 and numbers > 2:
        return Tile(32, 16, 1, 1, True, max(1, 20 * _FULL // columns), early, True)
    return Tile(128, 16, 1, 4, True, max(1, 4 * _FULL // columns), early, True)


def _columns(view: View) -> Tile:
    """Columns adjacent in memory; the fewer they are, the fewer to a program and the more of time it holds at once.

    The fewer numbers a step reads, the more steps a thread must ask for; the more it reads, the fewer its registers hold.
    """
    inner, length, numbers = view.dims[-1], view.length, view.numbers
    if len(view.dims) > 1 and inner < 32:
        return _few_inside(view, inner)
    width = min(32, _power_of_2(view.columns))
    programs = -(-view.columns // width)
    if programs >= 1024 and width == 32:
        return _many_columns(view)
    if length <= 128:
        return _short(view, width, programs)
    # clearing the words by which programs tell each other costs 2 us
    if programs <= 64 and length >= (2048 if programs <= 32 else 4096) and view.once and not view.mirrored:
        if numbers <= 2 or width == 32 and numbers < _MANY:
            return _columns_once(width, programs, numbers)
    if programs <= 16 and length > max(512, 128 * programs):
        return _cut(view, width, programs)
    if programs < _FULL - 4:
        return _few_columns(view, width, programs)
    if numbers >= _MANY:
        return Tile(4, 8, 64, 8, False, 1, True) if programs >= 192 else Tile(4, 8, 32, 4, False, 1, True)
    if numbers == 1 and not view.skips:
        return Tile(4, 16, 32, 4, False, 1, True) if programs >= 384 else Tile(8, 16, 16, 4, False, 1, True)
    if view.narrow and numbers <= 2 and not view.skips:  # two columns a thread, so that it loads 4 bytes
        if length <= 512 and programs < 192:
            return Tile(16, 16, 32, 8, False, 1, True)
        return Tile(8, 8, 64, 8, False, 1, True) if programs >= 384 else Tile(16, 8, 64, 16, False, 1, True)
    if numbers == 4 and not _heavy(view):  # Retrace: 8 steps of all that it reads leave a multiprocessor one program
        return Tile(8, 4, 32, 8, False, 1, True) if programs >= 192 else Tile(16, 8, 32, 16, False, 1, True)
    if programs < 192:  # about one a multiprocessor, which must ask for more at once
        return Tile(8, 16, 32, 8, False, 1, True)
    if programs >= 384:  # three and more, smaller ones
        return Tile(4, 8, 32, 4, False, 1, True)
    return Tile(4, 16, 32, 4, False, 1, True) if _heavy(view) or view.skips else Tile(8, 8, 32, 8, False, 1, True)


def _short(view: View, width: int, programs: int) -> Tile:
    """All steps in one chunk."""
    length, numbers = view.length, view.numbers
    heavy = _heavy(view) and numbers < _MANY
    if length > 64 and numbers > 2 and (heavy or programs < 128):
        return Tile(32, 4, min(width, 16), min(width, 16), False)
    if programs >= 128:
        if length <= 16 and not heavy:
            return Tile(2, 8, width, 2, False)
        if 32 < length <= 64 and numbers <= 2:
            return Tile(8, 8, width, 8, False)
        if length > 64 and numbers > 2:
            return Tile(16, 8, 32, 16, False)
    steps = 4 if length <= 64 else 8
    runs = max(4, _power_of_2(-(-length // steps)))
    width = min(width, 16) if programs <= 128 or numbers > 2 else width
    return Tile(runs, steps, width, max(1, min(runs * width // 32, 8)), False)


def _columns_once(width: int, programs: int, numbers: int) -> Tile:
    """Few columns, read once: chunks so long that one knows its state from few before it, 4 programs a multiprocessor."""
    of_each = 4 * _FULL // programs
    if numbers > 2:  # more steps of all that V-trace and Retrace read would not fit the registers
        return Tile(8, 8, width, 4, False, of_each, True, True)
    return Tile(max(min(32, 256 // width), 128 // width), 16, width, 4, False, of_each, True, True)


def _few_columns(view: View, width: int, programs: int) -> Tile:
    """Programs of 32 columns would leave multiprocessors idle: the fewer columns, the fewer to a program, of more steps."""
    numbers = view.numbers
    if programs < 16 or programs <= 32 and numbers < _MANY:
        width = min(8, width)
        steps = 8 if numbers >= _MANY or _heavy(view) and view.length <= 512 else 16
        return Tile(32, steps, width, width, False, 1, True)
    if numbers >= _MANY:
        return Tile(32, 4, 16, 16, False, 1, True)
    if _heavy(view) or numbers > 3:
        return Tile(32, 8, 16, 16, False, 1, True)
    if view.length <= 512 or numbers > 2:
        return Tile(32, 8, 8, 8, False, 1, True)
    return Tile(16, 16, 16, 8, False, 1, True)


def _cut(view: View, width: int, programs: int) -> Tile:
    """So few columns that time is cut, so that a multiprocessor gets two programs."""
    runs = 256 // width
    segments = _segments(view, programs, 2 * _FULL, 128)
    return Tile(runs, 16 if runs == 8 and not _heavy(view) else 8, width, 8, False, segments, True)


def _many_columns(view: View) -> Tile:
    """Enough of them that small programs fill the GPU."""
    numbers = view.numbers
    if numbers == 1:
        return Tile(4, 4, 64, 4, False, 1, view.length > 16)
    if view.narrow and not view.skips:
        return Tile(2, 8, 128, 4, False, 1, True)
    if numbers >= _MANY:
        return Tile(1, 4, 128, 4, False, 1, True)
    if view.length <= 64:
        return Tile(2, 8, 64, 4, False, 1, True)
    if _heavy(view):
        return Tile(1, 8, 128, 4, False, 1, True) if view.length <= 512 else Tile(2, 8, 64, 4, False, 1, True)
    # one run a program: nothing is exchanged between warps
    return Tile(2, 4, 64, 4, False, 1, True) if view.skips else Tile(1, 8, 128, 2, False, 1, True)


def _few_inside(view: View, inner: int) -> Tile:
    """A few columns side by side, then more steps: tiles that cover whole stretches of memory."""
    length = view.length
    if inner <= 4 and length > 128:
        return Tile(32, 4, 4, 4, False, 1, True) if view.numbers <= 2 else Tile(16, 4, 4, 2, False, 1, True)
    if inner <= 4:
        runs = min(64, max(8, _power_of_2(-(-length // 2))))
        return Tile(runs, 2, 8, max(1, runs // 8), False)
    width = _power_of_2(inner)
    runs = min(16, max(4, _power_of_2(-(-length // 8))))
    return Tile(runs, 8, width, max(1, runs * width // 64), False)
