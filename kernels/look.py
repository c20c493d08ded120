"""The scan in one pass where time is cut: programs take chunks in order, tell their maps, and wait for those before.

Each chunk is read once. Its map is told to the others as soon as it is known, and the state that enters it comes from the
maps before it: at most LANES * EACH of them, since the state itself is told as often, and none before a map that forgets
what it is given, as that of an episode's end. Which program takes a chunk does not change what is computed, and none waits
for a chunk that no program has taken.
"""

import triton
import triton.language as tl

from .chunks import chunk, run_map, steps
from .columns import beside_time, expanded, offsets, place
from .scan import read_out, read_past
from .tiles import address, affine, compose, expand, follow, last_of, numbered, onwards, spread, unpack

# fmt: off


@triton.jit
def told(a, y):
    """The map (a, y) as one word, so that neither is seen without the other. 0, which is what nothing is told by, is none."""
    low = tl.where(a == a, a, float("nan")).to(tl.int32, bitcast=True) ^ 0x7F800001  # the bits of another NaN
    return (y.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def heard(word):
    """The map (a, y) in a word."""
    a = (word.to(tl.int32) ^ 0x7F800001).to(tl.float32, bitcast=True)
    return a, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def state_before(states, maps, at, init, cm, COLUMNS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
                 SIDE: tl.constexpr):
    """The state that enters chunk number `at`, once the maps that it follows from are told."""
    AXIS: tl.constexpr = 1 if SIDE == 0 else 0
    w = numbered(LANES, SIDE)
    window = tl.maximum(at - 1, 0) // (LANES * EACH)
    first = window * (LANES * EACH) + w * EACH
    before = (onwards(first, EACH) < at) & cm
    j = onwards(w * EACH, EACH)
    one = tl.full(before.shape, 1, tl.float32)
    map_at = address(maps, 0, first, COLUMNS, EACH, min(SIDE, 1))
    map_word = tl.where(before, 0, told(one, one * 0.0))
    # of as many elements as there are threads: had each thread its own, they might not hear it at once, and part
    state_at = states + (window + w * 0) * COLUMNS
    begun = (w == 0) & (window > 0) & cm
    state_word = tl.where(begun, 0, told(tl.full(begun.shape, 1, tl.float32), tl.where(w == 0, init, 0.0)))
    a, y = heard(map_word)
    waiting = True
    while waiting:  # a word that is told is not read again
        map_word = tl.load(map_at, mask=map_word == 0, other=map_word, volatile=True)
        state_word = tl.load(state_at, mask=state_word == 0, other=state_word, volatile=True)
        a, y = heard(map_word)
        # what a map of coefficient 0 follows is not read: the last of those and of the words to come decides
        decides = tl.where(map_word == 0, 2 * j + 3, tl.where(a == 0, 2 * j + 2, 0))
        last = tl.maximum(tl.max(decides, 2, keep_dims=True), tl.where(state_word == 0, 1, 0))
        waiting = tl.max(tl.max(last, AXIS, keep_dims=True) & 1, axis=None) > 0
    _, state = heard(state_word)
    y = tl.where(j == 0, affine(a, state, y), y)
    a, y = run_map(unpack(a, EACH, False), unpack(y, EACH, False), EACH)
    if LANES > 1:
        a, y = tl.associative_scan((a, y), AXIS, follow)
        y = last_of(y, w, LANES, AXIS)
    return y


@triton.jit
def single(ins, seens, outs, words, STEP: tl.constexpr, READ: tl.constexpr, PAST_STEP: tl.constexpr,
           PAST_READ: tl.constexpr, NOW: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, FLAG: tl.constexpr,
           FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr, COLUMN: tl.constexpr, OUT_KIND: tl.constexpr,
           OUT_STRIDE: tl.constexpr, OUT_COLUMN: tl.constexpr, DIMS: tl.constexpr, COLUMNS: tl.constexpr,
           T: tl.constexpr, TOP: tl.constexpr, INIT: tl.constexpr, MASK: tl.constexpr, REVERSE: tl.constexpr,
           MIRRORED: tl.constexpr, SIDE: tl.constexpr, W: tl.constexpr, R: tl.constexpr, COLS: tl.constexpr,
           PROGRAMS: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, EARLY: tl.constexpr,
           EVEN: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr):
    """The outputs, as of `walk`, by PROGRAMS programs for each block of columns.

    `words` begin as 0: for each block how many chunks are taken, then what is told. With EARLY the next chunk is taken and
    loaded while this one is put out.
    """
    AXIS: tl.constexpr = 1 if SIDE == 0 else 0
    BLOCKS: tl.constexpr = (COLUMNS + COLS - 1) // COLS
    WINDOW: tl.constexpr = LANES * EACH
    WINDOWS: tl.constexpr = (CHUNKS + WINDOW - 1) // WINDOW
    block, _, flat, cm = place(COLUMNS, COLS, PROGRAMS, False, SIDE, EVEN, INDEX)
    words = words[0].to(tl.pointer_type(tl.int64), bitcast=True)
    tickets = words + block
    at = tl.atomic_add(tickets, 1, sem="relaxed").to(INDEX)
    base, fixed, edge = beside_time(ins, flat, block, FLAG, FIXED, EDGE, STRIDE, COLUMN, DIMS, COLUMNS, T, COLS, SIDE,
                                    ACC)
    out_base = expanded(offsets(flat, block, DIMS, OUT_COLUMN, COLS), SIDE)
    w = numbered(W, SIDE)
    zero = tl.zeros((COLS, W, 1) if SIDE == 0 else (W, COLS, 1), ACC)
    runs = (w * R).to(INDEX)
    column = expand(flat, SIDE)
    states = words + BLOCKS + column
    maps = states + WINDOWS * COLUMNS
    one_step = expand(tl.zeros((COLS,), ACC), SIDE)
    init = one_step
    if INIT >= 0:
        init = tl.where(cm, fixed[INIT], one_step)
    no_sums = ()
    for k in tl.static_range(len(outs)):
        no_sums = no_sums + (zero,)
    ends = False
    ended = one_step
    end_seen = one_step.to(INDEX) - 1
    if EARLY:
        coming = chunk(ins, base, fixed, at * (W * R) + runs, cm, at < CHUNKS, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE,
                       T, TOP, MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
    while at < CHUNKS:
        if EARLY:
            now = coming
        else:
            now = chunk(ins, base, fixed, at * (W * R) + runs, cm, None, NOW, NEAR, FAR, FLAG, FIXED, EDGE, STRIDE, T, TOP,
                        MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
        s = at * (W * R) + runs
        here = at * COLUMNS
        seen = one_step.to(INDEX) - 1
        if MASK >= 0:
            seen = tl.load(seens[0] + (here + column), mask=cm, other=-1).to(INDEX)
        av, bv, rows, seen = steps(ins, base, fixed, edge, now, s, seen, cm, zero, STEP, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                                   STRIDE, T, TOP, 0, MASK, REVERSE, MIRRORED, R, SIDE, EVEN, ACC)
        a, y = run_map(av, bv, R)
        if W > 1:
            a, y, p, q = tl.associative_scan((a, y, zero + 1.0, zero), AXIS, compose)
        else:
            p, q = zero + 1.0, zero
        tl.atomic_xchg(maps + (here + w * 0), told(a, y), mask=(w == W - 1) & cm, sem="relaxed")
        carry = state_before(states, maps, at, init, cm, COLUMNS, LANES, EACH, SIDE)
        if WINDOWS > 1:
            tl.atomic_xchg(states + at // WINDOW * COLUMNS, told(one_step + 1.0, carry), mask=(at % WINDOW == 0) & cm,
                           sem="relaxed")
        carry = spread(carry, zero, 1)
        if EARLY:  # not before the wait, which others would wait for
            then = tl.atomic_add(tickets, 1, sem="relaxed").to(INDEX)
            coming = chunk(ins, base, fixed, then * (W * R) + runs, cm, then < CHUNKS, NOW, NEAR, FAR, FLAG, FIXED, EDGE,
                           STRIDE, T, TOP, MASK, R, SIDE, REVERSE, MIRRORED, EVEN, ACC)
        if PAST_STEP is not None:
            ends = at == CHUNKS - 1
            if ends:
                ended = last_of(affine(a, carry, y), w, W, AXIS)
                end_seen = seen
        sums = read_out(outs, out_base, affine(p, carry, q), av, bv, rows, s, cm, zero, no_sums, READ, OUT_KIND, OUT_STRIDE,
                        T, TOP, R, SIDE, REVERSE, EVEN)
        for k in tl.static_range(len(outs)):
            if OUT_KIND[k] == 2:
                tl.store(outs[k] + (here + column), tl.sum(sums[k], AXIS, keep_dims=True), mask=cm)
        if EARLY:
            at = then
        else:
            at = tl.atomic_add(tickets, 1, sem="relaxed").to(INDEX)

    if PAST_STEP is not None:
        read_past(ins, outs, base, fixed, edge, out_base, ended, end_seen, cm, ends, PAST_STEP, PAST_READ, FLAG, FIXED, STRIDE,
                  OUT_KIND, OUT_STRIDE, T, TOP, MASK, REVERSE, ACC)
