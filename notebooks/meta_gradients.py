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
# # Gradients through the scan
#
# Every function of `rltriton_jax` can be differentiated, by the discount and lambda as well. This notebook
#
# 1. checks the derivatives of GAE by rewards, values, discount and lambda against finite differences;
# 2. lets a critic learn its own discount and lambda by meta-gradients (Xu, van Hasselt and Silver, 2018);
# 3. trains a whole population, a critic for every pair of discount and lambda, with one scan for all of them.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from rltriton_jax import gae, lambda_returns

jax.config.update("jax_enable_x64", True)  # finite differences need float64
print(f"jax {jax.__version__} on {jax.default_backend()}")

# %% [markdown]
# ## 1. The derivatives of GAE
#
# One column of random numbers, with an episode that terminates and one that is truncated.

# %%
T = 12
rng = np.random.default_rng(0)
terminated, truncated = np.arange(T) == 3, np.arange(T) == 7
point = {name: rng.normal(size=T) for name in ("rewards", "values", "next_values")}
point |= {"discount": np.float64(0.9), "lambda_": np.float64(0.8)}


def advantages(point):
    return gae(**point, terminated=terminated, truncated=truncated).advantages


# %% [markdown]
# The finite differences come from a loop in NumPy, so they know nothing of the scan or of its derivative.


# %%
def by_loop(rewards, values, next_values, discount, lambda_):
    out, ahead = np.zeros(T), 0.0
    for t in reversed(range(T)):
        next_value = 0.0 if terminated[t] else next_values[t]
        ahead = 0.0 if terminated[t] or truncated[t] else ahead
        out[t] = ahead = rewards[t] + discount * next_value - values[t] + discount * lambda_ * ahead
    return out


np.testing.assert_allclose(advantages(point), by_loop(**point), rtol=1e-12)


# %%
def difference(name, step=1e-6):
    """d advantages[t] / d point[name][s], by central differences: [T, T], or [T] for a scalar."""

    def moved(by):
        return by_loop(**{**point, name: point[name] + by})

    shifts = step * np.eye(T) if point[name].ndim else [step]
    columns = [(moved(by) - moved(-by)) / (2 * step) for by in shifts]
    return np.stack(columns, axis=-1) if point[name].ndim else columns[0]


# %% [markdown]
# `jax.jacrev` runs the adjoint scan, `jax.jacfwd` the tangent one.

# %%
reverse, forward = jax.jacrev(advantages)(point), jax.jacfwd(advantages)(point)
for name in point:
    wanted = difference(name)
    for jacobian in (reverse[name], forward[name]):
        np.testing.assert_allclose(jacobian, wanted, rtol=1e-7, atol=1e-8)
    print(f"d A / d {name:12s} largest difference {np.abs(reverse[name] - wanted).max():.0e}")

# %% [markdown]
# Left: what each reward does to each advantage. The influence decays by discount times lambda a step, and stops at the
# ends of episodes. Right: the sensitivity to the two hyperparameters.

# %%
figure, axes = plt.subplots(1, 2, figsize=(13, 4.5), layout="constrained", width_ratios=(1, 1.4))
picture = axes[0].imshow(reverse["rewards"], cmap="viridis")
axes[0].set(title="d advantage[t] / d reward[s]", xlabel="s [steps]", ylabel="t [steps]")
figure.colorbar(picture, ax=axes[0])
for name, colour in (("discount", "tab:blue"), ("lambda_", "tab:orange")):
    axes[1].plot(reverse[name], color=colour, label=f"d advantage / d {name.strip('_')}")
    axes[1].plot(difference(name), "o", color=colour, markerfacecolor="none", label="finite differences")
axes[1].set(title="Sensitivity of the advantages", xlabel="t [steps]", ylabel="derivative [reward]")
for t, style, label in ((3, "-", "terminated"), (7, "--", "truncated")):
    axes[1].axvline(t + 0.5, color="0.6", linestyle=style, label=label)
