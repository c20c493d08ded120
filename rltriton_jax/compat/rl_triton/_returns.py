"""rl-triton's returns, eligibility traces and prefix sums."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from ..._host import to_array
from .._shared import arrays, flags, last, mixed, zero_where
from ._advantages import AXES


def compute_lambda_returns(
    rewards: ArrayLike,
    next_values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike | None = None,
    gamma: ArrayLike = 0.99,
    lambda_: ArrayLike = 0.95,
    bootstrap_values: ArrayLike | None = None,
) -> Array:
    """TD(lambda) returns: `rltriton_jax.lambda_returns`.

        G[t] = r[t] + g ((1 - l) w[t] + l G[t+1])        G[T] = bootstrap_values[T-1]
        G[t] = r[t] + g bootstrap_values[t]                  at a truncated step

    where w[t] = `next_values[t]`, and nothing follows a terminated step. A window that ends amid an episode needs both
    `next_values[T-1]` and `bootstrap_values[T-1]`, the latter for the share l.

    Args:
      rewards, next_values: `[num_envs, seq_len]`.
      terminateds, truncateds, gamma, lambda_, bootstrap_values: as for `compute_gae`.

    Returns:
      G, `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_lambda_returns
      >>> v = jnp.array([[3.0, 4.0]])
      >>> print(compute_lambda_returns(jnp.array([[1.0, 2.0]]), v, jnp.zeros((1, 2)), None, 0.5, 0.5, v))
      [[2.75 4.  ]]
    """
    name = "compute_lambda_returns"
    rewards, following = arrays(name, AXES, rewards=rewards, next_values=next_values)
    terminateds = flags(name, AXES, "terminateds", terminateds, rewards=rewards)
    ends = jnp.zeros_like(following)
    if bootstrap_values is not None:
        ends = arrays(name, AXES, rewards=rewards, bootstrap_values=bootstrap_values)[1]
    ended = terminateds != 0
    if truncateds is not None:
        truncateds = flags(name, AXES, "truncateds", truncateds, rewards=rewards)
        ended |= truncateds != 0
        following = jnp.where(truncateds != 0, ends, following)
    boundary = following[:, -1:]
    # behind the end of an episode nothing is mixed, so that lambda has no gradient there
    mix = mixed(lambda_, *(zero_where(ended[:, -1:], x) for x in (boundary, ends[:, -1:])))
    following = jnp.append(following[:, :-1], jnp.where(ended[:, -1:], boundary, mix), axis=1)
    return rltriton_jax.lambda_returns(
        rewards,
        next_values=following,
        discount=gamma,
        lambda_=lambda_,
        terminated=terminateds,
        truncated=truncateds,
        time_axis=1,
    )


def compute_discounted_returns(
    rewards: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike | None = None,
    gamma: ArrayLike = 0.99,
    bootstrap_values: ArrayLike | None = None,
) -> Array:
    """Discounted returns: `rltriton_jax.discounted_returns`, which bootstraps at truncated steps and at the last one.

    Args:
      rewards, terminateds, truncateds, gamma, bootstrap_values: as for `compute_gae`.

    Returns:
      G, `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_discounted_returns
      >>> print(compute_discounted_returns(jnp.array([[1.0, 2.0, 4.0]]), jnp.array([[0, 1, 0]]), gamma=0.5))
      [[2. 2. 4.]]
    """
    (rewards,) = arrays("compute_discounted_returns", AXES, rewards=rewards)
    ends = jnp.zeros_like(rewards)
    if bootstrap_values is not None:
        ends = arrays("compute_discounted_returns", AXES, rewards=rewards, bootstrap_values=bootstrap_values)[1]
    return rltriton_jax.discounted_returns(
        rewards,
        discount=gamma,
        bootstrap_value=last(ends, axis=1),
        terminated=terminateds,
        truncated=truncateds,
        next_values=None if truncateds is None else ends,
        time_axis=1,
    )


def compute_eligibility_traces(
    gradients: ArrayLike,
    dones: ArrayLike,
    gamma: ArrayLike,
    lambda_: ArrayLike,
    seed_values: ArrayLike | None = None,
) -> Array:
    """Eligibility traces, forward in time: `rltriton_jax.eligibility_traces`.

        z[t] = x[t] + g l (z[t-1] unless dones[t-1])        z[-1] = seed_values

    Args:
      gradients: x, `[num_envs, seq_len]`.
      dones: flags, `[num_envs, seq_len]`: step t was its episode's last.
      gamma, lambda_: g and l, scalars.
      seed_values: `[num_envs]`; None is 0.

    Returns:
      z, `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_eligibility_traces
      >>> print(compute_eligibility_traces(jnp.ones((1, 4)), jnp.array([[0, 1, 0, 0]]), 0.5, 1.0, jnp.full(1, 2.0)))
      [[2.  2.  1.  1.5]]
    """
    initial = None
    if seed_values is not None:
        initial = jnp.multiply(gamma, lambda_) * to_array("compute_eligibility_traces", "seed_values", seed_values)
    return rltriton_jax.eligibility_traces(
        gradients, discount=gamma, lambda_=lambda_, initial=initial, terminated=dones, time_axis=1
    )


def compute_episodic_prefix_sum(
    inputs: ArrayLike,
    dones: ArrayLike,
    seed_values: ArrayLike | None = None,
    boundary: str = "ends_at",
) -> Array:
    """Sums since the beginning of the episode, forward in time: `rltriton_jax.episodic_prefix_sum`.

    Args:
      inputs: `[num_envs, seq_len]`.
      dones: flags, `[num_envs, seq_len]`.
      seed_values: `[num_envs]`, the sum that enters step 0; None is 0.
      boundary: "ends_at" (a flag at an episode's last step) or "starts_at" (at its first).

    Returns:
      The sums, `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit, another boundary.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_episodic_prefix_sum
      >>> x, dones = jnp.array([[1.0, 2.0, 3.0, 4.0]]), jnp.array([[0, 0, 1, 0]])
      >>> print(compute_episodic_prefix_sum(x, dones), compute_episodic_prefix_sum(x, dones, boundary="starts_at"))
      [[1. 3. 6. 4.]] [[1. 3. 3. 7.]]
    """
    if boundary not in ("ends_at", "starts_at"):
        raise ValueError(f"compute_episodic_prefix_sum: boundary is {boundary!r}; pass 'ends_at' or 'starts_at'")
    ends: dict[str, Any] = dict(terminated=dones) if boundary == "ends_at" else dict(episode_starts=dones)
    return rltriton_jax.episodic_prefix_sum(inputs, initial=seed_values, time_axis=1, **ends)
