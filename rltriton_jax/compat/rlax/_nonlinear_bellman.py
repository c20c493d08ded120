"""Targets in a transformed value space by the names of rlax's non-linear Bellman functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .._shared import Flag, arrays, behind, require_rows, taken
from ._multistep import (
    TIME,
    general_off_policy_returns_from_action_values,
    lambda_returns,
    n_step_bootstrapped_returns,
)
from ._value_learning import retrace_traces


class TxPair(Protocol):
    """A transformation of values and its inverse, such as rlax's pairs."""

    @property
    def apply(self) -> Callable[..., Array]: ...

    @property
    def apply_inv(self) -> Callable[..., Array]: ...


class _Pair(NamedTuple):
    apply: Callable[..., Array]
    apply_inv: Callable[..., Array]


IDENTITY_PAIR = _Pair(jnp.asarray, jnp.asarray)


def transformed_lambda_returns(
    tx_pair: TxPair,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    lambda_: ArrayLike = 1.0,
    stop_target_gradients: Flag = False,
) -> Array:
    """`lambda_returns` of values held in a transformed space: h(G(h^-1(v))).

    Args:
      tx_pair: h and its inverse, as `apply` and `apply_inv`.
      v_t: `[T]`, transformed.
      r_t, discount_t, lambda_, stop_target_gradients: as for `lambda_returns`.

    Returns:
      The transformed returns, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> doubled = types.SimpleNamespace(apply=lambda x: 2 * x, apply_inv=lambda x: x / 2)
      >>> r, g, v = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), jnp.array([6.0, 8.0])
      >>> print(rlax.transformed_lambda_returns(doubled, r, g, v, 0.5))
      [5.5 8. ]
    """
    discount_t, v_t = arrays("transformed_lambda_returns", TIME, discount_t=discount_t, v_t=v_t)
    v_t = tx_pair.apply_inv(behind(discount_t, v_t))
    return tx_pair.apply(lambda_returns(r_t, discount_t, v_t, lambda_, stop_target_gradients))


def transformed_n_step_returns(
    tx_pair: TxPair,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    n: int,
    lambda_t: ArrayLike = 1.0,
    stop_target_gradients: Flag = False,
) -> Array:
    """`n_step_bootstrapped_returns` of values held in a transformed space.

    Args:
      tx_pair: h and its inverse, as `apply` and `apply_inv`.
      v_t: `[T]`, transformed.
      r_t, discount_t, n, lambda_t, stop_target_gradients: as for `n_step_bootstrapped_returns`.

    Returns:
      The transformed returns, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> doubled = types.SimpleNamespace(apply=lambda x: 2 * x, apply_inv=lambda x: x / 2)
      >>> print(rlax.transformed_n_step_returns(doubled, jnp.ones(4), jnp.full(4, 0.5), jnp.full(4, 16.0), n=2))
      [ 7.  7.  7. 10.]
    """
    discount_t, v_t = arrays("transformed_n_step_returns", TIME, discount_t=discount_t, v_t=v_t)
    v_t = tx_pair.apply_inv(behind(discount_t, v_t))
    return tx_pair.apply(n_step_bootstrapped_returns(r_t, discount_t, v_t, n, lambda_t, stop_target_gradients))


def transformed_general_off_policy_returns_from_action_values(
    tx_pair: TxPair,
    q_t: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    c_t: ArrayLike,
    pi_t: ArrayLike,
    stop_target_gradients: Flag = False,
) -> Array:
    """`general_off_policy_returns_from_action_values` of action values held in a transformed space.

    Args:
      tx_pair: h and its inverse, as `apply` and `apply_inv`.
      q_t: `[T, A]`, transformed.
      a_t, r_t, discount_t, c_t, pi_t, stop_target_gradients: as for `general_off_policy_returns_from_action_values`.

    Returns:
      The transformed returns, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> doubled = types.SimpleNamespace(apply=lambda x: 2 * x, apply_inv=lambda x: x / 2)
      >>> q, a, ones = jnp.array([[4.0, 8.0], [4.0, 8.0]]), jnp.array([1, 0]), jnp.ones(2)
      >>> print(rlax.transformed_general_off_policy_returns_from_action_values(
      ...     doubled, q, a, ones, ones / 2, ones, jnp.full((2, 2), 0.5)))
      [3.5 5. ]
    """
    name = "transformed_general_off_policy_returns_from_action_values"
    (discount_t,), (q_t,) = arrays(name, TIME, discount_t=discount_t), arrays(name, ("T", "A"), q_t=q_t)
    require_rows(name, "q_t", q_t, len(discount_t), 0, "as many as discount_t")
    q_t = tx_pair.apply_inv(behind(discount_t, q_t))
    return tx_pair.apply(
        general_off_policy_returns_from_action_values(q_t, a_t, r_t, discount_t, c_t, pi_t, stop_target_gradients)
    )


