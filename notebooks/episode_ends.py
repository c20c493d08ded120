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
# # Where episodes end
#
# Many faults in advantage code sit at the ends of episodes. Nothing crashes; the agent learns worse. Seven of them are
# here, each beside the right answer:
#
# | fault | what goes wrong |
# |---|---|
# | `done = terminated or truncated` | a time limit counts as an end: no value behind it |
# | the value of the next row | behind a time limit, the next row is another episode's |
# | a time limit that does not stop the trace | advantages of one episode reach the one before |
# | is-first flags taken for is-last flags | the cut is one step late |
# | the step that resets the environment is kept | a step that no policy chose gets an advantage |
# | flags as factors | 0 times NaN is NaN |
# | no value behind the window | the window's end counts as the episode's end |
#
# The right answer is what each episode gives by itself, computed by a loop without any flags.

# %%
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from rltriton_jax import gae

# %% [markdown]
# ## A corridor
#
# An agent walks to the right through the cells 0 to 3, one cell a step. The step into the goal, cell 4, pays 8 and
# terminates the episode. A time limit cuts the episode off after `limit` steps. With `reset_steps` the environment
# spends one step on every reset: it ignores the action, pays nothing and shows the first cell of the next episode.


# %%
class Log(NamedTuple):
    cells: np.ndarray
    rewards: np.ndarray
    next_cells: np.ndarray  # where the step led, before any reset
    terminated: np.ndarray
    truncated: np.ndarray
    real: np.ndarray  # False where the step was a reset


GOAL, PAY = 4, 8.0


# %%
def play(starts, steps, limit=None, reset_steps=False):
    rows, episode, cell, age = [], 0, starts[0], 0
    while len(rows) < steps:
        cell, age = cell + 1, age + 1
        terminated, truncated = cell == GOAL, age == limit
        rows.append((cell - 1, PAY * terminated, cell, terminated, truncated, True))
        if terminated or truncated:
            episode, age = episode + 1, 0
            if reset_steps:
                rows.append((cell, 0.0, starts[episode], False, False, False))
            cell = starts[episode]
    return Log(*map(np.array, zip(*rows[:steps])))


# %%
log = play(starts=[2, 0, 1, 0], steps=10, limit=3)
for t, row in enumerate(zip(*log)):
    words = [word for word, flag in zip(("terminated", "truncated"), row[3:5]) if flag]
    print(f"t = {t}: cell {row[0]} to {row[2]}, reward {row[1]:g}", *words)

np.testing.assert_array_equal(np.flatnonzero(log.terminated), [1, 7])
np.testing.assert_array_equal(np.flatnonzero(log.truncated), [4, 7])

# %% [markdown]
# The first episode terminates, the second is cut off, the third reaches the goal in the very step of the limit, and the
# fourth goes on behind the window.
#
# ## Two critics
#
# Discount and lambda are 1/2. So the true values of the cells are 1, 2, 4 and 8: the pay, halved for every step before
# the last. The time limit is not part of the task, so it does not change them. The second critic is rough. It was never
# trained on the goal and has some number there: nobody should read it.

# %%
discount, lambda_ = 0.5, 0.5
true_critic = np.array([1.0, 2.0, 4.0, 8.0, 0.0])
critic = np.array([3.0, 8.0, 5.0, 6.0, 9.0])

steps_left = GOAL - np.arange(GOAL)
np.testing.assert_array_equal(true_critic[:GOAL], PAY * discount ** (steps_left - 1))

# %% [markdown]
# ## The right answer
#
# GAE of one episode needs no flags: its rewards, the values of its cells, and the value behind its last step. That
# value is 0 if the episode terminated there, and the critic's otherwise.


# %%
def one_episode(rewards, values):
    advantages, ahead = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        td_error = rewards[t] + discount * values[t + 1] - values[t]
        advantages[t] = ahead = td_error + discount * lambda_ * ahead
    return advantages


