"""What an actor-critic holds after a roll-out, drawn at random here and played in `_rollout`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Data:
    """Arrays `[T, B]`, of which row t belongs to the step from state t to state t + 1.

    `values` are those of state t and `next_values` those of the state that step t really led to, before any reset.
    `q_taken` and `probability` are of the action taken, under the target policy, and `log_rhos` is log(target /
    behaviour) of it. `inputs` may have feature axes behind `[T, B]`.
    """

    rewards: jax.Array
    values: jax.Array
    next_values: jax.Array
    q_taken: jax.Array
    probability: jax.Array
    log_rhos: jax.Array
    inputs: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array
    origin: str  # in words

    @property
    def shape(self) -> tuple[int, int]:
        length, columns = self.rewards.shape
        return length, columns

    def _each(self, function: Callable[[jax.Array], jax.Array]) -> Data:
        names = (f.name for f in dataclasses.fields(self) if f.name != "origin")
        arrays: dict[str, Any] = {name: function(getattr(self, name)) for name in names}
        return dataclasses.replace(self, **arrays)

    def cut(self, length: int, columns: int) -> Data:
        """The last steps of the first columns."""
        return self._each(lambda x: x[-length:, :columns])

    def typed(self, dtype: str) -> Data:
        """With this type for everything but flags."""
        return self._each(lambda x: x if x.dtype == bool else x.astype(dtype))


def draw(shape: tuple[int, int], dtype: str, seed: int) -> Data:
    """Random data with every flag: about one step in a hundred terminates, as many are cut, one in twenty is masked."""

    @jax.jit
    def build(key: jax.Array) -> dict[str, jax.Array]:
        keys = iter(jax.random.split(key, 10))
        normal = lambda scale=1.0: (scale * jax.random.normal(next(keys), shape)).astype(dtype)
        uniform = lambda: jax.random.uniform(next(keys), shape)
        return dict(
            rewards=normal(),
            values=normal(),
            next_values=normal(),
            q_taken=normal(),
            probability=uniform().astype(dtype),
            log_rhos=normal(0.3),
            inputs=normal(),
            terminated=uniform() < 0.01,
            truncated=uniform() < 0.01,
            mask=uniform() < 0.95,
        )

    arrays = build(jax.random.key(seed, impl="rbg"))
    flags = (int(jnp.sum(x)) for x in (arrays["terminated"], arrays["truncated"], ~arrays["mask"]))
    counts = "{} terminated, {} truncated, {} masked".format(*flags)
    return Data(**arrays, origin=f"Random data, {shape[0]} steps x {shape[1]} columns: {counts}")
