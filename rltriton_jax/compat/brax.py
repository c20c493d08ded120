"""Brax's `compute_gae` (training.agents.ppo.losses)."""

from __future__ import annotations

import jax
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from .._host import to_array
from ._shared import after, spread


def compute_gae(
    truncation: ArrayLike,
    termination: ArrayLike,
    rewards: ArrayLike,
    values: ArrayLike,
    bootstrap_value: ArrayLike,
    lambda_: ArrayLike = 1.0,
    discount: ArrayLike = 0.99,
) -> tuple[Array, Array]:
    """Value targets, and advantages of one step against them.

        A[t] = r[t] + g w[t] - V[t] + g l A[t+1]        A[T] = 0, and 0 at a truncated step
        vs[t] = V[t] + A[t]
        advantage[t] = r[t] + g vs[t+1] - V[t]        vs[T] = bootstrap_value; 0 at a truncated step

    where w[t] = V[t+1]. Nothing behind a terminated step is read. A truncated step learns nothing, since the value of
    its true next state is not known: its target is its value, and the step in front of it bootstraps from it. That is
    `rltriton_jax.gae` with a mask that resets, then once more with lambda 0 and the targets as next values.

    Args:
      truncation: `[T, *batch]` flags (nonzero is true): a time limit cut the episode behind step t.
      termination: `[T, *batch]` flags: step t ended the episode.
      rewards: r, `[T, *batch]`.
      values: V, `[T, *batch]`.
      bootstrap_value: V[T], a scalar or `[*batch]`.
      lambda_: l, a scalar.
      discount: g, a scalar.

    Returns:
      (vs, advantages), each `[T, *batch]`; no gradient flows through either, as in Brax.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.brax import compute_gae
      >>> none, values = jnp.zeros((2, 1)), jnp.full((2, 1), 0.5)
      >>> vs, advantages = compute_gae(none, none, jnp.ones((2, 1)), values, jnp.ones(1), lambda_=0.5, discount=0.5)
      >>> print(vs.T, advantages.T)
      [[1.5 1.5]] [[1.25 1.  ]]
    """
    name = "compute_gae"
    rewards, values = (
        jax.lax.stop_gradient(to_array(name, n, x)) for n, x in (("rewards", rewards), ("values", values))
    )
    truncation = to_array(name, "truncation", truncation, flag=True)
    termination = to_array(name, "termination", termination, flag=True)
    for n, x in (("values", values), ("truncation", truncation), ("termination", termination)):
        if x.shape != rewards.shape:
            raise ValueError(f"{name}: {n} has shape {x.shape}; pass shape {rewards.shape}, that of rewards")
    end = jax.lax.stop_gradient(spread(name, "bootstrap_value", bootstrap_value, values.shape[1:], exact=True))
    kept = truncation == 0

    def advantages(next_values: Array, mixing: ArrayLike) -> Array:
        out = rltriton_jax.gae(
            rewards,
            values,
            next_values=after(next_values, end),
            discount=discount,
            lambda_=mixing,
            terminated=termination,
            mask=kept,
            mask_mode="reset",
        )
        return jax.lax.stop_gradient(out.advantages)

    targets = values + advantages(values, lambda_)
    return targets, advantages(targets, 0.0)
