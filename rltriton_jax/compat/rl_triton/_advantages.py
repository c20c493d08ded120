"""rl-triton's advantages: GAE, V-trace and Retrace."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from .._shared import after, arrays, flags, last, spread, taken

AXES = ("num_envs", "seq_len")


def _continuation(
    function: str,
    values: Array,
    truncateds: ArrayLike | None,
    bootstrap_values: ArrayLike | None,
    last_value: ArrayLike | None,
) -> dict[str, Any]:
    """What stands behind each step: values[t+1], and the bootstrap at truncated steps and at the last one."""
    if bootstrap_values is not None and last_value is not None:
        raise ValueError(f"{function}: got both bootstrap_values and last_value; pass one of them")
    boundary = spread(function, "last_value", 0.0 if last_value is None else last_value, values.shape[:1], exact=True)
    if bootstrap_values is not None:
        bootstrap_values = arrays(function, AXES, values=values, bootstrap_values=bootstrap_values)[1]
        boundary = last(bootstrap_values, axis=1)
    if truncateds is None:
        return dict(bootstrap_value=boundary)
    truncateds = flags(function, AXES, "truncateds", truncateds, values=values)
    inside = 0.0 if bootstrap_values is None else bootstrap_values
    next_values = jnp.where(truncateds != 0, inside, after(values, boundary, axis=1))
    return dict(next_values=next_values, truncated=truncateds)


def compute_gae(
    rewards: ArrayLike,
    values: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike | None = None,
    gamma: ArrayLike = 0.99,
    lambda_: ArrayLike = 0.95,
    bootstrap_values: ArrayLike | None = None,
    last_value: ArrayLike | None = None,
) -> Array:
    """Generalised advantages: `rltriton_jax.gae`.

        A[t] = r[t] + g w[t] - V[t] + g l A[t+1]        A[T] = 0

    where w[t] = V[t+1], but `bootstrap_values[t]` at a truncated step and at the last one, and 0 behind a terminated
    step. A[t+1] is dropped behind a step that ended its episode.

    Args:
      rewards, values: r and V, `[num_envs, seq_len]`.
      terminateds, truncateds: flags, `[num_envs, seq_len]`.
      gamma, lambda_: g and l, scalars.
      bootstrap_values: `[num_envs, seq_len]`, read at truncated steps and in the last column only; None is 0.
      last_value: a scalar or `[num_envs]`, that column alone, without `truncateds`.

    Returns:
      A, `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit, `last_value` with `bootstrap_values` or `truncateds`.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_gae
      >>> half, none = jnp.full((1, 2), 0.5), jnp.zeros((1, 2))
      >>> print(compute_gae(jnp.array([[0.0, 1.0]]), half, none, gamma=0.5, lambda_=0.5, last_value=jnp.ones(1)))
      [[0. 1.]]
    """
    rewards, values = arrays("compute_gae", AXES, rewards=rewards, values=values)
    if last_value is not None and truncateds is not None:
        raise ValueError("compute_gae: last_value does not go with truncateds; pass bootstrap_values")
    behind = _continuation("compute_gae", values, truncateds, bootstrap_values, last_value)
    return rltriton_jax.gae(
        rewards, values, discount=gamma, lambda_=lambda_, terminated=terminateds, time_axis=1, **behind
    ).advantages


def compute_vtrace(
    log_pi_target: ArrayLike,
    log_pi_behavior: ArrayLike,
    values: ArrayLike,
    rewards: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike | None = None,
    gamma: ArrayLike = 0.99,
    rho_bar: ArrayLike = 1.0,
    c_bar: ArrayLike = 1.0,
    bootstrap_values: ArrayLike | None = None,
    last_value: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """V-trace targets and advantages: `rltriton_jax.vtrace`, `rho_bar` clipping the ratio of the advantages too.

    Args:
      log_pi_target, log_pi_behavior: `[num_envs, seq_len]`, of the actions taken.
      rho_bar, c_bar: bounds of the ratios that weigh errors and traces.
      values, rewards, terminateds, truncateds, gamma, bootstrap_values, last_value: as for `compute_gae`; `last_value`
        goes with `truncateds` here, whose steps then bootstrap from 0.

    Returns:
      (targets, advantages), each `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit, `last_value` with `bootstrap_values`.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_vtrace
      >>> none, ones = jnp.zeros((1, 2)), jnp.ones((1, 2))
      >>> targets, advantages = compute_vtrace(jnp.log(jnp.array([[1.0, 0.5]])), none, none, ones, none, gamma=0.5)
      >>> print(targets, advantages)
      [[1.25 0.5 ]] [[1.25 0.5 ]]
    """
    name = "compute_vtrace"
    rewards, values, target, behavior = arrays(
        name, AXES, rewards=rewards, values=values, log_pi_target=log_pi_target, log_pi_behavior=log_pi_behavior
    )
    behind = _continuation(name, values, truncateds, bootstrap_values, last_value)
    out = rltriton_jax.vtrace(
        rewards,
        values,
        log_rhos=target - behavior,
        discount=gamma,
        clip_rho=rho_bar,
        clip_c=c_bar,
        clip_pg_rho=rho_bar,
        terminated=terminateds,
        time_axis=1,
        **behind,
    )
    return out.targets, out.advantages


def compute_retrace(
    action_probs_target: ArrayLike,
    action_probs_behavior: ArrayLike,
    q_values: ArrayLike,
    next_q_values_all: ArrayLike,
    actions: ArrayLike,
    rewards: ArrayLike,
    terminateds: ArrayLike,
    truncateds: ArrayLike,
    gamma: ArrayLike,
    lambda_: ArrayLike = 1.0,
    c_bar: ArrayLike = 1.0,
    rho_bar: ArrayLike = 1.0,
    *,
    next_action_probs_target: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Retrace targets and advantages: `rltriton_jax.retrace`.

    The advantages bootstrap from `next_q_values_all` at truncated steps and at the last one. The original takes the
    target of the next episode's first step, and 0.

    Args:
      action_probs_target: `[num_envs, seq_len, num_actions]`, of the target policy in state t.
      action_probs_behavior: `[num_envs, seq_len]`, of the action taken under the policy that took it.
      q_values: `[num_envs, seq_len]`, the value of the action taken.
      next_q_values_all: `[num_envs, seq_len, num_actions]`, the action values of state t + 1.
      actions: integers `[num_envs, seq_len]`, the actions taken.
      rewards, terminateds, truncateds, gamma: as for `compute_gae`.
      lambda_: weighs the traces, a scalar.
      c_bar, rho_bar: bounds of the ratios of traces and advantages.
      next_action_probs_target: `[num_envs, seq_len, num_actions]`, of the target policy in state t + 1, which Retrace
        weighs `next_q_values_all` by. None weighs them by `action_probs_target`, as the original does.

    Returns:
      (targets, advantages), each `[num_envs, seq_len]`.

    Raises:
      ValueError: a shape that does not fit.
      TypeError: actions that are no integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.rl_triton import compute_retrace
      >>> half, none, q = jnp.full((1, 2, 2), 0.5), jnp.zeros((1, 2)), jnp.array([[[2.0, 4.0], [2.0, 4.0]]])
      >>> targets, advantages = compute_retrace(
      ...     half, half[..., 0], none, q, jnp.zeros((1, 2), jnp.int32), none + 1, none, none, gamma=0.5)
      >>> print(targets, advantages)
      [[3.75 2.5 ]] [[2.25 2.5 ]]
    """
    name, axes = "compute_retrace", (*AXES, "num_actions")
    weights = action_probs_target if next_action_probs_target is None else next_action_probs_target
    target, next_q, weights = arrays(
        name,
        axes,
        action_probs_target=action_probs_target,
        next_q_values_all=next_q_values_all,
        next_action_probs_target=weights,
    )
    rewards, q, actions, behavior = arrays(
        name,
        AXES,
        rewards=rewards,
        q_values=q_values,
        actions=actions,
        action_probs_behavior=action_probs_behavior,
    )
    terminateds = flags(name, AXES, "terminateds", terminateds, rewards=rewards)
    live_q = jnp.where(terminateds[..., None] != 0, 0, next_q)
    out = rltriton_jax.retrace(
        rewards,
        q,
        next_expected_q=jnp.sum(weights * live_q, axis=-1),
        rhos=taken(name, "actions", target, actions) / behavior,
        discount=gamma,
        lambda_=lambda_,
        clip_c=c_bar,
        clip_rho=rho_bar,
        terminated=terminateds,
        truncated=truncateds,
        time_axis=1,
    )
    return out.targets, out.advantages
