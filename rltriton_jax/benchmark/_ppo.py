"""What the PPO benchmarks share: an actor-critic and its loss; Adam, the roll-out and the epochs of one update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import _cartpole

CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.2, 0.5, 0.01
RATE, DECAYS, EPSILON = 1e-3, (0.9, 0.999), 1e-5

Params = dict[str, Any]
# rewards, values, next_values, terminated and truncated, each [T, N], to advantages and targets
Gae = Callable[..., tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The sizes of an update."""

    envs: int
    steps: int
    hidden: tuple[int, ...]
    epochs: int
    minibatches: int
    time_limit: int = 200


class Adam(NamedTuple):
    """Running means of gradients and of their squares, and how many there were."""

    first: Params
    second: Params
    steps: jax.Array


class State(NamedTuple):
    """What one update hands to the next."""

    params: Params
    moments: Adam
    carts: _cartpole.Carts
    key: jax.Array


class Batch(NamedTuple):
    """A roll-out: [T, N] each, and [T, N, 4] for `observed` and `true_next`, where each step led before any reset."""

    observed: jax.Array
    actions: jax.Array
    log_probs: jax.Array
    rewards: jax.Array
    values: jax.Array
    next_values: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    true_next: jax.Array

    def operands(self) -> tuple[jax.Array, ...]:
        """The arguments of a `Gae`."""
        return self.rewards, self.values, self.next_values, self.terminated, self.truncated


def network(params: Params, observed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of the actions, and values, by one body with two heads."""
    for layer in params["body"]:
        observed = jnp.tanh(_dense(layer, observed))
    return jax.nn.log_softmax(_dense(params["policy"], observed)), _dense(params["value"], observed)[..., 0]


def _dense(layer: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    weights, *bias = layer
    return sum(bias, x @ weights)


def parameters(
    keys: jax.Array, sizes: Sequence[int], actions: int, scale: float | None = None, biases: bool = True
) -> Params:
    """Normal weights of `scale`, by default 1 / sqrt(inputs of the layer), by a key for each layer and head; biases 0."""

    def layer(key: jax.Array, inputs: int, outputs: int) -> tuple[jax.Array, ...]:
        weights = jax.random.normal(key, (inputs, outputs)) * (inputs**-0.5 if scale is None else scale)
        return (weights, jnp.zeros(outputs)) if biases else (weights,)

    body = [layer(*each) for each in zip(keys[:-2], sizes[:-1], sizes[1:], strict=True)]
    return {"body": body, "policy": layer(keys[-2], sizes[-1], actions), "value": layer(keys[-1], sizes[-1], 1)}


def chosen(log_probs: jax.Array, actions: jax.Array) -> jax.Array:
    """The log-probability of each action that was taken."""
    return jnp.take_along_axis(log_probs, actions[..., None], -1)[..., 0]


def loss(
    params: Params,
    observed: jax.Array,
    actions: jax.Array,
    old: jax.Array,
    advantages: jax.Array,
    targets: jax.Array,
    value_weight: float = 1.0,
    entropy_weight: float = 0.0,
) -> jax.Array:
    """The clipped loss of PPO and the error of the values, less the entropy of the policy."""
    log_probs, values = network(params, observed)
    ratio = jnp.exp(chosen(log_probs, actions) - old)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    gain = jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    total = value_weight * jnp.mean((values - targets) ** 2) - gain
    if entropy_weight:
        total += entropy_weight * jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, -1))
    return total


def adam(params: Params, moments: Adam, gradient: Params) -> tuple[Params, Adam]:
    """One step down the gradient."""
    steps = moments.steps + 1
    fast, slow = DECAYS
    first = jax.tree.map(lambda m, g: fast * m + (1 - fast) * g, moments.first, gradient)
    second = jax.tree.map(lambda m, g: slow * m + (1 - slow) * g**2, moments.second, gradient)
    by_first, by_second = 1 / (1 - fast**steps), 1 / (1 - slow**steps)
    params = jax.tree.map(
        lambda p, m, v: p - RATE * by_first * m / (jnp.sqrt(by_second * v) + EPSILON), params, first, second
    )
    return params, Adam(first, second, steps)


def start(setting: Setting, key: jax.Array) -> State:
    """The state before the first update."""
    for_params, for_carts, key = jax.random.split(key, 3)
    sizes = (_cartpole.OBSERVED, *setting.hidden)
    params = parameters(jax.random.split(for_params, len(sizes) + 1), sizes, _cartpole.ACTIONS)
    zeros = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))  # apart, as a donated buffer may be given once
    moments = Adam(next(zeros), next(zeros), jnp.zeros((), jnp.int32))
    return State(params, moments, _cartpole.start(for_carts, setting.envs, setting.time_limit), key)


def roll_out(setting: Setting, state: State) -> tuple[State, Batch]:
    """T steps of all environments by the policy."""

    def act(carry: Any, _: None) -> Any:
        carts, key = carry
        key, for_actions, for_resets = jax.random.split(key, 3)
        log_probs, values = network(state.params, carts.physics)
        actions = jax.random.categorical(for_actions, log_probs)
        following, step = _cartpole.step(carts, actions, for_resets, setting.time_limit)
        return (following, key), (carts.physics, actions, chosen(log_probs, actions), values, step)

    (carts, key), rows = jax.lax.scan(act, (state.carts, state.key), None, length=setting.steps)
    observed, actions, log_probs, values, step = rows
    # values[1:] are not these: behind an end they belong to the first state of the next episode
    next_values = network(state.params, step.true_next)[1]
    batch = Batch(
        observed, actions, log_probs, step.rewards, values, next_values, step.terminated, step.truncated, step.true_next
    )
    return state._replace(carts=carts, key=key), batch


def learn(setting: Setting, state: State, batch: Batch, advantages: jax.Array, targets: jax.Array) -> State:
    """Epochs of shuffled minibatches."""
    count = setting.envs * setting.steps
    rows = batch.observed, batch.actions, batch.log_probs, advantages, targets
    rows = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), rows)

    def minibatch(carry: Any, part: Any) -> Any:
        params, moments = carry
        *others, a, targets = part
        a = (a - jnp.mean(a)) / (jnp.std(a) + 1e-8)
        gradient = jax.grad(loss)(params, *others, a, targets, VALUE_WEIGHT, ENTROPY_WEIGHT)
        return adam(params, moments, gradient), None

    def epoch(carry: Any, key: jax.Array) -> Any:
        # a single minibatch holds every row in any order
        order = jax.random.permutation(key, count) if setting.minibatches > 1 else slice(None)
        parts = jax.tree.map(lambda x: x[order].reshape(setting.minibatches, -1, *x.shape[1:]), rows)
        return jax.lax.scan(minibatch, carry, parts)

    key, *keys = jax.random.split(state.key, setting.epochs + 1)
    (params, moments), _ = jax.lax.scan(epoch, (state.params, state.moments), jnp.stack(keys))
    return state._replace(params=params, moments=moments, key=key)


def update(setting: Setting, gae: Gae, state: State) -> State:
    """The roll-out, its advantages and the epochs."""
    state, batch = roll_out(setting, state)
    return learn(setting, state, batch, *gae(*batch.operands()))
