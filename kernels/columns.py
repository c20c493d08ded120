"""Where a program's columns lie, and what each has beside its time: operands of one row, and what stands past the end."""

import triton
import triton.language as tl

from .tiles import expand, fetch

# fmt: off


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
def offsets(flat, block, DIMS: tl.constexpr, COLUMNS_OF: tl.constexpr, COLS: tl.constexpr):
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
        out = out + (column(rest, i, DIMS, COLUMNS_OF[k]),)
    return out


@triton.jit
def expanded(xs, SIDE: tl.constexpr):
    """`expand` of each vector."""
    out = ()
    for k in tl.static_range(len(xs)):
        out = out + (expand(xs[k], SIDE),)
    return out


@triton.jit
def place(COLUMNS: tl.constexpr, COLS: tl.constexpr, SEGMENTS: tl.constexpr, BACKWARDS: tl.constexpr, SIDE: tl.constexpr,
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
        cm = expand(tl.full((COLS,), 1, tl.int1), SIDE)
    else:
        cm = expand(flat < COLUMNS, SIDE)
    return block, segment, flat, cm


@triton.jit
def beside(ptr, at, there, FLAG: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr, ACC: tl.constexpr):
    """One row of an operand: a vector is loaded, not a tile, lest each thread loads it once for each of its steps."""
    x = fetch(ptr + at, there, FLAG, ACC)
    if COLS == 1:
        return x
    else:
        return expand(x, SIDE)


@triton.jit
def one_row(ins, at, there, FLAG: tl.constexpr, FIXED: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr,
            ACC: tl.constexpr):
    """The operands of one row for all time; 0 stands for the others."""
    out = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k]:
            out = out + (beside(ins[k], at[k], there, FLAG[k], COLS, SIDE, ACC),)
        else:
            out = out + (0.0,)
    return out


@triton.jit
def past_end(ins, at, fixed, there, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr,
             T: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr, ACC: tl.constexpr):
    """What stands past the end of each operand."""
    out = ()
    for k in tl.static_range(len(FIXED)):
        if FIXED[k]:
            out = out + (fixed[k],)
        elif EDGE[k] >= 0:
            out = out + (fixed[EDGE[k]],)
        elif EDGE[k] == -2:
            out = out + (beside(ins[k], at[k] + T * STRIDE[k], there, FLAG[k], COLS, SIDE, ACC),)
        elif FLAG[k]:
            out = out + (expand(tl.zeros((COLS,), tl.int1), SIDE),)
        else:
            out = out + (expand(tl.zeros((COLS,), ACC), SIDE),)
    return out


@triton.jit
def beside_time(ins, flat, block, FLAG: tl.constexpr, FIXED: tl.constexpr, EDGE: tl.constexpr, STRIDE: tl.constexpr,
                COLUMN: tl.constexpr, DIMS: tl.constexpr, COLUMNS: tl.constexpr, T: tl.constexpr, COLS: tl.constexpr,
                SIDE: tl.constexpr, ACC: tl.constexpr):
    """The offsets of the columns in each operand, the operands of one row, and what stands past the end."""
    base = offsets(flat, block, DIMS, COLUMN, COLS)
    if COLS == 1:
        at = offsets(block, block, DIMS, COLUMN, COLS)
    else:
        at = base
    if COLUMNS % COLS == 0:
        there = None
    else:
        there = flat < COLUMNS
    fixed = one_row(ins, at, there, FLAG, FIXED, COLS, SIDE, ACC)
    edge = past_end(ins, at, fixed, there, FLAG, FIXED, EDGE, STRIDE, T, COLS, SIDE, ACC)
    return expanded(base, SIDE), fixed, edge
