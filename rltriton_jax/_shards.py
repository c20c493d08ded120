"""A walk over the shards of time, lowered around one exchange; and rows that pass from a shard to the next."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _exchange
from ._partition import apart


def lower(ctx, operands, implementation, walk, axis: int, dtypes):
    """Lowers a walk over a shard: what it does to a state, one exchange, and the walk from the state that enters it."""
    told, kinds = walk.told, len(dtypes) - len(walk.told)
    walk = dataclasses.replace(walk, told=())

    def stage(function, avals, values):
        types: list[ShapedArray] = []

        def traced(*values):
            outs = function(*values)
            types.extend(ShapedArray(x.shape, x.dtype) for x in outs)
            return outs

        inner = ctx.replace(avals_in=avals, avals_out=None)
        return types, mlir.lower_fun(traced, multiple_results=True)(inner, *values)

    def leave(*operands):
        (a, b), maps = implementation.leave(walk, _exchange.waiting(walk, operands, axis), axis)
        return [_exchange.packed(walk, operands, axis, a, b), *maps]

    def exchange(vector):
        # each is told its own place: XLA would ask the driver for it in the stream of the kernels, between two of them
        places = jnp.arange(jax.lax.axis_size(walk.over), dtype=vector.dtype)[:, None]
        told = jnp.concatenate([jnp.broadcast_to(vector, (len(places), *vector.shape)), places], axis=1)
        came = jax.lax.all_to_all(told, walk.over, 0, 0)
        return [came, came[0, -1].astype(jnp.int32)]

    def enter(vectors, me, *values):
        n = len(operands)
        known, entry, stepped, back = _exchange.arrived(walk, values[:n], axis, vectors, me)
        outs = implementation.enter(walk, known, axis, dtypes[:kinds], list(values[n:]), entry, stepped)
        by_name = {**dict(zip(walk.names, known, strict=True)), **back, "incoming": entry}
        return [*outs, *(jnp.broadcast_to(by_name[name], entry.shape) for name in told)]

    avals = [ShapedArray(a.shape, a.dtype) for a in ctx.avals_in]  # an array's type, not how it varies over a mesh
    left_types, left = stage(apart(leave), avals, operands)
    came_types, came = stage(exchange, left_types[:1], left[:1])
    return stage(apart(enter), [*came_types, *avals, *left_types[1:]], [*came, *operands, *left[1:]])[1]


def resolved(walk, operands):
    """(a walk that waits for no rows, its operands): `walk` with the rows of the shard walked before this one in place."""
    by_name = dict(zip(walk.names, operands, strict=True))
    for row, edge in walk.sent:
        by_name[edge] = jnp.where(by_name["joined"], next_ones(by_name[row], walk.reverse, walk.over), by_name[edge])
    return dataclasses.replace(walk, sent=()), tuple(by_name.values())


# x, and its first or last row: so that x and the row have one cotangent, which is that of x with one row changed in place
edge_p = Primitive("rltriton_edge")
edge_p.multiple_results = True


def with_edge(x, axis: int, reverse: bool):
    """(x, its row nearest to the shard that is walked after this one)."""
    return edge_p.bind(x, axis=axis, at=0 if reverse else x.shape[axis] - 1)


@edge_p.def_impl
def _edge(x, axis, at):
    return [x, jax.lax.slice_in_dim(x, at, at + 1, axis=axis)]


@edge_p.def_abstract_eval
def _edge_types(x, axis, at):
    return [x, x.update(shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))]


def _edge_jvp(primals, tangents, **params):
    outs, (tangent,) = edge_p.bind(*primals, **params), tangents
    if isinstance(tangent, ad.Zero):
        return outs, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs]
    return outs, edge_p.bind(tangent, **params)


def _edge_transpose(cotangents, x, axis, at):
    whole, row = cotangents
    if isinstance(row, ad.Zero):
        return [whole]
    if isinstance(whole, ad.Zero):
        whole = ad.instantiate_zeros(whole)
    row = row + jax.lax.slice_in_dim(whole, at, at + 1, axis=axis)
    return [jax.lax.dynamic_update_slice_in_dim(whole, row, at, axis)]


def _edge_batch(operands, dims, axis, at):
    (x,), (d,) = operands, dims
    return edge_p.bind(x, axis=axis + (d <= axis), at=at), [d, d]


ad.primitive_jvps[edge_p] = _edge_jvp
ad.primitive_transposes[edge_p] = _edge_transpose
batching.primitive_batchers[edge_p] = _edge_batch
mlir.register_lowering(edge_p, mlir.lower_fun(_edge, multiple_results=True))


def walked_first(reverse: bool, over: str):
    """Whether this shard is the first one in walking order."""
    return jax.lax.axis_index(over) == (jax.lax.axis_size(over) - 1 if reverse else 0)


def next_ones(x, reverse: bool, over: str):
    """x of the shard that is walked before this one; 0 where there is none."""
    size = jax.lax.axis_size(over)
    pairs = [(i + 1, i) if reverse else (i, i + 1) for i in range(size - 1)]
    return jax.lax.ppermute(x, over, pairs)


def entering(x, init, axis: int, reverse: bool, over: str):
    """The state that entered this shard, whose own are x."""
    last = jax.lax.index_in_dim(x, 0 if reverse else x.shape[axis] - 1, axis)
    return jnp.where(walked_first(reverse, over), init.astype(x.dtype), next_ones(last, reverse, over))