# %%
def alone(log, critic):
    parts, first = [], 0
    for t in range(len(log.cells)):
        if log.terminated[t] or log.truncated[t] or t == len(log.cells) - 1:
            behind = 0.0 if log.terminated[t] else critic[log.next_cells[t]]
            values = [*critic[log.cells[first : t + 1]], behind]
            parts, first = [*parts, one_episode(log.rewards[first : t + 1], values)], t + 1
    return np.concatenate(parts)


# %% [markdown]
# By hand, for the second episode: the TD errors are 0 + 8/2 - 3 = 1, 0 + 5/2 - 8 = -5.5 and 0 + 6/2 - 5 = -2. Its
# advantages are, from the last step to the first, -2, then -5.5 - 2/4 = -6, then 1 - 6/4 = -0.5. With the true critic
# every TD error is 0, and so is every advantage.

# %%
right = alone(log, critic)
print("advantages:", right)

np.testing.assert_array_equal(right[2:5], [-0.5, -6, -2])
np.testing.assert_array_equal(alone(log, true_critic), np.zeros(10))

# %% [markdown]
# ## What to pass
#
# Row t of `next_values` is the value of the state that step t led to. A vector environment that resets in the same step
# returns the first observation of the next episode, and the last one of the old episode as `final_obs`: take the values
# of `final_obs` where an episode ended. Here that is `next_cells`. The flags go in as they are. Where both are set,
# `terminated` decides.
#
# All numbers here are sums of powers of 2, so the comparisons can be exact.


# %%
def right_call(log, critic):
    flags = {"terminated": log.terminated, "truncated": log.truncated}
    next_values = critic[log.next_cells]
    options = {"next_values": next_values, **flags, "discount": discount, "lambda_": lambda_}
    return gae(log.rewards, critic[log.cells], **options).advantages


np.testing.assert_array_equal(right_call(log, critic), right)
np.testing.assert_array_equal(right_call(log, true_critic), np.zeros(10))

# %% [markdown]
# The faults come from code like this, which is found in many training scripts: a loop with the flags as factors. It has
# a factor for the value and one for the trace.


# %%
def common_code(log, critic, next_values, value_factor, trace_factor):
    values, advantages, ahead = critic[log.cells], np.zeros(len(log.cells)), 0.0
    for t in reversed(range(len(log.cells))):
        td_error = log.rewards[t] + discount * next_values[t] * value_factor[t] - values[t]
        advantages[t] = ahead = td_error + discount * lambda_ * trace_factor[t] * ahead
    return advantages


ends = log.terminated | log.truncated
by_common_code = common_code(log, critic, critic[log.next_cells], 1 - log.terminated, 1 - ends)
np.testing.assert_array_equal(by_common_code, right)

# %% [markdown]
# With the right factors and the right next values it is right. Each picture below shows what another choice does. Blue
# is right, red is wrong, and the steps with a difference are shaded. The second row of the labels holds the cells.


# %%
def draw(title, log, right, wrong):
    figure, axis = plt.subplots(figsize=(11, 3.8), layout="constrained")
    t = np.arange(len(right))
    axis.bar(t - 0.2, right, 0.36, color="tab:blue", label="right")
    axis.bar(t + 0.2, np.nan_to_num(wrong), 0.36, color="tab:red", label="wrong")
    axis.axhline(0, color="black", linewidth=0.8)
    names = [*range(GOAL), "goal"]
    axis.set_xticks(t, [f"{k}\n{names[a]} → {names[b]}" for k, a, b in zip(t, log.cells, log.next_cells)])
    axis.set(title=title, xlabel="t [steps], and the cells of the step", ylabel="advantage [reward]")
    mark(axis, log, right, wrong)
    figure.legend(loc="outside right center")
    plt.show()


