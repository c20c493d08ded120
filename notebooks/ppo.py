# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO in one jitted step
#
# Roll-out, GAE and the minibatch epochs of PPO are one function that JAX compiles once. It trains three seeds at a time
# under `vmap`, on two tasks:
#
# 1. CartPole-v1 of gymnax, until it is solved.
# 2. A walk along a line that a time limit cuts short. The limit is no end of the task: the state after the last step
#    still has a value. Three ways to treat the cut are compared with the exact value, and only one of them is right.

# %%
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax.training.train_state import TrainState

from rltriton_jax import gae

SEEDS = 3

# %% [markdown]
# ## Tasks
#
# A task is two functions for a single environment. `reset(key)` returns an observation and a state. `step(key, state,
# action)` returns the next observation and state, the reward, and two flags: `terminated` for a true end, `truncated`
# for the time limit. Neither resets by itself.


# %%
class Task(NamedTuple):
    reset: Callable
    step: Callable
    actions: int
    discount: float
    envs: int  # environments side by side
    steps: int  # steps of each in one update
    updates: int


# %% [markdown]
# gymnax has two steps. `env.step` resets by itself, so the observation that it returns may belong to the next episode.
# `env.step_env` does not. Since version 1, `env.step` returns `terminated` and `truncated`, and
# `info["final_observation"]` holds the observation before the reset; older versions return one `done` for both flags,
# and so does their `step_env`. `step_env` with a limit out of reach tells the flags apart in every version: what it
# reports is a true end, and `state.time` against the real limit gives the rest.

# %%
cartpole, params = gymnax.make("CartPole-v1")
endless = params.replace(max_steps_in_episode=2**30)


def cartpole_step(key, state, action):
    observation, state, reward, terminated, _ = cartpole.step_env(key, state, action, endless)
    return observation, state, reward, terminated, state.time >= params.max_steps_in_episode


balance = Task(partial(cartpole.reset_env, params=endless), cartpole_step, 2, 0.99, envs=64, steps=128, updates=50)

# %% [markdown]
# Both flags, set by hand: a pole in play, the last step before the limit, and a cart about to leave the track.

# %%
key = jax.random.key(0)
_, first = balance.reset(key)
last = first.replace(time=params.max_steps_in_episode - 1)
outside = first.replace(x=jnp.asarray(2.39), x_dot=jnp.asarray(2.0))
for state, flags in ((first, (False, False)), (last, (False, True)), (outside, (True, False))):
    *_, terminated, truncated = balance.step(key, state, 1)
    _, _, _, *ends, _ = cartpole.step(key, state, 1, params)
    np.testing.assert_array_equal((terminated, truncated), flags)
    np.testing.assert_array_equal(terminated | truncated, np.any(ends))

# %% [markdown]
# ## Roll-out
#
# An environment that ended starts anew in the same step. The observation before the reset is kept as `final`: its value
# is the `next_values` of GAE.


# %%
def step_and_reset(task, key, state, action):
    key_step, key_reset = jax.random.split(key)
    final, state, reward, terminated, truncated = task.step(key_step, state, action)
    ended = terminated | truncated
    fresh = task.reset(key_reset)
    following = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, (final, state))
    return following, {"rewards": reward, "terminated": terminated, "truncated": truncated, "final": final}


# %%
def log_probs_of(logits, actions):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]


# %% [markdown]
# `play` is one step of all environments, and `lax.scan` over it is the roll-out. `totals` adds up the rewards of the
# episodes that are under way; an episode that ends puts its total into `finished`, all else there is NaN.


# %%
def play(task, learner, carry, key):
    (observations, states), totals = carry
    key_action, key_step = jax.random.split(key)
    logits, _ = learner.apply_fn(learner.params, observations)
    actions = jax.random.categorical(key_action, logits)
    keys = jax.random.split(key_step, task.envs)
    following, row = jax.vmap(partial(step_and_reset, task))(keys, states, actions)
    totals = totals + row["rewards"]
    ended = row["terminated"] | row["truncated"]
    row |= {"observations": observations, "actions": actions, "log_probs": log_probs_of(logits, actions)}
    row |= {"finished": jnp.where(ended, totals, jnp.nan)}
    return (following, jnp.where(ended, 0, totals)), row


# %% [markdown]
# ## Network
#
# Actor and critic are two networks of the same shape. The actor begins close to a uniform policy.


# %%
class ActorCritic(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, x):
        return self.head(x, self.actions, 1e-4), self.head(x, 1, 1.0)[..., 0]

    def head(self, x, width, variance):
        for _ in range(2):
            x = nn.tanh(nn.Dense(64)(x))
        return nn.Dense(width, kernel_init=nn.initializers.variance_scaling(variance, "fan_in", "normal"))(x)


