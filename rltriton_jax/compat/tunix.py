"""Tunix's token-level advantages (rl.algo_core, rl.ppo.ppo_helpers) and its Monte Carlo returns of turns."""

from __future__ import annotations

from jax import Array
from jax.typing import ArrayLike

import rltriton_jax
from rltriton_jax import llm


def compute_gae_advantages(
    rewards: ArrayLike,
    values: ArrayLike,
    completion_mask: ArrayLike,
    gamma: ArrayLike,
    gae_lambda: ArrayLike,
) -> tuple[Array, Array]:
    """Whitened generalised advantages and returns of the tokens of completions.

        A[t] = r[t] + g V[next] - V[t] + g l A[next]        0 behind the last live token of a row
        returns = A + V, advantages = `masked_whiten`(A)

    where next is the next token that `completion_mask` keeps: `rltriton_jax.gae` with a mask that skips. Tokens that
    it does not keep are 0 in both results and not read, whatever they hold; the original leaves the numbers of the
    next live token there, and multiplies what it masks by 0.

    Args:
      rewards: r, `[batch, tokens]`.
      values: V, `[batch, tokens]`.
      completion_mask: `[batch, tokens]`, nonzero for tokens of the completion.
      gamma: g, a scalar.
      gae_lambda: l, a scalar.

    Returns:
      (advantages, returns), each `[batch, tokens]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.tunix import compute_gae_advantages
      >>> rewards, mask = jnp.array([[0.0, 0.0, 1.0, 0.0]]), jnp.array([[1, 0, 1, 0]])
      >>> advantages, returns = compute_gae_advantages(rewards, jnp.full((1, 4), 0.5), mask, 0.5, 0.5)
      >>> print(returns)
      [[0.375 0.    1.    0.   ]]
    """
    out = rltriton_jax.gae(
        rewards, values, bootstrap_value=0.0, discount=gamma, lambda_=gae_lambda, mask=completion_mask, time_axis=-1
    )
    return masked_whiten(out.advantages, completion_mask), out.targets


def masked_whiten(x: ArrayLike, completion_mask: ArrayLike) -> Array:
    """The live entries shifted and scaled to mean 0 and sample variance 1: `rltriton_jax.llm.masked_whiten`.

    Dead entries are 0, and so is a single live one, for which the original divides by 0.

    Args:
      x: any shape.
      completion_mask: the shape of `x`, nonzero for live entries.

    Returns:
      The shape of `x`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.tunix import masked_whiten
      >>> print(masked_whiten(jnp.array([1.0, 2.0, 3.0, 9.0]), jnp.array([1, 1, 1, 0])))
      [-1.  0.  1.  0.]
    """
    return llm.masked_whiten(x, completion_mask)


def compute_mc_returns(rewards: ArrayLike, gamma: ArrayLike = 1.0, mask: ArrayLike | None = None) -> Array:
    """What `TrajectoryCollectEngine.compute_mc_reward` writes to the steps of a trajectory, for a batch of them.

        G[t] = r[t] + g G[t+1]        G[T] = 0

    Args:
      rewards: r, `[..., turns]`.
      gamma: g, a scalar.
      mask: `[..., turns]`, nonzero for turns that took place.

    Returns:
      G, `[..., turns]`: `rltriton_jax.discounted_returns`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.tunix import compute_mc_returns
      >>> print(compute_mc_returns(jnp.array([[0.0, 1.0, 2.0]]), gamma=0.5))
      [[1. 2. 2.]]
    """
    return rltriton_jax.discounted_returns(rewards, discount=gamma, mask=mask, time_axis=-1)
