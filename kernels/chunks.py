"""A chunk of time: the rows of its steps, their coefficients, and the map of its runs.

A chunk is a tile of W runs beside each other, each of R steps held in registers; the runs are composed by one tile scan
that carries the exclusive prefixes with it, so nothing is shuffled or gathered. SIDE tells whether the columns lie side by
side in memory, and how many of them a thread takes; 0: the steps do, and the R steps of a run are one wide load.

Tuples stand for the operands: `ins` and `outs` are pointers, and the constexpr tuples hold for each operand
  NOW, NEAR, FAR   is its row read at the step, at the step walked before, at the step to come,
  FLAG             is it read as != 0,
  FIXED            has it one row for all time,
  EDGE             what stands past the end: -1 nothing (0), -2 its own row T, else the index of another operand;
STRIDE holds the stride of time, COLUMN the strides of DIMS, the axes of the columns (the last varies fastest).
"""

import triton
import triton.language as tl

from .tiles import address, affine, chain, earliest, fetch, fetch_where, latest, onwards, pack, spread, time_of, unpack

# fmt: off


@triton.jit
def walked_before(t, cm, T: tl.constexpr, REVERSE: tl.constexpr):
    """Whether there is a step at times t, where steps were walked to reach them."""
    if REVERSE:
        return (t < T) & cm
    else:
        return (t >= 0) & cm


@triton.jit
def near_rows(ins, base, fixed, t, there, cm, ok, NEAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr,
              EDGE: tl.constexpr, STRIDE: tl.constexpr, T: tl.constexpr, MASK: tl.constexpr, MIRRORED: tl.constexpr,
              SIDE: tl.constexpr, ACC: tl.constexpr):
    """The rows at times t where there are any, and row T of an operand that has one."""
    out = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k] or not NEAR[k]:
            out = out + (fixed[k],)
        else:
            if EDGE[k] == -2 and MASK < 0 and not MIRRORED:
                inside = cm & (t >= 0) & (t <= T)
            else:
                inside = there & cm & (t >= 0) & (t < T)
            out = out + (fetch_where(address(ins[k], base[k], t, STRIDE[k], 1, SIDE), inside, ok, False, FLAG[k], ACC),)
    return out


@triton.jit
def chunk(ins, base, fixed, s, cm, ok, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, FLAG: tl.constexpr,
          FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr,
          MASK: tl.constexpr, R: tl.constexpr, SIDE: tl.constexpr, REVERSE: tl.constexpr, MIRRORED: tl.constexpr,
          EVEN: tl.constexpr, ACC: tl.constexpr):
    """The rows of a chunk whose runs begin at positions s, and rows beside it: what it loads from memory.

    Beside it lie the near rows of the runs' first steps (with a mask, the chunk before tells where: they are left to
    `steps`) and the rows behind their last ones, which are far; an operand read as far only has its far rows loaded.
    """
    start = earliest(s, TOP, R, REVERSE)
    t = onwards(start, R)
    inside = (t >= 0) & (t < T) & cm
    now = ()
    for k in tl.static_range(len(FIXED)):
        if not FIXED[k] and (NOW[k] or NEAR[k]):
            now = now + (fetch_where(address(ins[k], base[k], start, STRIDE[k], R, SIDE), inside, ok, EVEN, FLAG[k], ACC),)
        else:
            now = now + (fixed[k],)
    far = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k] or not FAR[k]:
            far = far + (fixed[k],)
        else:
            if NOW[k] or NEAR[k]:
                first = time_of(s, R, TOP, REVERSE)
                ahead = first
                at = address(ins[k], base[k], first, STRIDE[k], 1, SIDE)
            else:
                first = start + (-1 if REVERSE else 1)
                ahead = onwards(first, R)
                at = address(ins[k], base[k], first, STRIDE[k], R, SIDE)
            far = far + (fetch_where(at, (ahead >= 0) & (ahead < T) & cm, ok, False, FLAG[k], ACC),)
    near = fixed
    if MASK < 0:
        before = time_of(s, -1, TOP, REVERSE)
        there = walked_before(before, cm, T, REVERSE)
        near = near_rows(ins, base, fixed, before, there, cm, ok, NEAR, FLAG, FIXED, EDGE, STRIDE, T, MASK, MIRRORED, SIDE,
                         ACC)
    return now, near, far


@triton.jit
def shifted(x, first, live, R: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr):
    """A chunk's rows as the near ones of the steps walked after them; `first` are those of the runs' first steps.

    With a mask, the last `live` row is the near one.
    """
    xs = unpack(x, R, REVERSE)
    out = (first,)
    if MASK >= 0:
        for r in tl.static_range(R - 1):
            out = out + (tl.where(live[r], xs[r], out[r]),)
    else:
        out = out + xs[: R - 1]
    return pack(out, R, REVERSE)