# %%
def mark(axis, log, right, wrong):
    for k in np.flatnonzero(right != wrong):
        axis.axvspan(k - 0.5, k + 0.5, color="tab:red", alpha=0.1, linewidth=0, zorder=0)
    for k in np.flatnonzero(np.isnan(wrong)):
        axis.text(k + 0.2, 0.1, "NaN", color="tab:red", ha="center", va="bottom")
    both = log.terminated & log.truncated
    kinds = {"terminated": log.terminated & ~both, "truncated": log.truncated & ~both, "both flags": both}
    for (label, flags), style in zip(kinds.items(), ("-", "--", "-.")):
        for i, k in enumerate(np.flatnonzero(flags)):
            axis.axvline(k + 0.5, color="0.3", linestyle=style, label=None if i else label)


faults = {}

# %% [markdown]
# ## Fault 1: `done = terminated or truncated`
#
# A time limit is no end of the task. Behind it there is a state with a value, and the factor takes that value away. The
# agent learns that a state is bad because the clock ran out there.

# %%
wrong = common_code(log, critic, critic[log.next_cells], 1 - ends, 1 - ends)
faults["done = terminated or truncated"] = right, wrong
draw("Fault 1: a time limit counts as an end", log, right, wrong)

np.testing.assert_array_equal(np.flatnonzero(wrong != right), [2, 3, 4])
np.testing.assert_array_equal(wrong[4], 0 - critic[2])

# %% [markdown]
# The last step before the limit gets 0 - 5 in place of 0 + 6/2 - 5. With the true critic this one fault is all that is
# left: each step of that episode is blamed, though no step could have been better.

# %%
blamed = common_code(log, true_critic, true_critic[log.next_cells], 1 - ends, 1 - ends)
print("with the true critic:", blamed)

np.testing.assert_array_equal(blamed[2:5], [-0.25, -1, -4])
np.testing.assert_array_equal(np.delete(blamed, [2, 3, 4]), np.zeros(7))

# %% [markdown]
# ## Fault 2: the value of the next row
#
# The roll-out holds the critic's values of the observations, one row a step, and `values[t+1]` is at hand. Behind the
# time limit at t = 4 the environment was reset, so `values[5]` is the value of cell 1, where the third episode began.
# The step led to cell 3.

# %%
values = critic[np.append(log.cells, log.next_cells[-1])]
wrong = common_code(log, critic, values[1:], 1 - log.terminated, 1 - ends)
faults["the value of the next row"] = right, wrong
draw("Fault 2: the next row belongs to another episode", log, right, wrong)

np.testing.assert_array_equal(np.flatnonzero(wrong != right), [2, 3, 4])
np.testing.assert_array_equal(wrong[4], discount * critic[1] - critic[2])

# %% [markdown]
# `gae` refuses to guess: `truncated` needs `next_values`.


# %%
def refused(**arguments):
    try:
        gae(log.rewards, discount=discount, lambda_=lambda_, terminated=log.terminated, **arguments)
    except ValueError as error:
        print(error)
    else:
        raise RuntimeError("this call should be refused")


refused(values=values, truncated=log.truncated)

# %% [markdown]
# ## Fault 3: a time limit that does not stop the trace
#
# The next values are right and only `terminated` is passed. Then the sum of TD errors runs on from the second episode
# into the third.

# %%
wrong = common_code(log, critic, critic[log.next_cells], 1 - log.terminated, 1 - log.terminated)
faults["a time limit that does not stop the trace"] = right, wrong
draw("Fault 3: the trace runs on into the next episode", log, right, wrong)

np.testing.assert_array_equal(np.flatnonzero(wrong != right), [2, 3, 4])
np.testing.assert_array_equal(wrong[4] - right[4], discount * lambda_ * right[5])

# %% [markdown]
# ## Fault 4: is-first flags taken for is-last flags
#
# Some code stores, beside each observation, whether an episode *begins* with it. That is the terminated flag one step
# later. Taken as it is, it cuts behind the first step of an episode, not behind the last. These flags do not tell a
# time limit from an end, so this roll-out has no limit.