# %% [markdown]
# A `Runner` is all that an update reads and writes.


# %%
class Runner(NamedTuple):
    learner: TrainState
    carry: tuple  # observations and states, and the totals of the episodes under way
    key: jax.Array


# %%
EPOCHS, MINIBATCHES, RATE = 4, 8, 3e-3


@partial(jax.jit, static_argnums=0)
def start(task, key):
    key, key_reset, key_network = jax.random.split(key, 3)
    envs = jax.vmap(task.reset)(jax.random.split(key_reset, task.envs))
    network = ActorCritic(task.actions)
    rate = optax.linear_schedule(RATE, 0, task.updates * EPOCHS * MINIBATCHES)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(rate, eps=1e-5))
    learner = TrainState.create(apply_fn=network.apply, params=network.init(key_network, envs[0]), tx=optimizer)
    return Runner(learner, (envs, jnp.zeros(task.envs)), key)


# %% [markdown]
# A short roll-out: the next observation is the final one except where an episode ended, and the totals of finished
# episodes are their lengths, since each step of CartPole pays 1.

# %%
runner = start(balance, jax.random.key(1))
keys = jax.random.split(runner.key, balance.steps)
rows = jax.tree.map(np.asarray, jax.lax.scan(partial(play, balance, runner.learner), runner.carry, keys)[1])
ended = rows["terminated"] | rows["truncated"]
same = (rows["observations"][1:] == rows["final"][:-1]).all(axis=-1)
np.testing.assert_array_equal(same, ~ended[:-1])
for finished, ends in zip(rows["finished"].T, ended.T):
    np.testing.assert_array_equal(finished[ends], np.diff(np.flatnonzero(ends), prepend=-1))
print(f"{ended.sum()} episodes finished, of {np.nanmean(rows['finished']):.1f} steps on average")

# %% [markdown]
# ## Update
#
# The loss of PPO on one minibatch.


# %%
def loss(params, apply, batch):
    logits, values = apply(params, batch["observations"])
    ratios = jnp.exp(log_probs_of(logits, batch["actions"]) - batch["log_probs"])
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    actor = -jnp.minimum(ratios * advantages, jnp.clip(ratios, 0.8, 1.2) * advantages).mean()
    critic = jnp.square(values - batch["targets"]).mean() / 2
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(axis=-1).mean()
    return actor + 0.5 * critic - 0.01 * entropy


# %% [markdown]
# The right way to treat a time limit: the trace stops at both flags, and only a true end has no value behind it.
# `values` has `steps + 1` rows; where an episode ended, the next of them belongs to the next episode, so `next_values`
# says what the step really led to.


# %%
def time_limit_aware(rows, values, next_values, **options):
    flags = {"terminated": rows["terminated"], "truncated": rows["truncated"]}
    return gae(rows["rewards"], values[:-1], next_values=next_values, **flags, **options)


# %% [markdown]
# The whole update: roll-out, two calls of the critic, GAE, and a scan over the minibatches of all epochs.


# %%
def update(task, estimate, runner):
    key, key_play, key_shuffle = jax.random.split(runner.key, 3)
    keys = jax.random.split(key_play, task.steps)
    carry, rows = jax.lax.scan(partial(play, task, runner.learner), runner.carry, keys)
    critic = lambda x: runner.learner.apply_fn(runner.learner.params, x)[1]
    values = critic(jnp.concatenate([rows["observations"], carry[0][0][None]]))
    options = {"discount": task.discount, "lambda_": 0.95}
    out = estimate(rows, values, critic(rows["final"]), **options)
    learner = learn(runner.learner, rows | out._asdict(), key_shuffle)
    return Runner(learner, carry, key), jnp.nanmean(rows["finished"])


# %%
def learn(learner, rows, key):
    names = ("observations", "actions", "log_probs", "advantages", "targets")
    batch = {name: rows[name].reshape(-1, *rows[name].shape[2:]) for name in names}
    size = len(batch["actions"])

    def minibatch(learner, chosen):
        grads = jax.grad(loss)(learner.params, learner.apply_fn, jax.tree.map(lambda x: x[chosen], batch))
        return learner.apply_gradients(grads=grads), None

    shuffled = jax.vmap(lambda k: jax.random.permutation(k, size))(jax.random.split(key, EPOCHS))
    return jax.lax.scan(minibatch, learner, shuffled.reshape(EPOCHS * MINIBATCHES, -1))[0]


