"""The scan: one kernel body for x[t] = a[t] * x[next] + b[t] over any layout, into which a step and its read-out are plugged.

A program owns a block of columns (one column: one series) and walks their time in chunks. A chunk is a tile of W runs
beside each other, each of R steps held in registers; the runs are composed by one tile scan that carries the exclusive
prefixes with it, so nothing is shuffled or gathered. Time runs along axis 0 of a tile ([W, COLS]: the columns lie side by
side in memory) or along axis 1 ([COLS, W]: the steps do, and the R steps of a run are one wide load).

Where columns are few, time is cut into SEGMENTS of CHUNKS chunks, a program each: `reduce` writes the map (a, y) of every
segment, and `walk` composes those before its own.

Tuples stand for the operands: `ins` and `outs` are pointers, and the constexpr tuples hold for each operand
  NOW, NEAR, FAR   is its row read at the step, at the step walked before, at the step to come,
  FLAG             is it read as != 0,
  FIXED            has it one row for all time,
  EDGE             what stands past the end: -1 nothing (0), -2 its own row T, else the index of another operand;
STRIDE holds the stride of time, COLUMN the strides of DIMS, the axes of the columns (the last varies fastest).
"""

import triton
import triton.language as tl

from .tiles import (
    affine,
    chain,
    compose,
    expand,
    fetch,
    follow,
    last_of,
    latest,
    offsets,
    series,
    store_series,
    time_of,
)

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
def chunk(ins, base, fixed, s, cm, ok, NOW: tl.constexpr, NEAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr,
          STRIDE: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr,
          REVERSE: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr):
    """The rows of a chunk: for each operand a tuple of R tiles, or of one."""
    now = ()
    for k in tl.static_range(len(FIXED)):
        if not FIXED[k] and (NOW[k] or NEAR[k]):
            now = now + (series(ins[k], base[k], s, cm, ok, T, TOP, STRIDE[k], R, ROWS, REVERSE, EVEN, FLAG[k], ACC),)
        else:
            now = now + ((fixed[k],),)
    return now


@triton.jit
def steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr,
          FAR: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr,
          T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr, MIRRORED: tl.constexpr,
          ROWS: tl.constexpr, R: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr):
    """The coefficients of a chunk's steps, what its read-out needs again, and the last live position so far."""
    AXIS: tl.constexpr = 1 if ROWS else 0
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
        t_near = time_of(before, 0, TOP, REVERSE)
    else:
        t_near = time_of(s, -1, TOP, REVERSE)
        if REVERSE:
            has_near = (t_near < T) & cm
        else:
            has_near = (t_near >= 0) & cm
    near = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k] or not NEAR[k]:
            near = near + (fixed[k],)
        else:
            at = ins[k] + (base[k] + t_near * STRIDE[k])
            if EDGE[k] == -2 and MASK < 0 and not MIRRORED:
                near = near + (fetch(at, cm & (t_near >= 0) & (t_near <= T), FLAG[k], ACC),)
            else:
                x = fetch(at, has_near & cm & (t_near >= 0) & (t_near < T), FLAG[k], ACC)
                if MIRRORED:
                    near = near + (x,)
                else:
                    near = near + (tl.where(has_near, x, edge[k]),)
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
        if not EVEN:
            inside = (t >= 0) & (t < T) & cm
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
def run_map(av, bv, R: tl.constexpr):
    """The map of each run's R steps."""
    a = av[0]
    y = bv[0]
    for r in tl.static_range(1, R):
        y = affine(av[r], y, bv[r])
        a = chain(a, av[r])
    return a, y


@triton.jit
def place(COLUMNS: tl.constexpr, COLS: tl.constexpr, SEGMENTS: tl.constexpr, BACKWARDS: tl.constexpr, INDEX: tl.constexpr):
    """This program's block of columns, its segment, and its columns."""
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
    return block, segment, block * COLS + tl.arange(0, COLS).to(INDEX)


