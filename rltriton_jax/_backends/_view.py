"""One shape view: a walk's operands as columns of time, by strides alone: no layout costs a transpose or a copy."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._walk import Walk, accumulator, batch_shape, out_shape
from ._formula import printed


class View(NamedTuple):
    """`dims` are the axes of the columns, the last varying fastest. Strides count elements, 0 on a broadcast axis."""

    length: int
    dims: tuple[int, ...]
    in_time: tuple[int, ...]
    in_columns: tuple[tuple[int, ...], ...]
    out_time: tuple[int, ...]
    out_columns: tuple[tuple[int, ...], ...]
    time_is_last: bool
    big: bool
    numbers: int  # how many operands a step reads, but for flags
    narrow: bool  # the rows hold numbers of 2 bytes
    skips: bool
    mirrored: bool  # an adjoint
    once: bool  # time may be read once where it is cut: it is whole, and computed in 4 bytes

    @property
    def columns(self) -> int:
        return math.prod(self.dims)


def _strides(shape, full, axis):
    """Row-major strides of an array of `shape`, read as one of shape `full`."""
    strides, step = [], 1
    for i in reversed(range(len(shape))):
        strides.append(0 if i != axis and shape[i] == 1 and full[i] != 1 else step)
        step *= shape[i]
    return strides[::-1]


def view(walk: Walk, shapes, axis: int, dtypes) -> View:
    """The view of operands of `shapes` and `dtypes`, with time at `axis`."""
    full = batch_shape(walk, shapes, axis)
    outs = [out_shape(kind, full, axis) for kind in walk.all_kinds]
    strides = [_strides(shape, full, axis) for shape in (*shapes, *outs)]
    # the strides of the outputs follow those of the operands
    time = [0 if name in walk.fixed else s[axis] for name, s in zip(walk.names, strides)]
    time += [s[axis] for s in strides[len(shapes) :]]
    dims: list[int] = []
    columns: list[list[int]] = [[] for _ in strides]
    for i in (j for j in range(len(full)) if j != axis and full[j] != 1):
        crosses = i > axis and all(full[j] == 1 for j in range(axis + 1, i))  # the first axis inside of time
        if dims and not crosses and all(c[-1] == s[i] * full[i] for c, s in zip(columns, strides, strict=True)):
            dims[-1] *= full[i]
            for c, s in zip(columns, strides, strict=True):
                c[-1] = s[i]
        else:
            dims.append(full[i])
            for c, s in zip(columns, strides, strict=True):
                c.append(s[i])
    if not dims:
        dims, columns = [1], [[0] for _ in strides]
    n = len(shapes)
    computed_in = accumulator(walk, dtypes)
    read = printed(walk, computed_in).reads.difference(walk.fixed)
    return View(
        length=full[axis],
        dims=tuple(dims),
        in_time=tuple(time[:n]),
        in_columns=tuple(map(tuple, columns[:n])),
        out_time=tuple(time[n:]),
        out_columns=tuple(map(tuple, columns[n:])),
        time_is_last=all(size == 1 for size in full[axis + 1 :]),
        big=max(math.prod(shape) for shape in (*shapes, *outs)) >= 2**31,
        numbers=len(read.difference(walk.flags)),
        narrow=any(d.itemsize == 2 for name, d in zip(walk.names, dtypes, strict=True) if name in read),
        skips=walk.skips,
        mirrored=walk.mirrored,
        once=walk.over is None and computed_in.itemsize == 4,
    )