# %% [markdown]
# `jit` around `vmap` over the seeds makes it one compiled step. `train` keeps the mean return of the episodes that each
# update finished and the parameters after it, and checks that one compilation was enough.


# %%
def compile_update(task, estimate, traces):
    def traced(runner):
        traces.append(task)
        return update(task, estimate, runner)

    return jax.jit(jax.vmap(traced))


# %%
def train(task, estimate):
    traces, returns, history = [], [], []
    step = compile_update(task, estimate, traces)
    runner = jax.vmap(partial(start, task))(jax.random.split(jax.random.key(2), SEEDS))
    for _ in range(task.updates):
        runner, mean_return = step(runner)
        returns.append(mean_return)
        history.append(runner.learner.params)
    if len(traces) != 1:
        raise ValueError(f"the update was compiled {len(traces)} times")
    return np.array(returns), jax.tree.map(lambda *x: jnp.stack(x), *history)


# %% [markdown]
# ## CartPole
#
# CartPole-v1 counts as solved at a mean return of 475; a perfect episode has 500. All three seeds must hold that over
# the episodes of the last ten updates.

# %%
cartpole_returns, _ = train(balance, time_limit_aware)
solved = np.nanmean(cartpole_returns[-10:], axis=0)
print("mean return over the last ten updates, by seed:", *np.round(solved, 1))
if not solved.min() >= 475:
    raise ValueError(f"CartPole is not solved: {solved}")

# %%
frames = np.arange(1, balance.updates + 1) * balance.steps * balance.envs / 1000
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
for seed, curve in enumerate(cartpole_returns.T):
    axis.plot(frames, curve, label=f"seed {seed}")
axis.axhline(475, color="black", linestyle="--", linewidth=1, label="solved: 475")
axis.set(title="PPO on CartPole-v1", xlabel="environment steps (thousands)", ylim=(0, 520))
axis.set_ylabel("mean return of the episodes\nfinished in an update (steps)")
axis.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## A time limit that is no end
#
# A walker stands on a line of 21 cells. A step in the last cell pays 1, a step in the first cell pays 0.2, elsewhere it
# pays nothing; then the walker goes left or right, and stays where there is no further cell. Each step breaks the
# walker for good with probability 0.02: that is a true end. Training starts in random cells and cuts an episode after
# ten steps: that is not. The walker does not see the time.

# %%
CELLS, LIMIT, BREAKS = 21, 10, 0.02
pay = np.zeros(CELLS, np.float32)
pay[0], pay[-1] = 0.2, 1.0


def line_reset(key):
    cell = jax.random.randint(key, (), 0, CELLS)
    return jax.nn.one_hot(cell, CELLS), (cell, jnp.int32(0))


def line_step(key, state, action):
    cell, time = state
    following = jnp.clip(cell + 2 * action - 1, 0, CELLS - 1)
    broken = jax.random.bernoulli(key, BREAKS)
    return jax.nn.one_hot(following, CELLS), (following, time + 1), jnp.asarray(pay)[cell], broken, time + 1 >= LIMIT


walk = Task(line_reset, line_step, 2, 0.95, envs=64, steps=32, updates=100)

# %% [markdown]
# The task is small enough to solve: the true value of a policy, without any time limit, is the solution of a linear
# system. To go right for ever from the last cell is worth 1 / (1 - 0.95 * 0.98). The values of going right rise from cell
# to cell, so no other policy is better.


# %%
def true_values(right):
    """The value of each cell under the probabilities of going right."""
    moves = np.zeros((CELLS, CELLS))
    for cell in range(CELLS):
        moves[cell, max(cell - 1, 0)] += 1 - right[cell]
        moves[cell, min(cell + 1, CELLS - 1)] += right[cell]
    return np.linalg.solve(np.eye(CELLS) - walk.discount * (1 - BREAKS) * moves, pay)


always_right = true_values(np.ones(CELLS))
np.testing.assert_allclose(always_right[-1], 1 / (1 - 0.95 * 0.98))
if not (np.diff(always_right) > 0).all():
    raise ValueError("going right is not best everywhere")

# %% [markdown]
# Two common errors. The first takes a cut for an end, as a single flag `done = terminated | truncated` does. The second
# takes the value of the next row, which after a reset is the first state of the next episode.


# %%
def cut_as_end(rows, values, next_values, **options):
    done = rows["terminated"] | rows["truncated"]
    return gae(rows["rewards"], values[:-1], next_values=next_values, terminated=done, **options)