axes[1].legend()
plt.show()

# %% [markdown]
# What was not read has the derivative 0, exactly: the next value behind the terminated step.

# %%
unread = np.diag(reverse["next_values"]) == 0
print("next values with no influence on their own step:", np.flatnonzero(unread))
np.testing.assert_array_equal(unread, terminated)
np.testing.assert_array_equal(reverse["next_values"][:, terminated], 0)

# %% [markdown]
# ## 2. A critic that learns its discount and lambda
#
# A random walk over nine cells begins in the middle and goes left or right with equal chance. Leaving on the right pays
# 1, leaving on the left pays 0, and both terminate. The walk is the same for every critic, so it can be made in
# advance: 401 roll-outs of 32 steps by 8 walkers.

# %%
CELLS, STEPS, WALKERS, UPDATES = 9, 32, 8, 400


def walk(steps):
    cell, rows = np.full(WALKERS, CELLS // 2), []
    for _ in range(steps):
        led = cell + rng.choice([-1, 1], size=WALKERS)
        ended = (led < 0) | (led == CELLS)
        rows.append((cell, led.clip(0, CELLS - 1), 1.0 * (led == CELLS), ended))
        cell = np.where(ended, CELLS // 2, led)
    return [np.array(x).reshape(-1, STEPS, WALKERS) for x in zip(*rows)]


# %%
rollouts = walk(STEPS * (UPDATES + 1))  # cells, next cells, rewards, terminated: [roll-out, STEPS, WALKERS]
exits = rollouts[2].sum() / rollouts[3].sum()
print(f"{rollouts[3].sum()} episodes; {100 * exits:.0f} % leave on the right")

if rollouts[0].shape != (UPDATES + 1, STEPS, WALKERS) or abs(exits - 0.5) > 0.05:
    raise ValueError("half of the walkers should leave on the right")

# %% [markdown]
# What is wanted are the values under a discount of 0.95, the *reference*. They solve a linear system. The critic does
# not get them: they are for the picture.

# %%
REFERENCE = 0.95
moves = 0.5 * (np.eye(CELLS, k=1) + np.eye(CELLS, k=-1))
pays = 0.5 * (np.arange(CELLS) == CELLS - 1)
true_values = np.linalg.solve(np.eye(CELLS) - REFERENCE * moves, pays)
print("true values:", true_values.round(3))

np.testing.assert_allclose(true_values, pays + REFERENCE * moves @ true_values)

# %% [markdown]
# ### The inner update
#
# The critic is a table, one value a cell. A step of gradient descent moves it towards TD(lambda) returns under a
# discount and a lambda of its own. They are sigmoids of two meta-parameters. As usual, the returns count as constants
# for the gradient by the table; but the new table depends on the discount and lambda through them.


# %%
def returns(table, rollout, discount, lambda_):
    _, next_cells, rewards, terminated = rollout
    options = {"terminated": terminated, "discount": discount, "lambda_": lambda_}
    return lambda_returns(rewards, next_values=table[next_cells], **options)


def loss(table, rollout, targets):
    return 0.5 * jnp.mean((targets - table[rollout[0]]) ** 2)


def update(table, rollout, discount, lambda_):
    targets = returns(table, rollout, discount, lambda_)
    return table - 3.0 * jax.grad(loss)(table, rollout, targets)


# %% [markdown]
# ### The outer loss
#
# How good is the new table on the *next* roll-out, against returns under the reference: discount 0.95 and lambda 1?
# That does not change while the critic learns, so it can tell one discount from another. Its targets count as
# constants, too.


# %%
def outer(meta, table, rollout, next_rollout):
    table = update(table, rollout, *jax.nn.sigmoid(meta))
    targets = jax.lax.stop_gradient(returns(table, next_rollout, REFERENCE, 1.0))
    return loss(table, next_rollout, targets), (table, targets)


# %% [markdown]
# The meta-gradient at one point, against finite differences of the same loss with its targets held.

# %%
first, second = ([x[k] for x in rollouts] for k in (0, 1))
meta, table = jnp.array([0.4, 0.0]), jnp.asarray(true_values + rng.normal(size=CELLS) / 5)
gradient, (_, targets) = jax.grad(outer, has_aux=True)(meta, table, first, second)


def held(meta):
    return loss(update(table, first, *jax.nn.sigmoid(meta)), second, targets)


steps = 1e-5 * jnp.eye(2)
wanted = np.array([(held(meta + s) - held(meta - s)) / 2e-5 for s in steps])
print("meta-gradient", gradient, "finite differences", wanted)
np.testing.assert_allclose(gradient, wanted, rtol=1e-5)

# %% [markdown]
# ### Training
#
# Each update takes a step of the critic and, with `meta_rate` above 0, a step of its meta-parameters, scaled by the
# recent size of the meta-gradient. The whole run is one `lax.scan`. It begins with a discount of 0.6, which looks much
# too short ahead, and a lambda of 0.5.


# %%
@jax.jit
def train(meta_rate):
    def step(carry, data):
        meta, table, size = carry
        (cost, (table, _)), gradient = jax.value_and_grad(outer, has_aux=True)(meta, table, *data)
        size = 0.9 * size + 0.1 * gradient**2
        after = meta - meta_rate * gradient / jnp.sqrt(size + 1e-10)
        return (after, table, size), (cost, jnp.sqrt(jnp.mean((table - true_values) ** 2)), jax.nn.sigmoid(meta))

    start = jnp.array([np.log(0.6 / 0.4), 0.0]), jnp.zeros(CELLS), jnp.zeros(2)
    return jax.lax.scan(step, start, ([x[:-1] for x in rollouts], [x[1:] for x in rollouts]))[1]


# %%
fixed_cost, fixed_error, fixed = map(np.asarray, train(0.0))
cost, error, learnt = map(np.asarray, train(0.05))
print("averages of the last 100 updates")
print(f"fixed:  outer loss {fixed_cost[-100:].mean():.4f}, error of the values {fixed_error[-100:].mean():.3f}")
print(f"learnt: outer loss {cost[-100:].mean():.4f}, error of the values {error[-100:].mean():.3f}")
print("learnt: discount {:.3f}, lambda {:.2f}".format(*learnt[-100:].mean(axis=0)))

np.testing.assert_allclose(fixed, np.broadcast_to([0.6, 0.5], fixed.shape))
if not (
    cost[-100:].mean() < 0.75 * fixed_cost[-100:].mean() and error[-100:].mean() < 0.25 * fixed_error[-100:].mean()
):
    raise ValueError("meta-learning should lower the outer loss and the error")
np.testing.assert_allclose(learnt[-100:, 0].mean(), REFERENCE, atol=0.02)

# %% [markdown]
# The outer loss has a floor: the returns of single walks scatter about the true values. The dashed line is the loss of
# the true values themselves. Curves are averages over 20 updates.


# %%
def reference_loss(table, rollout):
    return loss(table, rollout, returns(table, rollout, REFERENCE, 1.0))


held_out = [x[1:] for x in rollouts]
floor = np.asarray(jax.vmap(reference_loss, in_axes=(None, 0))(jnp.asarray(true_values), held_out))
if not cost[-100:].mean() < 1.1 * floor[-100:].mean():
    raise ValueError("the learnt critic should come close to the floor")


# %%
def compare(axis, fixed_curve, curve, title, ylabel):
    for y, colour, label in (
        (fixed_curve, "0.5", "discount 0.6, lambda 0.5, fixed"),
        (curve, "tab:blue", "meta-learnt"),
    ):
        axis.plot(np.convolve(y, np.full(20, 1 / 20), mode="valid"), color=colour, label=label)
    axis.set(title=title, xlabel="update", ylabel=ylabel, ylim=(0, None))


# %%
figure, axes = plt.subplots(1, 3, figsize=(16, 4.5), layout="constrained")
compare(axes[0], fixed_cost, cost, "Outer loss", "half the mean squared error [reward²]")
compare(axes[1], fixed_error, error, "Error of the critic", "root mean squared error [reward]")
axes[0].plot(np.convolve(floor, np.full(20, 1 / 20), mode="valid"), "k--", linewidth=0.8, label="true values")
axes[2].plot(learnt, label=["discount", "lambda"])
axes[2].axhline(REFERENCE, linestyle="--", color="black", linewidth=0.8, label="discount of the reference")
axes[2].set(title="What was learnt", xlabel="update", ylabel="discount, lambda", ylim=(0, 1))
for axis in axes:
    axis.legend()
plt.show()

# %% [markdown]
# The discount goes to that of the reference within the first hundred updates. Lambda rises first: an empty critic
# learns from rewards only, and a large lambda hands them to more cells at once. Then it falls: the values are right by
# now, and a small lambda trusts them, which makes for less noise.

# %%
np.testing.assert_allclose(learnt[100, 0], REFERENCE, atol=0.03)
top = learnt[:, 1].argmax()
print(
    f"lambda begins at {learnt[0, 1]:.2f}, is {learnt[top, 1]:.2f} at update {top}, and {learnt[-1, 1]:.2f} at the end"
)

if not (learnt[top, 1] > 0.6 and top < 200 and learnt[-1, 1] < 0.5):
    raise ValueError("lambda should rise, then fall")

# %% [markdown]
# ## 3. A population
#
# Did the meta-gradient find a good place? Train a critic for every pair of a discount and a lambda, on the same
# roll-outs. Two `vmap` make one update of one critic into one update of all.

# %%
discounts, lambdas = jnp.linspace(0.55, 0.99, 12), jnp.linspace(0.0, 1.0, 11)
over_lambdas = jax.vmap(update, in_axes=(0, None, None, 0))
update_all = jax.vmap(over_lambdas, in_axes=(0, None, 0, None))  # tables [discounts, lambdas, CELLS]
tables = jnp.asarray(rng.normal(size=(len(discounts), len(lambdas), CELLS)))

together = update_all(tables, first, discounts, lambdas)
one = jax.jit(update)
by_member = [[one(tables[i, k], first, g, l) for k, l in enumerate(lambdas)] for i, g in enumerate(discounts)]
np.testing.assert_allclose(together, np.array(by_member), rtol=1e-10, atol=1e-12)
print(f"{together.shape[0] * together.shape[1]} members agree with the loop over members")

# %% [markdown]
# It is one scan for all members, not one each. What members share is passed once: in the axes of the population, the
# rewards and the flags have size 1. Here are the scans in the program, with the shapes of what they read.


# %%
def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(part, "eqns"):
                yield from equations(part)


def scans(function, *arguments):
    found = equations(jax.make_jaxpr(function)(*arguments))
    return [[v.aval.shape for v in e.invars] for e in found if e.primitive.name == "rltriton_walk"]


# %%
(shapes,) = scans(update_all, tables, first, discounts, lambdas)
print("one scan, which reads", *shapes)

G, L = len(discounts), len(lambdas)
wanted = 2 * [(1, 1, STEPS, WALKERS)] + [(G, L, STEPS, WALKERS), (G, 1, 1, 1), (1, L, 1, 1)]
if sorted(shapes) != sorted(wanted):
    raise ValueError("rewards and flags should be shared, and only the next values have every axis")

# %% [markdown]
# So it is for gradients: the meta-gradients of all members take as many scans as the meta-gradient of one. One walks
# for the update, one for the reference, and one back.


# %%
def outer_at(discount, lambda_, table):
    table = update(table, first, discount, lambda_)
    targets = jax.lax.stop_gradient(returns(table, second, REFERENCE, 1.0))
    return loss(table, second, targets)


slopes = jax.value_and_grad(outer_at, argnums=(0, 1))
all_slopes = jax.vmap(jax.vmap(slopes, in_axes=(None, 0, None)), in_axes=(0, None, None))
start = jnp.zeros(CELLS)
counts = [len(scans(slopes, 0.9, 0.9, start)), len(scans(all_slopes, discounts, lambdas, start))]
print("scans for one member and for all:", counts)
np.testing.assert_array_equal(counts, [3, 3])

# %%
costs, (by_discount, by_lambda) = all_slopes(discounts, lambdas, start)
each = np.array([[jax.tree.leaves(jax.jit(slopes)(g, l, start)) for l in lambdas] for g in discounts])
np.testing.assert_allclose(np.stack([costs, by_discount, by_lambda], axis=-1), each, rtol=1e-9, atol=1e-12)

# %% [markdown]
# Now all members learn, 400 updates each, from the same start.


# %%
@jax.jit
def train_all(discounts, lambdas):
    def step(tables, rollout):
        tables = update_all(tables, rollout, discounts, lambdas)
        return tables, jnp.sqrt(jnp.mean((tables - true_values) ** 2, axis=-1))

    start = jnp.zeros((len(discounts), len(lambdas), CELLS))
    return jax.lax.scan(step, start, [x[:-1] for x in rollouts])[1]


errors = np.asarray(train_all(discounts, lambdas))
outcome = errors[-100:].mean(axis=0)
best = np.unravel_index(outcome.argmin(), outcome.shape)
print(f"best member: discount {discounts[best[0]]:.2f}, lambda {lambdas[best[1]]:.1f}, error {outcome[best]:.3f}")

# %% [markdown]
# A population of one is the fixed critic from above. The meta-learnt critic should be about as good as the best member.

# %%
alone = train_all(jnp.array([0.6]), jnp.array([0.5]))[:, 0, 0]
np.testing.assert_allclose(alone, fixed_error, rtol=1e-8)

np.testing.assert_allclose(discounts[best[0]], REFERENCE, atol=0.021)
if not error[-100:].mean() < 2 * outcome.min():
    raise ValueError("the meta-learnt critic should be close to the best member")

# %%
figure, axes = plt.subplots(1, 2, figsize=(14, 5), layout="constrained")
for axis, table, title in zip(axes, (costs, outcome), ("Outer loss after one update", "Error after 400 updates")):
    picture = axis.pcolormesh(discounts, lambdas, np.asarray(table).T, shading="nearest", norm="log")
    axis.set(title=title, xlabel="discount", ylabel="lambda")
    figure.colorbar(picture, ax=axis, label="[reward²]" if axis is axes[0] else "[reward]")
axes[0].quiver(discounts, lambdas, -by_discount.T, -by_lambda.T, color="white", angles="xy")
axes[1].plot(*learnt.T, color="white", linewidth=1.2, label="path of the meta-learnt critic")
axes[1].plot(discounts[best[0]], lambdas[best[1]], "*", color="tab:red", markersize=14, label="best member")
axes[1].legend(loc="lower left", facecolor="0.4", labelcolor="white")
plt.show()

# %% [markdown]
# Left: the first update from an empty critic, with the meta-gradients of all members as arrows downhill. All point to a
# larger lambda. Right: what each constant pair comes to after 400 updates. The meta-learnt critic walks into the valley
# of good discounts in a single run, and down the valley to where the noise is small.

# %%
if not np.all(by_lambda[:, 1:] < 0):
    raise ValueError("at first, a larger lambda should help everywhere")
valley = outcome[best[0]]
print("error in the valley, by lambda:", valley.round(3))
if not valley[0] < valley[-1]:
    raise ValueError("after training, a small lambda should be better")
