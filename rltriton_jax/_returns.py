"""Returns: TD(lambda), discounted, n-step, and off-policy by given traces."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ._boundaries import Backward
from ._call import Call
from ._windows import windowed


def off_policy_returns(
    rewards: ArrayLike,
    q_taken: ArrayLike,
    *,
    next_expected_q: ArrayLike,
    traces: ArrayLike,
    discount: ArrayLike,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_starts: ArrayLike | None = None,
    next_episode_start: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> Array:
    """Off-policy action-value targets by traces of one's own choice.

        D[t] = r[t] + g[t] x[t] - Q[t] + g[t] c[t+1] D[t+1]        D[T] = 0
        target[t] = Q[t] + D[t]

    where x[t] is `next_expected_q[t]` and c is `traces`: l for Q(lambda), l pi(a) for tree backup, l rho for importance
    sampling, l min(1, rho) for Retrace.

    Args:
      rewards: `[T, *batch]` (time at `time_axis`).
      q_taken: Q, `[T, *batch]`, the value of the action taken at step t.
      next_expected_q: `[T, *batch]`, sum over a of pi(a | state t + 1) Q(state t + 1, a); not read behind a terminated
        step.
      traces: c, `[T, *batch]`, of the action taken at step t; the first row is not used.
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      terminated, truncated, episode_starts, next_episode_start, mask, mask_mode, time_axis, axis_name, implementation:
        as for `gae`; a truncated step bootstraps from `next_expected_q`.

    Returns:
      The targets, `[T, *batch]`, in the promoted floating dtype of rewards and action values.

    Raises:
      ValueError: a shape that does not fit.
      TypeError: an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> print(rltriton_jax.off_policy_returns(
      ...     jnp.ones(2), jnp.zeros(2), next_expected_q=jnp.zeros(2), traces=jnp.full(2, 0.5), discount=0.5))
      [1.25 1.  ]

    Munos et al., Safe and Efficient Off-Policy Reinforcement Learning, arXiv:1606.02647.
    """
    call = Call.on("off_policy_returns", "rewards", rewards, time_axis, implementation, axis_name)
    call.series("reward", "rewards", rewards)
    call.series("q", "q_taken", q_taken)
    call.series("next_value", "next_expected_q", next_expected_q)
    call.series("trace", "traces", traces)
    call.carriers.pop()  # a trace does not decide the type of the result
    call.spread("discount", "discount", discount)
    call.ends(terminated, truncated, episode_starts, next_episode_start, next_expected_q)
    call.masks(mask, mask_mode)
    return call.run(Backward, implementation, "off_policy_returns", "off_policy_outputs", mask_mode)[0]


def lambda_returns(
    rewards: ArrayLike,
    values: ArrayLike | None = None,
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
) -> Array:
    """TD(lambda) returns.

        G[t] = r[t] + g[t] ((1 - l[t]) w[t] + l[t] G[t+1])
        G[t] = r[t] + g[t] w[t]        where the trace stops, and at the last step

    where w[t] = V[t+1], the next value (0 behind a terminated step). Where l[t] is 1 it is not read.

    Args:
      rewards: `[T, *batch]` (time at `time_axis`).
      values: V, `[T + 1, *batch]`, whose last row bootstraps; or `[T, *batch]` with `bootstrap_value` or `next_values`;
        or None with `next_values`. Row 0 is not read.
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      lambda_: l, likewise.
      bootstrap_value, next_values, terminated, truncated, episode_starts, next_episode_start, mask, mask_mode,
        time_axis, axis_name, implementation: as for `gae`.

    Returns:
      G, `[T, *batch]`, in the promoted floating dtype of rewards and values.

    Raises:
      ValueError: a shape that does not fit, no values to bootstrap from, and what `gae` refuses.
      TypeError: an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> rewards, next_values = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
      >>> print(rltriton_jax.lambda_returns(rewards, next_values=next_values, discount=0.5, lambda_=0.5))
      [2.75 4.  ]

    Sutton and Barto, Reinforcement Learning: An Introduction, 2nd edition, chapter 12.
    """
    call = Call.on("lambda_returns", "rewards", rewards, time_axis, implementation, axis_name)
    call.series("reward", "rewards", rewards)
    call.values(values, bootstrap_value, next_values, optional=True)
    call.spread("discount", "discount", discount)
    call.spread("lambda_", "lambda_", lambda_)
    call.ends(terminated, truncated, episode_starts, next_episode_start, next_values)
    call.masks(mask, mask_mode)
    return call.run(Backward, implementation, "lambda_returns", "state", mask_mode, state_out=0)[0]


def discounted_returns(
    rewards: ArrayLike,
    *,
    discount: ArrayLike,
    bootstrap_value: ArrayLike = 0.0,
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
) -> Array:
    """Discounted returns, Monte Carlo within the window.

        G[t] = r[t] + g[t] G[t+1]        G[T] = bootstrap_value
        G[t] = r[t]                              behind which the episode terminated
        G[t] = r[t] + g[t] next_values[t]        behind which it was truncated

    Args:
      rewards: `[T, *batch]` (time at `time_axis`).
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      bootstrap_value: G[T], a scalar or `[*batch]`.
      next_values: `[T, *batch]`, the value of the true next state, read only where a step was truncated.
      terminated, truncated, episode_starts, next_episode_start, mask, mask_mode, time_axis, axis_name, implementation:
        as for `gae`.

    Returns:
      G, `[T, *batch]`, in the floating dtype of the rewards.

    Raises:
      ValueError: a shape that does not fit, `truncated` without `next_values`.
      TypeError: an argument that is no array of numbers.

    Example:
      A window may be split anywhere: the later part's first return is the earlier part's bootstrap.

      >>> import jax.numpy as jnp, rltriton_jax
      >>> rewards = jnp.array([1.0, 2.0, 4.0, 8.0])
      >>> print(rltriton_jax.discounted_returns(rewards, discount=0.5))
      [4. 6. 8. 8.]
      >>> late = rltriton_jax.discounted_returns(rewards[2:], discount=0.5)
      >>> print(rltriton_jax.discounted_returns(rewards[:2], discount=0.5, bootstrap_value=late[0]))
      [4. 6.]

    Sutton and Barto, Reinforcement Learning: An Introduction, 2nd edition, chapter 3.
    """
    call = Call.on("discounted_returns", "rewards", rewards, time_axis, implementation, axis_name)
    ends = (terminated, truncated, episode_starts, next_episode_start, next_values)
    return discounted(call, rewards, discount, implementation, bootstrap_value, ends, mask, mask_mode)


def discounted(
    call: Call,
    rewards: ArrayLike,
    discount: ArrayLike,
    implementation: str | None,
    bootstrap_value: ArrayLike = 0.0,
    ends: tuple[ArrayLike | None, ...] = (None,) * 5,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
) -> Array:
    """`discounted_returns`, as a call of the function that `call` names in errors; `ends` are the arguments of `Call.ends`."""
    *_, next_values = ends
    call.series("reward", call.data_name, rewards)
    if next_values is not None:
        call.series("next_value", "next_values", next_values)
    call.at_edge("init", "bootstrap_value", bootstrap_value, None)
    call.spread("discount", "discount", discount)
    call.ends(*ends)
    call.masks(mask, mask_mode)
    return call.run(Backward, implementation, "discounted_returns", "state", mask_mode, state_out=0, init="init")[0]


def n_step_returns(
    rewards: ArrayLike,
    values: ArrayLike | None = None,
    *,
    n: int,
    discount: ArrayLike,
    lambda_: ArrayLike = 1.0,
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
) -> Array:
    """n-step returns, mixed by lambda within their n steps.

        G(1)[t] = r[t] + g[t] w[t]
        G(k)[t] = r[t] + g[t] ((1 - l[t]) w[t] + l[t] G(k-1)[t+1])
        G(k)[t] = r[t] + g[t] w[t]        where the trace stops, and at the last step

    and the result is G(n). An n beyond the window gives the full return, `lambda_returns`. The cost does not grow
    with n where n is above 17.

    Args:
      rewards: `[T, *batch]` (time at `time_axis`).
      values: V, `[T + 1, *batch]`, whose last row bootstraps; or `[T, *batch]` with `bootstrap_value` or `next_values`;
        or None with `next_values`.
      n: how many rewards a return holds at most, an int of at least 1.
      discount: g, a scalar or an array like `rewards` (axes may be 1). A 0 in an array with a time axis ends the
        episode.
      lambda_: l, likewise; 1 gives the plain n-step return.
      bootstrap_value, next_values, terminated, truncated, episode_starts, next_episode_start, time_axis, axis_name,
        implementation: as for `gae`. Shards of time exchange O(n batch) numbers here. An n of 2 to 17 is
        pointwise JAX over shifted rows, without a scan, whatever the implementation.
      mask, mask_mode: not supported here; a mask raises.

    Returns:
      G(n), `[T, *batch]`, in the promoted floating dtype of rewards and values.

    Raises:
      ValueError: a shape that does not fit, n below 1, a mask, and what `gae` refuses.
      TypeError: an n that is no int, an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> print(rltriton_jax.n_step_returns(jnp.ones(4), next_values=jnp.full(4, 8.0), n=2, discount=0.5))
      [3.5 3.5 3.5 5. ]

    Sutton and Barto, Reinforcement Learning: An Introduction, 2nd edition, chapter 7.
    """
    call = Call.on("n_step_returns", "rewards", rewards, time_axis, implementation, axis_name)
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"n_step_returns: n must be an int, known when the function is traced; got {type(n).__name__}")
    if n < 1:
        raise ValueError(f"n_step_returns: n must be at least 1; got {n}")
    if mask is not None:
        raise ValueError(
            "n_step_returns: mask is not supported; use lambda_returns with a mask, or delete the masked rows before "
            "the call"
        )
    call.masks(None, mask_mode)
    call.series("reward", "rewards", rewards)
    call.values(values, bootstrap_value, next_values, optional=True)
    call.spread("discount", "discount", discount)
    call.spread("lambda_", "lambda_", lambda_)
    call.ends(terminated, truncated, episode_starts, next_episode_start, next_values)
    length, shards = call.shape[call.axis], call.shards()
    if length < n - 1 and n < length * shards:
        raise ValueError(
            f"n_step_returns: n={n} reaches past the next shard of {length} steps; shard time over fewer devices, or "
            "shard a batch axis instead"
        )
    sharded = jax.typeof(call.operands["reward"]).sharding.spec
    if sharded and sharded[call.axis] is not None and n < length:
        raise ValueError(
            f"n_step_returns: time is sharded over {sharded[call.axis]!r} of an explicit mesh; pass the arrays through "
            "jax.sharding.reshard to shard a batch axis instead, or call it in jax.shard_map with axis_name"
        )
    if n >= length * shards:
        return call.run(Backward, implementation, "lambda_returns", "state", state_out=0)[0]
    if n == 1:
        return call.run(Backward, implementation, "one_step_returns", "state", state_out=0)[0]
    ends = call.coefficients(Backward, "one_step_returns", unread=int(n) - 1)[1]
    a, b = call.coefficients(Backward, "lambda_returns")
    y = windowed(a, b, ends, int(n) - 1, call.axis, implementation, axis_name)
    return jnp.asarray(y, call.out_dtype())
