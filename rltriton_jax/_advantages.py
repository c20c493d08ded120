"""Advantages: GAE, V-trace and Retrace."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from jax import Array, export
from jax.typing import ArrayLike

from ._boundaries import Backward
from ._call import Call


class GAE(NamedTuple):
    """What `gae` returns; both have the shape of `rewards`."""

    advantages: Array
    targets: Array


class VTrace(NamedTuple):
    """What `vtrace` returns; both have the shape of `rewards`."""

    targets: Array
    advantages: Array


class Retrace(NamedTuple):
    """What `retrace` returns; both have the shape of `rewards`."""

    targets: Array
    advantages: Array


for _kind in (GAE, VTrace, Retrace):
    with contextlib.suppress(ValueError):  # it is known already where this module is loaded again
        export.register_namedtuple_serialization(_kind, serialized_name=f"rltriton_jax.{_kind.__name__}")


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    discount: ArrayLike,
    lambda_: ArrayLike,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_starts: ArrayLike | None = None,
    next_episode_start: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> GAE:
    """Generalised advantage estimation.

        d[t] = r[t] + g[t] w[t] - V[t]
        A[t] = d[t] + g[t] l[t] A[t+1]        A[T] = 0

    where w[t] = V[t+1], the next value. The trace stops behind a step that ended its episode.

    Args:
      rewards: `[T, *batch]` (time at `time_axis`), r[t] for the transition from state t to state t + 1.
      values: V, `[T + 1, *batch]`, whose last row bootstraps; or `[T, *batch]` with `bootstrap_value` or `next_values`.
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      lambda_: l, likewise.
      bootstrap_value: V[T], a scalar or `[*batch]`.
      next_values: `[T, *batch]`, the value of the true next state of each step.
      terminated: `[T, *batch]` flags of any dtype: step t ended the episode; its next value is not read.
      truncated: `[T, *batch]` flags: a time limit cut the episode behind step t; it bootstraps from `next_values[t]`.
      episode_starts: instead of `terminated`, flags that state t is the first of an episode: `[T + 1, *batch]`, or
        `[T, *batch]` with `next_episode_start`.
      next_episode_start: `[*batch]` flags or a scalar: state T is the first of an episode.
      mask: `[T, *batch]` flags: step t is real. At other steps the outputs are 0 and nothing is read.
      mask_mode: "skip" (as if the masked rows were deleted) or "reset" (a masked row ends the episode before it).
      time_axis: the axis of time in every array.
      axis_name: inside `jax.shard_map`, the mesh axis over which time is sharded: every shard holds the next block of
        steps, T rows in every array. What stands past the window counts on the last shard alone. The shards exchange
        O(batch) numbers.
      implementation: None (the fastest for platform and shape), "triton", "associative_scan", "scan" or "interpret".

    Returns:
      `GAE(advantages, targets)`: A and A + V, in the promoted floating dtype of rewards and values.

    Raises:
      ValueError: a shape that does not fit, T rows of values and nothing after them, `truncated` without `next_values`.
      TypeError: an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> advantages, targets = rltriton_jax.gae(
      ...     jnp.array([0.0, 0.0, 1.0]), jnp.array([0.5, 0.5, 0.5, 9.0]), discount=0.5, lambda_=0.5,
      ...     terminated=jnp.array([False, False, True]))
      >>> print(advantages, targets)
      [-0.28125 -0.125    0.5    ] [0.21875 0.375   1.     ]

    Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438.
    """
    call = Call.on("gae", "rewards", rewards, time_axis, implementation, axis_name)
    call.series("reward", "rewards", rewards)
    call.values(values, bootstrap_value, next_values)
    call.spread("discount", "discount", discount)
    call.spread("lambda_", "lambda_", lambda_)
    call.ends(terminated, truncated, episode_starts, next_episode_start, next_values)
    call.masks(mask, mask_mode)
    return GAE(*call.run(Backward, implementation, "gae", "gae_outputs", mask_mode, outs=2, state_out=0))


def vtrace(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    log_rhos: ArrayLike | None = None,
    rhos: ArrayLike | None = None,
    discount: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho: ArrayLike | None = 1.0,
    clip_c: ArrayLike | None = 1.0,
    clip_pg_rho: ArrayLike | None = 1.0,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_starts: ArrayLike | None = None,
    next_episode_start: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> VTrace:
    """V-trace: off-policy state-value targets, and advantages for the policy gradient.

        d[t] = r[t] + g[t] w[t] - V[t]
        D[t] = min(clip_rho, rho[t]) d[t] + g[t] l[t] min(clip_c, rho[t]) D[t+1]        D[T] = 0
        target[t] = V[t] + D[t]
        advantage[t] = min(clip_pg_rho, rho[t]) (d[t] + g[t] l[t] D[t+1])

    where w[t] = V[t+1] and D[t+1] is dropped behind a step that ended its episode.

    Args:
      rewards: `[T, *batch]` (time at `time_axis`).
      values: V, `[T + 1, *batch]`, whose last row bootstraps; or `[T, *batch]` with `bootstrap_value` or `next_values`.
      log_rhos: `[T, *batch]`, log(pi / mu) of the action taken at step t. Clipped as logarithms, so nothing overflows.
      rhos: the ratios themselves, instead of `log_rhos`.
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      lambda_: l, likewise.
      clip_rho: bound of the ratio that weighs the TD error, a scalar; None or inf does not clip.
      clip_c: bound of the ratio in the trace, likewise.
      clip_pg_rho: bound of the ratio in the advantages, likewise.
      bootstrap_value, next_values, terminated, truncated, episode_starts, next_episode_start, mask, mask_mode,
        time_axis, axis_name, implementation: as for `gae`.

    Returns:
      `VTrace(targets, advantages)`, in the promoted floating dtype of rewards and values.

    Raises:
      ValueError: a shape that does not fit, both or neither of `log_rhos` and `rhos`, and what `gae` refuses.
      TypeError: an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> out = rltriton_jax.vtrace(jnp.ones(2), jnp.zeros(3), log_rhos=jnp.array([0.0, jnp.log(0.5)]), discount=0.5)
      >>> print(out.targets, out.advantages)
      [1.25 0.5 ] [1.25 0.5 ]

    Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
    arXiv:1802.01561.
    """
    call = Call.on("vtrace", "rewards", rewards, time_axis, implementation, axis_name)
    call.series("reward", "rewards", rewards)
    call.values(values, bootstrap_value, next_values)
    call.ratios(log_rhos, rhos, clip_rho=clip_rho, clip_c=clip_c, clip_pg_rho=clip_pg_rho)
    call.spread("discount", "discount", discount)
    call.spread("lambda_", "lambda_", lambda_)
    call.ends(terminated, truncated, episode_starts, next_episode_start, next_values)
    call.masks(mask, mask_mode)
    return VTrace(*call.run(Backward, implementation, "vtrace", "vtrace_outputs", mask_mode, outs=2))


def retrace(
    rewards: ArrayLike,
    q_taken: ArrayLike,
    *,
    next_expected_q: ArrayLike,
    log_rhos: ArrayLike | None = None,
    rhos: ArrayLike | None = None,
    discount: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_c: ArrayLike | None = 1.0,
    clip_rho: ArrayLike | None = 1.0,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_starts: ArrayLike | None = None,
    next_episode_start: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> Retrace:
    """Retrace(lambda): off-policy action-value targets, and advantages.

        c[t] = l[t] min(clip_c, rho[t])
        D[t] = r[t] + g[t] x[t] - Q[t] + g[t] c[t+1] D[t+1]        D[T] = 0
        target[t] = Q[t] + D[t]
        advantage[t] = min(clip_rho, rho[t]) (r[t] + g[t] y[t] - Q[t])

    where x[t] is `next_expected_q[t]`, and y[t] is target[t+1], or x[t] where the trace stops or the window ends.

    Args:
      rewards: `[T, *batch]` (time at `time_axis`).
      q_taken: Q, `[T, *batch]`, the value of the action taken at step t.
      next_expected_q: `[T, *batch]`, sum over a of pi(a | state t + 1) Q(state t + 1, a); not read behind a terminated
        step.
      log_rhos: `[T, *batch]`, log(pi / mu) of the action taken at step t; or `rhos`, the ratios themselves.
      rhos: instead of `log_rhos`.
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      lambda_: l, likewise.
      clip_c: bound of the ratio in the trace, a scalar; None or inf does not clip.
      clip_rho: bound of the ratio that weighs the advantages, likewise.
      terminated, truncated, episode_starts, next_episode_start, mask, mask_mode, time_axis, axis_name, implementation:
        as for `gae`; a truncated step bootstraps from `next_expected_q`.

    Returns:
      `Retrace(targets, advantages)`, in the promoted floating dtype of rewards and action values.

    Raises:
      ValueError: a shape that does not fit, both or neither of `log_rhos` and `rhos`.
      TypeError: an argument that is no array of numbers.

    Example:
      With policies and action values `[T + 1, B, A]`, the expectation is one reduction, and the scan stays `[T, B]`:

      >>> import jax, jax.numpy as jnp, rltriton_jax
      >>> T, B, A = 3, 2, 4
      >>> q = jnp.arange((T + 1) * B * A, dtype=jnp.float32).reshape(T + 1, B, A) / 10
      >>> policy = jnp.full((T + 1, B, A), 1 / A)
      >>> actions = jnp.zeros((T, B), jnp.int32)
      >>> out = rltriton_jax.retrace(
      ...     jnp.ones((T, B)), jnp.take_along_axis(q[:-1], actions[..., None], -1)[..., 0],
      ...     next_expected_q=jnp.sum(policy * q, axis=-1)[1:], log_rhos=jnp.zeros((T, B)), discount=0.9)
      >>> print(out.targets.shape)
      (3, 2)

    Munos et al., Safe and Efficient Off-Policy Reinforcement Learning, arXiv:1606.02647.
    """
    call = Call.on("retrace", "rewards", rewards, time_axis, implementation, axis_name)
    call.series("reward", "rewards", rewards)
    call.series("q", "q_taken", q_taken)
    call.series("next_value", "next_expected_q", next_expected_q)
    call.ratios(log_rhos, rhos, clip_c=clip_c, clip_rho=clip_rho)
    call.spread("discount", "discount", discount)
    call.spread("lambda_", "lambda_", lambda_)
    call.ends(terminated, truncated, episode_starts, next_episode_start, next_expected_q)
    call.masks(mask, mask_mode)
    return Retrace(*call.run(Backward, implementation, "retrace", "retrace_outputs", mask_mode, outs=2))
