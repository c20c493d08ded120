"""Builds the Triton kernel of a walk: its formula printed as device functions, around the scan body of `kernels`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._walk import EDGE, LONG, STEP, SUM, Beside, Rows, Walk, accumulator
from ._text import body_of, compile_text
from ._tiles import Tile
from ._view import View

_KIND = {STEP: 0, LONG: 1, SUM: 2, EDGE: 3}
_PLACES = ("now", "near", "far")


class Formula(NamedTuple):
    """The bodies of a walk's device functions, what each reads, and what the scan loop reads in all."""

    bodies: dict[str, str]
    used: dict[str, frozenset[str]]
    rows: frozenset[str]  # e.g. "now_reward", "near_value"
    reads: frozenset[str]  # names of operands


@functools.lru_cache(maxsize=512)
def printed(walk: Walk, dtype: Any) -> Formula:
    """The device functions of a walk that computes in `dtype`."""
    names = walk.names
    row = [jax.ShapeDtypeStruct((), jnp.bool_ if name in walk.flags else dtype) for name in names]
    flag, number = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((), dtype)
    labels = [f"{place}_{name}" for place in _PLACES for name in names] + ["has_near", "has_far"]
    avals = (*row, *row, *row, flag, flag)

    def rows(values, here):
        n = len(names)
        now, near, far = (
            Rows(dict(zip(names, values[i * n : (i + 1) * n], strict=True)).__getitem__) for i in range(3)
        )
        return now, near, far, Beside(near=values[-2], far=values[-1] if here else False, here=here)

    bodies, used = {}, {}
    for prefix, here in (("", True), ("past_", False)):
        if not here and not (walk.mirrored and {LONG, EDGE} & set(walk.all_kinds)):
            continue

        def step(*values, here=here):
            return walk.coefficients(*rows(values, here))

        def read(x, carry, *values, here=here):
            return walk.outputs(x, carry, *rows(values, here))

        bodies[f"{prefix}step"], used[f"{prefix}step"] = body_of(step, avals, labels)
        bodies[f"{prefix}read"], used[f"{prefix}read"] = body_of(
            read, (number, number, *avals), ["x", "carry", *labels]
        )
    looped = used["step"] | used["read"]
    if walk.mask is not None:
        looped = looped | {f"now_{walk.mask}"}
    reads = {
        name for label in looped.union(*used.values()) for name in names if label in {f"{p}_{name}" for p in _PLACES}
    }
    return Formula(bodies, used, looped, frozenset(reads | ({walk.init} if walk.init else set())))


def _device_function(key: str, formula: Formula, names: list[str]) -> str:
    """The text of one device function, which finds its operands in tuples ordered as `names`."""
    unpacked = "".join(
        f"    {place}_{name} = {place}[{k}]\n"
        for place in _PLACES
        for k, name in enumerate(names)
        if f"{place}_{name}" in formula.used[key]
    )
    state = "x, carry, " if key.endswith("read") else ""
    return f"def {key}({state}now, near, far, has_near, has_far):\n{unpacked}{formula.bodies[key]}"


class Kernel(NamedTuple):
    """A Triton function of one pointer per operand and output, to be run by a grid of programs."""

    function: Any
    grid: tuple[int, ...]
    warps: int
    operands: tuple[int, ...]  # the operands it reads, of the walk's


def build(walk: Walk, dtypes: tuple, view: View, tile: Tile) -> Kernel:
    """The kernel of a walk over operands of `dtypes`, laid out as `view`."""
    return _build(walk, accumulator(walk, dtypes), view, tile)


@functools.lru_cache(maxsize=512)
def _build(walk: Walk, dtype, view: View, tile: Tile) -> Kernel:
    import triton
    import triton.language as tl

    from ..kernels import scan

    formula = printed(walk, dtype)
    edge_names = {edge for name, edge in walk.edges if name in formula.reads}
    operands = tuple(k for k, name in enumerate(walk.names) if name in formula.reads or name in edge_names)
    names = [walk.names[k] for k in operands]

    def pick(values):
        return tuple(values[k] for k in operands)

    def reads(place):
        return tuple(f"{place}_{name}" in formula.rows for name in names)

    def edge(name):
        if name in walk.long:
            return -2
        owner = walk.edge_of(name)
        return names.index(owner) if owner in names else -1

    fits = view.columns % tile.columns == 0 and view.length % (tile.runs * tile.steps) == 0
    scope: dict[str, Any] = {"tl": tl, "walk": scan.walk}
    for key in formula.bodies:
        scope[key] = triton.jit(compile_text(_device_function(key, formula, names), key, scope))
    given = {key: key if key in scope else "None" for key in ("step", "read", "past_step", "past_read")}
    constants = dict(
        STEP=given["step"], READ=given["read"], PAST_STEP=given["past_step"], PAST_READ=given["past_read"],
        NOW=reads("now"), NEAR=reads("near"), FAR=reads("far"),
        FLAG=tuple(name in walk.flags for name in names), FIXED=tuple(name in walk.fixed for name in names),
        EDGE=tuple(map(edge, names)), STRIDE=pick(view.in_time), COLUMN=pick(view.in_columns),
        OUT_KIND=tuple(_KIND[kind] for kind in walk.all_kinds), OUT_STRIDE=view.out_time, OUT_COLUMN=view.out_columns,
        DIMS=view.dims, COLUMNS=view.columns, T=view.length,
        INIT=names.index(walk.init) if walk.init else -1,
        MASK=names.index(walk.mask) if walk.skips else -1,
        REVERSE=walk.reverse, MIRRORED=walk.mirrored, ROWS=tile.rows, W=tile.runs, R=tile.steps, COLS=tile.columns,
        EVEN=fits, BIG=view.big, ACC=f"tl.{jnp.dtype(dtype).name}",
    )  # fmt: skip
    pointers = [f"p{i}" for i in range(len(operands))], [f"o{i}" for i in range(len(walk.all_kinds))]
    ins, outs = ("".join(f"{p}, " for p in group) for group in pointers)
    listed = ", ".join(f"{key}={value}" for key, value in constants.items())
    text = f"def scan({ins}{outs}):\n    walk(({ins}), ({outs}), {listed})\n"
    function = triton.jit(compile_text(text, "scan", scope))
    return Kernel(function, (-(-view.columns // tile.columns),), tile.warps, operands)
