"""Sliding windows over a linear recurrence: step by step where they are short, else by four scans whatever their length."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._sharding import with_following
from ._solve import linear

UNROLLED = 16  # windows of up to so many steps are one pointwise pass over shifted rows, which caches hold


def windowed(
    a: jax.Array,
    b: jax.Array,
    ends: jax.Array,
    n: int,
    axis: int,
    implementation: str | None,
    axis_name: str | None = None,
) -> jax.Array:
    """y[t] = f[t](f[t+1](... f[t+n-1](ends[t+n]))), f[t](x) = a[t] x + b[t]; the a of the last row must be 0.

    A short window is gone through step by step. Else time is cut into blocks of n, and a window is the rest of its first
    block, then the beginning of the next: two composed maps, each from scans that stop at the edges of blocks. Shards along
    `axis_name` need n rows of their next one.
    """
    if axis_name is not None:
        a, b, ends = (with_following(x, n, axis, axis_name) for x in (a, b, ends))
        longer = windowed(a, b, ends, n, axis, implementation)
        return jax.lax.slice_in_dim(longer, 0, a.shape[axis] - n, axis=axis)
    if n <= UNROLLED:
        y = _shifted(ends, n, axis)
        for k in reversed(range(n)):
            y = _shifted(b, k, axis) + _times(_shifted(a, k, axis), y)
        return y
    length = a.shape[axis]
    t = jnp.expand_dims(jnp.arange(length), [i for i in range(a.ndim) if i != axis])
    first, last = t % n == 0, t % n == n - 1

    def scan(coefficients: jax.Array, inputs: jax.Array, reverse: bool) -> jax.Array:
        zero = jnp.zeros((*a.shape[:axis], 1, *a.shape[axis + 1 :]), a.dtype)
        return linear(coefficients, inputs, zero, axis, reverse, implementation, function="n_step_returns")

    def later(x: jax.Array, by: int) -> jax.Array:
        """x at t + by; past the end the last row, behind which nothing is read."""
        last_row = jax.lax.slice_in_dim(x, length - 1, length, axis=axis)
        past = jnp.broadcast_to(last_row, (*x.shape[:axis], by, *x.shape[axis + 1 :]))
        return jnp.concatenate([jax.lax.slice_in_dim(x, by, length, axis=axis), past], axis)

    one, none = jnp.ones_like(a), jnp.zeros_like(a)
    rest_b = scan(jnp.where(last, 0, a), b, True)
    rest_a = scan(jnp.where(last, 0, a), jnp.where(last, a, 0), True)
    # before step t of its block, the product of the block's coefficients; then the sum of what they weigh
    upto = scan(jnp.where(first, 0, jnp.roll(a, 1, axis)), jnp.where(first, one, none), False)
    weighed = _times(upto, b)
    begin_b = scan(jnp.where(first, none, one), weighed, False)
    begin_a = _times(upto, a)
    # a window from t ends with step t + n - 1; where t begins a block it is that block alone
    following = later(begin_b, n - 1) + _times(later(begin_a, n - 1), later(ends, n))
    alone = rest_b + _times(rest_a, later(ends, n))
    return jnp.where(first, alone, rest_b + _times(rest_a, following))


def _shifted(x: jax.Array, by: int, axis: int) -> jax.Array:
    """x at t + by; past the end 0, which nothing reads, since the last row's map ends every window."""
    rows = [(-by, by, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), rows)


def _times(k: jax.Array, x: jax.Array) -> jax.Array:
    """k * x; behind a k of 0 an x that is not finite is not read, and the derivatives by k stay right."""
    return k * jnp.where((k == 0) & ~jnp.isfinite(x), 0, x)
