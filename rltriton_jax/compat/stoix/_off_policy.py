"""Off-policy targets and errors by the names of Stoix's multistep functions."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .. import _shared
from .._shared import Flag, arrays, behind, require_rows
from ._returns import BATCH_MAJOR, batch_lambda_returns, layout, like


def batch_q_lambda(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
    time_major: bool = False,
) -> Array:
    """Q(lambda) targets: `batch_lambda_returns` of the largest action values.

    Args:
      r_t, discount_t: `[B, T]`.
      q_t: `[B, T, A]`, the action values of the next states.
      lambda_: a scalar (Peng), or like `r_t` with a 0 where the next action is not greedy (Watkins).
      stop_target_gradients: no gradient flows through the result.
      time_major: the arrays are `[T, B]` and `[T, B, A]`.

    Returns:
      The targets, of the shape of `r_t`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> q = jnp.array([[[3.0, 0.0], [0.0, 4.0]]])
      >>> print(stoix.batch_q_lambda(jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]), q, lambda_=0.5))
      [[2.75 4.  ]]
    """
    axes, _ = layout(time_major)
    r_t, discount_t = arrays("batch_q_lambda", axes, r_t=r_t, discount_t=discount_t)
    (q_t,) = arrays("batch_q_lambda", (*axes, "A"), q_t=q_t)
    for axis in (0, 1):
        require_rows("batch_q_lambda", "q_t", q_t, r_t.shape[axis], axis, "as many as r_t")
    v_t = jnp.max(behind(discount_t, q_t), axis=-1)
    return batch_lambda_returns(r_t, discount_t, v_t, lambda_, stop_target_gradients, time_major)


def batch_general_off_policy_returns_from_q_and_v(
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    c_t: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """Off-policy targets: `rltriton_jax.off_policy_returns`.

        G[t] = r[t] + g[t] (v[t] - c[t] q[t] + c[t] G[t+1])        G[T-1] = r[T-1] + g[T-1] v[T-1]

    Args:
      q_t: q, `[B, T - 1]`, the value of the action taken in state t + 1.
      v_t: v, `[B, T]`, the expected value of state t + 1 under the target policy.
      r_t, discount_t: r and g, `[B, T]`.
      c_t: c, `[B, T - 1]`, the trace of the action taken in state t + 1.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      G, `[B, T]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> print(stoix.batch_general_off_policy_returns_from_q_and_v(
      ...     jnp.array([[4.0]]), jnp.array([[3.0, 3.0]]), jnp.ones((1, 2)), jnp.full((1, 2), 0.5), jnp.ones((1, 1))))
      [[1.75 2.5 ]]
    """
    name = "batch_general_off_policy_returns_from_q_and_v"
    v_t, r_t, discount_t = arrays(name, BATCH_MAJOR, v_t=v_t, r_t=r_t, discount_t=discount_t)
    q_t, c_t = arrays(name, ("B", "T - 1"), q_t=q_t, c_t=c_t)
    require_rows(name, "q_t", q_t, r_t.shape[0], 0, "as many as r_t")
    require_rows(name, "q_t", q_t, r_t.shape[1] - 1, 1, "one fewer than r_t")
    return _shared.off_policy_returns(q_t, v_t, r_t, discount_t, c_t, stop_target_gradients, axis=1)


def batch_retrace_continuous(
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    log_rhos: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
) -> Array:
    """Retrace errors: `rltriton_jax.retrace`, as `rltriton_jax.compat.rlax.retrace_continuous`.

    Args:
      q_tm1: `[B, T]`, the value of the action taken in state t.
      q_t, log_rhos: `[B, T - 1]`, of the action taken in state t + 1.
      v_t: `[B, T]`, the expected value of state t + 1 under the target policy.
      r_t, discount_t: `[B, T]`.
      lambda_: a scalar or `[B, T - 1]`.
      stop_target_gradients: no gradient flows through the targets.

    Returns:
      The targets less `q_tm1`, `[B, T]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> row = lambda *x: jnp.array([x])
      >>> print(stoix.batch_retrace_continuous(
      ...     row(0.0, 0.0), row(4.0), row(3.0, 3.0), row(1.0, 1.0), row(0.5, 0.5), row(0.0), 1.0))
      [[1.75 2.5 ]]
    """
    name = "batch_retrace_continuous"
    return _shared.retrace_errors(
        name,
        q_tm1,
        q_t,
        v_t,
        r_t,
        discount_t,
        log_rhos,
        like(name, "lambda_", lambda_, len(BATCH_MAJOR)),
        stop_target_gradients,
        BATCH_MAJOR,
    )


def importance_corrected_td_errors(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike,
    truncation_t: ArrayLike | None = None,
    stop_target_gradients: Flag = False,
) -> Array:
    """TD errors with importance sampling per decision, of one trajectory.

    As `rltriton_jax.compat.rlax.importance_corrected_td_errors`; nothing is carried back over a truncated step, which
    bootstraps from `values[t + 1]`.

    Args:
      r_t, discount_t, rho_tm1: `[T]`.
      lambda_: a scalar or `[T]`.
      values: `[T + 1]`.
      truncation_t: `[T]` flags.
      stop_target_gradients: the gradient is that of -values[t] alone.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> print(stoix.importance_corrected_td_errors(
      ...     jnp.ones(2), jnp.full(2, 0.5), jnp.array([1.0, 2.0]), 0.5, jnp.zeros(3), jnp.array([1.0, 0.0])))
      [1. 2.]
    """
    return _shared.importance_corrected_td_errors(
        r_t, discount_t, rho_tm1, lambda_, values, truncation_t, stop_target_gradients
    )
