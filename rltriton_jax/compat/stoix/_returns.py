"""Advantages and returns by the names of Stoix's multistep functions."""

from __future__ import annotations

import jax
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from ..._host import to_array
from .._shared import Flag, arrays, last, spread, stopped

BATCH_MAJOR, TIME_MAJOR = ("B", "T"), ("T", "B")


def layout(time_major: bool) -> tuple[tuple[str, str], int]:
    """The names of the axes, and which one is time."""
    return (TIME_MAJOR, 0) if time_major else (BATCH_MAJOR, 1)


def like(function: str, name: str, x: ArrayLike, ndim: int) -> Array:
    """A scalar as it is; an array with so many axes."""
    array = to_array(function, name, x)
    return array.reshape((1,) * (ndim - array.ndim) + array.shape) if 0 < array.ndim < ndim else array


def batch_truncated_generalized_advantage_estimation(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike | None = None,
    v_tm1: ArrayLike | None = None,
    v_t: ArrayLike | None = None,
    truncation_t: ArrayLike | None = None,
    stop_target_gradients: Flag = False,
    time_major: bool = False,
    standardize_advantages: bool = False,
) -> tuple[Array, Array]:
    """Generalised advantages and value targets: `rltriton_jax.gae`.

        A[t] = r[t] + g[t] v_t[t] - v_tm1[t] + g[t] l[t] A[t+1]        A[T] = 0
        target[t] = v_tm1[t] + A[t]

    where A[t+1] is dropped behind a truncated step, which bootstraps from its own `v_t` all the same.

    Args:
      r_t, discount_t: r and g, `[B, T]`.
      lambda_: l, a scalar or like `r_t`.
      values: `[B, T + 1]`, in place of `v_tm1` and `v_t`, whose last column bootstraps.
      v_tm1: `[B, T]`, the values of the states.
      v_t: `[B, T]`, the values of the true next states.
      truncation_t: `[B, T]` flags; goes with `v_t`.
      stop_target_gradients: no gradient flows through the results.
      time_major: the arrays are `[T, B]`.
      standardize_advantages: the advantages (not the targets) are shifted and scaled to mean 0 and variance 1.

    Returns:
      (advantages, targets), each of the shape of `r_t`.

    Raises:
      ValueError: a shape that does not fit, no values or both kinds, `truncation_t` without `v_t`.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> advantages, targets = stoix.batch_truncated_generalized_advantage_estimation(
      ...     jnp.array([[0.0, 1.0]]), jnp.array([[0.5, 0.0]]), 0.5, jnp.array([[0.5, 0.5, 9.0]]))
      >>> print(advantages, targets)
      [[-0.125  0.5  ]] [[0.375 1.   ]]
    """
    name = "batch_truncated_generalized_advantage_estimation"
    axes, axis = layout(time_major)
    r_t, discount_t = arrays(name, axes, r_t=r_t, discount_t=discount_t)
    if values is not None:
        if truncation_t is not None:
            raise ValueError(f"{name}: truncation_t goes with v_tm1 and v_t, since values lack the true next states")
        if v_tm1 is not None or v_t is not None:
            raise ValueError(f"{name}: got values and v_tm1 or v_t; pass values alone, or v_tm1 with v_t")
        v_tm1, v_t = values, None
    elif v_tm1 is None or v_t is None:
        raise ValueError(f"{name}: got neither values nor both of v_tm1 and v_t; pass values, or v_tm1 with v_t")
    out = stopped(
        stop_target_gradients,
        rltriton_jax.gae,
        r_t,
        v_tm1,
        next_values=v_t,
        discount=discount_t,
        lambda_=like(name, "lambda_", lambda_, r_t.ndim),
        truncated=truncation_t,
        time_axis=axis,
    )
    advantages = jax.nn.standardize(out.advantages, axis=(0, 1)) if standardize_advantages else out.advantages
    return advantages, out.targets


def batch_lambda_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    lambda_: ArrayLike = 1.0,
    stop_target_gradients: Flag = False,
    time_major: bool = False,
) -> Array:
    """TD(lambda) returns: `rltriton_jax.lambda_returns`, its values given as those of the next states.

    Args:
      r_t, discount_t: `[B, T]`.
      v_t: `[B, T]`, the values of the next states.
      lambda_: a scalar or like `r_t`.
      stop_target_gradients: no gradient flows through the result.
      time_major: the arrays are `[T, B]`.

    Returns:
      The returns, of the shape of `r_t`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> print(stoix.batch_lambda_returns(
      ...     jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]), jnp.array([[3.0, 4.0]]), lambda_=0.5))
      [[2.75 4.  ]]
    """
    name = "batch_lambda_returns"
    axes, axis = layout(time_major)
    r_t, discount_t, v_t = arrays(name, axes, r_t=r_t, discount_t=discount_t, v_t=v_t)
    return stopped(
        stop_target_gradients,
        rltriton_jax.lambda_returns,
        r_t,
        next_values=v_t,
        discount=discount_t,
        lambda_=like(name, "lambda_", lambda_, r_t.ndim),
        time_axis=axis,
    )


def batch_discounted_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    stop_target_gradients: Flag = False,
    time_major: bool = False,
) -> Array:
    """Discounted returns: `rltriton_jax.discounted_returns`, which bootstraps from the last value.

    Args:
      r_t, discount_t: `[B, T]`.
      v_t: the values of the next states, of which the last is read: a scalar, or like `r_t` (axes may be 1).
      stop_target_gradients: no gradient flows through the result.
      time_major: the arrays are `[T, B]`.

    Returns:
      The returns, of the shape of `r_t`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> print(stoix.batch_discounted_returns(jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]), 4.0))
      [[3. 4.]]
    """
    axes, axis = layout(time_major)
    r_t, discount_t = arrays("batch_discounted_returns", axes, r_t=r_t, discount_t=discount_t)
    bootstrap = spread("batch_discounted_returns", "v_t", v_t, r_t.shape)
    return stopped(
        stop_target_gradients,
        rltriton_jax.discounted_returns,
        r_t,
        discount=discount_t,
        bootstrap_value=last(bootstrap, axis) if bootstrap.ndim else bootstrap,
        time_axis=axis,
    )


def batch_n_step_bootstrapped_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    n: int,
    lambda_t: ArrayLike = 1.0,
    stop_target_gradients: Flag = True,
) -> Array:
    """n-step returns: `rltriton_jax.n_step_returns`, as `rltriton_jax.compat.rlax.n_step_bootstrapped_returns`.

    Args:
      r_t, discount_t: `[B, T]`.
      v_t: `[B, T]`, the values of the next states.
      n: how many rewards a return holds at most.
      lambda_t: a scalar or like `r_t`.
      stop_target_gradients: no gradient flows through the result.

    Returns:
      `[B, T]`.

    Raises:
      ValueError: a shape that does not fit, n below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import stoix
      >>> print(stoix.batch_n_step_bootstrapped_returns(
      ...     jnp.ones((1, 4)), jnp.full((1, 4), 0.5), jnp.full((1, 4), 8.0), n=2))
      [[3.5 3.5 3.5 5. ]]
    """
    name = "batch_n_step_bootstrapped_returns"
    r_t, discount_t, v_t = arrays(name, BATCH_MAJOR, r_t=r_t, discount_t=discount_t, v_t=v_t)
    return stopped(
        stop_target_gradients,
        rltriton_jax.n_step_returns,
        r_t,
        next_values=v_t,
        n=n,
        discount=discount_t,
        lambda_=like(name, "lambda_t", lambda_t, r_t.ndim),
        time_axis=1,
    )