def transformed_q_lambda(
    q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: Flag = True,
    tx_pair: TxPair = IDENTITY_PAIR,
) -> Array:
    """`q_lambda` of action values held in a transformed space.

    Args:
      q_tm1, q_t: `[T, A]`, transformed.
      tx_pair: h and its inverse, as `apply` and `apply_inv`.
      a_tm1, r_t, discount_t, lambda_, stop_target_gradients: as for `q_lambda`.

    Returns:
      The errors in the transformed space, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> doubled = types.SimpleNamespace(apply=lambda x: 2 * x, apply_inv=lambda x: x / 2)
      >>> q, a, r = jnp.array([[6.0, 0.0], [0.0, 8.0]]), jnp.array([0, 1]), jnp.array([1.0, 2.0])
      >>> print(rlax.transformed_q_lambda(jnp.ones((2, 2)), a, r, jnp.full(2, 0.5), q, 0.5, tx_pair=doubled))
      [4.5 7. ]
    """
    q_tm1, q_t = arrays("transformed_q_lambda", ("T", "A"), q_tm1=q_tm1, q_t=q_t)
    r_t, a_tm1, discount_t = arrays("transformed_q_lambda", TIME, r_t=r_t, a_tm1=a_tm1, discount_t=discount_t)
    require_rows("transformed_q_lambda", "q_tm1", q_tm1, len(r_t), 0, "as many as r_t")
    # as in rlax: the largest transformed value, since h is increasing
    v_t = jnp.max(behind(discount_t, q_t), axis=-1)
    returns = transformed_lambda_returns(tx_pair, r_t, discount_t, v_t, lambda_, stop_target_gradients)
    return returns - taken("transformed_q_lambda", "a_tm1", q_tm1, a_tm1)


def transformed_retrace(
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
    tx_pair: TxPair = IDENTITY_PAIR,
) -> Array:
    """`retrace` of action values held in a transformed space.

    Args:
      q_tm1, q_t: `[T, A]`, transformed.
      tx_pair: h and its inverse, as `apply` and `apply_inv`.
      a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_, eps, stop_target_gradients: as for `retrace`.

    Returns:
      The errors in the transformed space, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> doubled = types.SimpleNamespace(apply=lambda x: 2 * x, apply_inv=lambda x: x / 2)
      >>> q, a, ones, pi = jnp.array([[4.0, 8.0], [4.0, 8.0]]), jnp.array([1, 0]), jnp.ones(2), jnp.full((2, 2), 0.5)
      >>> print(rlax.transformed_retrace(q, q, a, a, ones, ones / 2, pi, ones / 2, lambda_=1.0, tx_pair=doubled))
      [-4.5  1. ]
    """
    name = "transformed_retrace"
    q_tm1, q_t = arrays(name, ("T", "A"), q_tm1=q_tm1, q_t=q_t)
    r_t, discount_t, a_tm1, mu_t = arrays(name, TIME, r_t=r_t, discount_t=discount_t, a_tm1=a_tm1, mu_t=mu_t)
    require_rows(name, "q_tm1", q_tm1, len(r_t), 0, "as many as r_t")
    traces = retrace_traces(name, discount_t, pi_t, mu_t, a_t, lambda_, eps)
    returns = transformed_general_off_policy_returns_from_action_values(
        tx_pair, q_t, a_t, r_t, discount_t, traces, pi_t, stop_target_gradients
    )
    return returns - taken(name, "a_tm1", q_tm1, a_tm1)


def transformed_n_step_q_learning(
    q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    target_q_t: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    n: int,
    stop_target_gradients: Flag = True,
    tx_pair: TxPair = IDENTITY_PAIR,
) -> Array:
    """n-step Q-learning errors of action values held in a transformed space.

    Args:
      q_tm1: `[T, A]`, transformed, the action values of state t.
      a_tm1: integers `[T]`, the action taken there.
      target_q_t: `[T, A]`, transformed, the action values of state t + 1 to bootstrap from.
      a_t: integers `[T]`, the action to bootstrap from.
      tx_pair: h and its inverse, as `apply` and `apply_inv`.
      r_t, discount_t, n, stop_target_gradients: as for `n_step_bootstrapped_returns`.

    Returns:
      The errors in the transformed space, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.
      TypeError: actions that are no integers.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> doubled = types.SimpleNamespace(apply=lambda x: 2 * x, apply_inv=lambda x: x / 2)
      >>> q, a = jnp.full((4, 2), 16.0), jnp.zeros(4, jnp.int32)
      >>> print(rlax.transformed_n_step_q_learning(q, a, q, a, jnp.ones(4), jnp.full(4, 0.5), n=2, tx_pair=doubled))
      [-9. -9. -9. -6.]
    """
    name = "transformed_n_step_q_learning"
    q_tm1, target_q_t = arrays(name, ("T", "A"), q_tm1=q_tm1, target_q_t=target_q_t)
    r_t, a_tm1, a_t = arrays(name, TIME, r_t=r_t, a_tm1=a_tm1, a_t=a_t)
    require_rows(name, "q_tm1", q_tm1, len(r_t), 0, "as many as r_t")
    v_t = taken(name, "a_t", target_q_t, a_t)
    returns = transformed_n_step_returns(tx_pair, r_t, discount_t, v_t, n, stop_target_gradients=stop_target_gradients)
    return returns - taken(name, "a_tm1", q_tm1, a_tm1)
