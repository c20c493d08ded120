"""Pieces of the scan: the maps it composes, where a program's columns lie, and how tiles come from and go to memory."""

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
def expand(x, ROWS: tl.constexpr):
    """A vector over columns as a tile of one step."""
    if ROWS:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def last_of(x, w, W: tl.constexpr, AXIS: tl.constexpr):
    """The last of W runs, as a tile of one step."""
    return tl.sum(tl.where(w == W - 1, x, 0.0), AXIS, keep_dims=True)


@triton.jit
def column(rest, i, DIMS: tl.constexpr, COLUMN: tl.constexpr):
    """The offset of a column, given its place on the last axis and what is left for the axes before."""
    offset = i * COLUMN[len(DIMS) - 1]
    for d in tl.static_range(1, len(DIMS)):
        if d < len(DIMS) - 1:
            offset = offset + (rest % DIMS[len(DIMS) - 1 - d]) * COLUMN[len(DIMS) - 1 - d]
            rest = rest // DIMS[len(DIMS) - 1 - d]
        else:
            offset = offset + rest * COLUMN[0]
    return offset


@triton.jit
def offsets(flat, block, DIMS: tl.constexpr, COLUMNS_OF: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    """For each array, the offsets of the columns `flat`, which are block number `block` of COLS of them."""
    LAST: tl.constexpr = DIMS[len(DIMS) - 1]
    if LAST % COLS == 0:
        i = (block % (LAST // COLS)) * COLS + (flat - block * COLS)
        rest = block // (LAST // COLS)
    else:
        i = flat % LAST
        rest = flat // LAST
    out = ()
    for k in tl.static_range(len(COLUMNS_OF)):
        out = out + (expand(column(rest, i, DIMS, COLUMNS_OF[k]), ROWS),)
    return out


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
def unpack(x, R: tl.constexpr):
    """A tile [.., .., R] as R tiles, in the order of its last axis."""
    if R == 1:
        return (tl.reshape(x, (x.shape[0], x.shape[1])),)
    else:
        even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], R // 2, 2)))
        evens = unpack(even, R // 2)
        odds = unpack(odd, R // 2)
        out = ()
        for k in tl.static_range(R):
            if k % 2 == 0:
                out = out + (evens[k // 2],)
            else:
                out = out + (odds[k // 2],)
        return out


@triton.jit
def pack(xs, START: tl.constexpr, STEP: tl.constexpr, R: tl.constexpr):
    """The tiles xs[START], xs[START + STEP], ... as one tile [.., .., R]."""
    if R == 1:
        return tl.reshape(xs[START], (xs[START].shape[0], xs[START].shape[1], 1))
    else:
        even = pack(xs, START, 2 * STEP, R // 2)
        odd = pack(xs, START + STEP, 2 * STEP, R // 2)
        return tl.reshape(tl.join(even, odd), (even.shape[0], even.shape[1], R))


@triton.jit
def time_of(s, r, TOP: tl.constexpr, REVERSE: tl.constexpr):
    """The time at step r of the runs that begin at positions s."""
    if REVERSE:
        return (TOP - r) - s
    else:
        return s + r


@triton.jit
def series(ptr, base, s, cm, ok, T: tl.constexpr, TOP: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr,
           ROWS: tl.constexpr, REVERSE: tl.constexpr, EVEN: tl.constexpr, FLAG: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """The R tiles of one operand over runs that begin at positions s, in walking order. Nothing is loaded unless `ok`."""
    out = ()
    if ROWS:
        t = time_of(s, R - 1 if REVERSE else 0, TOP, REVERSE)[:, :, None] + tl.arange(0, R)[None, None, :]
        at = ptr + (base[:, :, None] + t * STRIDE)
        tiles = unpack(fetch_where(at, (t >= 0) & (t < T) & cm[:, :, None], ok, EVEN, FLAG, ACC), R)
        for r in tl.static_range(R):
            if REVERSE:
                out = out + (tiles[R - 1 - r],)
            else:
                out = out + (tiles[r],)
    else:
        first = ptr + (base + time_of(s, 0, TOP, REVERSE) * STRIDE)
        for r in tl.static_range(R):
            t = time_of(s, r, TOP, REVERSE)
            at = first + (-r * STRIDE if REVERSE else r * STRIDE)
            out = out + (fetch_where(at, (t >= 0) & (t < T) & cm, ok, EVEN, FLAG, ACC),)
    return out


@triton.jit
def store_series(ptr, base, tiles, s, cm, T: tl.constexpr, TOP: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr,
                 ROWS: tl.constexpr, REVERSE: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """Writes R tiles in walking order where `series` reads them."""
    if ROWS:
        t = time_of(s, R - 1 if REVERSE else 0, TOP, REVERSE)[:, :, None] + tl.arange(0, R)[None, None, :]
        at = ptr + (base[:, :, None] + t * STRIDE)
        if REVERSE:
            ordered = ()
            for r in tl.static_range(R):
                ordered = ordered + (tiles[R - 1 - r],)
            whole = pack(ordered, 0, 1, R)
        else:
            whole = pack(tiles, 0, 1, R)
        if EVEN:
            tl.store(at, whole)
        else:
            tl.store(at, whole, mask=(t >= 0) & (t < T) & cm[:, :, None])
    else:
        first = ptr + (base + time_of(s, 0, TOP, REVERSE) * STRIDE)
        for r in tl.static_range(R):
            t = time_of(s, r, TOP, REVERSE)
            at = first + (-r * STRIDE if REVERSE else r * STRIDE)
            if EVEN:
                tl.store(at, tiles[r])
            else:
                tl.store(at, tiles[r], mask=(t >= 0) & (t < T) & cm)
