"""V-trace errors and advantages by the names of rlax's vtrace functions."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from .._shared import Flag, arrays, before, behind, error_against, flags, last, mixed, spread, stopped


class VTraceOutput(NamedTuple):
    """What the functions with advantages return, each `[T]`."""

    errors: Array
    pg_advantage: Array
    q_estimate: Array


class _Steps(NamedTuple):
    v_tm1: Array
    v_t: Array
    r_t: Array
    discount_t: Array
    rho_tm1: Array
    lambda_: Array


def _read(function: str, *given: ArrayLike) -> _Steps:
    *series, lambda_ = given
    read = arrays(function, ("T",), **dict(zip(_Steps._fields, series)))
    return _Steps._make([*read, spread(function, "lambda_", lambda_, read[0].shape)])


def _learnable(function: str, steps: _Steps, sample_mask: ArrayLike | None) -> _Steps:
    """The steps; one that is not learnable becomes one that hands on the error behind it as it is."""
    if sample_mask is None:
        return steps
    live = flags(function, ("T",), "sample_mask", sample_mask, r_t=steps.r_t) != 0
    zeros, ones = steps[:3], steps[3:]
    return _Steps(*(jnp.where(live, x, 0.0) for x in zeros), *(jnp.where(live, x, 1.0) for x in ones))


def vtrace(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike | None = 1.0,
    stop_target_gradients: Flag = True,
    sample_mask: ArrayLike | None = None,
) -> Array:
    """V-trace errors: the targets of `rltriton_jax.vtrace`, less the values.

        D[t] = min(clip, rho[t]) (r[t] + g[t] v_t[t] - v_tm1[t]) + g[t] l[t] min(1, rho[t]) D[t+1]        D[T] = 0

    Args:
      v_tm1, v_t: `[T]`, the values of states t and t + 1.
      r_t, discount_t: r and g, `[T]`.
      rho_tm1: rho, `[T]`, the ratio of the action taken in state t.
      lambda_: l, a scalar, `[1]` or `[T]`.
      clip_rho_threshold: bound of the ratio that weighs the TD error.
      stop_target_gradients: the gradient is that of -v_tm1 alone.
      sample_mask: `[T]` flags; a step without one has the error of the next step that has one, and nothing of it is
        read there.

    Returns:
      D, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.vtrace(jnp.zeros(2), jnp.zeros(2), jnp.ones(2), jnp.full(2, 0.5), jnp.array([1.0, 0.5])))
      [1.25 0.5 ]
    """
    steps = _read("vtrace", v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_)
    kept = _learnable("vtrace", steps, sample_mask)
    out = stopped(
        stop_target_gradients,
        rltriton_jax.vtrace,
        kept.r_t,
        kept.v_tm1,
        next_values=kept.v_t,
        rhos=kept.rho_tm1,
        discount=kept.discount_t,
        lambda_=kept.lambda_,
        clip_rho=clip_rho_threshold,
    )
    return error_against(stop_target_gradients, out.targets - kept.v_tm1, steps.v_tm1)


def leaky_vtrace(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    alpha_: ArrayLike = 1.0,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: Flag = True,
    sample_mask: ArrayLike | None = None,
) -> Array:
    """Leaky V-trace errors: as `vtrace`, with ratios between clipped and unclipped.

        min(b, rho[t])   becomes   (1 - alpha) rho[t] + alpha min(b, rho[t])

    which is `rltriton_jax.gae` of TD errors weighed by one such ratio and traces weighed by the other.

    Args:
      alpha_: alpha, a scalar or `[T]`; 1 gives `vtrace`.
      v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask: as for
        `vtrace`.

    Returns:
      The errors, `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> print(rlax.leaky_vtrace(jnp.zeros(2), jnp.zeros(2), jnp.ones(2), jnp.full(2, 0.5), jnp.full(2, 3.0), 0.5))
      [4. 2.]
    """
    steps = _read("leaky_vtrace", v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_)
    kept = _learnable("leaky_vtrace", steps, sample_mask)
    alpha = spread("leaky_vtrace", "alpha_", alpha_, kept.rho_tm1.shape)
    bound = spread("leaky_vtrace", "clip_rho_threshold", clip_rho_threshold, kept.rho_tm1.shape)
    weight = _leaky(kept.rho_tm1, bound, alpha)
    out = stopped(
        stop_target_gradients,
        rltriton_jax.gae,
        weight * kept.r_t,
        weight * kept.v_tm1,
        next_values=weight * behind(kept.discount_t, kept.v_t),
        discount=kept.discount_t,
        lambda_=_leaky(kept.rho_tm1, 1.0, alpha) * kept.lambda_,
    )
    return error_against(stop_target_gradients, out.advantages, steps.v_tm1)


def _leaky(rho: Array, bound: ArrayLike, alpha: ArrayLike) -> Array:
    return mixed(alpha, rho, jnp.minimum(bound, rho))


def _estimable(function: str, steps: _Steps, sample_mask: ArrayLike | None) -> _Steps:
    """The steps as rlax's estimates read them, which is all; but what is not finite at one that is not learnable."""
    if sample_mask is None:
        return steps
    kept = _learnable(function, steps, sample_mask)
    finite = _Steps(*(jnp.where(jnp.isfinite(x), x, y) for x, y in zip(steps, kept)))
    junk = ~jnp.isfinite(steps.v_tm1) & jnp.isfinite(kept.v_tm1)
    value = before(0.0, finite.v_t, len(junk))  # the step in front knows the value of the state too
    return finite._replace(v_tm1=jnp.where(junk, value, steps.v_tm1))


def _with_advantages(steps: _Steps, errors: Array, pg_rho: Array) -> VTraceOutput:
    """The errors, and one-step estimates that bootstrap from v + l error of the state that follows."""
    mixing = before(0.0, steps.lambda_, len(errors)) if steps.lambda_.ndim else steps.lambda_
    q_estimate = rltriton_jax.n_step_returns(
        steps.r_t, steps.v_tm1 + mixing * errors, bootstrap_value=last(steps.v_t), n=1, discount=steps.discount_t
    )
    return VTraceOutput(errors, pg_rho * (q_estimate - steps.v_tm1), q_estimate)


def vtrace_td_error_and_advantage(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike | None = 1.0,
    clip_pg_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: Flag = True,
    sample_mask: ArrayLike | None = None,
) -> VTraceOutput:
    """V-trace errors D, and the action values and advantages that go with them.

        q[t] = r[t] + g[t] (v_tm1[t+1] + l[t] D[t+1])        q[T-1] = r[T-1] + g[T-1] v_t[T-1]
        advantage[t] = min(clip_pg, rho[t]) (q[t] - v_tm1[t])

    As in rlax, q and the advantages read the steps without a flag in `sample_mask` too, but what is not finite there:
    v_tm1[t+1] is v_t[t] then, and the rest 0 or, of factors, 1.

    Args:
      v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, sample_mask: as for `vtrace`.
      clip_pg_rho_threshold: bound of the ratio that weighs the advantage.
      stop_target_gradients: the gradient of the errors is that of -v_tm1 alone.

    Returns:
      `VTraceOutput(errors, pg_advantage, q_estimate)`, each `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> out = rlax.vtrace_td_error_and_advantage(
      ...     jnp.zeros(2), jnp.zeros(2), jnp.ones(2), jnp.full(2, 0.5), jnp.array([1.0, 0.5]))
      >>> print(out.errors, out.pg_advantage, out.q_estimate)
      [1.25 0.5 ] [1.25 0.5 ] [1.25 1.  ]
    """
    name = "vtrace_td_error_and_advantage"
    steps = _read(name, v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_)
    bound = spread(name, "clip_pg_rho_threshold", clip_pg_rho_threshold, steps.rho_tm1.shape)
    errors = vtrace(*steps, clip_rho_threshold, stop_target_gradients, sample_mask)
    steps = _estimable(name, steps, sample_mask)
    return _with_advantages(steps, errors, jnp.minimum(bound, steps.rho_tm1))


def leaky_vtrace_td_error_and_advantage(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    alpha: ArrayLike = 1.0,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike = 1.0,
    clip_pg_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: Flag = True,
    sample_mask: ArrayLike | None = None,
) -> VTraceOutput:
    """`vtrace_td_error_and_advantage` with the errors and ratios of `leaky_vtrace`.

    Args:
      alpha: a scalar or `[T]`; 1 gives `vtrace_td_error_and_advantage`.
      v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, clip_pg_rho_threshold, stop_target_gradients,
        sample_mask: as for `vtrace_td_error_and_advantage`.

    Returns:
      `VTraceOutput(errors, pg_advantage, q_estimate)`, each `[T]`.

    Raises:
      ValueError: arrays that are no trajectories of one length.

    Example:
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat import rlax
      >>> out = rlax.leaky_vtrace_td_error_and_advantage(
      ...     jnp.zeros(2), jnp.zeros(2), jnp.ones(2), jnp.full(2, 0.5), jnp.full(2, 3.0), alpha=0.5)
      >>> print(out.errors, out.pg_advantage, out.q_estimate)
      [4. 2.] [4. 2.] [2. 1.]
    """
    name = "leaky_vtrace_td_error_and_advantage"
    steps = _read(name, v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_)
    alpha = spread(name, "alpha", alpha, steps.rho_tm1.shape)
    bound = spread(name, "clip_pg_rho_threshold", clip_pg_rho_threshold, steps.rho_tm1.shape)
    errors = leaky_vtrace(*steps[:5], alpha, steps.lambda_, clip_rho_threshold, stop_target_gradients, sample_mask)
    steps = _estimable(name, steps, sample_mask)
    return _with_advantages(steps, errors, _leaky(steps.rho_tm1, bound, alpha))