@triton.jit
def reduce(ins, seens, maps, STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
           FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr,
           DIMS: tl.constexpr, COLUMNS: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr,
           REVERSE: tl.constexpr, MIRRORED: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
           COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, EARLY: tl.constexpr, EVEN: tl.constexpr,
           INDEX: tl.constexpr, ACC: tl.constexpr):
    """Writes the map (a, y) of each segment of each column: `maps` are two arrays [SEGMENTS, COLUMNS]."""
    AXIS: tl.constexpr = 1 if ROWS else 0
    block, segment, flat = place(COLUMNS, COLS, SEGMENTS, False, INDEX)
    if EVEN:
        cm = expand(tl.full((COLS,), 1, tl.int1), ROWS)
    else:
        cm = expand(flat < COLUMNS, ROWS)
    base = offsets(flat, block, DIMS, COLUMN, COLS, ROWS)
    fixed = one_row(ins, base, cm, NOW, FLAG, FIXED, ACC)
    edge = past_end(ins, base, fixed, cm, FLAG, FIXED, EDGE, STRIDE, T, COLS, ROWS, ACC)
    w = expand(tl.arange(0, W), not ROWS)
    zero = tl.zeros((COLS, W) if ROWS else (W, COLS), ACC)
    mine = segment * COLUMNS + expand(flat, ROWS)
    if MASK >= 0:
        seen = tl.load(seens[0] + mine, mask=cm, other=-1).to(INDEX)
    else:
        seen = expand(tl.zeros((COLS,), INDEX), ROWS)
    total_a = expand(tl.full((COLS,), 1, ACC), ROWS)
    total_y = expand(tl.zeros((COLS,), ACC), ROWS)
    runs = (w * R).to(INDEX)
    first = segment * CHUNKS
    if EARLY:
        coming = chunk(ins, base, fixed, first * (W * R) + runs, cm, None, NOW, NEAR, FLAG, FIXED, STRIDE, T, TOP, R, ROWS,
                       REVERSE, EVEN, ACC)
    for i in range(0, CHUNKS):
        s = (first + i) * (W * R) + runs
        if EARLY:
            now = coming
            coming = chunk(ins, base, fixed, s + W * R, cm, i + 1 < CHUNKS, NOW, NEAR, FLAG, FIXED, STRIDE, T, TOP, R,
                           ROWS, REVERSE, EVEN, ACC)
        else:
            now = chunk(ins, base, fixed, s, cm, None, NOW, NEAR, FLAG, FIXED, STRIDE, T, TOP, R, ROWS, REVERSE, EVEN, ACC)
        av, bv, rows, seen = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                   STRIDE, T, TOP, MASK, REVERSE, MIRRORED, ROWS, R, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            a, y = tl.associative_scan((a, y), AXIS, follow)
            a = last_of(a, w, W, AXIS)
            y = last_of(y, w, W, AXIS)
        total_a, total_y = follow(total_a, total_y, a, y)
    tl.store(maps[0] + mine, total_a, mask=cm)
    tl.store(maps[1] + mine, total_y, mask=cm)


@triton.jit
def state_before(maps, segment, flat, cm, carry, COLUMNS: tl.constexpr, SEGMENTS: tl.constexpr, PADDED: tl.constexpr,
                 ROWS: tl.constexpr, ACC: tl.constexpr):
    """The state that enters a segment: `carry`, through the maps of the segments before it."""
    AXIS: tl.constexpr = 1 if ROWS else 0
    i = expand(tl.arange(0, PADDED), not ROWS)
    known = (i < segment) & cm
    at = i * COLUMNS + expand(flat, ROWS)
    a = tl.load(maps[0] + at, mask=known, other=1.0)
    y = tl.load(maps[1] + at, mask=known, other=0.0)
    a, y = tl.associative_scan((a, y), AXIS, follow)
    return affine(last_of(a, i, PADDED, AXIS), carry, last_of(y, i, PADDED, AXIS))