# %%
endless = play(starts=[2, 0, 3, 1], steps=9)
first = np.append(True, endless.terminated[:-1])
values = critic[np.append(endless.cells, endless.next_cells[-1])]
options = {"discount": discount, "lambda_": lambda_}

right_4 = alone(endless, critic)
np.testing.assert_array_equal(gae(endless.rewards, values, terminated=endless.terminated, **options)[0], right_4)

# %%
wrong = np.asarray(gae(endless.rewards, values, terminated=first, **options).advantages)
faults["is-first flags taken for is-last flags"] = right_4, wrong
draw("Fault 4: the flags are one step late", endless, right_4, wrong)

np.testing.assert_array_equal(np.flatnonzero(wrong != right_4), [0, 1, 2, 3, 4, 5, 7])

# %% [markdown]
# Two steps come out right: t = 6, an episode of one step, where the first is the last; and t = 8, where neither flag is
# set.
#
# Pass such flags as `episode_starts`. They say nothing about the last step of the window, so there is one more:
# `next_episode_start` tells whether the state behind the window begins an episode.

# %%
starts = {"episode_starts": first, "next_episode_start": False}
np.testing.assert_array_equal(gae(endless.rewards, values, **starts, **options).advantages, right_4)

longer = np.append(first, False)  # or both in one array of T + 1 rows
np.testing.assert_array_equal(gae(endless.rewards, values, episode_starts=longer, **options).advantages, right_4)

# %% [markdown]
# ## Fault 5: the step that resets the environment is kept
#
# Vector environments of Gymnasium reset in the *next* step by default. So the roll-out holds one row for every reset:
# from the last cell of the old episode to the first of the new one, with reward 0, whatever the action was.

# %%
stepping = play(starts=[2, 0, 1, 0], steps=13, limit=3, reset_steps=True)
values = critic[np.append(stepping.cells, stepping.next_cells[-1])]
print("steps that reset:", np.flatnonzero(~stepping.real))

np.testing.assert_array_equal(stepping.rewards[~stepping.real], [0, 0, 0])
np.testing.assert_array_equal(values[1:], critic[stepping.next_cells])

# %% [markdown]
# One thing is simpler: the observation that a step returns is always the true next one, so `next_values=values[1:]`.
# The other needs `mask`, 0 at the steps that reset. They are passed over as if their rows were deleted, and come back
# as 0.

# %%
options |= {"terminated": stepping.terminated, "truncated": stepping.truncated, "next_values": values[1:]}
masked = np.asarray(gae(stepping.rewards, values[:-1], mask=stepping.real, **options).advantages)

np.testing.assert_array_equal(masked[stepping.real], right)
np.testing.assert_array_equal(masked[~stepping.real], [0, 0, 0])

# %%
kept = np.asarray(gae(stepping.rewards, values[:-1], **options).advantages)
faults["the step that resets is kept"] = masked, kept
draw("Fault 5: the reset gets an advantage", stepping, masked, kept)
print(f"the average advantage is {kept.mean():.2f} with these steps, and {masked[stepping.real].mean():.2f} without")

np.testing.assert_array_equal(np.flatnonzero(kept != masked), np.flatnonzero(~stepping.real))

# %% [markdown]
# The other steps are untouched, but these rows train the policy on an action that nobody carried out, and the critic on
# a goal that leads to another start. They also shift the mean and the spread by which advantages are normalised.
#
# ## Fault 6: flags as factors
#
# The observation behind a terminated step may be anything: zeros, memory that was never written. So may its value. Let
# the critic return NaN for the goal. A factor of 0 does not help, since 0 times NaN is NaN. And the trace carries it
# into all steps before, over the ends of episodes, by 0 times NaN again.

# %%
broken = critic.copy()
broken[GOAL] = np.nan
wrong = common_code(log, broken, broken[log.next_cells], 1 - log.terminated, 1 - ends)
faults["flags as factors, and a NaN"] = right, wrong
draw("Fault 6: 0 times NaN is NaN", log, right, wrong)

