"""TD errors of lambda returns and Retrace by the names of rlax's value learning functions."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .. import _shared
from .._shared import Flag, arrays, behind, require_rows, spread, taken
from ._multistep import TIME, general_off_policy_returns_from_action_values, lambda_returns


def td_lambda(
    v_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
) -> Array:
    """TD(lambda) errors: `lambda_returns`, less the values.

    Args:
      v_tm1, v_t: `[T]`, the values of states t and t + 1.
      r_t, discount_t, lambda_: as for `lambda_returns`.
      stop_target_gradients: no gradient flows through the returns.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> r, g, v = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), jnp.array([3.0, 4.0])
      >>> print(rlax.td_lambda(jnp.ones(2), r, g, v, lambda_=0.5))
      [1.75 3.  ]
    """
    r_t, v_tm1 = arrays("td_lambda", TIME, r_t=r_t, v_tm1=v_tm1)
    return lambda_returns(r_t, discount_t, v_t, lambda_, stop_target_gradients) - v_tm1


def sarsa_lambda(
    q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_t: ArrayLike,
    a_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
) -> Array:
    """SARSA(lambda) errors: `lambda_returns` of the values of the actions taken, less those values.

    Args:
      q_tm1, q_t: `[T, A]`, the action values of states t and t + 1.
      a_tm1, a_t: integers `[T]`, the actions taken there.
      r_t, discount_t, lambda_: as for `lambda_returns`.
      stop_target_gradients: no gradient flows through the returns.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> q, a = jnp.array([[3.0, 0.0], [0.0, 4.0]]), jnp.array([0, 1])
      >>> print(rlax.sarsa_lambda(jnp.ones((2, 2)), a, jnp.array([1.0, 2.0]), jnp.full(2, 0.5), q, a, lambda_=0.5))
      [1.75 3.  ]
    """
    q_tm1, q_t = arrays("sarsa_lambda", ("T", "A"), q_tm1=q_tm1, q_t=q_t)
    r_t, a_tm1, a_t = arrays("sarsa_lambda", TIME, r_t=r_t, a_tm1=a_tm1, a_t=a_t)
    require_rows("sarsa_lambda", "q_tm1", q_tm1, len(r_t), 0, "as many as r_t")
    v_t = taken("sarsa_lambda", "a_t", q_t, a_t)
    returns = lambda_returns(r_t, discount_t, v_t, lambda_, stop_target_gradients)
    return returns - taken("sarsa_lambda", "a_tm1", q_tm1, a_tm1)


def q_lambda(
    q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
) -> Array:
    """Q(lambda) errors: `lambda_returns` of the largest action values, less the values of the actions taken.

    Args:
      q_tm1, q_t: `[T, A]`, the action values of states t and t + 1.
      a_tm1: integers `[T]`, the action taken in state t.
      r_t, discount_t: as for `lambda_returns`.
      lambda_: a scalar (Peng), or `[T]` with a 0 where the next action is not greedy (Watkins).
      stop_target_gradients: no gradient flows through the returns.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> q, a = jnp.array([[3.0, 0.0], [0.0, 4.0]]), jnp.array([0, 1])
      >>> print(rlax.q_lambda(jnp.ones((2, 2)), a, jnp.array([1.0, 2.0]), jnp.full(2, 0.5), q, lambda_=0.5))
      [1.75 3.  ]
    """
    q_tm1, q_t = arrays("q_lambda", ("T", "A"), q_tm1=q_tm1, q_t=q_t)
    r_t, a_tm1, discount_t = arrays("q_lambda", TIME, r_t=r_t, a_tm1=a_tm1, discount_t=discount_t)
    require_rows("q_lambda", "q_tm1", q_tm1, len(r_t), 0, "as many as r_t")
    v_t = jnp.max(behind(discount_t, q_t), axis=-1)
    returns = lambda_returns(r_t, discount_t, v_t, lambda_, stop_target_gradients)
    return returns - taken("q_lambda", "a_tm1", q_tm1, a_tm1)


def retrace_traces(
    function: str,
    discount_t: Array,
    pi_t: ArrayLike,
    mu_t: ArrayLike,
    a_t: ArrayLike,
    lambda_: ArrayLike,
    eps: ArrayLike,
) -> Array:
    """l min(1, pi / (mu + eps)) of the actions taken; behind the end of an episode nothing is read."""
    discount_t, mu_t, a_t = arrays(function, TIME, discount_t=discount_t, mu_t=mu_t, a_t=a_t)
    (pi_t,) = arrays(function, ("T", "A"), pi_t=pi_t)
    mixing = spread(function, "lambda_", lambda_, mu_t.shape)
    mixing = behind(discount_t, mixing) if mixing.ndim else mixing
    below = behind(discount_t, mu_t + eps) + (discount_t == 0)  # 1 there, whatever eps is
    return jnp.minimum(1.0, behind(discount_t, taken(function, "a_t", pi_t, a_t)) / below) * mixing


def retrace(
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    a_tm1: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    pi_t: ArrayLike,
    mu_t: ArrayLike,
    lambda_: ArrayLike,
    eps: ArrayLike = 1e-8,
    stop_target_gradients: Flag = True,
) -> Array:
    """Retrace errors: `general_off_policy_returns_from_action_values`, less the values of the actions taken.

        c[t] = l min(1, pi[t, a[t]] / (mu[t] + eps))

    Args:
      q_tm1, q_t: `[T, A]`, the action values of states t and t + 1.
      a_tm1, a_t: integers `[T]`, the actions taken there.
      r_t, discount_t: `[T]`.
      pi_t: pi, `[T, A]`, the probabilities of the target policy in state t + 1.
      mu_t: mu, `[T]`, the probability of `a_t` under the policy that took it.
      lambda_: l, a scalar or `[T]`.
      eps: keeps the ratio finite.
      stop_target_gradients: no gradient flows through the returns.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> q, a, ones, pi = jnp.array([[2.0, 4.0], [2.0, 4.0]]), jnp.array([1, 0]), jnp.ones(2), jnp.full((2, 2), 0.5)
      >>> print(rlax.retrace(q, q, a, a, ones, ones / 2, pi, ones / 2, lambda_=1.0))
      [-2.25  0.5 ]
    """
    q_tm1, q_t = arrays("retrace", ("T", "A"), q_tm1=q_tm1, q_t=q_t)
    r_t, discount_t, a_tm1, mu_t = arrays("retrace", TIME, r_t=r_t, discount_t=discount_t, a_tm1=a_tm1, mu_t=mu_t)
    require_rows("retrace", "q_tm1", q_tm1, len(r_t), 0, "as many as r_t")
    traces = retrace_traces("retrace", discount_t, pi_t, mu_t, a_t, lambda_, eps)
    returns = general_off_policy_returns_from_action_values(
        q_t, a_t, r_t, discount_t, traces, pi_t, stop_target_gradients
    )
    return returns - taken("retrace", "a_tm1", q_tm1, a_tm1)


def retrace_continuous(
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    log_rhos: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
) -> Array:
    """Retrace errors for continuous actions: the targets of `rltriton_jax.retrace`, less the action values.

        c[t] = l[t] min(1, exp(log_rho[t]))
        G[t] = r[t] + g[t] (v[t] - c[t] q[t] + c[t] G[t+1])        G[T-1] = r[T-1] + g[T-1] v[T-1]

    Ratios are clipped as logarithms, so that neither they nor their gradients overflow.

    Args:
      q_tm1: `[T]`, the value of the action taken in state t.
      q_t: q, `[T - 1]`, that of the action taken in state t + 1.
      v_t: v, `[T]`, the expected value of state t + 1 under the target policy.
      r_t, discount_t: r and g, `[T]`.
      log_rhos: `[T - 1]`, log(pi / mu) of the action taken in state t + 1.
      lambda_: l, a scalar or `[T - 1]`.
      stop_target_gradients: no gradient flows through G.

    Returns:
      G - q_tm1, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of fitting lengths.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> v, g = jnp.array([3.0, 3.0]), jnp.full(2, 0.5)
      >>> print(rlax.retrace_continuous(jnp.zeros(2), jnp.array([4.0]), v, jnp.ones(2), g, jnp.zeros(1), lambda_=1.0))
      [1.75 2.5 ]
    """
    return _shared.retrace_errors(
        "retrace_continuous", q_tm1, q_t, v_t, r_t, discount_t, log_rhos, lambda_, stop_target_gradients, TIME
    )
