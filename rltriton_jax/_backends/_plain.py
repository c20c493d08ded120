"""The walks in plain JAX: neighbours by slicing, the recurrence by `lax.associative_scan` or `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._walk import EDGE, LONG, SUM, Beside, Rows, Walk, accumulator, batch_shape


def affine(a, x, b):
    """a * x + b, reading x only where a is not 0."""
    return jnp.where(a == 0, b, a * x + b)


def compose(first, then):
    """The map (a, b) of two in a row."""
    return jnp.where(then[0] == 0, 0, first[0] * then[0]), affine(then[0], first[1], then[1])


def without_first(a, b, axis, reverse):
    """The maps (a, b) of steps, the first of which does nothing."""
    first = jax.lax.broadcasted_iota(jnp.int32, a.shape, axis) == (a.shape[axis] - 1 if reverse else 0)
    return jnp.where(first, 1, a), jnp.where(first, 0, b)


def associative_prefix(a, b, axis, reverse):
    """The maps from the state before the first step to that at every step."""
    return jax.lax.associative_scan(compose, (a, b), axis=axis, reverse=reverse)


def by_associative_scan(a, b, init, axis, reverse):
    a, b = associative_prefix(a, b, axis, reverse)
    return affine(a, init, b)


def scan_prefix(a, b, axis, reverse):
    """`associative_prefix`, step by step."""

    def step(until, ab):
        until = compose(until, ab)
        return until, until

    moved = (jnp.moveaxis(a, axis, 0), jnp.moveaxis(b, axis, 0))
    nothing = jnp.zeros_like(moved[0][0])
    maps = jax.lax.scan(step, (nothing + 1, nothing), moved, reverse=reverse)[1]
    return tuple(jnp.moveaxis(x, 0, axis) for x in maps)


def by_scan(a, b, init, axis, reverse):
    def step(x, ab):
        x = affine(ab[0], x, ab[1])
        return x, x

    moved = (jnp.moveaxis(a, axis, 0), jnp.moveaxis(b, axis, 0))
    init = jnp.squeeze(init, axis)
    # reads the data: what varies over a mesh varies in the carry
    carry = jnp.where(moved[0][0] == moved[1][0], init, init)
    return jnp.moveaxis(jax.lax.scan(step, carry, moved, reverse=reverse)[1], 0, axis)


class _Series:
    """The operands of a walk as full arrays: each step's own, its neighbours', and those past the end."""

    def __init__(self, walk: Walk, operands, axis: int):
        self.walk, self.axis = walk, axis
        self.shape = batch_shape(walk, [x.shape for x in operands], axis)
        self.length = self.shape[axis]
        self.dtype = accumulator(walk, [x.dtype for x in operands])
        self.operands = dict(zip(walk.names, operands, strict=True))
        self.edge_side_last = walk.reverse != walk.mirrored  # the edge is past t = T - 1, else before t = 0
        self.now, self.near, self.far = Rows(self._now), Rows(self._near), Rows(self._far)
        self.edge, self.end = Rows(self._edge), Rows(self._end)
        self.order = jax.lax.broadcasted_iota(jnp.int32, self._rows(self.length, ones=True), axis)
        if walk.reverse:
            self.order = self.length - 1 - self.order

    def _rows(self, rows, ones=False):
        return tuple(rows if i == self.axis else 1 if ones else n for i, n in enumerate(self.shape))

    def _read(self, name):
        x = self.operands[name]
        return x.astype(bool if name in self.walk.flags else self.dtype)

    def _slice(self, x, start, stop):
        return jax.lax.slice_in_dim(x, start, stop, axis=self.axis)

    def _now(self, name):
        x = self._read(name)
        if name in self.walk.long:
            x = self._slice(x, 0, self.length)
        return jnp.broadcast_to(x, self.shape)

    def _edge(self, name):
        """One row: what stands past the edge."""
        if name in self.walk.fixed:
            x = self._read(name)
        elif name in self.walk.long:
            x = self._slice(self._read(name), self.length, self.length + 1)
        elif self.walk.edge_of(name):
            x = self._read(self.walk.edge_of(name))
        else:
            x = jnp.zeros((1,) * len(self.shape), bool if name in self.walk.flags else self.dtype)
        return jnp.broadcast_to(x, self._rows(1))

    def _shifted(self, x, edge, later):
        """x of the step at t + 1 (`later`) or t - 1."""
        if later:
            return jnp.concatenate([self._slice(x, 1, self.length), edge], self.axis)
        return jnp.concatenate([edge, self._slice(x, 0, self.length - 1)], self.axis)

    def _near(self, name):
        x = getattr(self.now, name)
        if name in self.walk.fixed:
            return x
        edge = self._edge(name) if not self.walk.mirrored else jnp.zeros_like(self._edge(name))
        if not self.walk.skips:
            return self._shifted(x, edge, self.walk.reverse)
        return jnp.where(self.has_near, self._gather(x, self.last_live), edge)

    def _far(self, name):
        x = getattr(self.now, name)
        if name in self.walk.fixed:
            return x
        return self._shifted(x, self._edge(name), not self.walk.reverse)

    def _gather(self, x, order):
        t = self.length - 1 - order if self.walk.reverse else order
        return jnp.take_along_axis(x, jnp.clip(t, 0, self.length - 1), axis=self.axis, mode="clip")

    @property
    def _live_so_far(self):
        """The position of the last live step up to and with this one, in walking order; -1 where there is none."""
        live = jnp.where(self.now.mask, self.order, -1)
        return jax.lax.cummax(live, axis=self.axis, reverse=self.walk.reverse)

    @property
    def last_live(self):
        nothing = jnp.full(self._rows(1), -1, self.order.dtype)
        return self._shifted(self._live_so_far, nothing, self.walk.reverse)

    @property
    def has_near(self):
        return self.last_live >= 0 if self.walk.skips else self.order > 0

    def beside(self):
        return Beside(near=self.has_near, far=self.order < self.length - 1)

    def _last_row(self, x):
        """The row that this walk visits last."""
        return self._slice(x, 0, 1) if self.walk.reverse else self._slice(x, self.length - 1, self.length)

    def _end(self, name):
        """What the visit past the end finds nearest behind it: the last row, or the last live one."""
        x = getattr(self.now, name)
        if name in self.walk.fixed:
            return self._slice(x, 0, 1)
        return self._gather(x, self._last_row(self._live_so_far)) if self.walk.skips else self._last_row(x)

    def has_end(self):
        return self._last_row(self._live_so_far) >= 0 if self.walk.skips else True


def step_arrays(walk: Walk, operands, axis: int, unread: int = 0):
    """The (a, b) of every step, the first `unread` of which are junk; behind the last, of the visit past a shard's end.

    Without the latter where it is left to others.
    """
    s = _Series(walk, operands, axis)
    now, near = s.now, s.near
    if unread:
        first = jax.lax.broadcasted_iota(jnp.int32, s.shape, axis) < unread
        now, near = (walk.guarded(rows, lambda: first) for rows in (now, near))
    return _coefficients(walk, s, (now, near, s.far, s.beside()), walk.tells_end)


def past_arrays(walk: Walk, operands, axis: int):
    """The (a, b) of the visit past the end."""
    return walk.coefficients(*_past(_Series(walk, operands, axis)))


def past_outputs(walk: Walk, operands, axis: int, state):
    """The outputs of the visit past the end, after `state`."""
    return _past_outputs(walk, _Series(walk, operands, axis), state)


def _past_outputs(walk, s, state):
    a, b = walk.coefficients(*_past(s))
    return walk.outputs(affine(jnp.asarray(a, s.dtype), state, b), state, *_past(s))


def _coefficients(walk, s, rows, without_past=False):
    full = [_full(s, x, s.length) for x in walk.coefficients(*rows)]
    if without_past or not (walk.over and walk.visits_past_end):
        return full
    past = [_full(s, x, 1) for x in walk.coefficients(*_past(s))]
    return [jnp.concatenate([y, x] if walk.reverse else [x, y], s.axis) for x, y in zip(full, past, strict=True)]


def _full(s, x, rows):
    return jnp.broadcast_to(jnp.asarray(x, s.dtype), s._rows(rows))


def _past(s):
    """What a visit past the end finds."""
    return s.edge, s.end, None, Beside(near=s.has_end(), far=False, here=False)


def evaluate(walk: Walk, operands, axis: int, dtypes, solve: Callable, careful: bool = False):
    """The outputs of a walk. `solve(a, b, init, axis, reverse)` gives its states, and the one before the first.

    If `careful`, they may be differentiated: what a masked step does not read is not selected away behind a product.
    """
    s = _Series(walk, operands, axis)
    near, far = s.near, s.far
    if careful and walk.mask is not None:
        near, far = (walk.guarded(rows, lambda: ~s.now.mask) for rows in (near, far))
    rows = (s.now, near, far, s.beside())
    a, b = _coefficients(walk, s, rows)
    init = s._edge(walk.init) if walk.init else jnp.zeros(s._rows(1), s.dtype)
    x, init = solve(a, b, init, axis, walk.reverse)
    if x.shape[axis] > s.length:
        x = s._slice(x, 1, s.length + 1) if walk.reverse else s._slice(x, 0, s.length)
    outs = list(walk.outputs(x, s._shifted(x, init, walk.reverse), *rows))
    past = [0.0] * len(outs)
    if walk.visits_past_end:
        past = _past_outputs(walk, s, s._last_row(x))
    results = []
    for kind, dtype, out, end in zip(walk.all_kinds, dtypes, outs, past, strict=True):
        if kind == EDGE:
            out = _full(s, end, 1)
        elif kind == SUM:
            out = jnp.sum(_full(s, out, s.length), axis, keepdims=True)
        elif kind == LONG:
            out = jnp.concatenate([_full(s, out, s.length), _full(s, end, 1)], axis)
        else:
            out = _full(s, out, s.length)
        results.append(out.astype(dtype))
    return results