def value_of_next_episode(rows, values, next_values, **options):
    return time_limit_aware(rows, values, values[1:], **options)


handlings = {"final observation": time_limit_aware, "cut as end": cut_as_end, "next episode": value_of_next_episode}

# %% [markdown]
# What each makes of a truncated step, on one roll-out with made-up values: the reward and the discounted value of the
# state that the step led to; the reward alone; the reward and the discounted value of some other state.

# %%
runner = start(walk, jax.random.key(3))
carry, rows = jax.lax.scan(partial(play, walk, runner.learner), runner.carry, jax.random.split(key, walk.steps))
observations = jnp.concatenate([rows["observations"], carry[0][0][None]])
made_up, next_made_up = observations @ always_right, rows["final"] @ always_right
cut = np.asarray(rows["truncated"] & ~rows["terminated"])
targets = [f(rows, made_up, next_made_up, discount=0.95, lambda_=0.95).targets[cut] for f in handlings.values()]
r = rows["rewards"][cut]
np.testing.assert_allclose(targets[0], r + 0.95 * next_made_up[cut], rtol=1e-5)
np.testing.assert_allclose(targets[1], r, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(targets[2], r + 0.95 * made_up[1:][cut], rtol=1e-5)
print(f"{cut.sum()} truncated steps; mean targets: {', '.join(f'{t.mean():.2f}' for t in targets)}")

# %% [markdown]
# PPO with each of them. After every update, what the critic says about each cell is compared with the true value of the
# policy of that moment.

# %%
critics, policies = {}, {}
for name, estimate in handlings.items():
    _, history = train(walk, estimate)
    of_cells = lambda params: ActorCritic(2).apply(params, jnp.eye(CELLS))
    logits, values = jax.jit(jax.vmap(jax.vmap(of_cells)))(history)
    critics[name], policies[name] = np.asarray(values), np.asarray(jax.nn.softmax(logits)[..., 1])
truths = {name: np.apply_along_axis(true_values, -1, right) for name, right in policies.items()}
errors = {name: np.sqrt(np.square(critics[name] - truths[name]).mean(axis=-1)) for name in handlings}
for name in handlings:
    print(f"{name:18} error of the critic {errors[name][-1].mean():5.2f}   true value {truths[name][-1].mean():5.2f}")

# %% [markdown]
# The right handling must win on every seed: an error of less than half that of any other, and a policy that is truly
# worth more, near the best that there is. In cell 3 it goes right, and the others go left.

# %%
right, *wrong = handlings
if not 2 * errors[right][-1].max() < min(errors[name][-1].min() for name in wrong):
    raise ValueError("the critic that knows of the time limit is not the most accurate")
worth = {name: truths[name][-1].mean(axis=-1) for name in handlings}
if not worth[right].min() > 1.03 * max(worth[name].max() for name in wrong):
    raise ValueError("the policy that knows of the time limit is not the best")
if not worth[right].min() > 0.95 * always_right.mean():
    raise ValueError("the policy that knows of the time limit is far from the optimum")
if not all(((policies[name][-1, :, 3] > 0.5) == (name == right)).all() for name in handlings):
    raise ValueError("a policy goes the wrong way in cell 3")

# %%
figure, axes = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
for name, colour, marker in zip(handlings, ("tab:blue", "tab:red", "tab:orange"), ("o", "s", "x")):
    axes[0].plot(errors[name].mean(axis=1), color=colour, label=name)
    axes[1].plot(critics[name][-1, 0], color=colour, label=f"{name}: critic")
    axes[1].plot(truths[name][-1, 0], color=colour, linestyle="", marker=marker, label=f"{name}: true value")
    axes[2].plot(policies[name][-1, 0], color=colour, marker=marker, label=name)
cells = {"xlabel": "cell", "xticks": range(0, CELLS, 5)}
axes[0].set(title="Error of the critic, mean over the seeds", xlabel="update", ylabel="RMS error over cells (reward)")
axes[1].set(title="Values after training, seed 0", ylabel="discounted return (reward)", **cells)
axes[2].set(title="Policy after training, seed 0", ylabel="probability of going right", **cells)
for axis in axes:
    axis.legend(fontsize=8)
plt.show()

# %% [markdown]
# Cut as an end, a state is worth what fits into the rest of an episode: the critic cannot see the time, so it says some
# average over the time left. Far from the last cell the small pay nearby then looks better, and the policy goes left
# where it should go right. The value of the next episode is a constant on average, since episodes start anywhere: it
# says nothing about the state that was reached, and the policy errs in the same cells. With the value of the final
# observation the critic learns the endless task from ten steps at a time.
