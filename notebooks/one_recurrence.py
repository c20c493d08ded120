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
# # One recurrence, seven algorithms
#
# GAE, V-trace, Retrace, TD(lambda) returns, discounted returns, eligibility traces and episodic prefix sums are one
# line of arithmetic,
#
#     x[t] = b[t] + a[t] x[t+1]        (or x[t-1], where time runs forward)
#
# with other a and b. This notebook
#
# 1. computes GAE by a loop, by an associative scan and by `rltriton_jax.gae`, and compares;
# 2. writes down the a and b of all seven, and checks each against the function of that name;
# 3. runs the Triton kernels: on the CPU by Triton's interpreter, and on the GPU if there is one;
# 4. measures how long a call of GAE takes, by each implementation that this machine has.

# %%
import functools
import importlib.util
import statistics
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rltriton_jax as rl

jax.config.update("jax_enable_x64", True)  # for strict comparisons; the timings use float32
print(f"jax {jax.__version__} on {jax.default_backend()}")

# %% [markdown]
# ## A roll-out
#
# Random numbers in the shape of a roll-out of T steps in B environments. Row t belongs to the transition from state t
# to state t+1. `next_values` are the critic's values of the states that the steps really led to. Where an episode
# ended, that is not `values[t+1]`: there the next row belongs to the first state of another episode.

# %%
T, B, discount, lambda_ = 24, 3, 0.95, 0.8
rng = np.random.default_rng(54)
rewards, values, last_states = rng.normal(size=(3, T, B))
terminated, truncated = rng.random((2, T, B)) < 0.08
ends = terminated | truncated
next_values = np.where(ends, last_states, np.vstack([values[1:], rng.normal(size=(1, B))]))

print("environment 0 terminated after the steps", np.flatnonzero(terminated[:, 0]))
print("environment 0 was truncated after the steps", np.flatnonzero(truncated[:, 0]))
if not (terminated[:, 0].any() and truncated[:, 0].any()) or ends[-1].all():
    raise ValueError("the roll-out should show both ends of an episode, and a window that ends within one")

# %% [markdown]
# ## GAE by a loop
#
# The definition, one number at a time, in float64. A terminated step has no next value. Behind a terminated and behind
# a truncated step the sum stops.

# %%
by_loop = np.zeros((T, B))
for env in range(B):
    advantage = 0.0
    for t in reversed(range(T)):
        next_value = 0.0 if terminated[t, env] else next_values[t, env]
        td_error = rewards[t, env] + discount * next_value - values[t, env]
        ahead = 0.0 if ends[t, env] else advantage
        by_loop[t, env] = advantage = td_error + discount * lambda_ * ahead

if not np.isfinite(by_loop).all():
    raise ValueError("an advantage is not finite")

# %% [markdown]
# ## GAE as a recurrence
#
# The loop body is x[t] = b[t] + a[t] x[t+1], with the TD error for b, and discount times lambda for a, or 0 where the
# episode ended. Both are known for every step before the loop begins.

# %%
next_value = np.where(terminated, 0.0, next_values)
td_errors = rewards + discount * next_value - values
goes_on = np.where(ends, 0.0, 1.0)
gae_a, gae_b = discount * lambda_ * goes_on, td_errors

np.testing.assert_allclose(by_loop[ends], gae_b[ends])
np.testing.assert_allclose(by_loop[:-1], gae_b[:-1] + gae_a[:-1] * by_loop[1:])

# %% [markdown]
# ## GAE by an associative scan
#
# A step is the map x -> b + a x. One such map after another is again such a map,
#
#     b2 + a2 (b1 + a1 x) = (b2 + a2 b1) + (a2 a1) x,
#
# so the pair (a2 a1, b2 + a2 b1) stands for both. It does not matter which of three neighbours are joined first. So
# they need not be joined in turn: half of the pairs can be joined at once, then half of the rest.


# %%
def combine(first, second):
    (a1, b1), (a2, b2) = first, second
    return a2 * a1, b2 + a2 * b1


f, g, h = rng.normal(size=(3, 2, 100))
np.testing.assert_allclose(combine(combine(f, g), h), combine(f, combine(g, h)))

# %% [markdown]
# `jax.lax.associative_scan` does that. With `reverse=True` the later step is `first`: the walk meets it first.


# %%
@functools.partial(jax.jit, static_argnames="reverse")
def scan_by_hand(a, b, reverse=True):
    return jax.lax.associative_scan(combine, (a, b), reverse=reverse)[1]


by_associative_scan = scan_by_hand(gae_a, gae_b)
np.testing.assert_allclose(by_associative_scan, by_loop, rtol=1e-9, atol=1e-12)