@triton.jit
def behind(x, last, R: tl.constexpr, REVERSE: tl.constexpr):
    """A chunk's rows as the far ones of the steps walked before; `last` are those of the runs' last steps."""
    return pack(unpack(x, R, REVERSE)[1:R] + (last,), R, REVERSE)


@triton.jit
def steps(ins, base, fixed, edge, loaded, s, seen, cm, zero, STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr,
          FAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr,
          T: tl.constexpr, TOP: tl.constexpr, HEAD: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr,
          MIRRORED: tl.constexpr, R: tl.constexpr, SIDE: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr):
    """The coefficients of a chunk's steps one by one, what its read-out needs again, and the last live position so far.

    The first HEAD steps of the walk are left out: they do nothing.
    """
    AXIS: tl.constexpr = 1 if SIDE == 0 else 0
    now = loaded[0]
    t = onwards(earliest(s, TOP, R, REVERSE), R)
    before = time_of(s, -1, TOP, REVERSE)
    live = ()
    if MASK >= 0:
        # the step walked before the first of each run is the last live one
        live = unpack(now[MASK], R, REVERSE)
        none = tl.zeros(zero.shape, s.dtype) - 1
        last = none
        for r in tl.static_range(R):
            last = tl.where(live[r], s + r, last)
        if zero.shape[AXIS] > 1:
            _, position = tl.associative_scan((last, none), AXIS, latest)
            position = tl.maximum(position, seen)
        else:
            position = tl.where(none < 0, seen, last)
        seen = tl.maximum(seen, tl.max(last, AXIS, keep_dims=True))
        had = position >= 0
        near = near_rows(ins, base, fixed, time_of(position, 0, TOP, REVERSE), had, cm, None, NEAR, FLAG, FIXED, EDGE,
                         STRIDE, T, MASK, MIRRORED, SIDE, ACC)
        has = ()
        has_near = had
        for r in tl.static_range(R):
            has = has + (has_near,)
            has_near = has_near | live[r]
        has_near = pack(has, R, REVERSE)
    else:
        had = walked_before(before, cm, T, REVERSE)
        near = loaded[1]
        has_near = walked_before(t + (1 if REVERSE else -1), cm, T, REVERSE)
    t_far = t + (-1 if REVERSE else 1)
    if REVERSE:
        has_far = t_far >= 0
    else:
        has_far = t_far < T

    nearer = ()
    far = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k] or not NEAR[k]:
            nearer = nearer + (fixed[k],)
        else:
            first = near[k]
            if not (MIRRORED or (EDGE[k] == -2 and MASK < 0)):
                first = tl.where(had, first, edge[k])
            x = shifted(now[k], first, live, R, MASK, REVERSE)
            if REVERSE and SIDE == 0 and not (EVEN or MIRRORED or MASK >= 0):
                x = tl.where(t < T - 1, x, edge[k])
            nearer = nearer + (x,)
        if FAR[k] and not FIXED[k]:
            x = loaded[2][k]
            if NOW[k] or NEAR[k]:
                x = behind(now[k], x, R, REVERSE)
            if MIRRORED:
                x = tl.where(has_far, x, edge[k])
            far = far + (x,)
        else:
            far = far + (fixed[k],)
    a, b = STEP(now, nearer, far, has_near, has_far)
    a = spread(a, zero, R)
    b = spread(b, zero, R)
    if not EVEN or HEAD > 0:
        if REVERSE:
            inside = (t >= 0) & (t < T - HEAD) & cm
        else:
            inside = (t >= HEAD) & (t < T) & cm
        a = tl.where(inside, a, 1.0)
        b = tl.where(inside, b, 0.0)
    return unpack(a, R, REVERSE), unpack(b, R, REVERSE), (now, nearer, far, has_near, has_far), seen


@triton.jit
def before_end(ins, base, fixed, seen, cm, one_step, FLAG: tl.constexpr, FIXED: tl.constexpr, STRIDE: tl.constexpr,
               T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr, ACC: tl.constexpr):
    """What the visit past the end of a mirrored walk has behind it: the rows, and whether there are any."""
    if MASK >= 0:
        has_near = seen >= 0
        t_near = time_of(seen, 0, TOP, REVERSE)
    else:
        has_near = cm
        t_near = one_step.to(seen.dtype) + (0 if REVERSE else T - 1)
    near = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k]:
            near = near + (fixed[k],)
        else:
            at = ins[k] + (base[k] + t_near * STRIDE[k])
            near = near + (fetch(at, has_near & cm & (t_near >= 0), FLAG[k], ACC),)
    return near, has_near


@triton.jit
def run_map(av, bv, R: tl.constexpr):
    """The map of each run's R steps."""
    a = av[0]
    y = bv[0]
    for r in tl.static_range(1, R):
        y = affine(av[r], y, bv[r])
        a = chain(a, av[r])
    return a, y
