"""A chunk of time: the rows of its steps and what stands past the end, their coefficients, and the map of its runs.

A chunk is a tile of W runs beside each other, each of R steps held in registers; the runs are composed by one tile scan
that carries the exclusive prefixes with it, so nothing is shuffled or gathered. Time runs along axis 0 of a tile ([W, COLS]:
the columns lie side by side in memory) or along axis 1 ([COLS, W]: the steps do, and the R steps of a run are one wide load).

Tuples stand for the operands: `ins` and `outs` are pointers, and the constexpr tuples hold for each operand
  NOW, NEAR, FAR   is its row read at the step, at the step walked before, at the step to come,
  FLAG             is it read as != 0,
  FIXED            has it one row for all time,
  EDGE             what stands past the end: -1 nothing (0), -2 its own row T, else the index of another operand;
STRIDE holds the stride of time, COLUMN the strides of DIMS, the axes of the columns (the last varies fastest).
"""

import triton
import triton.language as tl

from .tiles import affine, chain, expand, fetch, fetch_where, latest, offsets, series, time_of

# fmt: off


@triton.jit
def one_row(ins, base, cm, NOW: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr, ACC: tl.constexpr):
    """The operands of one row for all time; 0 stands for the others."""
    out = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k]:
            out = out + (fetch(ins[k] + base[k], cm, FLAG[k], ACC),)
        else:
            out = out + (0.0,)
    return out


@triton.jit
def past_end(ins, base, fixed, cm, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr,
             T: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, ACC: tl.constexpr):
    """What stands past the end of each operand."""
    out = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k]:
            out = out + (fixed[k],)
        elif EDGE[k] >= 0:
            out = out + (fixed[EDGE[k]],)
        elif EDGE[k] == -2:
            out = out + (fetch(ins[k] + base[k] + T * STRIDE[k], cm, FLAG[k], ACC),)
        elif FLAG[k]:
            out = out + (expand(tl.zeros((COLS,), tl.int1), ROWS),)
        else:
            out = out + (expand(tl.zeros((COLS,), ACC), ROWS),)
    return out


@triton.jit
def step_before(s, cm, T: tl.constexpr, TOP: tl.constexpr, REVERSE: tl.constexpr):
    """The time walked before the first step of each run, and whether there is such a step."""
    t = time_of(s, -1, TOP, REVERSE)
    if REVERSE:
        return t, (t < T) & cm
    else:
        return t, (t >= 0) & cm


@triton.jit
def near_rows(ins, base, fixed, t, there, cm, ok, NEAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr,
              EDGE: tl.constexpr, STRIDE: tl.constexpr, T: tl.constexpr, MASK: tl.constexpr, MIRRORED: tl.constexpr,
              ROWS: tl.constexpr, ACC: tl.constexpr):
    """The rows at times t where there are any, and row T of an operand that has one."""
    out = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k] or not NEAR[k]:
            out = out + (fixed[k],)
        else:
            at = ins[k] + (base[k] + t * STRIDE[k])
            if not ROWS and MASK >= 0:
                # else Triton, which sees no order in a gather, lays it out across the other tiles and converts them all
                at = tl.max_contiguous(tl.multiple_of(at, (1, 1)), (1, 2))
            if EDGE[k] == -2 and MASK < 0 and not MIRRORED:
                inside = cm & (t >= 0) & (t <= T)
            else:
                inside = there & cm & (t >= 0) & (t < T)
            out = out + (fetch_where(at, inside, ok, False, FLAG[k], ACC),)
    return out


@triton.jit
def chunk(ins, base, fixed, s, cm, ok, NOW: tl.constexpr, NEAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr,
          EDGE: tl.constexpr, STRIDE: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr,
          R: tl.constexpr, ROWS: tl.constexpr, REVERSE: tl.constexpr, MIRRORED: tl.constexpr, EVEN: tl.constexpr,
          ACC: tl.constexpr):
    """The rows of a chunk, for each operand a tuple of R tiles, or of one; and the near rows of its runs' first steps.

    With a mask, the chunk before tells where the near rows lie: they are left to `steps`.
    """
    now = ()
    for k in tl.static_range(len(FIXED)):
        if not FIXED[k] and (NOW[k] or NEAR[k]):
            now = now + (series(ins[k], base[k], s, cm, ok, T, TOP, STRIDE[k], R, ROWS, REVERSE, EVEN, FLAG[k], ACC),)
        else:
            now = now + ((fixed[k],),)
    if MASK >= 0:
        return now, fixed
    else:
        t, there = step_before(s, cm, T, TOP, REVERSE)
        return now, near_rows(ins, base, fixed, t, there, cm, ok, NEAR, FLAG, FIXED, EDGE, STRIDE, T, MASK, MIRRORED, ROWS,
                              ACC)


