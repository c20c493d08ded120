"""A walk whose time is sharded over a mesh axis: the rows at the edges of shards are exchanged, and the state between."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ._backends._formula import printed
from ._partition import nowhere
from ._shards import next_ones, walked_first, with_edge
from ._solve import run
from ._walk import Beside, Walk, accumulator, either


@dataclasses.dataclass(frozen=True)
class Shard(Walk):
    """`base` over one shard: past its edge stands the neighbouring shard, where `joined`, and its state comes in."""

    _: dataclasses.KW_ONLY
    base: Walk

    @property
    def kinds(self):
        return self.base.kinds

    @property
    def bare(self):
        return self.base.bare

    @property
    def state_out(self):
        return getattr(self.base, "state_out", None)

    def to_run(self) -> Shard:
        return dataclasses.replace(self, base=self.base.to_run())

    def _beside(self, now, beside) -> Beside:
        return dataclasses.replace(beside, near=either(beside.near, now.joined))

    def step(self, now, near, far, beside):
        return self.base.step(now, near, far, self._beside(now, beside))

    def read(self, x, carry, now, near, far, beside):
        return self.base.read(x, carry, now, near, far, self._beside(now, beside))


def solve_over_time(walk: Walk, axis: int, dtypes, implementation: str | None, operands, axis_name: str):
    """The outputs of `walk` on this shard, where the shards along `axis_name` hold consecutive blocks of time."""
    shard, known = joined(walk, axis, operands, axis_name)
    return run(shard, known, axis, dtypes, implementation)


def joined(walk: Walk, axis: int, operands, axis_name: str):
    """(`walk` over this shard but for the state that comes in, its operands): shards exchange a row at each edge."""
    wide = accumulator(walk, [x.dtype for x in operands])
    by_name = dict(zip(walk.names, operands, strict=True))
    with nowhere():
        used = frozenset().union(*printed(walk, wide).used.values())
    crossed = [name for name in walk.names if name not in walk.fixed and f"near_{name}" in used]

    def typed(name, x):
        return x != 0 if name in walk.flags else x.astype(wide)

    def end(name):
        edge = walk.edge_of(name)
        return typed(name, jnp.zeros((1,) * operands[0].ndim) if edge is None else by_name[edge])

    past, sent = {n: end(n) for n in crossed}, {}
    if walk.skips:
        rows = [typed(n, by_name[n]) for n in crossed]
        is_joined, received = _next_live_row(walk, axis, rows, typed("mask", by_name["mask"]), axis_name)
        past = {n: jnp.where(is_joined, row, past[n]) for n, row in zip(crossed, received, strict=True)}
    else:
        is_joined = ~walked_first(walk.reverse, axis_name).reshape((1,) * operands[0].ndim)
        for n in crossed:
            by_name[n], row = with_edge(by_name[n], axis, walk.reverse)
            sent[n] = typed(n, row)
    rows_at_edges = {f"sent_{n}": x for n, x in sent.items()} | {f"past_{n}": x for n, x in past.items()}
    kept = [n for n in walk.names if n not in dict(walk.edges).values()]
    flags = [n for n in (*kept, *rows_at_edges) if n.removeprefix("sent_").removeprefix("past_") in walk.flags]
    shard = Shard(
        names=(*kept, *rows_at_edges, "joined"),
        reverse=walk.reverse,
        flags=(*flags, "joined"),
        fixed=(*(n for n in kept if n in walk.fixed), *rows_at_edges, "joined"),
        edges=tuple((name, f"past_{name}") for name in crossed),
        init=walk.init,
        mask=walk.mask,
        mask_mode=walk.mask_mode,
        over=axis_name,
        sent=tuple((f"sent_{name}", f"past_{name}") for name in sent),
        function=walk.function,
        base=walk,
    )
    return shard, (*(by_name[n] for n in kept), *rows_at_edges.values(), is_joined)


def _walked_before(walk: Walk, axis_name: str):
    """Which shards are walked before this one."""
    me, shards = jax.lax.axis_index(axis_name), jnp.arange(jax.lax.axis_size(axis_name))
    return shards > me if walk.reverse else shards < me


def _row(here, x, axis: int):
    """The row of x where `here`, which is so once at most; no other is read."""
    if x.dtype == bool:
        return jnp.any(here & x, axis, keepdims=True)
    return jnp.sum(jnp.where(here, x, 0), axis, keepdims=True)


def _last(flags, axis: int, reverse: bool):
    """Where the last True is in walking order."""
    order = jax.lax.broadcasted_iota(jnp.int32, flags.shape, axis)
    order = jnp.where(flags, -order if reverse else order, jnp.iinfo(jnp.int32).min)
    return flags & (order == jnp.max(order, axis, keepdims=True))


def _next_live_row(walk: Walk, axis: int, rows, mask, axis_name: str):
    """(is there a live step in the shards before this one, of each operand its row at the nearest)."""
    nearest = _last(mask, axis, walk.reverse)
    live = jax.lax.all_gather(jnp.any(mask, axis, keepdims=True), axis_name)
    before = _walked_before(walk, axis_name).reshape(-1, *(1,) * mask.ndim)
    here = _last(live & before, 0, walk.reverse)
    offers = [jax.lax.all_gather(_row(nearest, x, axis), axis_name) for x in rows]
    return jnp.any(here, 0), [_row(here, offer, 0)[0] for offer in offers]


def with_following(x, n: int, axis: int, axis_name: str):
    """x with the first n rows of the next shard behind it; 0 behind the last."""
    rows = jax.lax.slice_in_dim(x, 0, n, axis=axis)
    return jnp.concatenate([x, next_ones(rows, True, axis_name)], axis)
