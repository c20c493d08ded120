"""Forward scans: eligibility traces, episodic prefix sums, and the linear recurrence itself."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._boundaries import Forward
from ._call import Call
from ._walk import Formula


def eligibility_traces(
    inputs: ArrayLike,
    *,
    discount: ArrayLike,
    lambda_: ArrayLike,
    initial: ArrayLike | None = None,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_starts: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> Array:
    """Accumulating eligibility traces, forward in time.

        z[t] = x[t] + g[t-1] l[t-1] z[t-1]        z[0] = x[0] + initial

    The trace of an episode does not reach the next: z[t-1] is dropped behind a step that ended one.

    Args:
      inputs: x, `[T, *batch]` (time at `time_axis`); trailing axes may be features that the flags below do not have.
      discount: g, a scalar or an array like `inputs` (axes may be 1, trailing axes missing). A 0 in an array with a
        time axis ends the episode.
      lambda_: l, likewise.
      initial: `[*batch]` or a scalar, the decayed trace that enters step 0: g l z of the step before the window.
      terminated: `[T, *batch]` flags of any dtype: step t was its episode's last.
      truncated: likewise, by a time limit.
      episode_starts: instead of both, flags that step t is the first of an episode, `[T, *batch]` or `[T + 1, *batch]`.
      mask, mask_mode, time_axis, axis_name, implementation: as for `gae`; `initial` counts on the first shard alone.

    Returns:
      z, of the shape and the floating dtype of `inputs`.

    Raises:
      ValueError: a shape that does not fit, flags of both conventions.
      TypeError: an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> features, terminated = jnp.ones((4, 2, 3)), jnp.zeros((4, 2), bool).at[1].set(True)
      >>> print(rltriton_jax.eligibility_traces(features, discount=0.5, lambda_=1.0, terminated=terminated)[:, 0, 0])
      [1.  1.5 1.  1.5]

    Sutton and Barto, Reinforcement Learning: An Introduction, 2nd edition, chapter 12.
    """
    call = Call.on("eligibility_traces", "inputs", inputs, time_axis, implementation, axis_name)
    call.series("input", "inputs", inputs)
    call.spread("discount", "discount", discount)
    call.spread("lambda_", "lambda_", lambda_)
    call.ends(terminated, truncated, episode_starts, None, None, forward=True)
    call.masks(mask, mask_mode)
    call.at_edge("init", "initial", 0.0 if initial is None else initial, None)
    return call.run(Forward, implementation, "eligibility_traces", "state", mask_mode, state_out=0, init="init")[0]


def episodic_prefix_sum(
    inputs: ArrayLike,
    *,
    initial: ArrayLike | None = None,
    terminated: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    episode_starts: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    mask_mode: str = "skip",
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> Array:
    """Sums since the beginning of the episode, forward in time: returns so far, lengths, episode statistics.

        C[t] = x[t] + C[t-1]        C[0] = x[0] + initial

    where C[t-1] is dropped behind a step that ended its episode.

    Args:
      inputs: x, `[T, *batch]` (time at `time_axis`); trailing axes may be features that the flags below do not have.
      initial: `[*batch]` or a scalar, the sum that enters step 0.
      terminated, truncated, episode_starts: as for `eligibility_traces`.
      mask, mask_mode, time_axis, axis_name, implementation: as for `gae`; `initial` counts on the first shard alone.

    Returns:
      C, of the shape and the floating dtype of `inputs`.

    Raises:
      ValueError: a shape that does not fit, flags of both conventions.
      TypeError: an argument that is no array of numbers.

    Example:
      A window may be split anywhere: the last sum of the earlier part is `initial` of the later one.

      >>> import jax.numpy as jnp, rltriton_jax
      >>> starts = jnp.array([1, 0, 1, 0])
      >>> print(rltriton_jax.episodic_prefix_sum(jnp.array([1.0, 2.0, 3.0, 4.0]), episode_starts=starts))
      [1. 3. 3. 7.]
      >>> print(rltriton_jax.episodic_prefix_sum(jnp.array([2.0, 3.0, 4.0]), episode_starts=starts[1:], initial=1.0))
      [3. 3. 7.]
    """
    call = Call.on("episodic_prefix_sum", "inputs", inputs, time_axis, implementation, axis_name)
    call.series("input", "inputs", inputs)
    call.ends(terminated, truncated, episode_starts, None, None, forward=True)
    call.masks(mask, mask_mode)
    call.at_edge("init", "initial", 0.0 if initial is None else initial, None)
    return call.run(Forward, implementation, "episodic_prefix_sum", "state", mask_mode, state_out=0, init="init")[0]


def linear_recurrence(
    coefficients: ArrayLike,
    inputs: ArrayLike,
    initial: ArrayLike | None = None,
    *,
    reverse: bool = False,
    time_axis: int = 0,
    axis_name: str | None = None,
    implementation: str | None = None,
) -> Array:
    """The recurrence that all others are.

        x[t] = b[t] + a[t] x[t-1]        x[-1] = initial
        x[t] = b[t] + a[t] x[t+1]        x[T] = initial, with `reverse`

    What stands behind a zero coefficient is not read.

    Args:
      coefficients: a, an array like `inputs` whose axes may be 1 and trailing axes missing, or a scalar.
      inputs: b, `[T, *batch]` (time at `time_axis`).
      initial: `[*batch]` or a scalar; None is 0.
      reverse: from the last step to the first.
      time_axis: the axis of time in both arrays.
      axis_name: as for `gae`; `initial` counts on the shard that is walked first.
      implementation: as for `gae`.

    Returns:
      x, of the shape of `inputs`, in the promoted floating dtype of inputs and coefficients.

    Raises:
      ValueError: a shape that does not fit.
      TypeError: an argument that is no array of numbers.

    Example:
      >>> import jax.numpy as jnp, rltriton_jax
      >>> print(rltriton_jax.linear_recurrence(jnp.array([0.5, 0.5, 0.0]), jnp.array([1.0, 1.0, 1.0]), 2.0))
      [2. 2. 1.]

    Blelloch, Prefix Sums and Their Applications, 1990.
    """
    call = Call.on("linear_recurrence", "inputs", inputs, time_axis, implementation, axis_name)
    call.spread("coefficient", "coefficients", coefficients)
    if jnp.ndim(coefficients):
        call.carriers.append(call.operands["coefficient"])
    call.series("input", "inputs", inputs)
    call.at_edge("init", "initial", 0.0 if initial is None else initial, None)
    return call.run(Formula, implementation, "linear", "state", reverse=bool(reverse), state_out=0, init="init")[0]