@triton.jit
def steps(ins, base, fixed, edge, loaded, s, seen, cm, zero, STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr,
          FAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr,
          T: tl.constexpr, TOP: tl.constexpr, HEAD: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr,
          MIRRORED: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr):
    """The coefficients of a chunk's steps, what its read-out needs again, and the last live position so far.

    The first HEAD steps of the walk are left out: they do nothing.
    """
    AXIS: tl.constexpr = 1 if ROWS else 0
    now = loaded[0]
    every = tl.full(zero.shape, 1, tl.int1)
    if MASK >= 0:
        # the step walked before the first of each run is the last live one
        last = tl.zeros(zero.shape, s.dtype) - 1
        for r in tl.static_range(R):
            last = tl.where(now[MASK][r], s + r, last)
        if zero.shape[AXIS] > 1:
            _, before = tl.associative_scan((last, tl.zeros(zero.shape, s.dtype) - 1), AXIS, latest)
            before = tl.maximum(before, seen)
        else:
            before = tl.where(every, seen, last)
        seen = tl.maximum(seen, tl.max(last, AXIS, keep_dims=True))
        has_near = before >= 0
        near = near_rows(ins, base, fixed, time_of(before, 0, TOP, REVERSE), has_near, cm, None, NEAR, FLAG, FIXED, EDGE,
                         STRIDE, T, MASK, MIRRORED, ROWS, ACC)
    else:
        _, has_near = step_before(s, cm, T, TOP, REVERSE)
        near = loaded[1]
    nearer = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k] or not NEAR[k] or MIRRORED or (EDGE[k] == -2 and MASK < 0):
            nearer = nearer + (near[k],)
        else:
            nearer = nearer + (tl.where(has_near, near[k], edge[k]),)
    near = nearer
    av = ()
    bv = ()
    rows = ()
    for r in tl.static_range(R):
        t = time_of(s, r, TOP, REVERSE)
        t_far = time_of(s, r + 1, TOP, REVERSE)
        if REVERSE:
            has_far = t_far >= 0
        else:
            has_far = t_far < T
        here = ()
        far = ()
        for k in tl.static_range(len(FIXED)):
            if FIXED[k] or not (NOW[k] or NEAR[k]):
                here = here + (fixed[k],)
            else:
                here = here + (now[k][r],)
            if FAR[k] and not FIXED[k]:
                x = fetch(ins[k] + (base[k] + t_far * STRIDE[k]), (t_far >= 0) & (t_far < T) & cm, FLAG[k], ACC)
                if MIRRORED:
                    far = far + (tl.where(has_far, x, edge[k]),)
                else:
                    far = far + (x,)
            else:
                far = far + (fixed[k],)
        a, b = STEP(here, near, far, has_near, has_far)
        a = tl.where(every, a, zero)
        b = tl.where(every, b, zero)
        if not EVEN or HEAD > 0:
            if REVERSE:
                inside = (t >= 0) & (t < T - HEAD) & cm
            else:
                inside = (t >= HEAD) & (t < T) & cm
            a = tl.where(inside, a, 1.0)
            b = tl.where(inside, b, 0.0)
        av = av + (a,)
        bv = bv + (b,)
        rows = rows + ((here, near, far, has_near, has_far),)
        # this step is the near one of the next
        nearer = ()
        for k in tl.static_range(len(FIXED)):
            if FIXED[k] or not NEAR[k]:
                nearer = nearer + (near[k],)
            elif MASK >= 0:
                nearer = nearer + (tl.where(now[MASK][r], now[k][r], near[k]),)
            elif EVEN or MIRRORED or not (ROWS and REVERSE):
                nearer = nearer + (now[k][r],)
            else:
                nearer = nearer + (tl.where(t < T, now[k][r], edge[k]),)
        near = nearer
        if MASK >= 0:
            has_near = has_near | now[MASK][r]
        elif REVERSE:
            has_near = (t < T) & cm
        else:
            has_near = (t >= 0) & cm
    return av, bv, rows, seen


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


@triton.jit
def place(COLUMNS: tl.constexpr, COLS: tl.constexpr, SEGMENTS: tl.constexpr, BACKWARDS: tl.constexpr, ROWS: tl.constexpr,
          EVEN: tl.constexpr, INDEX: tl.constexpr):
    """This program's block of columns, its segment, its columns, and which of these there are."""
    BLOCKS: tl.constexpr = (COLUMNS + COLS - 1) // COLS
    pid = tl.program_id(0).to(INDEX)
    if SEGMENTS == 1:
        block = pid
        segment = pid * 0
    else:
        block = pid % BLOCKS
        segment = pid // BLOCKS
        if BACKWARDS:
            segment = SEGMENTS - 1 - segment
    flat = block * COLS + tl.arange(0, COLS).to(INDEX)
    if EVEN:
        cm = expand(tl.full((COLS,), 1, tl.int1), ROWS)
    else:
        cm = expand(flat < COLUMNS, ROWS)
    return block, segment, flat, cm


@triton.jit
def beside_time(ins, flat, block, cm, NOW: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr,
                STRIDE: tl.constexpr, COLUMN: tl.constexpr, DIMS: tl.constexpr, T: tl.constexpr, COLS: tl.constexpr,
                ROWS: tl.constexpr, ACC: tl.constexpr):
    """The offsets of the columns in each operand, the operands of one row, and what stands past the end."""
    base = offsets(flat, block, DIMS, COLUMN, COLS, ROWS)
    fixed = one_row(ins, base, cm, NOW, FLAG, FIXED, ACC)
    return base, fixed, past_end(ins, base, fixed, cm, FLAG, FIXED, EDGE, STRIDE, T, COLS, ROWS, ACC)
