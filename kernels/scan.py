"""The scan: one kernel body for x[t] = a[t] * x[next] + b[t] over any layout, into which a step and its read-out are plugged.

A program owns a block of columns (one column: one series) and walks their time in chunks. A chunk is a tile of W runs
beside each other, each of R steps held in registers; the runs are composed by one tile scan that carries the exclusive
prefixes with it, so nothing is shuffled or gathered. Time runs along axis 0 of a tile ([W, COLS]: the columns lie side by
side in memory) or along axis 1 ([COLS, W]: the steps do, and the R steps of a run are one wide load).

Tuples stand for the operands: `ins` and `outs` are pointers, and the constexpr tuples hold for each operand
  NOW, NEAR, FAR   is its row read at the step, at the step walked before, at the step to come,
  FLAG             is it read as != 0,
  FIXED            has it one row for all time,
  EDGE             what stands past the end: -1 nothing (0), -2 its own row T, else the index of another operand;
STRIDE holds the stride of time, COLUMN the strides of DIMS, the axes of the columns (the last varies fastest).
"""

import triton
import triton.language as tl


@triton.jit
def affine(a, x, b):
    """a * x + b; x is not read where a is 0."""
    return tl.where(a == 0, b, a * x + b)


@triton.jit
def chain(a, b):
    return tl.where(b == 0, b, a * b)


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
def column(rest, i, DIMS: tl.constexpr, COLUMN: tl.constexpr):
    """The offset of a column, given its place on the last axis and what is left for the axes before."""
    offset = i * COLUMN[len(DIMS) - 1]
    for d in tl.static_range(1, len(DIMS)):
        k: tl.constexpr = len(DIMS) - 1 - d
        if d < len(DIMS) - 1:
            offset = offset + (rest % DIMS[k]) * COLUMN[k]
            rest = rest // DIMS[k]
        else:
            offset = offset + rest * COLUMN[k]
    return offset


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
def series(
    ptr,
    base,
    first,
    t0,
    cm,
    T: tl.constexpr,
    STRIDE: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    REVERSE: tl.constexpr,
    EVEN: tl.constexpr,
    FLAG: tl.constexpr,
    ACC: tl.constexpr,
):
    """The R tiles of one operand in walking order; `first` is the time of a run's first step, `t0` its earliest."""
    out = ()
    if ROWS:
        k = tl.arange(0, R)[None, None, :]
        t = t0[:, :, None] + k
        if EVEN:
            inside = None
        else:
            inside = (t >= 0) & (t < T) & cm[:, :, None]
        tiles = unpack(fetch(ptr + (base[:, :, None] + t * STRIDE), inside, FLAG, ACC), R)
        for r in tl.static_range(R):
            if REVERSE:
                out = out + (tiles[R - 1 - r],)
            else:
                out = out + (tiles[r],)
    else:
        for r in tl.static_range(R):
            if REVERSE:
                t = first - r
            else:
                t = first + r
            if EVEN:
                inside = None
            else:
                inside = (t >= 0) & (t < T) & cm
            out = out + (fetch(ptr + (base + t * STRIDE), inside, FLAG, ACC),)
    return out


