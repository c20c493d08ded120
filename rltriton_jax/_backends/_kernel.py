"""Builds the Triton kernel of a walk: its formula printed as device functions, around a scan body of `kernels`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._walk import EDGE, LONG, STEP, SUM, Walk, accumulator
from ._formula import PLACES, Formula, printed
from ._text import compile_text
from ._tiles import Tile
from ._view import View

_FEW = 64  # maps of segments that XLA composes where it packs them
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
    """How a walk is run: `scan`, after `reduce` where time is cut and read twice; `total` composes many segments of a shard.

    Where time is cut and read once, each chunk is a segment.
    """

    scan: Launch
    reduce: Launch | None
    total: Launch | None
    grid: tuple[int, ...]
    tile: Tile
    top: int  # time t is walked at position top - t, or t
    marks: int  # 0, or before so many stretches of time the last live step must be told
    stretch: int  # the steps of each
    words: int  # of 8 bytes, zeros at first, by which the programs of one pass tell each other


def build(walk: Walk, dtypes: tuple, view: View, tile: Tile) -> Kernel:
    """The kernel of a walk over operands of `dtypes`, laid out as `view`."""
    return _build(walk, accumulator(walk, dtypes), view, tile)


@functools.lru_cache(maxsize=512)
def _build(walk: Walk, dtype, view: View, tile: Tile) -> Kernel:
    formula = printed(walk, dtype)
    top = -(-view.length // tile.steps) * tile.steps - 1 if tile.rows else view.length - 1
    chunk = tile.runs * tile.steps
    chunks = -(-(top + 1 if walk.reverse else view.length) // chunk)
    once = tile.once and view.once and chunks > 1
    programs = min(tile.segments, chunks)
    per_segment = 1 if once else -(-chunks // tile.segments)
    segments = -(-chunks // per_segment)
    tile = tile._replace(segments=segments, once=once)
    follows = walk.skips and any(
        u.startswith("near_") or u == "has_near" for u in frozenset().union(*formula.used.values())
    )
    fits = view.columns % tile.columns == 0 and view.length == segments * per_segment * chunk
    threads = 32 * tile.warps
    blocks, lanes = -(-view.columns // tile.columns), max(1, threads // tile.columns)
    common = dict(
        DIMS=view.dims, COLUMNS=view.columns, T=view.length, TOP=top if walk.reverse else 0, REVERSE=walk.reverse,
        MIRRORED=walk.mirrored, SIDE=0 if tile.rows else max(1, tile.runs * tile.columns // threads), W=tile.runs,
        R=tile.steps, COLS=tile.columns, EVEN=fits, INDEX="tl.int64" if view.big else "tl.int32",
        ACC=f"tl.{jnp.dtype(dtype).name}",
    )  # fmt: skip
    at_end = follows and walk.over is not None and walk.visits_past_end
    past = {key.upper(): key if key in formula.bodies else None for key in ("past_step", "past_read")}
    result = dict(
        STEP="step", READ="read", **past, OUT_KIND=tuple(_KIND[kind] for kind in walk.all_kinds),
        OUT_STRIDE=view.out_time, OUT_COLUMN=view.out_columns,
    )  # fmt: skip
    launch = functools.partial(_launch, walk, formula, view, follows)
    if once:
        each = 1 if tile.rows else 8  # of many columns few lanes look back, and a state must not be told too often
        told = dict(PROGRAMS=programs, CHUNKS=chunks, LANES=lanes, EACH=each)
        constants = dict(**result, **common, **told, EARLY=tile.early)
        scan = launch("single", constants, tile.warps, follows)
        words = blocks + (chunks + -(-chunks // (lanes * each))) * view.columns
        return Kernel(scan, None, None, (blocks * programs,), tile, top, chunks * follows, chunk, words)
    cut = dict(SEGMENTS=segments, CHUNKS=per_segment, EARLY=tile.early and per_segment > 1)
    composed = dict(LANES=lanes, EACH=min(16, 1 << (-(-segments // lanes) - 1).bit_length()))
    twice = segments > 1 or walk.over is not None
    # `reduce` keeps no prefixes: a warp that takes a chunk of its own after the other waits for none, 8 % of its time
    alone = tile.warps if tile.rows and segments > 1 and tile.runs % tile.warps == 0 else 1
    smaller = per_segment * alone
    marks = segments * smaller
    marked = follows and twice and marks > 1
    scan = launch(
        "walk", {**result, **common, **cut, "SEEN": smaller, **composed}, tile.warps, follows and segments > 1
    )
    reduce = total = None
    if twice:
        own = dict(W=tile.runs // alone, CHUNKS=smaller, EARLY=tile.early and smaller > 1)
        constants = {**common, **cut, **own, "STEP": "step", "HEAD": int(bool(walk.sent))}
        reduce = launch("reduce", constants, tile.warps // alone, marked)
    visit = None if walk.tells_end else past["PAST_STEP"]
    if walk.over and (visit or segments > _FEW):
        total = launch("total", {**common, **cut, **composed, "PAST_STEP": visit}, tile.warps, at_end)
    return Kernel(scan, reduce, total, (blocks * segments,), tile, top, marks * (marked or at_end), chunk // alone, 0)


# the functions that each body is given, where the walk has them
_FUNCTIONS = {
    "walk": ("step", "read", "past_step", "past_read"),
    "single": ("step", "read", "past_step", "past_read"),
    "reduce": ("step",),
    "total": ("past_step",),
}


def _launch(walk, formula, view, follows, body, constants, warps, seen) -> Launch:
    """A Triton entry point around one of the bodies of `kernels`, with the operands that its functions read."""
    import triton
    import triton.language as tl

    from ..kernels import look, scan

    functions = [key for key in _FUNCTIONS[body] if key in formula.bodies and constants.get(key.upper()) is not None]
    whole = body in ("walk", "single")
    used = frozenset().union(*(formula.used[key] for key in functions))
    looped = used if body == "total" else formula.rows if whole else formula.used["step"]
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
    if body == "walk":
        constants["STEPPED"] = names.index(walk.stepped) if walk.stepped else -1
    function = getattr(look if body == "single" else scan, body)
    scope: dict[str, Any] = {"tl": tl, body: function}
    for key in functions:
        scope[key] = triton.jit(compile_text(_device_function(key, formula, names), key, scope))
    maps = body == "total" or body == "walk" and constants["SEGMENTS"] > 1
    groups = {
        "ins": [f"p{i}" for i in range(len(operands))],
        "seens": ["s"] * seen,
        "maps": ["a", "y"] * maps,
        "outs": [f"o{i}" for i in range(len(walk.all_kinds) if whole else 2)],
        "words": ["w"] * (body == "single"),
    }
    listed = "".join(f"{name}, " for group in groups.values() for name in group)
    passed = "".join(
        f"({''.join(f'{name}, ' for name in groups[name])}), " for name in function.arg_names if name in groups
    )
    keywords = ", ".join(f"{key}={value}" for key, value in constants.items())
    text = f"def scan({listed}):\n    {body}({passed}{keywords})\n"
    return Launch(triton.jit(compile_text(text, "scan", scope)), operands, warps)
