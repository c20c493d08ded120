"""Pieces of the scan: the maps it composes, and how tiles come from and go to memory.

A tile is [COLS, W, R] where steps lie side by side in memory, [W, COLS, R] where columns do: columns, runs, and the steps of
a run in the order of time. An axis on which it does not vary may have size 1. R steps are held by one thread.
"""

import triton
import triton.language as tl


@triton.jit
def affine(a, x, b):
    """a * x + b; x is not read where a is 0."""
    return tl.where(a == 0, b, a * x + b)


@triton.jit
def chain(a, b):
    """The coefficient of two maps in a row, of which the second may be a cut."""
    return tl.where(b == 0, b, a * b)


@triton.jit
def follow(a1, y1, a2, y2):
    """Map 1, then map 2."""
    return chain(a1, a2), affine(a2, y1, y2)


@triton.jit
def compose(a1, y1, p1, q1, a2, y2, p2, q2):
    """Run 1, then run 2: the whole map (a, y), and (p, q), the map up to the last run of the two."""
    return chain(a1, a2), affine(a2, y1, y2), chain(a1, p2), affine(p2, y1, q2)


@triton.jit
def latest(l1, e1, l2, e2):
    """Run 1, then run 2: the last live position, and the last before the last run of the two."""
    return tl.maximum(l1, l2), tl.maximum(l1, e2)


@triton.jit
def expand(x, SIDE: tl.constexpr):
    """A vector over columns as a tile."""
    if SIDE == 0:
        return x[:, None, None]
    else:
        return x[None, :, None]


@triton.jit
def numbered(W: tl.constexpr, SIDE: tl.constexpr):
    """The numbers of W runs, as a tile."""
    if SIDE == 0:
        return tl.arange(0, W)[None, :, None]
    else:
        return tl.arange(0, W)[:, None, None]


@triton.jit
def last_of(x, w, W: tl.constexpr, AXIS: tl.constexpr):
    """The last of W runs."""
    return tl.sum(tl.where(w == W - 1, x, 0.0), AXIS, keep_dims=True)


@triton.jit
def spread(x, zero, R: tl.constexpr):
    """x over R steps of a tile of the shape and type of `zero`, which has one."""
    every = tl.full((zero.shape[0], zero.shape[1], R), 1, tl.int1)
    return tl.where(every, x, tl.zeros(every.shape, zero.dtype))


@triton.jit
def time_of(s, r, TOP: tl.constexpr, REVERSE: tl.constexpr):
    """The time at step r of the runs that begin at positions s."""
    if REVERSE:
        return (TOP - r) - s
    else:
        return s + r


@triton.jit
def earliest(s, TOP: tl.constexpr, R: tl.constexpr, REVERSE: tl.constexpr):
    """The earliest time of the runs of R steps that begin at positions s."""
    return time_of(s, R - 1 if REVERSE else 0, TOP, REVERSE)


@triton.jit
def onwards(t, R: tl.constexpr):
    """The times t, t + 1, ..., t + R - 1."""
    return t + tl.arange(0, R)[None, None, :].to(t.dtype)


@triton.jit
def address(ptr, base, t, STRIDE: tl.constexpr, R: tl.constexpr, SIDE: tl.constexpr):
    """The pointers to the rows of R times from t on: steps from one pointer, which the loads take as they are."""
    at = ptr + (base + t * STRIDE)
    if R > 1:
        at = at + tl.arange(0, R)[None, None, :].to(t.dtype) * STRIDE
    # a thread gets SIDE columns, which leaves it all R steps; Triton would ask for 16 bytes of columns
    if SIDE == 1:  # columns before runs, as (1, 2, 1) orders them, and no two loaded at once, which nothing divides
        at = tl.max_contiguous(tl.multiple_of(at, (1, 1, 1)), (1, 2, 1))
    elif SIDE > 1:
        at = tl.max_contiguous(at, (1, SIDE, 1))
    return at


@triton.jit
def fetch(at, inside, FLAG: tl.constexpr, ACC: tl.constexpr):
    """What the pointers hold, in the type to compute in; `inside` is None where every pointer is good."""
    if inside is None:
        x = tl.load(at)
    else:
        x = tl.load(at, mask=inside, other=0)
    if FLAG:
        return x != 0
    else:
        return x.to(ACC)


@triton.jit
def fetch_where(at, inside, ok, EVEN: tl.constexpr, FLAG: tl.constexpr, ACC: tl.constexpr):
    """`fetch` of what is `inside` (EVEN: all of it), and nothing unless `ok`, which may be None."""
    if EVEN:
        if ok is None:
            return fetch(at, None, FLAG, ACC)
        else:
            return fetch(at, tl.full(inside.shape, 1, tl.int1) & ok, FLAG, ACC)
    elif ok is None:
        return fetch(at, inside, FLAG, ACC)
    else:
        return fetch(at, inside & ok, FLAG, ACC)


@triton.jit
def unpack(x, R: tl.constexpr, REVERSE: tl.constexpr):
    """The R steps of a tile in walking order, a tile each."""
    if R == 1:
        return (x,)
    else:
        even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], R // 2, 2)))
        evens = unpack(even, R // 2, REVERSE)
        odds = unpack(odd, R // 2, REVERSE)
        out = ()
        for k in tl.static_range(R // 2):
            out = out + ((odds[k], evens[k]) if REVERSE else (evens[k], odds[k]))
        return out


@triton.jit
def pack(xs, R: tl.constexpr, REVERSE: tl.constexpr):
    """`unpack`, undone."""
    if R == 1:
        return xs[0]
    else:  # slices: what is passed has one type for every half of a size, which Triton compiles once
        first = pack(xs[0::2], R // 2, REVERSE)
        second = pack(xs[1::2], R // 2, REVERSE)
        both = tl.join(second, first) if REVERSE else tl.join(first, second)
        return tl.reshape(both, (first.shape[0], first.shape[1], R))