@triton.jit
def walk(
    ins,
    outs,
    STEP: tl.constexpr,
    READ: tl.constexpr,
    PAST_STEP: tl.constexpr,
    PAST_READ: tl.constexpr,
    NOW: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    FLAG: tl.constexpr,
    FIXED: tl.constexpr,
    EDGE: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMN: tl.constexpr,
    OUT_KIND: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    OUT_COLUMN: tl.constexpr,
    DIMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    INIT: tl.constexpr,
    MASK: tl.constexpr,
    REVERSE: tl.constexpr,
    MIRRORED: tl.constexpr,
    ROWS: tl.constexpr,
    W: tl.constexpr,
    R: tl.constexpr,
    COLS: tl.constexpr,
    EVEN: tl.constexpr,
    BIG: tl.constexpr,
    ACC: tl.constexpr,
):
    K: tl.constexpr = len(NOW)
    AXIS: tl.constexpr = 1 if ROWS else 0
    CHUNK: tl.constexpr = W * R
    INDEX: tl.constexpr = tl.int64 if BIG else tl.int32

    # the columns of this program
    pid = tl.program_id(0).to(INDEX)
    lane = tl.arange(0, COLS).to(INDEX)
    LAST: tl.constexpr = DIMS[len(DIMS) - 1]
    if LAST % COLS == 0:
        i = (pid % (LAST // COLS)) * COLS + lane
        rest = pid // (LAST // COLS)
    else:
        i = (pid * COLS + lane) % LAST
        rest = (pid * COLS + lane) // LAST
    if EVEN:
        cm = expand(tl.full((COLS,), 1, tl.int1), ROWS)
    else:
        cm = expand(pid * COLS + lane < COLUMNS, ROWS)
    base = ()
    for k in tl.static_range(K):
        base = base + (expand(column(rest, i, DIMS, COLUMN[k]), ROWS),)
    out_base = ()
    for k in tl.static_range(len(outs)):
        out_base = out_base + (expand(column(rest, i, DIMS, OUT_COLUMN[k]), ROWS),)

    # operands of one row for all time, and the row past the end of each series
    fixed = ()
    for k in tl.static_range(K):
        if FIXED[k]:
            fixed = fixed + (fetch(ins[k] + base[k], cm, FLAG[k], ACC),)
        else:
            fixed = fixed + (0.0,)
    edge = ()
    for k in tl.static_range(K):
        if FIXED[k]:
            edge = edge + (fixed[k],)
        elif EDGE[k] >= 0:
            edge = edge + (fixed[EDGE[k]],)
        elif EDGE[k] == -2:
            edge = edge + (fetch(ins[k] + base[k] + T * STRIDE[k], cm, FLAG[k], ACC),)
        elif FLAG[k]:
            edge = edge + (expand(tl.zeros((COLS,), tl.int1), ROWS),)
        else:
            edge = edge + (expand(tl.zeros((COLS,), ACC), ROWS),)

    w = tl.arange(0, W)
    if ROWS:
        w = w[None, :]
        top: tl.constexpr = (T + R - 1) // R * R - 1 if REVERSE else 0
        zero = tl.zeros((COLS, W), ACC)
    else:
        w = w[:, None]
        top: tl.constexpr = T - 1 if REVERSE else 0
        zero = tl.zeros((W, COLS), ACC)
    POSITIONS: tl.constexpr = top + 1 if REVERSE else T
    one_step = expand(tl.zeros((COLS,), ACC), ROWS)
    every = tl.full(zero.shape, 1, tl.int1)
    if INIT >= 0:
        carry = fixed[INIT]
    else:
        carry = one_step
    seen = one_step.to(INDEX) - 1  # the position of the last live step
    sums = ()
    for k in tl.static_range(len(outs)):
        sums = sums + (zero,)

    for c in range(0, (POSITIONS + CHUNK - 1) // CHUNK):
        s0 = (c * CHUNK + w * R).to(INDEX)
        if REVERSE:
            first = top - s0
            t0 = (top + 1 - R) - s0
        else:
            first = s0
            t0 = s0
        now = ()
        for k in tl.static_range(K):
            if not FIXED[k] and (NOW[k] or NEAR[k]):
                now = now + (
                    series(ins[k], base[k], first, t0, cm, T, STRIDE[k], R, ROWS, REVERSE, EVEN, FLAG[k], ACC),
                )
            else:
                now = now + ((fixed[k],),)

        # the step walked before the first of each run
        if MASK >= 0:
            last = tl.zeros(zero.shape, INDEX) - 1
            for r in tl.static_range(R):
                last = tl.where(now[MASK][r], s0 + r, last)
            _, before = tl.associative_scan((last, tl.zeros(zero.shape, INDEX) - 1), AXIS, latest)
            before = tl.maximum(before, seen)
            seen = tl.maximum(seen, tl.max(last, AXIS, keep_dims=True))
            has_near = before >= 0
            if REVERSE:
                t_near = top - before
            else:
                t_near = before
        else:
            if REVERSE:
                t_near = first + 1
                has_near = (t_near < T) & cm
            else:
                t_near = first - 1
                has_near = (t_near >= 0) & cm
        near = ()
        for k in tl.static_range(K):
            if FIXED[k] or not NEAR[k]:
                near = near + (fixed[k],)
            elif EDGE[k] == -2 and MASK < 0 and not MIRRORED:
                near = near + (
                    fetch(ins[k] + (base[k] + t_near * STRIDE[k]), cm & (t_near >= 0) & (t_near <= T), FLAG[k], ACC),
                )
            else:
                x = fetch(
                    ins[k] + (base[k] + t_near * STRIDE[k]), has_near & cm & (t_near >= 0) & (t_near < T), FLAG[k], ACC
                )
                if MIRRORED:
                    near = near + (x,)
                else:
                    near = near + (tl.where(has_near, x, edge[k]),)

        av = ()
        bv = ()
        nears = ()
        fars = ()
        heres = ()
        has_nears = ()
        has_fars = ()
        for r in tl.static_range(R):
            if REVERSE:
                t = first - r
                t_far = t - 1
                has_far = t_far >= 0
            else:
                t = first + r
                t_far = t + 1
                has_far = t_far < T
            here = ()
            far = ()
            for k in tl.static_range(K):
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
            nears = nears + (near,)
            fars = fars + (far,)
            heres = heres + (here,)
            has_nears = has_nears + (has_near,)
            has_fars = has_fars + (has_far,)
            # this step is the near one of the next
            follow = ()
            for k in tl.static_range(K):
                if NEAR[k] and not FIXED[k]:
                    if MASK >= 0:
                        follow = follow + (tl.where(now[MASK][r], now[k][r], near[k]),)
                    elif EVEN or not (ROWS and REVERSE):
                        follow = follow + (now[k][r],)
                    elif MIRRORED:
                        follow = follow + (now[k][r],)
                    else:
                        follow = follow + (tl.where(t < T, now[k][r], edge[k]),)
                else:
                    follow = follow + (near[k],)
            if MASK >= 0:
                has_near = has_near | now[MASK][r]
            elif REVERSE:
                has_near = (t < T) & cm
            else:
                has_near = (t >= 0) & cm
            near = follow

        a = av[0]
        y = bv[0]
        for r in tl.static_range(1, R):
            y = affine(av[r], y, bv[r])
            a = chain(a, av[r])
        if W > 1:
            whole, upto, p, q = tl.associative_scan((a, y, zero + 1.0, zero), AXIS, compose)
            x = affine(p, carry, q)
            carry = tl.sum(tl.where(w == W - 1, affine(whole, carry, upto), 0.0), AXIS, keep_dims=True)
        else:
            x = tl.where(every, carry, zero)
            carry = affine(a, carry, y)

        written = ()
        for r in tl.static_range(R):
            if REVERSE:
                t = first - r
            else:
                t = first + r
            before_x = x
            x = affine(av[r], x, bv[r])
            results = READ(x, before_x, heres[r], nears[r], fars[r], has_nears[r], has_fars[r])
            inside = (t >= 0) & (t < T) & cm
            written = written + (results,)
            if not ROWS:
                for k in tl.static_range(len(outs)):
                    if OUT_KIND[k] < 2:
                        at = outs[k] + (out_base[k] + t * OUT_STRIDE[k])
                        if EVEN:
                            tl.store(at, tl.where(every, results[k], zero))
                        else:
                            tl.store(at, tl.where(every, results[k], zero), mask=inside)
            added = ()
            for k in tl.static_range(len(outs)):
                if OUT_KIND[k] == 2:
                    added = added + (sums[k] + tl.where(inside, tl.where(every, results[k], zero), 0.0),)
                else:
                    added = added + (sums[k],)
            sums = added
        if ROWS:
            for k in tl.static_range(len(outs)):
                if OUT_KIND[k] < 2:
                    steps = ()
                    for r in tl.static_range(R):
                        if REVERSE:
                            steps = steps + (tl.where(every, written[R - 1 - r][k], zero),)
                        else:
                            steps = steps + (tl.where(every, written[r][k], zero),)
                    t = t0[:, :, None] + tl.arange(0, R)[None, None, :]
                    at = outs[k] + (out_base[k][:, :, None] + t * OUT_STRIDE[k])
                    if EVEN:
                        tl.store(at, pack(steps, 0, 1, R))
                    else:
                        tl.store(at, pack(steps, 0, 1, R), mask=(t >= 0) & (t < T) & cm[:, :, None])

    for k in tl.static_range(len(outs)):
        if OUT_KIND[k] == 2:
            tl.store(outs[k] + out_base[k], tl.sum(sums[k], AXIS, keep_dims=True), mask=cm)

    # the visit past the end of a mirrored walk
    if PAST_STEP is not None:
        if MASK >= 0:
            has_near = seen >= 0
        else:
            seen = seen * 0 + (T - 1 if not REVERSE else top)
            has_near = cm
        if REVERSE:
            t_near = top - seen
        else:
            t_near = seen
        near = ()
        for k in tl.static_range(K):
            if FIXED[k]:
                near = near + (fixed[k],)
            else:
                near = near + (
                    fetch(ins[k] + (base[k] + t_near * STRIDE[k]), has_near & cm & (t_near >= 0), FLAG[k], ACC),
                )
        a, b = PAST_STEP(edge, near, edge, has_near, has_near)
        x = affine(one_step + a, carry, one_step + b)
        results = PAST_READ(x, carry, edge, near, edge, has_near, has_near)
        for k in tl.static_range(len(outs)):
            if OUT_KIND[k] == 1:
                tl.store(outs[k] + (out_base[k] + T * OUT_STRIDE[k]), one_step + results[k], mask=cm)
            elif OUT_KIND[k] == 3:
                tl.store(outs[k] + out_base[k], one_step + results[k], mask=cm)
