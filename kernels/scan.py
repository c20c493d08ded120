"""The scan: one kernel body for x[t] = a[t] * x[next] + b[t] over any layout, into which a step and its read-out are plugged.

A program owns a block of columns (one column: one series) and walks their time chunk by chunk (see `chunks`). Where columns
are few, time is cut into SEGMENTS of CHUNKS chunks, a program each: `reduce` writes the map (a, y) of every segment, and
`walk` composes those before its own (`look` has another way). Where time goes on on other devices, `total` composes all.
"""

import triton
import triton.language as tl

from .chunks import before_end, chunk, run_map, steps
from .columns import beside_time, expanded, offsets, place
from .tiles import address, affine, compose, earliest, expand, follow, last_of, numbered, onwards, pack, spread, unpack

# fmt: off


@triton.jit
def reduce(ins, seens, outs, STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
           FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr,
           DIMS: tl.constexpr, COLUMNS: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, HEAD: tl.constexpr,
           MASK: tl.constexpr, REVERSE: tl.constexpr, MIRRORED: tl.constexpr, SIDE: tl.constexpr, W: tl.constexpr,
           R: tl.constexpr, COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, EARLY: tl.constexpr,
           EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """Writes the map (a, y) of each segment of each column: `outs` are two arrays [SEGMENTS, COLUMNS].

    From its end on, until nothing earlier counts: an episode's end is behind it, or the product of coefficients fell to 0.
    The first HEAD steps are left out.
    """
    AXIS: tl.constexpr = 1 if SIDE == 0 else 0
    block, segment, flat, cm = place(COLUMNS, COLS, SEGMENTS, False, SIDE, EVEN, INDEX)
    base, fixed, edge = beside_time(ins, flat, block, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, COLUMNS, T, COLS, SIDE,
                                    ACC)
    w = numbered(W, SIDE)
    zero = tl.zeros((COLS, W, 1) if SIDE == 0 else (W, COLS, 1), ACC)
    mine = segment * COLUMNS + expand(flat, SIDE)
    seen = expand(tl.zeros((COLS,), INDEX), SIDE) - 1
    total_a = expand(tl.full((COLS,), 1, ACC), SIDE)
    total_y = expand(tl.zeros((COLS,), ACC), SIDE)
    runs = (w * R).to(INDEX)
    left = tl.full((), CHUNKS, INDEX)
    if EARLY:
        coming = chunk(ins, base, fixed, (segment * CHUNKS + (left - 1)) * (W * R) + runs, cm, None, NOW, NEAR, FAR, FLAG,
                       FIXED, EDGE, STRIDE, T, TOP, MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
    while left > 0:
        left -= 1
        here = segment * CHUNKS + left
        s = here * (W * R) + runs
        if EARLY:
            now = coming
            coming = chunk(ins, base, fixed, s - W * R, cm, left > 0, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE, T, TOP,
                           MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
        else:
            now = chunk(ins, base, fixed, s, cm, None, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE, T, TOP, MASK, R, SIDE,
                        REVERSE, MIRRORED, EVEN, ACC)
        if MASK >= 0 and SEGMENTS * CHUNKS > 1:
            seen = tl.load(seens[0] + (here * COLUMNS + expand(flat, SIDE)), mask=cm, other=-1).to(INDEX)
        av, bv, rows, _ = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                STRIDE, T, TOP, HEAD, MASK, REVERSE, MIRRORED, R, SIDE, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            a, y = tl.associative_scan((a, y), AXIS, follow)
            a = last_of(a, w, W, AXIS)
            y = last_of(y, w, W, AXIS)
        if CHUNKS == 1:  # Triton 3.6 fails on the other where the coefficient is one number and the input is of 2 bytes
            total_a, total_y = a, y
        else:
            total_a, total_y = follow(a, y, total_a, total_y)
            unknown = tl.max(tl.where((total_a != 0) & cm, 1, 0), axis=None)
            left = left * unknown.to(INDEX)
    tl.store(outs[0] + mine, total_a, mask=cm)
    tl.store(outs[1] + mine, total_y, mask=cm)


@triton.jit
def map_of(maps, segments, flat, cm, COLUMNS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
           SIDE: tl.constexpr):
    """The map of the first `segments` segments, composed by runs of EACH, LANES of them beside each other."""
    AXIS: tl.constexpr = 1 if SIDE == 0 else 0
    w = numbered(LANES, SIDE)
    column = expand(flat, SIDE)
    total_a = tl.where(cm, 1.0, 0.0).to(maps[0].dtype.element_ty)
    total_y = total_a * 0.0
    for first in range(0, segments, LANES * EACH):
        i = first + w * EACH
        known = (onwards(i, EACH) < segments) & cm
        a = tl.load(address(maps[0], column, i, COLUMNS, EACH, SIDE), mask=known, other=1.0)
        y = tl.load(address(maps[1], column, i, COLUMNS, EACH, SIDE), mask=known, other=0.0)
        a, y = run_map(unpack(a, EACH, False), unpack(y, EACH, False), EACH)
        if LANES > 1:
            a, y = tl.associative_scan((a, y), AXIS, follow)
            a = last_of(a, w, LANES, AXIS)
            y = last_of(y, w, LANES, AXIS)
        total_a, total_y = follow(total_a, total_y, a, y)
    return total_a, total_y


@triton.jit
def total(ins, seens, maps, outs, PAST_STEP: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
          FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr,
          DIMS: tl.constexpr, COLUMNS: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr,
          REVERSE: tl.constexpr, MIRRORED: tl.constexpr, SIDE: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
          COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
          EARLY: tl.constexpr, EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """Writes the map (a, y) of all segments of each column, and of the visit past their end."""
    block, _, flat, cm = place(COLUMNS, COLS, 1, False, SIDE, EVEN, INDEX)
    a, y = map_of(maps, SEGMENTS, flat, cm, COLUMNS, LANES, EACH, SIDE)
    if PAST_STEP is not None:
        base, fixed, edge = beside_time(ins, flat, block, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, COLUMNS, T, COLS, SIDE,
                                        ACC)
        one_step = expand(tl.zeros((COLS,), ACC), SIDE)
        seen = one_step.to(INDEX)
        if MASK >= 0:
            seen = tl.load(seens[0] + expand(flat, SIDE), mask=cm, other=-1).to(INDEX)
        near, has_near = before_end(ins, base, fixed, seen, cm, one_step, FLAG, FIXED, STRIDE, T, TOP, MASK, REVERSE, ACC)
        past_a, past_y = PAST_STEP(edge, near, edge, has_near, has_near)
        a, y = follow(a, y, one_step + past_a, one_step + past_y)
    tl.store(outs[0] + expand(flat, SIDE), a, mask=cm)
    tl.store(outs[1] + expand(flat, SIDE), y, mask=cm)


@triton.jit
def read_out(outs, out_base, x, av, bv, rows, s, cm, zero, sums, READ: tl.constexpr, OUT_KIND: tl.constexpr,
             OUT_STRIDE: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, R: tl.constexpr, SIDE: tl.constexpr,
             REVERSE: tl.constexpr, EVEN: tl.constexpr):
    """Walks a chunk's runs from the states x before them, writes what is read out of each step, and adds up what is summed."""
    xs = (x,)
    for r in tl.static_range(R):
        xs = xs + (affine(av[r], xs[r], bv[r]),)
    results = READ(pack(xs[1 : R + 1], R, REVERSE), pack(xs[0:R], R, REVERSE), rows[0], rows[1], rows[2], rows[3], rows[4])
    start = earliest(s, TOP, R, REVERSE)
    t = onwards(start, R)
    inside = (t >= 0) & (t < T) & cm
    added = ()
    for k in tl.static_range(len(outs)):
        result = spread(results[k], zero, R)
        if OUT_KIND[k] == 2:
            added = added + (sums[k] + tl.sum(tl.where(inside, result, 0.0), 2, keep_dims=True),)
        else:
            added = added + (sums[k],)
            if OUT_KIND[k] < 2:
                at = address(outs[k], out_base[k], start, OUT_STRIDE[k], R, SIDE)
                if EVEN:
                    tl.store(at, result)
                else:
                    tl.store(at, result, mask=inside)
    return added


@triton.jit
def read_past(ins, outs, base, fixed, edge, out_base, ended, seen, cm, ends, PAST_STEP: tl.constexpr,
              PAST_READ: tl.constexpr, FLAG: tl.constexpr, FIXED: tl.constexpr, STRIDE: tl.constexpr,
              OUT_KIND: tl.constexpr, OUT_STRIDE: tl.constexpr, T: tl.constexpr, TOP: tl.constexpr, MASK: tl.constexpr,
              REVERSE: tl.constexpr, ACC: tl.constexpr):
    """Writes what is read out of the visit past the end, of the program that `ends` there in the state `ended`."""
    one_step = tl.zeros(ended.shape, ACC)
    near, has_near = before_end(ins, base, fixed, seen, cm, one_step, FLAG, FIXED, STRIDE, T, TOP, MASK, REVERSE, ACC)
    a, b = PAST_STEP(edge, near, edge, has_near, has_near)
    x = affine(one_step + a, ended, one_step + b)
    results = PAST_READ(x, ended, edge, near, edge, has_near, has_near)
    for k in tl.static_range(len(outs)):
        if OUT_KIND[k] == 1:
            tl.store(outs[k] + (out_base[k] + T * OUT_STRIDE[k]), one_step + results[k], mask=cm & ends)
        elif OUT_KIND[k] == 3:
            tl.store(outs[k] + out_base[k], one_step + results[k], mask=cm & ends)


@triton.jit
def walk(ins, seens, maps, outs, STEP: tl.constexpr, READ: tl.constexpr, PAST_STEP: tl.constexpr,
         PAST_READ: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, FLAG: tl.constexpr,
         FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr, OUT_KIND: tl.constexpr,
         OUT_STRIDE: tl.constexpr, OUT_COLUMN: tl.constexpr, DIMS: tl.constexpr, COLUMNS: tl.constexpr,
         T: tl.constexpr, TOP: tl.constexpr, INIT: tl.constexpr, STEPPED: tl.constexpr, MASK: tl.constexpr,
         REVERSE: tl.constexpr, MIRRORED: tl.constexpr, SIDE: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
         COLS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNKS: tl.constexpr, SEEN: tl.constexpr, LANES: tl.constexpr,
         EACH: tl.constexpr, EARLY: tl.constexpr, EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """The outputs. OUT_KIND: 0 a row per step, 1 also a row past the end, 2 a sum over time, 3 only past the end.

    With EARLY a chunk is loaded while the one before it is computed. Where `reduce` left out the first step, the operand
    STEPPED is the state behind it. `reduce` was told SEEN last live positions for each segment.
    """
    AXIS: tl.constexpr = 1 if SIDE == 0 else 0
    block, segment, flat, cm = place(COLUMNS, COLS, SEGMENTS, True, SIDE, EVEN, INDEX)
    base, fixed, edge = beside_time(ins, flat, block, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, COLUMNS, T, COLS, SIDE,
                                    ACC)
    out_base = expanded(offsets(flat, block, DIMS, OUT_COLUMN, COLS), SIDE)
    w = numbered(W, SIDE)
    zero = tl.zeros((COLS, W, 1) if SIDE == 0 else (W, COLS, 1), ACC)
    runs = (w * R).to(INDEX)
    first = segment * CHUNKS
    if EARLY:  # before the maps are composed, not to wait twice
        coming = chunk(ins, base, fixed, first * (W * R) + runs, cm, None, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE, T,
                       TOP, MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
    one_step = expand(tl.zeros((COLS,), ACC), SIDE)
    carry = one_step
    if INIT >= 0:
        carry = tl.where(cm, fixed[INIT], one_step)
    mine = segment * COLUMNS + expand(flat, SIDE)
    seen = one_step.to(INDEX) - 1  # the position of the last live step
    if SEGMENTS > 1:
        if STEPPED >= 0:
            carry = tl.where(segment > 0, fixed[STEPPED], carry)
        before_a, before_y = map_of(maps, segment, flat, cm, COLUMNS, LANES, EACH, SIDE)
        carry = affine(before_a, carry, before_y)
        if MASK >= 0:
            seen = tl.load(seens[0] + (segment * (SEEN * COLUMNS) + expand(flat, SIDE)), mask=cm, other=-1).to(INDEX)
    ended = carry
    carry = spread(ended, zero, 1)  # of the tile's shape, lest each thread holds all of it to change its layout
    sums = ()
    for k in tl.static_range(len(outs)):
        sums = sums + (zero,)
    for i in range(0, CHUNKS):
        s = (first + i) * (W * R) + runs
        if EARLY:
            now = coming
            coming = chunk(ins, base, fixed, s + W * R, cm, i + 1 < CHUNKS, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE, T,
                           TOP, MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
        else:
            now = chunk(ins, base, fixed, s, cm, None, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE, T, TOP, MASK, R, SIDE,
                        REVERSE, MIRRORED, EVEN, ACC)
        av, bv, rows, seen = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                   STRIDE, T, TOP, 0, MASK, REVERSE, MIRRORED, R, SIDE, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            whole, upto, p, q = tl.associative_scan((a, y, zero + 1.0, zero), AXIS, compose)
            x = affine(p, carry, q)
            ended = last_of(affine(whole, carry, upto), w, W, AXIS)
        else:
            x = carry
            ended = affine(a, carry, y)
        carry = spread(ended, zero, 1)

        sums = read_out(outs, out_base, x, av, bv, rows, s, cm, zero, sums, READ, OUT_KIND, OUT_STRIDE, T, TOP, R, SIDE,
                        REVERSE, EVEN)

    for k in tl.static_range(len(outs)):
        if OUT_KIND[k] == 2:
            tl.store(outs[k] + mine, tl.sum(sums[k], AXIS, keep_dims=True), mask=cm)

    if PAST_STEP is not None:
        read_past(ins, outs, base, fixed, edge, out_base, ended, seen, cm, segment == SEGMENTS - 1, PAST_STEP, PAST_READ,
                  FLAG, FIXED, STRIDE, OUT_KIND, OUT_STRIDE, T, TOP, MASK, REVERSE, ACC)