# %% [markdown]
# What it costs: about twice as many joins as a loop, in far fewer rounds. All joins of a round are independent.


# %%
def rounds_of_joins(length):
    rounds = []

    def join(x, y):
        rounds.append(len(x))
        return x + y

    jax.eval_shape(lambda x: jax.lax.associative_scan(join, x), jnp.zeros(length))
    return rounds


# %%
for length in (16, 1024, 65536):
    rounds = rounds_of_joins(length)
    print(f"T = {length}: a loop makes {length - 1} joins in turn, the scan {sum(rounds)} in {len(rounds)} rounds")
    if not (sum(rounds) <= 2 * length and len(rounds) <= 2 * np.log2(length)):
        raise ValueError("the scan should take at most 2 T joins in 2 log2(T) rounds")

# %% [markdown]
# ## GAE by the library
#
# The flags go in as the environment gives them.

# %%
critic = {"next_values": next_values, "terminated": terminated, "truncated": truncated}


def gae(**how):
    return rl.gae(rewards, values, discount=discount, lambda_=lambda_, **critic, **how)


advantages, targets = gae()
np.testing.assert_allclose(advantages, by_loop, rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(targets, by_loop + values, rtol=1e-9, atol=1e-12)

# %% [markdown]
# The three on top of each other. A coefficient of 0 keeps each episode to itself.


# %%
def mark_ends(axis):
    for flags, style, label in ((terminated, "-", "terminated"), (truncated, "--", "truncated")):
        for k, t in enumerate(np.flatnonzero(flags[:, 0])):
            axis.axvline(t + 0.5, color="0.6", linestyle=style, label=label if k == 0 else None)


figure, axis = plt.subplots(figsize=(12, 4), layout="constrained")
mark_ends(axis)
axis.plot(by_loop[:, 0], "o", markersize=11, color="tab:orange", markerfacecolor="none", label="loop")
axis.plot(by_associative_scan[:, 0], "x", markersize=8, color="tab:green", label="associative_scan by hand")
axis.plot(advantages[:, 0], ".-", linewidth=0.7, color="tab:blue", label="rltriton_jax.gae")
axis.set(title="GAE of environment 0, three ways", xlabel="t [steps]", ylabel="advantage [reward]")
figure.legend(loc="outside right center")
plt.show()

# %% [markdown]
# ## All seven
#
# With r the reward, V the critic's value, w the next value (0 behind a terminated step), d = r + g w - V the TD error,
# g the discount, l lambda, c = min(1, pi / mu) of the action taken, and k = 0 behind an ended episode, else 1:
#
# | estimator | walks | a[t] | b[t] | read-out |
# |---|---|---|---|---|
# | GAE | back | g l k | d | advantages x, targets V + x |
# | V-trace | back | g l c k | c d | targets V + x, advantages c (d + g l k x[t+1]) |
# | Retrace | back | g l c[t+1] k | r + g E[Q] - Q | targets Q + x, advantages c (r + g y - Q) |
# | TD(lambda) returns | back | g l k | r + g (1 - l k) w | returns x |
# | discounted returns | back | g k | r, and g w where it was truncated | returns x |
# | eligibility traces | forward | g l k[t-1] | the input | traces x |
# | episodic prefix sums | forward | k[t-1] | the input | sums x |
#
# E[Q] is the sum of pi(a) Q(a) over the actions in the next state (0 behind a terminated step), and y is the next
# target, or E[Q] where k = 0. For Retrace and TD(lambda) returns, the last step of the window has k = 0: no trace comes
# from beyond it. For discounted returns, x[T] is the bootstrap.
#
# Each row becomes a cell: a and b from the table, `linear_recurrence` with them, the public function, a comparison. The
# associative scan made by hand must agree, too.


# %%
def same(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def recurrence(a, b, initial=0.0, reverse=True):
    x = rl.linear_recurrence(a, b, initial, reverse=reverse)
    edge = -1 if reverse else 0
    same(x, scan_by_hand(a, jnp.asarray(b).at[edge].add(a[edge] * initial), reverse))
    return x


by_coefficients, estimators = {"GAE": recurrence(gae_a, gae_b)}, {"GAE": gae}
same(by_coefficients["GAE"], gae().advantages)

# %% [markdown]
# ### V-trace
#
# The data came from a policy mu, the value wanted is that of pi. Ratios pi / mu above 1 are clipped.

# %%
log_rhos = rng.normal(scale=0.5, size=(T, B))
clipped = np.minimum(1.0, np.exp(log_rhos))


def vtrace(**how):
    return rl.vtrace(rewards, values, log_rhos=log_rhos, discount=discount, lambda_=lambda_, **critic, **how)


# %%
x = recurrence(discount * lambda_ * clipped * goes_on, clipped * td_errors)
ahead = np.vstack([x[1:], np.zeros((1, B))])

same(values + x, vtrace().targets)
same(clipped * (td_errors + discount * lambda_ * goes_on * ahead), vtrace().advantages)
by_coefficients["V-trace"], estimators["V-trace"] = values + x, vtrace

# %% [markdown]
# ### Retrace
#
# The same correction for action values. The ratio in a[t] is that of the next action: Q is the value of the action that
# was taken, whoever chose it.

# %%
q_taken, expected_q = rng.normal(size=(2, T, B))
expected_q[terminated] = 0.0
inside = goes_on * (np.arange(T) < T - 1)[:, None]
ended = {"terminated": terminated, "truncated": truncated}


def retrace(**how):
    options = {"log_rhos": log_rhos, "discount": discount, "lambda_": lambda_, **ended, **how}
    return rl.retrace(rewards, q_taken, next_expected_q=expected_q, **options)


# %%
next_ratio = np.roll(clipped, -1, axis=0)
x = recurrence(discount * lambda_ * next_ratio * inside, rewards + discount * expected_q - q_taken)
next_target = np.where(inside, np.roll(q_taken + x, -1, axis=0), expected_q)

same(q_taken + x, retrace().targets)
same(clipped * (rewards + discount * next_target - q_taken), retrace().advantages)
by_coefficients["Retrace"], estimators["Retrace"] = q_taken + x, retrace

# %% [markdown]
# ### TD(lambda) returns
#
# GAE plus the value, written without the value of the state itself.


# %%
def td_lambda(**how):
    return rl.lambda_returns(rewards, discount=discount, lambda_=lambda_, **critic, **how)


x = recurrence(discount * lambda_ * inside, rewards + discount * (1 - lambda_ * inside) * next_value)
same(x, td_lambda())
same(x, gae().targets)
by_coefficients["TD(lambda) returns"], estimators["TD(lambda) returns"] = x, td_lambda

# %% [markdown]
# ### Discounted returns
#
# Rewards alone. The critic counts where a time limit cut an episode, and behind the window.

# %%
bootstrap = next_values[-1]


def returns(**how):
    return rl.discounted_returns(rewards, discount=discount, bootstrap_value=bootstrap, **critic, **how)


x = recurrence(discount * goes_on, rewards + discount * np.where(ends, next_value, 0.0), bootstrap)
same(x, returns())
by_coefficients["discounted returns"], estimators["discounted returns"] = x, returns

# %% [markdown]
# ### Eligibility traces
#
# Forward in time: what earlier steps contribute to the trace that a TD error at step t is multiplied with. An input is
# the gradient of the value at a step, often with a feature axis. Here the inputs are ones.

# %%
arrived = np.vstack([np.zeros((1, B)), goes_on[:-1]])  # k[t-1]


def traces(**how):
    return rl.eligibility_traces(np.ones((T, B)), discount=discount, lambda_=lambda_, **ended, **how)


x = recurrence(discount * lambda_ * arrived, np.ones((T, B)), reverse=False)
same(x, traces())
by_coefficients["eligibility traces"], estimators["eligibility traces"] = x, traces

# %% [markdown]
# ### Episodic prefix sums
#
# With rewards, the return so far. With ones, the length of the episode so far.


# %%
def sums(**how):
    return rl.episodic_prefix_sum(rewards, **ended, **how)


x = recurrence(arrived, rewards, reverse=False)
same(x, sums())
by_coefficients["episodic prefix sums"], estimators["episodic prefix sums"] = x, sums

# %% [markdown]
# All seven, in environment 0: the recurrence as a line, the public function as circles. Grey lines are the ends of
# episodes. Nothing is carried across them.


# %%
def first_output(result):
    return result[0] if isinstance(result, tuple) else result


# %%
units = ["advantage [reward]", *2 * ["target [reward]"], *2 * ["return [reward]"], "trace [inputs]", "sum [reward]"]
figure, axes = plt.subplots(2, 4, figsize=(16, 6.5), layout="constrained")
for axis, (name, x), unit in zip(axes.flat, by_coefficients.items(), units):
    mark_ends(axis)
    axis.plot(x[:, 0], "-", label="x[t] = b[t] + a[t] x[next], read out")
    axis.plot(first_output(estimators[name]())[:, 0], "o", markerfacecolor="none", label="public function")
    axis.set(title=name, xlabel="t [steps]", ylabel=unit)
handles, labels = axes.flat[0].get_legend_handles_labels()
axes.flat[-1].axis("off")
axes.flat[-1].legend(handles, labels, loc="center")
plt.show()

# %% [markdown]
# ## The Triton kernels
#
# On a GPU these functions are Triton kernels. `implementation="interpret"` runs the very same kernels by Triton's
# interpreter on the CPU. It is slow, and good for checking. Where JAX sees a GPU, `implementation="triton"` runs them
# there.

# %%
kernels = ["interpret"] if importlib.util.find_spec("triton") else []
kernels += ["triton"] if jax.default_backend() == "gpu" and importlib.util.find_spec("jax_triton") else []
for how in kernels:
    for name, estimator in estimators.items():
        got, wanted = first_output(estimator(implementation=how)), by_coefficients[name]
        print(f"{how:10s}{name:22s}largest difference {np.abs(got - wanted).max():.1e}")
        same(got, wanted)
print("not here:", ", ".join({"interpret", "triton"} - set(kernels)) or "nothing")

# %% [markdown]
# ## How long it takes
#
# A call of GAE in float32, compiled, for several T: two forms written by hand, and the implementations of the library.
# The interpreter takes part at the smallest T alone.


# %%
def loop_by_hand(a, b):
    def step(x, now):
        x = now[1] + now[0] * x
        return x, x

    return jax.lax.scan(step, jnp.zeros_like(b[0]), (a, b), reverse=True)[1]


def gae_by_hand(walk, rewards, values, terminated):
    goes_on = 1.0 - terminated.astype(rewards.dtype)
    return walk(0.99 * 0.95 * goes_on, rewards + 0.99 * goes_on * values[1:] - values[:-1])


# %%
def gae_by(how, rewards, values, terminated):
    return rl.gae(rewards, values, terminated=terminated, discount=0.99, lambda_=0.95, implementation=how).advantages


def bind(function, how):
    return jax.jit(lambda *data: function(how, *data))


calls = {"lax.scan, by hand": bind(gae_by_hand, loop_by_hand)}
calls["lax.associative_scan, by hand"] = bind(gae_by_hand, scan_by_hand)
calls |= {f'implementation="{how}"': bind(gae_by, how) for how in ["scan", "associative_scan", *kernels]}
print("\n".join(calls))


# %% [markdown]
# JAX returns before the work is done, so the clock stops at `block_until_ready`. The first call compiles and does not
# count. The median of the others does.


# %%
def seconds(call, data):
    times = []
    while not times or (len(times) < 20 and sum(times) < 0.1):
        start = time.perf_counter()
        jax.block_until_ready(call(*data))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# %%
columns, lengths = 64, [16, 128, 1024, 8192]
measured = {name: [] for name in calls}
for length in lengths:
    data = [rng.normal(size=(n, columns)).astype(np.float32) for n in (length, length + 1)]
    data = jax.device_put([*data, rng.random((length, columns)) < 0.01])
    wanted = np.asarray(calls["lax.associative_scan, by hand"](*data))
    for name, call in calls.items():
        if "interpret" in name and length > lengths[0]:
            continue
        np.testing.assert_allclose(jax.block_until_ready(call(*data)), wanted, rtol=1e-4, atol=1e-4)
        measured[name].append(seconds(call, data))

# %%
print(f"milliseconds a call, on {jax.devices()[0].device_kind}")
print(f"{'T':33s}" + "".join(f"{length:9d}" for length in lengths))
for name, times in measured.items():
    print(f"{name:33s}" + "".join(f"{1000 * t:9.3f}" for t in times))
    if not times or min(times) <= 0:
        raise ValueError(f"{name} was not measured")

# %%
figure, axis = plt.subplots(figsize=(9, 5.5), layout="constrained")
for k, (name, times) in enumerate(measured.items()):
    axis.plot(lengths[: len(times)], 1000 * np.array(times), "os^Dv*"[k] + "-", label=name)
axis.set(xscale="log", yscale="log", xlabel=f"T [steps], of {columns} environments", ylabel="time of a call [ms]")
axis.set_title(f"GAE on {jax.devices()[0].device_kind}, float32")
axis.set_xticks(lengths, map(str, lengths))
axis.legend()
plt.show()

# %% [markdown]
# A timing on a CPU says nothing about a GPU. On a CPU, `lax.scan` is one compiled loop over rows that lie in the cache,
# and the scan tree does twice the arithmetic and writes every round to memory. On a GPU, `lax.scan` is T small pieces
# of work that must wait for each other, and the tree is a few large ones. There the limit is the memory traffic: a
# Triton kernel reads each input once and writes each output once. At small T all of them measure the call from Python
# more than the work.
#
# `implementation=None`, the default, takes what is fastest for the platform: the Triton kernels on a GPU, `lax.scan` on
# a CPU.
