"""A pole on a cart, as arrays over environments: automatic reset, a time limit, and where each step truly led."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

ACTIONS, OBSERVED = 2, 4
GRAVITY, CART, POLE, HALF_LENGTH, PUSH, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = (
    2.4,
    math.radians(12),
)  # metres from the middle, and from upright: beyond them an episode terminates
SPREAD = 0.05  # every number of a first state is within this of 0


class Carts(NamedTuple):
    """`physics`, [N, 4], is what is observed: place, speed, angle, turning speed. `age`, [N]: steps of the episode."""

    physics: jax.Array
    age: jax.Array


class Step(NamedTuple):
    """What one step gave, [N] each, and [N, 4] for `true_next`: the observation before any reset."""

    rewards: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    true_next: jax.Array


def start(key: jax.Array, envs: int, time_limit: int) -> Carts:
    """First states, with ages spread over the time limit, so that every roll-out sees some episodes reach it."""
    for_physics, for_age = jax.random.split(key)
    return Carts(_first(for_physics, envs), jax.random.randint(for_age, (envs,), 0, time_limit))


def step(carts: Carts, actions: jax.Array, key: jax.Array, time_limit: int) -> tuple[Carts, Step]:
    """One step of all; an episode that ends is followed by a first state. Action 1 pushes to the right, 0 to the left."""
    moved, age = _moved(carts.physics, actions), carts.age + 1
    terminated = (jnp.abs(moved[:, 0]) > FARTHEST) | (jnp.abs(moved[:, 2]) > STEEPEST)
    truncated = (age >= time_limit) & ~terminated
    ended = terminated | truncated
    following = Carts(
        jnp.where(ended[:, None], _first(key, len(age)), moved),
        jnp.where(ended, 0, age),
    )
    return following, Step(jnp.ones(age.shape), terminated, truncated, moved)


def _first(key: jax.Array, envs: int) -> jax.Array:
    return jax.random.uniform(key, (envs, OBSERVED), minval=-SPREAD, maxval=SPREAD)


def _moved(physics: jax.Array, actions: jax.Array) -> jax.Array:
    """The equations of motion over one explicit Euler step."""
    place, speed, angle, turning = (physics[:, k] for k in range(OBSERVED))
    push = jnp.where(actions == 1, PUSH, -PUSH)
    sine, cosine, mass = jnp.sin(angle), jnp.cos(angle), CART + POLE
    thrust = (push + POLE * HALF_LENGTH * turning**2 * sine) / mass
    turned = (GRAVITY * sine - cosine * thrust) / (HALF_LENGTH * (4 / 3 - POLE * cosine**2 / mass))
    pushed = thrust - POLE * HALF_LENGTH * turned * cosine / mass
    return physics + SECONDS * jnp.stack([speed, pushed, turning, turned], -1)