@triton.jit
def walk(ins, seens, maps, outs, STEP: tl.constexpr, READ: tl.constexpr, PAST_STEP: tl.constexpr,
         PAST_READ: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, FLAG: tl.constexpr,
         FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr, OUT_KIND: tl.constexpr,
         OUT_STRIDE: tl.constexpr, OUT_COLUMN: tl.constexpr, DIMS: tl.constexpr, COLUMNS: tl.constexpr,
         T: tl.constexpr, TOP: tl.constexpr, INIT: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr,
         MIRRORED: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr, R: tl.constexpr, COLS: tl.constexpr,
         SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr, EVEN: tl.constexpr,
         INDEX: tl.constexpr, ACC: tl.constexpr):
    """The outputs. OUT_KIND: 0 a row per step, 1 also a row past the end, 2 a sum over time, 3 only past the end.

    With EARLY a chunk is loaded while the one before it is computed.
    """
    AXIS: tl.constexpr = 1 if ROWS else 0
    block, segment, flat = place(COLUMNS, COLS, SEGMENTS, True, INDEX)
    if EVEN:
        cm = expand(tl.full((COLS,), 1, tl.int1), ROWS)
    else:
        cm = expand(flat < COLUMNS, ROWS)
    base = offsets(flat, block, DIMS, COLUMN, COLS, ROWS)
    out_base = offsets(flat, block, DIMS, OUT_COLUMN, COLS, ROWS)
    fixed = one_row(ins, base, cm, NOW, FLAG, FIXED, ACC)
    edge = past_end(ins, base, fixed, cm, FLAG, FIXED, EDGE, STRIDE, T, COLS, ROWS, ACC)
    w = expand(tl.arange(0, W), not ROWS)
    zero = tl.zeros((COLS, W) if ROWS else (W, COLS), ACC)
    every = tl.full(zero.shape, 1, tl.int1)
    one_step = expand(tl.zeros((COLS,), ACC), ROWS)
    if INIT >= 0:
        carry = fixed[INIT]
    else:
        carry = one_step
    mine = segment * COLUMNS + expand(flat, ROWS)
    seen = one_step.to(INDEX) - 1  # the position of the last live step
    if SEGMENTS > 1:
        carry = state_before(maps, segment, flat, cm, carry, COLUMNS, SEGMENTS, PADDED, ROWS, ACC)
        if MASK >= 0:
            seen = tl.load(seens[0] + mine, mask=cm, other=-1).to(INDEX)
    sums = ()
    for k in tl.static_range(len(outs)):
        sums = sums + (zero,)
    runs = (w * R).to(INDEX)
    first = segment * CHUNKS
    if EARLY:
        coming = chunk(ins, base, fixed, first * (W * R) + runs, cm, None, NOW, NEAR, FLAG, FIXED, STRIDE, T, TOP, R, ROWS,
                       REVERSE, EVEN, ACC)

    for i in range(0, CHUNKS):
        s = (first + i) * (W * R) + runs
        if EARLY:
            now = coming
            coming = chunk(ins, base, fixed, s + W * R, cm, i + 1 < CHUNKS, NOW, NEAR, FLAG, FIXED, STRIDE, T, TOP, R,
                           ROWS, REVERSE, EVEN, ACC)
        else:
            now = chunk(ins, base, fixed, s, cm, None, NOW, NEAR, FLAG, FIXED, STRIDE, T, TOP, R, ROWS, REVERSE, EVEN, ACC)
        av, bv, rows, seen = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                   STRIDE, T, TOP, MASK, REVERSE, MIRRORED, ROWS, R, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            whole, upto, p, q = tl.associative_scan((a, y, zero + 1.0, zero), AXIS, compose)
            x = affine(p, carry, q)
            carry = last_of(affine(whole, carry, upto), w, W, AXIS)
        else:
            x = tl.where(every, carry, zero)
            carry = affine(a, carry, y)

        written = ()
        for r in tl.static_range(R):
            before = x
            x = affine(av[r], x, bv[r])
            results = READ(x, before, rows[r][0], rows[r][1], rows[r][2], rows[r][3], rows[r][4])
            written = written + (results,)
            t = time_of(s, r, TOP, REVERSE)
            added = ()
            for k in tl.static_range(len(outs)):
                if OUT_KIND[k] == 2:
                    added = added + (sums[k] + tl.where((t >= 0) & (t < T) & cm, tl.where(every, results[k], zero), 0.0),)
                else:
                    added = added + (sums[k],)
            sums = added
        for k in tl.static_range(len(outs)):
            if OUT_KIND[k] < 2:
                tiles = ()
                for r in tl.static_range(R):
                    tiles = tiles + (tl.where(every, written[r][k], zero),)
                store_series(outs[k], out_base[k], tiles, s, cm, T, TOP, OUT_STRIDE[k], R, ROWS, REVERSE, EVEN)

    for k in tl.static_range(len(outs)):
        if OUT_KIND[k] == 2:
            tl.store(outs[k] + mine, tl.sum(sums[k], AXIS, keep_dims=True), mask=cm)

    # the visit past the end of a mirrored walk
    if PAST_STEP is not None:
        if MASK >= 0:
            has_near = seen >= 0
            t_near = time_of(seen, 0, TOP, REVERSE)
        else:
            has_near = cm
            t_near = one_step.to(INDEX) + (0 if REVERSE else T - 1)
        near = ()
        for k in tl.static_range(len(FIXED)):
            if FIXED[k]:
                near = near + (fixed[k],)
            else:
                at = ins[k] + (base[k] + t_near * STRIDE[k])
                near = near + (fetch(at, has_near & cm & (t_near >= 0), FLAG[k], ACC),)
        a, b = PAST_STEP(edge, near, edge, has_near, has_near)
        x = affine(one_step + a, carry, one_step + b)
        results = PAST_READ(x, carry, edge, near, edge, has_near, has_near)
        ends = cm & (segment == SEGMENTS - 1)
        for k in tl.static_range(len(outs)):
            if OUT_KIND[k] == 1:
                tl.store(outs[k] + (out_base[k] + T * OUT_STRIDE[k]), one_step + results[k], mask=ends)
            elif OUT_KIND[k] == 3:
                tl.store(outs[k] + out_base[k], one_step + results[k], mask=ends)
