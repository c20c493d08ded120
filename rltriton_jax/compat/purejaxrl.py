"""PureJaxRL's `_calculate_gae`, a closure in its training scripts, as a function of its own."""

from __future__ import annotations

from typing import Any

from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from .._host import to_array
from ._shared import spread


def calculate_gae(
    traj_batch: Any,
    last_val: ArrayLike,
    gamma: ArrayLike,
    gae_lambda: ArrayLike,
    last_done: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Generalised advantages and value targets of a batch of transitions: `rltriton_jax.gae`.

        A[t] = r[t] + g V[t+1] - V[t] + g l A[t+1]        V[T] = last_val, A[T] = 0

    where neither V[t+1] nor A[t+1] is read behind the end of an episode.

    Args:
      traj_batch: anything with `done`, `value` and `reward`, each `[T, *batch]`. `done[t]`: step t ended its episode.
      last_val: V[T], `[*batch]`.
      gamma: g, a scalar.
      gae_lambda: l, a scalar.
      last_done: `[*batch]` flags, for scripts that carry the flag with the observation (recurrent ones): then
        `done[t]` says that state t is the first of an episode, and `last_done` says so of state T.

    Returns:
      (advantages, targets), each `[T, *batch]`.

    Raises:
      ValueError: a shape that does not fit.

    Example:
      >>> import types
      >>> import jax.numpy as jnp
      >>> from rltriton_jax.compat.purejaxrl import calculate_gae
      >>> traj_batch = types.SimpleNamespace(
      ...     done=jnp.array([[False], [True]]), value=jnp.full((2, 1), 0.5), reward=jnp.array([[0.0], [1.0]]))
      >>> advantages, targets = calculate_gae(traj_batch, jnp.array([9.0]), gamma=0.5, gae_lambda=0.5)
      >>> print(advantages.T, targets.T)
      [[-0.125  0.5  ]] [[0.375 1.   ]]
    """
    shape = to_array("calculate_gae", "traj_batch.reward", traj_batch.reward).shape
    last_val = spread("calculate_gae", "last_val", last_val, shape[1:], exact=True)
    ends = dict(terminated=traj_batch.done)
    if last_done is not None:
        ends = dict(episode_starts=traj_batch.done, next_episode_start=last_done)
    out = rltriton_jax.gae(
        traj_batch.reward, traj_batch.value, bootstrap_value=last_val, discount=gamma, lambda_=gae_lambda, **ends
    )
    return out.advantages, out.targets
