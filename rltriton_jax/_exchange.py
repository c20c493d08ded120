"""What the shards of time tell each other at once: their affine maps of the state, and rows at their edges."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ._backends import affine, entry_of, past_arrays, past_outputs, step_arrays
from ._backends._formula import printed
from ._walk import Walk, accumulator


def waiting(walk: Walk, operands, axis: int):
    """The operands while rows of other shards are awaited: 0 in their place, of their shape, so that kernels are the same."""
    shape, edges = entry_of(walk, operands, axis).shape, {edge for _, edge in walk.sent}
    named = zip(walk.names, operands, strict=True)
    return [jnp.zeros(shape, x.dtype) if name in edges else x for name, x in named]


def packed(walk: Walk, operands, axis: int, a, b):
    """What this shard tells, as one vector.

    (a, b) is its map of the state, without the first step if that waits for rows, or the visit past its end if it tells them.
    """
    rows = _rows(walk, operands, axis).items()
    rows = [(x != 0 if name in walk.flags else x).astype(a.dtype) for name, x in rows]  # a flag may be below its least
    return jnp.concatenate([x.reshape(-1) for x in (a, b, *rows)])


def arrived(walk: Walk, operands, axis: int, vectors, me):
    """(the operands with the rows from other shards, the state that enters, that behind the first step, what comes back).

    `vectors` are what all shards tell, and `me` is the place of this one. By name comes back, as `back_EDGE`, what the
    visit past the end of the shard before this one put out at its edge.
    """
    (a, b), rows = _unpacked(walk, operands, axis, vectors)
    if walk.tells_end:
        state, ended = _entering(walk, a, b, rows, me, _past_ends(walk, rows, axis, a))
        return operands, state, state, _from_ends(walk, rows, axis, me, ended)
    if not walk.sent:
        state, _ = _entering(walk, a, b, rows, me)
        return operands, state, state, {}
    came = _from_neighbours(walk, rows, a.shape)
    first_a, first_b = _first_steps(walk, rows | came, axis, a)
    state, _ = _entering(walk, first_a, first_b, rows, me, (a, b))
    operands = [_at(came[name], me) if name in came else x for name, x in zip(walk.names, operands, strict=True)]
    return operands, state, affine(_at(first_a, me), state, _at(first_b, me)), {}


def _rows(walk: Walk, operands, axis: int):
    """By name, one row of every operand of which the others must know."""
    by_name = dict(zip(walk.names, operands, strict=True))
    names = [walk.init] if walk.init else []
    if walk.sent or walk.tells_end:
        by_body = printed(walk, accumulator(walk, [x.dtype for x in operands])).used
        # the visit past the end finds the last row near it, and the edge is where it is
        used = by_body["past_step"] | by_body["past_read"] if walk.tells_end else by_body["step"]
        here, beside = ("near", "now") if walk.tells_end else ("now", "near")
        fixed = [name for name in walk.fixed if f"{beside}_{name}" in used]
        names += [name for name in walk.names if f"{here}_{name}" in used or name in fixed]
        names += [edge for name, edge in walk.edges if f"{beside}_{name}" in used]
        names += [name for pair in walk.sent for name in pair]
    at = -1 if walk.reverse != walk.tells_end else 0
    return {name: by_name[name] if name in walk.fixed else _row(by_name[name], axis, at) for name in names}


def _row(x, axis: int, at: int):
    at %= x.shape[axis]
    return jax.lax.slice_in_dim(x, at, at + 1, axis=axis)


def _unpacked(walk: Walk, operands, axis: int, vectors):
    """((a, b), the rows by name) of all shards, which lie along a first axis."""
    entry, rows = entry_of(walk, operands, axis), _rows(walk, operands, axis)
    parts, start = [], 0
    for like in (entry, entry, *rows.values()):
        part = vectors[:, start : start + math.prod(like.shape)]
        parts.append(part.reshape(-1, *like.shape))
        start += part.shape[1]
    named = {name: x != 0 if name in walk.flags else x for name, x in zip(rows, parts[2:], strict=True)}
    return parts[:2], named


def _from_neighbours(walk: Walk, rows, shape):
    """What stands at the edge of each shard: the row of the one walked before, and for the first its own end."""
    out = {}
    for row, edge in walk.sent:
        x, end = (jnp.broadcast_to(rows[name], shape) for name in (row, edge))
        out[edge] = jnp.concatenate([x[1:], end[-1:]] if walk.reverse else [end[:1], x[:-1]])
    return out


def _first_steps(walk: Walk, rows, axis: int, like):
    """The maps of the first steps of all shards."""
    maps = step_arrays(walk, _in_order(walk, rows, like), axis + 1)
    return [jnp.broadcast_to(x, like.shape) for x in maps]


def _past_ends(walk: Walk, rows, axis: int, like):
    """The maps of the visits past the ends of all shards."""
    maps = past_arrays(walk, _in_order(walk, rows, like), axis + 1)
    return [jnp.broadcast_to(jnp.asarray(x, like.dtype), like.shape) for x in maps]


def _from_ends(walk: Walk, rows, axis: int, me, ended):
    """By name, what the shard walked before this one put out past its end, where `ended` is its state; 0 for the first."""
    first = me == _order(walk, jax.lax.axis_size(walk.over))[0]
    before = {name: _at(x, me + (1 if walk.reverse else -1)) for name, x in rows.items()}
    outs = past_outputs(walk, _in_order(walk, before, ended), axis, ended)
    put_out = {edge: jnp.asarray(outs[i], ended.dtype) for edge, i in walk.edges_put_out.items()}
    return {f"back_{edge}": jnp.where(first, 0.0, x) for edge, x in put_out.items()}


def _in_order(walk: Walk, rows, like):
    """The operands, of which `rows` are known by name, in full: cotangents sum over what is not; the rest is not read."""
    return [jnp.broadcast_to(rows.get(name, 0), like.shape) for name in walk.names]


def _order(walk: Walk, shards: int):
    """The shards in walking order."""
    return range(shards)[:: -1 if walk.reverse else 1]


def _entering(walk: Walk, a, b, rows, me, rest=None):
    """(the state that enters this shard, that of the shard before it ahead of `rest`; 0 for the first).

    Shard k maps the state that enters it by (a[k], b[k]), and then by `rest`.
    """
    order = _order(walk, a.shape[0])
    like = b if rest is None else rest[1]
    state = jnp.zeros_like(like[0]) if walk.init is None else jnp.broadcast_to(rows[walk.init][order[0]], like[0].shape)
    ended = jnp.zeros_like(state)
    for k in order[:-1]:
        between = affine(a[k], state, b[k])
        then = between if rest is None else affine(rest[0][k], between, rest[1][k])
        before = k > me if walk.reverse else k < me
        state, ended = jnp.where(before, then, state), jnp.where(before, between, ended)
    return state, ended


def _at(x, k):
    return jax.lax.dynamic_index_in_dim(x, k, keepdims=False)
