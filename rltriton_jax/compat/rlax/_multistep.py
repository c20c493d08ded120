"""Returns, advantages and off-policy targets by the names of rlax's multistep functions."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from ..._host import to_array
from .. import _shared
from .._shared import Flag, arrays, behind, last, require_rows, stopped, taken

TIME = ("T",)


def lambda_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    lambda_: ArrayLike = 1.0,
    stop_target_gradients: Flag = False,
) -> Array:
    """TD(lambda) returns: `rltriton_jax.lambda_returns`, its values given as those of the next states.

        G[t] = r[t] + g[t] ((1 - l[t]) v[t] + l[t] G[t+1])        G[T] = v[T-1]

    Args:
      r_t, discount_t: r and g, `[T]`.
      v_t: v, `[T]`, the value of state t + 1.
      lambda_: l, a scalar or `[T]`.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      G, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.lambda_returns(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), jnp.array([3.0, 4.0]), 0.5))
      [2.75 4.  ]
    """
    r_t, discount_t, v_t = arrays("lambda_returns", TIME, r_t=r_t, discount_t=discount_t, v_t=v_t)
    function = rltriton_jax.lambda_returns
    return stopped(stop_target_gradients, function, r_t, next_values=v_t, discount=discount_t, lambda_=lambda_)


def n_step_bootstrapped_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    n: int,
    lambda_t: ArrayLike = 1.0,
    stop_target_gradients: Flag = False,
) -> Array:
    """n-step returns: `rltriton_jax.n_step_returns`, at a cost that does not grow with n.

        G(1)[t] = r[t] + g[t] v[t]
        G(k)[t] = r[t] + g[t] ((1 - l[t]) v[t] + l[t] G(k-1)[t+1])

    A return that reaches past the window bootstraps from the last value.

    Args:
      r_t, discount_t, v_t: as for `lambda_returns`.
      n: how many rewards a return holds at most.
      lambda_t: l, a scalar or `[T]`.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      G(n), `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length, n below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.n_step_bootstrapped_returns(jnp.ones(4), jnp.full(4, 0.5), jnp.full(4, 8.0), n=2))
      [3.5 3.5 3.5 5. ]
    """
    r_t, discount_t, v_t = arrays("n_step_bootstrapped_returns", TIME, r_t=r_t, discount_t=discount_t, v_t=v_t)
    function = rltriton_jax.n_step_returns
    return stopped(stop_target_gradients, function, r_t, next_values=v_t, n=n, discount=discount_t, lambda_=lambda_t)


def discounted_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """Discounted returns: `rltriton_jax.discounted_returns`, which bootstraps from the last value.

        G[t] = r[t] + g[t] G[t+1]        G[T] = v, or v[T-1]

    Args:
      r_t, discount_t: r and g, `[T]`.
      v_t: a scalar, or `[T]` of which the last is read.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      G, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.discounted_returns(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), 4.0))
      [3. 4.]
    """
    r_t, discount_t = arrays("discounted_returns", TIME, r_t=r_t, discount_t=discount_t)
    bootstrap = to_array("discounted_returns", "v_t", v_t)
    if bootstrap.ndim:
        bootstrap = last(arrays("discounted_returns", TIME, r_t=r_t, v_t=v_t)[1])
    function = rltriton_jax.discounted_returns
    return stopped(stop_target_gradients, function, r_t, discount=discount_t, bootstrap_value=bootstrap)


def importance_corrected_td_errors(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """TD errors with importance sampling per decision: `rltriton_jax.gae` whose lambda is l[t] rho[t+1].

        x[t] = r[t] + g[t] V[t+1] - V[t] + g[t] l[t] rho[t+1] x[t+1]        x[T] = 0
        error[t] = rho[t] x[t]

    Args:
      r_t, discount_t: r and g, `[T]`.
      rho_tm1: rho, `[T]`, the ratio of the action taken in state t.
      lambda_: l, a scalar or `[T]`.
      values: V, `[T + 1]`.
      stop_target_gradients: the gradient is that of -V[t] alone.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of fitting lengths.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.importance_corrected_td_errors(
      ...     jnp.ones(2), jnp.full(2, 0.5), jnp.array([1.0, 2.0]), 0.5, jnp.zeros(3)))
      [1.5 2. ]
    """
    return _shared.importance_corrected_td_errors(
        r_t, discount_t, rho_tm1, lambda_, values, None, stop_target_gradients
    )


def truncated_generalized_advantage_estimation(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """Generalised advantages: `rltriton_jax.gae`.

        A[t] = r[t] + g[t] V[t+1] - V[t] + g[t] l[t] A[t+1]        A[T] = 0

    Args:
      r_t, discount_t: r and g, `[T]`.
      lambda_: l, a scalar or `[T]`.
      values: V, `[T + 1]`.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      A, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of fitting lengths.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.truncated_generalized_advantage_estimation(
      ...     jnp.array([0.0, 1.0]), jnp.array([0.5, 0.0]), 0.5, jnp.array([0.5, 0.5, 9.0])))
      [-0.125  0.5  ]
    """
    name = "truncated_generalized_advantage_estimation"
    r_t, discount_t = arrays(name, TIME, r_t=r_t, discount_t=discount_t)
    (values,) = arrays(name, ("T + 1",), values=values)
    require_rows(name, "values", values, len(r_t) + 1, 0, "one more than r_t")
    out = stopped(stop_target_gradients, rltriton_jax.gae, r_t, values, discount=discount_t, lambda_=lambda_)
    return out.advantages


def general_off_policy_returns_from_action_values(
    q_t: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    c_t: ArrayLike,
    pi_t: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """Off-policy action-value targets from policies and action values: `rltriton_jax.off_policy_returns`.

        G[t] = r[t] + g[t] (sum over a of pi[t, a] q[t, a] - c[t] q[t, a[t]] + c[t] G[t+1])

    Args:
      q_t: q, `[T, A]`, action values of state t + 1.
      a_t: a, integers `[T]`, the action taken there.
      r_t, discount_t: r and g, `[T]`.
      c_t: c, `[T]`, the trace of that action; the last is not read.
      pi_t: pi, `[T, A]`, the probabilities of the target policy there.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      G, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> q, a, ones = jnp.array([[2.0, 4.0], [2.0, 4.0]]), jnp.array([1, 0]), jnp.ones(2)
      >>> print(rlax.general_off_policy_returns_from_action_values(q, a, ones, ones / 2, ones, jnp.full((2, 2), 0.5)))
      [1.75 2.5 ]
    """
    name = "general_off_policy_returns_from_action_values"
    q_t, pi_t = arrays(name, ("T", "A"), q_t=q_t, pi_t=pi_t)
    a_t, c_t, r_t, discount_t = arrays(name, TIME, a_t=a_t, c_t=c_t, r_t=r_t, discount_t=discount_t)
    require_rows(name, "q_t", q_t, len(r_t), 0, "as many as r_t")
    expected = jnp.sum(pi_t * behind(discount_t, q_t), axis=-1)
    return general_off_policy_returns_from_q_and_v(
        taken(name, "a_t", q_t, a_t)[:-1], expected, r_t, discount_t, c_t[:-1], stop_target_gradients
    )


def general_off_policy_returns_from_q_and_v(
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    c_t: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """Off-policy action-value targets by traces of one's own choice: `rltriton_jax.off_policy_returns`.

        G[t] = r[t] + g[t] (v[t] - c[t] q[t] + c[t] G[t+1])        G[T-1] = r[T-1] + g[T-1] v[T-1]

    Args:
      q_t: q, `[T - 1]`, the value of the action taken in state t + 1.
      v_t: v, `[T]`, the expected value of state t + 1 under the target policy.
      r_t, discount_t: r and g, `[T]`.
      c_t: c, `[T - 1]`, the trace of the action taken in state t + 1.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      G, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of fitting lengths.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.general_off_policy_returns_from_q_and_v(
      ...     jnp.array([4.0]), jnp.array([3.0, 3.0]), jnp.ones(2), jnp.full(2, 0.5), jnp.ones(1)))
      [1.75 2.5 ]
    """
    name = "general_off_policy_returns_from_q_and_v"
    v_t, r_t, discount_t = arrays(name, TIME, v_t=v_t, r_t=r_t, discount_t=discount_t)
    q_t, c_t = arrays(name, ("T - 1",), q_t=q_t, c_t=c_t)
    require_rows(name, "q_t", q_t, len(r_t) - 1, 0, "one fewer than r_t")
    return _shared.off_policy_returns(q_t, v_t, r_t, discount_t, c_t, stop_target_gradients)