np.testing.assert_array_equal(np.flatnonzero(np.isnan(wrong)), np.arange(8))

# %% [markdown]
# `gae` selects: what a flag excludes is not read. The gradient is clean as well: it is exactly 0 for a next value that
# was not read.

# %%
np.testing.assert_array_equal(right_call(log, broken), right)


def summed(next_values):
    flags = {"terminated": log.terminated, "truncated": log.truncated}
    out = gae(log.rewards, critic[log.cells], next_values=next_values, discount=0.5, lambda_=0.5, **flags)
    return out.advantages.sum()


gradient = jax.grad(summed)(jnp.asarray(broken[log.next_cells]))
print("gradient by the next values:", gradient)
np.testing.assert_array_equal(gradient == 0, log.terminated)

# %% [markdown]
# The same holds for masked steps. Here all that the resetting rows hold is NaN.

# %%
holes = {"rewards": stepping.rewards, "values": values[:-1], "next_values": values[1:]}
holes = {name: np.where(stepping.real, x, np.nan) for name, x in holes.items()}
poisoned = gae(**{**options, **holes}, mask=stepping.real).advantages
np.testing.assert_array_equal(poisoned, masked)

# %% [markdown]
# ## Fault 7: no value behind the window
#
# The window ends within the fourth episode. It goes on behind it, so the critic's value of the next state belongs to
# the last step. A carry that begins with 0 and a value that is missing make it look as if the episode terminated there.

# %%
inside = np.arange(10) < 9
wrong = common_code(log, critic, critic[log.next_cells], (1 - log.terminated) * inside, 1 - ends)
faults["no value behind the window"] = right, wrong
draw("Fault 7: the window's end counts as the episode's end", log, right, wrong)

np.testing.assert_array_equal(np.flatnonzero(wrong != right), [8, 9])
np.testing.assert_array_equal(wrong[9] - right[9], -discount * critic[2])

# %% [markdown]
# `gae` refuses values that stop at the window's end. Pass T + 1 rows, or `bootstrap_value`, or `next_values`. If zero
# is meant, `bootstrap_value=0.0` says so.

# %%
refused(values=critic[log.cells])

plain = play(starts=[0, 1], steps=6)  # one end, at t = 3
values, options = critic[np.append(plain.cells, plain.next_cells[-1])], {"discount": 0.5, "lambda_": 0.5}
three_ways = ({}, {"bootstrap_value": values[-1]}, {"next_values": critic[plain.next_cells]})
for more in three_ways:
    rows = values[:-1] if more else values
    out = gae(plain.rewards, rows, terminated=plain.terminated, **more, **options)
    np.testing.assert_array_equal(out.advantages, alone(plain, critic))

# %% [markdown]
# ## What each fault costs
#
# On these few steps, against each episode alone:

# %%
print(f"{'fault':45s}{'wrong steps':>12s}{'largest error':>15s}")
for name, (good, bad) in faults.items():
    error = np.abs(bad - good)
    print(f"{name:45s}{f'{np.sum(error != 0)} of {len(good)}':>12s}{error.max():15.3f}")
    if not (error > 0).any() and not np.isnan(error).any():
        raise ValueError(f"{name} should be wrong somewhere")

# %% [markdown]
# ## What to pass, in one table
#
# | the environment gives | pass |
# |---|---|
# | `terminated`, `truncated`, and `final_obs` where it resets in the same step | both flags, and `next_values` |
# | the same, with a step that resets | both flags, `next_values=values[1:]`, `mask` |
# | is-first flags | `episode_starts` and `next_episode_start` |
# | a window that ends within an episode | `values` with T + 1 rows, `bootstrap_value` or `next_values` |
# | numbers that may be NaN where nobody should look | nothing more: what the flags exclude is not read |
#
# `next_values` are the values of `final_obs` where an episode ended, and of the next observation elsewhere. `mask` is 0
# at the steps that reset.
