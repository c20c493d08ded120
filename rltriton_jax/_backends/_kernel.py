"""Builds the Triton kernel of a walk: its formula printed as device functions, around the scan body of `kernels`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._walk import EDGE, LONG, STEP, SUM, Walk, accumulator
from ._formula import PLACES, Formula, printed
from ._text import compile_text
from ._tiles import Tile
from ._view import View

_KIND = {STEP: 0, LONG: 1, SUM: 2, EDGE: 3}


def _device_function(key: str, formula: Formula, names: list[str]) -> str:
    """The text of one device function, which finds its operands in tuples ordered as `names`."""
    unpacked = "".join(
        f"    {place}_{name} = {place}[{k}]\n"
        for place in PLACES
        for k, name in enumerate(names)
        if f"{place}_{name}" in formula.used[key]
    )
    state = "x, carry, " if key.endswith("read") else ""
    return f"def {key}({state}now, near, far, has_near, has_far):\n{unpacked}{formula.bodies[key]}"


class Launch(NamedTuple):
    """A Triton function of one pointer per operand and output, to be run by a grid of programs."""

    function: Any
    operands: tuple[int, ...]  # those of the walk's that it reads
    warps: int


class Kernel(NamedTuple):
    """How a walk is run: `scan`, after `reduce` where time is cut into segments; `total` composes those of a shard."""

    scan: Launch
    reduce: Launch | None
    total: Launch | None
    grid: tuple[int, ...]
    tile: Tile
    chunks: int  # of each segment
    top: int  # time t is walked at position top - t, or t
    follows_mask: bool  # the last live step before a segment must be told


def build(walk: Walk, dtypes: tuple, view: View, tile: Tile) -> Kernel:
    """The kernel of a walk over operands of `dtypes`, laid out as `view`."""
    return _build(walk, accumulator(walk, dtypes), view, tile)


@functools.lru_cache(maxsize=512)
def _build(walk: Walk, dtype, view: View, tile: Tile) -> Kernel:
    formula = printed(walk, dtype)
    top = -(-view.length // tile.steps) * tile.steps - 1 if tile.rows else view.length - 1
    chunk = tile.runs * tile.steps
    chunks = -(-(top + 1 if walk.reverse else view.length) // chunk)
    per_segment = -(-chunks // tile.segments)
    segments = -(-chunks // per_segment)
    tile = tile._replace(segments=segments)
    follows = walk.skips and any(
        u.startswith("near_") or u == "has_near" for u in frozenset().union(*formula.used.values())
    )
    fits = view.columns % tile.columns == 0 and view.length == segments * per_segment * chunk
    threads = 32 * tile.warps
    common = dict(
        DIMS=view.dims, COLUMNS=view.columns, T=view.length, TOP=top if walk.reverse else 0, REVERSE=walk.reverse,
        MIRRORED=walk.mirrored, SIDE=0 if tile.rows else max(1, tile.runs * tile.columns // threads), W=tile.runs,
        R=tile.steps, COLS=tile.columns, SEGMENTS=segments, CHUNKS=per_segment, EARLY=tile.early and per_segment > 1, EVEN=fits,
        INDEX="tl.int64" if view.big else "tl.int32", ACC=f"tl.{jnp.dtype(dtype).name}",
    )  # fmt: skip
    maps = segments > 1
    seen = follows and segments > 1
    at_end = follows and walk.over is not None and walk.visits_past_end
    past = {key.upper(): key if key in formula.bodies else None for key in ("past_step", "past_read")}
    lanes = max(1, threads // tile.columns)
    composed = dict(LANES=lanes, EACH=min(16, 1 << (-(-segments // lanes) - 1).bit_length()))
    scan = _launch(
        walk, formula, view, "walk", ("step", "read", "past_step", "past_read"), follows, seen, maps, len(walk.all_kinds),
        dict(
            STEP="step", READ="read", **past, OUT_KIND=tuple(_KIND[kind] for kind in walk.all_kinds),
            OUT_STRIDE=view.out_time, OUT_COLUMN=view.out_columns, **composed, **common,
        ), tile.warps,
    )  # fmt: skip
    reduce = total = None
    if maps or walk.over:
        # it keeps no prefixes: a warp that takes a chunk of its own after the other waits for none, 8 % of its time
        alone = tile.warps if tile.rows and maps and tile.runs % tile.warps == 0 else 1
        smaller = dict(W=tile.runs // alone, CHUNKS=per_segment * alone, EARLY=tile.early and per_segment * alone > 1)
        constants = {**common, **smaller, "STEP": "step", "HEAD": int(bool(walk.sent))}
        reduce = _launch(
            walk, formula, view, "reduce", ("step",), follows, seen, False, 2, constants, tile.warps // alone
        )
    if walk.over:
        visit = () if walk.tells_end else ("past_step",)
        constants = dict(PAST_STEP=past["PAST_STEP"] if visit else None, **composed, **common)
        total = _launch(walk, formula, view, "total", visit, follows, at_end, True, 2, constants, tile.warps)
    grid = (-(-view.columns // tile.columns) * segments,)
    return Kernel(scan, reduce, total, grid, tile, per_segment, top, seen or at_end)


def _launch(walk, formula, view, body, functions, follows, seen, maps, outs, constants, warps) -> Launch:
    """A Triton entry point around one of the bodies of `kernels.scan`, with the operands that these functions read."""
    import triton
    import triton.language as tl

    from ..kernels import scan as bodies

    functions = [key for key in functions if key in formula.bodies]
    whole = body == "walk"
    used = frozenset().union(*(formula.used[key] for key in functions))
    looped = {"walk": formula.rows, "reduce": formula.used["step"], "total": used}[body]
    rows = looped | ({f"now_{walk.mask}"} if walk.mask else set())
    read = {name for name in walk.names if any(f"{place}_{name}" in used | rows for place in PLACES)}
    started = tuple(name for name in (walk.init, walk.stepped) if name) if whole else ()
    read.update(started)
    if not constants.get("HEAD"):  # only the first step reads what stands past the end
        read |= {edge for name, edge in walk.edges if name in read}
    operands = tuple(k for k, name in enumerate(walk.names) if name in read)
    names = [walk.names[k] for k in operands]

    def reads(place):
        return tuple(f"{place}_{name}" in rows for name in names)

    def edge(name):
        owner = walk.edge_of(name)
        return -2 if name in walk.long else names.index(owner) if owner in names else -1

    constants = {
        **constants,
        "NOW": reads("now"),
        "NEAR": reads("near"),
        "FAR": reads("far"),
        "FLAG": tuple(name in walk.flags for name in names),
        "FIXED": tuple(name in walk.fixed for name in names),
        "EDGE": tuple(map(edge, names)),
        "STRIDE": tuple(view.in_time[k] for k in operands),
        "COLUMN": tuple(view.in_columns[k] for k in operands),
        "MASK": names.index(walk.mask) if follows else -1,
    }
    if whole:
        constants["INIT"] = names.index(walk.init) if walk.init else -1
        constants["STEPPED"] = names.index(walk.stepped) if walk.stepped else -1
    scope: dict[str, Any] = {"tl": tl, body: getattr(bodies, body)}
    for key in functions:
        scope[key] = triton.jit(compile_text(_device_function(key, formula, names), key, scope))
    groups = [f"p{i}" for i in range(len(operands))], ["s"] * seen, ["a", "y"] * maps, [f"o{i}" for i in range(outs)]
    listed = ["".join(f"{name}, " for name in group) for group in groups]
    passed = [f"({group})" for group in listed]
    arguments = ", ".join(passed if maps or whole else [passed[0], passed[1], passed[3]])
    keywords = ", ".join(f"{key}={value}" for key, value in constants.items())
    text = f"def scan({''.join(listed)}):\n    {body}({arguments}, {keywords})\n"
    return Launch(triton.jit(compile_text(text, "scan", scope)), operands, warps)
