"""The scan: one kernel body for x[t] = a[t] * x[next] + b[t] over any layout, into which a step and its read-out are plugged.

A program owns a block of columns (one column: one series) and walks their time chunk by chunk (see `chunks`). Where columns
are few, time is cut into SEGMENTS of CHUNKS chunks, a program each: `reduce` writes the map (a, y) of every segment, and
`walk` composes those before its own. Where time goes on on other devices, `total` composes all of them.
"""

import triton
import triton.language as tl

from .chunks import before_end, beside_time, chunk, place, run_map, steps
from .tiles import affine, compose, expand, follow, last_of, offsets, store_series, time_of

# fmt: off


@triton.jit
def reduce(ins, seens, maps, STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
           FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr,
           DIMS: tl.constexpr, COLUMNS: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, HEAD: tl.constexpr,
           MASK: tl.constexpr, REVERSE: tl.constexpr, MIRRORED: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr,
           R: tl.constexpr, COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, EARLY: tl.constexpr,
           EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """Writes the map (a, y) of each segment of each column: `maps` are two arrays [SEGMENTS, COLUMNS].

    The first HEAD steps are left out.
    """
    AXIS: tl.constexpr = 1 if ROWS else 0
    block, segment, flat, cm = place(COLUMNS, COLS, SEGMENTS, False, ROWS, EVEN, INDEX)
    base, fixed, edge = beside_time(ins, flat, block, cm, NOW, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, T, COLS, ROWS, ACC)
    w = expand(tl.arange(0, W), not ROWS)
    zero = tl.zeros((COLS, W) if ROWS else (W, COLS), ACC)
    mine = segment * COLUMNS + expand(flat, ROWS)
    seen = expand(tl.zeros((COLS,), INDEX), ROWS) - 1
    if MASK >= 0 and SEGMENTS > 1:
        seen = tl.load(seens[0] + mine, mask=cm, other=-1).to(INDEX)
    total_a = expand(tl.full((COLS,), 1, ACC), ROWS)
    total_y = expand(tl.zeros((COLS,), ACC), ROWS)
    runs = (w * R).to(INDEX)
    first = segment * CHUNKS
    if EARLY:
        coming = chunk(ins, base, fixed, first * (W * R) + runs, cm, None, NOW, NEAR, FLAG, FIXED, EDGE, STRIDE, T, TOP,
                       MASK, R, ROWS, REVERSE, MIRRORED, EVEN, ACC)
    for i in range(0, CHUNKS):
        s = (first + i) * (W * R) + runs
        if EARLY:
            now = coming
            coming = chunk(ins, base, fixed, s + W * R, cm, i + 1 < CHUNKS, NOW, NEAR, FLAG, FIXED, EDGE, STRIDE, T, TOP,
                           MASK, R, ROWS, REVERSE, MIRRORED, EVEN, ACC)
        else:
            now = chunk(ins, base, fixed, s, cm, None, NOW, NEAR, FLAG, FIXED, EDGE, STRIDE, T, TOP, MASK, R, ROWS,
                        REVERSE, MIRRORED, EVEN, ACC)
        av, bv, rows, seen = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                   STRIDE, T, TOP, HEAD, MASK, REVERSE, MIRRORED, ROWS, R, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            a, y = tl.associative_scan((a, y), AXIS, follow)
            a = last_of(a, w, W, AXIS)
            y = last_of(y, w, W, AXIS)
        if CHUNKS == 1:  # Triton 3.6 fails on the other where the coefficient is one number and the input is of 2 bytes
            total_a, total_y = a, y
        else:
            total_a, total_y = follow(total_a, total_y, a, y)
    tl.store(maps[0] + mine, total_a, mask=cm)
    tl.store(maps[1] + mine, total_y, mask=cm)


@triton.jit
def map_of(maps, segments, flat, cm, COLUMNS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """The map of the first `segments` segments."""
    AXIS: tl.constexpr = 1 if ROWS else 0
    i = expand(tl.arange(0, PADDED), not ROWS)
    known = (i < segments) & cm
    at = i * COLUMNS + expand(flat, ROWS)
    a = tl.load(maps[0] + at, mask=known, other=1.0)
    y = tl.load(maps[1] + at, mask=known, other=0.0)
    a, y = tl.associative_scan((a, y), AXIS, follow)
    return last_of(a, i, PADDED, AXIS), last_of(y, i, PADDED, AXIS)


@triton.jit
def total(ins, seens, maps, outs, PAST_STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
          FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr,
          DIMS: tl.constexpr, COLUMNS: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr,
          REVERSE: tl.constexpr, MIRRORED: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
          COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
          EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """Writes the map (a, y) of all segments of each column, and of the visit past their end."""
    block, _, flat, cm = place(COLUMNS, COLS, 1, False, ROWS, EVEN, INDEX)
    a, y = map_of(maps, SEGMENTS, flat, cm, COLUMNS, PADDED, ROWS)
    if PAST_STEP is not None:
        base, fixed, edge = beside_time(ins, flat, block, cm, NOW, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, T, COLS, ROWS,
                                        ACC)
        one_step = expand(tl.zeros((COLS,), ACC), ROWS)
        seen = one_step.to(INDEX)
        if MASK >= 0:
            seen = tl.load(seens[0] + expand(flat, ROWS), mask=cm, other=-1).to(INDEX)
        near, has_near = before_end(ins, base, fixed, seen, cm, one_step, FLAG, FIXED, STRIDE, T, TOP, MASK, REVERSE, ACC)
        past_a, past_y = PAST_STEP(edge, near, edge, has_near, has_near)
        a, y = follow(a, y, one_step + past_a, one_step + past_y)
    tl.store(outs[0] + expand(flat, ROWS), a, mask=cm)
    tl.store(outs[1] + expand(flat, ROWS), y, mask=cm)


@triton.jit
def walk(ins, seens, maps, outs, STEP: tl.constexpr, READ: tl.constexpr, PAST_STEP: tl.constexpr,
         PAST_READ: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, FLAG: tl.constexpr,
         FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr, OUT_KIND: tl.constexpr,
         OUT_STRIDE: tl.constexpr, OUT_COLUMN: tl.constexpr, DIMS: tl.constexpr, COLUMNS: tl.constexpr,
         T: tl.constexpr, TOP: tl.constexpr, INIT: tl.constexpr, STEPPED: tl.constexpr, MASK: tl.constexpr,
         REVERSE: tl.constexpr, MIRRORED: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
         COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
         EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """The outputs. OUT_KIND: 0 a row per step, 1 also a row past the end, 2 a sum over time, 3 only past the end.

    With EARLY a chunk is loaded while the one before it is computed. Where `reduce` left out the first step, the operand
    STEPPED is the state behind it.
    """
    AXIS: tl.constexpr = 1 if ROWS else 0
    block, segment, flat, cm = place(COLUMNS, COLS, SEGMENTS, True, ROWS, EVEN, INDEX)
    base, fixed, edge = beside_time(ins, flat, block, cm, NOW, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, T, COLS, ROWS, ACC)
    out_base = offsets(flat, block, DIMS, OUT_COLUMN, COLS, ROWS)
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
        if STEPPED >= 0:
            carry = tl.where(segment > 0, fixed[STEPPED], carry)
        before_a, before_y = map_of(maps, segment, flat, cm, COLUMNS, PADDED, ROWS)
        carry = affine(before_a, carry, before_y)
        if MASK >= 0:
            seen = tl.load(seens[0] + mine, mask=cm, other=-1).to(INDEX)
    ended = carry
    carry = tl.where(every, ended, zero)  # of the tile's shape, lest each thread holds all of it to change its layout
    sums = ()
    for k in tl.static_range(len(outs)):
        sums = sums + (zero,)
    runs = (w * R).to(INDEX)
    first = segment * CHUNKS
    if EARLY:
        coming = chunk(ins, base, fixed, first * (W * R) + runs, cm, None, NOW, NEAR, FLAG, FIXED, EDGE, STRIDE, T, TOP,
                       MASK, R, ROWS, REVERSE, MIRRORED, EVEN, ACC)

    for i in range(0, CHUNKS):
        s = (first + i) * (W * R) + runs
        if EARLY:
            now = coming
            coming = chunk(ins, base, fixed, s + W * R, cm, i + 1 < CHUNKS, NOW, NEAR, FLAG, FIXED, EDGE, STRIDE, T, TOP,
                           MASK, R, ROWS, REVERSE, MIRRORED, EVEN, ACC)
        else:
            now = chunk(ins, base, fixed, s, cm, None, NOW, NEAR, FLAG, FIXED, EDGE, STRIDE, T, TOP, MASK, R, ROWS,
                        REVERSE, MIRRORED, EVEN, ACC)
        av, bv, rows, seen = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                   STRIDE, T, TOP, 0, MASK, REVERSE, MIRRORED, ROWS, R, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            whole, upto, p, q = tl.associative_scan((a, y, zero + 1.0, zero), AXIS, compose)
            x = affine(p, carry, q)
            ended = last_of(affine(whole, carry, upto), w, W, AXIS)
        else:
            x = carry
            ended = affine(a, carry, y)
        carry = tl.where(every, ended, zero)

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

    if PAST_STEP is not None:
        near, has_near = before_end(ins, base, fixed, seen, cm, one_step, FLAG, FIXED, STRIDE, T, TOP, MASK, REVERSE, ACC)
        a, b = PAST_STEP(edge, near, edge, has_near, has_near)
        x = affine(one_step + a, ended, one_step + b)
        results = PAST_READ(x, ended, edge, near, edge, has_near, has_near)
        ends = cm & (segment == SEGMENTS - 1)
        for k in tl.static_range(len(outs)):
            if OUT_KIND[k] == 1:
                tl.store(outs[k] + (out_base[k] + T * OUT_STRIDE[k]), one_step + results[k], mask=ends)
            elif OUT_KIND[k] == 3:
                tl.store(outs[k] + out_base[k], one_step + results[k], mask=ends)
