"""Derivatives of every function by every floating argument: against finite differences, of any order, without NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
import rltriton_jax
from helpers import (
    ASSOCIATIVE_SCAN,
    FLAGS,
    INTERPRET,
    ONE_EACH,
    ROWS,
    SCAN,
    TRITON,
    call,
    cast,
    close,
    each,
    each_implementation,
    equal,
    function_of,
    loss_of,
    numeric_gradient,
    rows_named,
    seeded,
    weights,
    with_marks,
    without,
)
from rltriton_jax import _windows

pytestmark = pytest.mark.usefixtures("x64")


def gradient_of(row, kwargs, implementation, names, loss=loss_of):
    """(gradient, traced): the jitted gradient of a weighted sum of outputs by the arguments `names`."""
    function, traced = function_of(row, kwargs, implementation)
    total = loss(function, weights(row.reference(kwargs)))

    @jax.jit
    def gradient(traced):
        return jax.grad(lambda by: total({**traced, **by}))({name: traced[name] for name in names})

    return gradient, traced


def numeric_loss(row):
    """The weighted sum of outputs by the reference."""

    def loss(kwargs):
        outputs = row.reference(kwargs)
        return sum(np.vdot(w, x) for w, x in zip(weights(outputs), outputs, strict=True))

    return loss


def cuts(kwargs):
    """Where a discount of 0 ends an episode: there the result jumps."""
    discount = np.asarray(kwargs.get("discount", 1.0))
    return (discount == 0) & (discount.ndim > 0)


def reads_more(row, kwargs, name):
    """Where the derivative by an argument needs a number that the result does not need."""
    value = np.asarray(kwargs[name])
    if name == "lambda_" and row.function in ("lambda_returns", "n_step_returns"):
        return value == 1
    return (value == 0) & (name == "coefficients")


def _first_order():
    layouts = ((2,), 0), ((2,), -1), ((2, 2), 1)
    for i, row in enumerate(ROWS):
        yield SCAN, row, layouts[i % 2]
        yield INTERPRET, row, layouts[(i + 1) % 2]
        if i % 8 == 0:
            yield ASSOCIATIVE_SCAN, row, layouts[2]
        yield TRITON, row, layouts[i % 3]


@pytest.mark.parametrize(
    "implementation, row, layout",
    [with_marks(x, row, layout, id=f"{row}-axis{layout[1]}") for x, row, layout in _first_order()],
)
def test_gradients_are_those_of_finite_differences(implementation, row, layout):
    kwargs = seeded(row, 5, *layout)
    names = row.differentiable(kwargs)
    gradient, traced = gradient_of(row, kwargs, implementation, names)
    got = gradient(traced)
    for name in names:
        assert got[name].shape == np.shape(kwargs[name])
        expected = numeric_gradient(numeric_loss(row), kwargs, name)
        if name == "discount":
            assert (np.asarray(got[name])[cuts(kwargs)] == 0).all()
            expected = np.where(cuts(kwargs), 0.0, expected)
        close(got[name], expected, 1e-7)
    poisoned = row.poison(traced | without(kwargs, *traced))
    dirty = gradient({name: poisoned[name] for name in traced})
    for name in names:
        unread, known = np.isnan(poisoned[name]), ~reads_more(row, kwargs, name)
        assert (np.asarray(dirty[name])[unread] == 0).all(), name
        equal(np.asarray(dirty[name])[known], np.asarray(got[name])[known])


@pytest.mark.parametrize("implementation", [SCAN, INTERPRET])
@each([row for row in ROWS if row.function == "n_step_returns"][::4])
def test_long_windows(implementation, row, monkeypatch):
    """They are cut out of scans; made to be so at every length, they have the values and the gradients."""
    monkeypatch.setattr(_windows, "UNROLLED", 0)
    kwargs = seeded(row, 5, (2,))
    close(call(row.function, kwargs, implementation), row.reference(kwargs))
    test_gradients_are_those_of_finite_differences(implementation, row, ((2,), 0))


@pytest.mark.parametrize(
    "implementation, row, layout",
    [
        with_marks(x, row, (131, 0) if i % 2 else (261, -1), id=str(row))
        for i, row in enumerate((*ONE_EACH, *rows_named("reset_starts", "features_skip")))
        for x in (INTERPRET, TRITON)
    ],
)
def test_kernels_carry_over_chunks(implementation, row, layout):
    """At lengths that take several chunks of the kernels, their gradients are those of plain JAX."""
    kwargs = seeded(row, layout[0], (2,), layout[1])
    names = row.differentiable(kwargs)
    expected, traced = gradient_of(row, kwargs, SCAN, names)
    gradient, _ = gradient_of(row, kwargs, implementation, names)
    got, want = gradient(traced), expected(traced)
    for name in names:
        close(got[name], want[name], 1e-9)


@each_implementation
@pytest.mark.parametrize("function", ["gae", "vtrace", "retrace"])
@pytest.mark.parametrize("output", [0, 1])
def test_one_output_alone(implementation, function, output):
    for row in (row for row in ROWS if str(row) in (f"{function}-skip_steps_exact", f"{function}-steps")):
        kwargs = seeded(row, 5, (2,))
        names = row.differentiable(kwargs)
        one = lambda f, weigh: loss_of(lambda x: f(x)[output : output + 1], weigh[output : output + 1])
        gradient, traced = gradient_of(row, kwargs, implementation, names, one)
        got = gradient(traced)

        def loss(kwargs, row=row):
            outputs = row.reference(kwargs)
            return np.vdot(weights(outputs)[output], outputs[output])

        for name in names:
            expected = np.where(cuts({name: kwargs[name]}), 0.0, numeric_gradient(loss, kwargs, name))
            close(got[name], expected, 1e-7)


def test_no_output_at_all():
    for row in ONE_EACH:
        function, traced = function_of(row, seeded(row), SCAN)
        names = row.differentiable(traced)
        loss = lambda by, f=function, args=traced: sum(
            0.0 * jnp.sum(jax.lax.stop_gradient(x)) for x in f({**args, **by})
        )
        for x in jax.tree.leaves(jax.grad(loss)({name: traced[name] for name in names})):
            equal(x, np.zeros(np.shape(x)))


@each_implementation
@pytest.mark.parametrize("ratios", ["log_rhos", "rhos"])
@pytest.mark.parametrize("function", ["vtrace", "retrace"])
def test_gradients_by_the_bounds_of_ratios(implementation, function, ratios):
    row = next(r for r in ROWS if r.function == function and r.variant == ("clips", "rhos_clips")[ratios == "rhos"])
    kwargs = seeded(row, 6, (2,))
    bounds = tuple(name for name in ("clip_rho", "clip_c", "clip_pg_rho") if name in kwargs)
    gradient, traced = gradient_of(row, kwargs, implementation, bounds)
    got = gradient(traced)
    for name in bounds:
        close(got[name], numeric_gradient(numeric_loss(row), kwargs, name), 1e-7)


# Higher orders


def bent(function, weigh):
    """A loss with second derivatives by every argument."""
    return lambda traced: sum(jnp.vdot(w, jnp.sin(x)) for w, x in zip(weigh, function(traced), strict=True))


SECOND_ORDER = rows_named(
    "steps", "skip_terminated", "skip_truncated", "reset_starts", "features_skip", "bootstrap_batch", "rhos", "clips",
    "initial_batch", "reverse_initial", "no_time", "steps_exact", "lambda_one", "discount_zero",
)  # fmt: skip


def _second_order():
    for i, row in enumerate(SECOND_ORDER):
        yield (SCAN, INTERPRET)[i % 2], row
        if i % 6 == 0:
            yield ASSOCIATIVE_SCAN, row
        yield TRITON, row


@pytest.mark.parametrize("implementation, row", [with_marks(x, row, id=str(row)) for x, row in _second_order()])
def test_second_order(implementation, row):
    kwargs = seeded(row, 4, (2,))
    names = row.differentiable(kwargs)
    gradient, traced = gradient_of(row, kwargs, implementation, names, bent)
    rng = np.random.default_rng(1)
    along = {name: rng.normal(size=np.shape(traced[name])) for name in names}
    if "discount" in names:
        along["discount"] = np.where(cuts(kwargs), 0.0, along["discount"])

    @jax.jit
    def slope(traced):
        return sum(jnp.vdot(along[name], x) for name, x in gradient(traced).items())

    @jax.jit
    def second(traced):
        return jax.grad(lambda by: slope({**traced, **by}))({name: traced[name] for name in names})

    got = second(traced)
    for name in names:
        step = 1e-5 * along[name]
        ends = [slope({**traced, name: traced[name] + sign * step}) for sign in (1, -1)]
        close(jnp.vdot(along[name], got[name]), (ends[0] - ends[1]) / 2e-5, 1e-6)
    poisoned = row.poison(traced | without(kwargs, *traced))
    dirty = second({name: poisoned[name] if np.ndim(traced[name]) else traced[name] for name in traced})
    if any(np.any(reads_more(row, kwargs, name)) for name in names):
        return
    for name in names:
        if np.ndim(traced[name]):
            equal(np.asarray(dirty[name])[np.isnan(poisoned[name])], 0)
        close(dirty[name], got[name])


@each_implementation
def test_third_order(implementation):
    row = next(row for row in ROWS if str(row) == "gae-terminated")
    kwargs = seeded(row, 4, ())
    function, traced = function_of(row, kwargs, implementation)
    loss = bent(function, weights(row.reference(kwargs)))
    by_discount = lambda g: loss({**traced, "discount": g})
    second, third = jax.jit(jax.grad(jax.grad(by_discount))), jax.jit(jax.grad(jax.grad(jax.grad(by_discount))))
    numeric = (second(0.9 + 1e-5) - second(0.9 - 1e-5)) / 2e-5
    close(third(0.9), numeric, 1e-6)


@each_implementation
@each([row for row in ONE_EACH if row.function in ("gae", "retrace", "eligibility_traces", "linear_recurrence")])
def test_forward_over_reverse(implementation, row):
    kwargs = seeded(row, 3, (2,))
    name = row.spec.data
    function, traced = function_of(row, kwargs, implementation)
    loss = bent(function, weights(row.reference(kwargs)))
    gradient = jax.grad(lambda x: loss({**traced, name: x}))
    forward = jax.jit(jax.jacfwd(gradient))(traced[name])
    close(forward, jax.jit(jax.jacrev(gradient))(traced[name]), 1e-9)
    n = traced[name].size
    close(forward.reshape(n, n), np.asarray(forward).reshape(n, n).T, 1e-9)


# Types and shapes


@each_implementation
@each(ONE_EACH)
def test_a_gradient_has_the_type_of_its_argument(implementation, row):
    kwargs = seeded(row, 6, (2,))
    types = dict(zip(row.spec.floating, [jnp.bfloat16, np.float16, np.float32, np.float64] * 3, strict=False))
    types[row.spec.data] = np.float32
    mixed = {k: np.asarray(v, types[k]) if k in types and v is not None else v for k, v in kwargs.items()}
    names = row.differentiable(mixed)
    gradient, traced = gradient_of(row, mixed, implementation, names)
    got = gradient(traced)
    for name in names:
        assert got[name].dtype == types[name]
        assert got[name].shape == mixed[name].shape
        expected = numeric_gradient(
            numeric_loss(row), {k: np.float64(v) if k in names else v for k, v in mixed.items()}, name
        )
        close(got[name], expected, max(1e-4, 2 * float(jnp.finfo(types[name]).eps)))


def test_python_numbers_have_gradients():
    f = lambda g, lam, last: jnp.sum(
        rltriton_jax.gae(jnp.ones(3), jnp.ones(3), discount=g, lambda_=lam, bootstrap_value=last).advantages
    )
    for x in jax.grad(f, argnums=(0, 1, 2))(0.9, 0.8, 1.0):
        assert x.shape == ()
        assert jnp.isfinite(x)


@each_implementation
@pytest.mark.parametrize("dtype", [bool, np.int32, np.uint8])
def test_flags_and_integers_have_no_gradient(implementation, dtype):
    for row in (row for row in ONE_EACH if row.options.flags):
        kwargs = cast(seeded(row), np.float32)
        kwargs = {k: np.asarray(v, dtype) if k in FLAGS else v for k, v in kwargs.items()}
        function, traced = function_of(row, kwargs, implementation)
        flags = {k: v for k, v in traced.items() if k in FLAGS}
        loss = lambda by, traced=traced, function=function: sum(map(jnp.sum, function({**traced, **by})))
        for x in jax.tree.leaves(jax.grad(loss, allow_int=True)(flags)):
            assert x.dtype == jax.dtypes.float0
        with pytest.raises(TypeError, match="grad requires"):
            jax.grad(loss)(flags)


@each_implementation
def test_flags_in_a_floating_type_have_gradient_zero(implementation):
    for row in (row for row in ONE_EACH if row.options.flags):
        kwargs = {k: np.asarray(v, np.float32) if k in FLAGS else v for k, v in seeded(row).items()}
        gradient, traced = gradient_of(row, kwargs, implementation, tuple(k for k in kwargs if k in FLAGS))
        for name, x in gradient(traced).items():
            assert x.dtype == np.float32
            equal(x, np.zeros(kwargs[name].shape))


@each_implementation
def test_integer_rewards_beside_what_is_differentiated(implementation):
    rewards, values = np.arange(4), np.ones(5)
    loss = lambda v, g: jnp.sum(
        rltriton_jax.gae(rewards, v, discount=g, lambda_=0.5, implementation=implementation).advantages
    )
    got = jax.grad(loss, argnums=(0, 1))(values, 0.9)
    same = jax.grad(
        lambda v, g: jnp.sum(rltriton_jax.gae(rewards * 1.0, v, discount=g, lambda_=0.5).advantages), argnums=(0, 1)
    )(values, 0.9)
    close(got, same)


@each_implementation
@each(ONE_EACH)
@pytest.mark.parametrize("T, batch_shape", [(0, (2,)), (3, (0,))], ids=str)
def test_gradients_of_nothing(implementation, row, T, batch_shape):
    kwargs = seeded(row, T, batch_shape)
    function, traced = function_of(row, kwargs, implementation)
    names = row.differentiable(kwargs)
    loss = lambda by: sum(map(jnp.sum, function({**traced, **by})))
    for name, x in jax.grad(loss)({name: traced[name] for name in names}).items():
        equal(x, np.zeros(np.shape(traced[name])))


# What gradients are good for


@each_implementation
@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_is_the_reverse_recurrence(implementation, reverse):
    rng = np.random.default_rng(0)
    a, b, start, w = rng.normal(size=(9, 2)), rng.normal(size=(9, 2)), rng.normal(size=2), rng.normal(size=(9, 2))
    run = lambda a, b, start: rltriton_jax.linear_recurrence(
        a, b, start, reverse=reverse, implementation=implementation
    )
    x, pull = jax.vjp(run, a, b, start)
    by_a, by_b, by_start = pull(jnp.asarray(w))
    if reverse:
        shifted, carries, first = np.roll(a, 1, 0), np.concatenate([x[1:], start[None]]), -1
    else:
        shifted, carries, first = np.roll(a, -1, 0), np.concatenate([start[None], x[:-1]]), 0
    expected = reference.linear_recurrence(shifted, w, reverse=not reverse)
    close((by_b, by_a, by_start), (expected, expected * carries, expected[first] * a[first]))


def test_gradients_flow_through_values_unless_the_caller_stops_them():
    rewards, values = jnp.ones(4), jnp.arange(5.0)
    loss = lambda v: jnp.sum(rltriton_jax.gae(rewards, v, discount=0.9, lambda_=0.5).targets)
    assert np.all(np.asarray(jax.grad(loss)(values))[1:] != 0)
    stopped = jax.grad(lambda v: loss(jax.lax.stop_gradient(v)) + jnp.sum(v))(values)
    equal(stopped, np.ones(5))


@each_implementation
def test_learning_discount_and_lambda_through_an_inner_update(implementation):
    rng = np.random.default_rng(0)
    features, rewards = jnp.asarray(rng.normal(size=(9, 3, 4))), jnp.asarray(rng.normal(size=(8, 3)))
    terminated = jnp.asarray(rng.random((8, 3)) < 0.2)
    goal = jnp.asarray(reference.discounted_returns(rewards, discount=0.9, terminated=terminated))

    def inner_loss(theta, eta):
        discount, lambda_ = jax.nn.sigmoid(eta)
        values = features @ theta
        out = rltriton_jax.gae(
            rewards, values, discount=discount, lambda_=lambda_, terminated=terminated, implementation=implementation
        )
        policy = jnp.sum(jnp.tanh(values[:-1]) * out.advantages)
        residual = jnp.mean((out.targets - values[:-1]) ** 2)  # values have a gradient through the targets too
        return residual + 0.01 * policy

    def outer_loss(eta, theta):
        for _ in range(2):
            theta = theta - 0.1 * jax.grad(inner_loss)(theta, eta)
        return jnp.mean((features[:-1] @ theta - goal) ** 2)

    theta, eta = jnp.asarray(rng.normal(size=4)), jnp.array([0.5, 0.0])
    outer, meta = jax.jit(outer_loss), jax.jit(jax.value_and_grad(outer_loss))
    for i in range(2):
        step = jnp.zeros(2).at[i].set(1e-5)
        numeric = (outer(eta + step, theta) - outer(eta - step, theta)) / 2e-5
        close(meta(eta, theta)[1][i], numeric, 1e-6)
    losses = []
    for _ in range(15):
        loss, slope = meta(eta, theta)
        losses.append(float(loss))
        eta = eta - 0.2 * slope
    assert losses[-1] < losses[0]
    assert all(b <= a + 1e-9 for a, b in zip(losses, losses[1:], strict=False))


@each_implementation
def test_a_weight_of_what_does_not_follow_is_not_read(implementation):
    """At the end of an episode or of the window a ratio without bounds may be infinite, a lambda or a discount NaN."""
    how = {"implementation": implementation}
    x, v, ended, nan = jnp.ones(3), jnp.arange(4.0), jnp.array([0, 1, 0]), jnp.nan

    def vtrace(ratio, lambda_, discount, name):
        by = {name: ratio, "lambda_": lambda_, "discount": discount, "clip_c": None, "terminated": ended}
        return rltriton_jax.vtrace(x, v, **by, **how).targets.sum()

    for name, one, much in (("rhos", 1.0, jnp.inf), ("log_rhos", 0.0, 1000.0)):
        value = vtrace(jnp.full(3, one), 0.9, 0.5, name)
        weight = jnp.array([one, much, much])
        close(vtrace(weight, 0.9, 0.5, name), value)
        got = jax.grad(vtrace, (0, 1, 2))(weight, 0.9, 0.5, name)
        expected = jax.grad(vtrace, (0, 1, 2))(jnp.full(3, one), 0.9, 0.5, name)
        close(got[1:], expected[1:])
        assert np.isfinite(got[0]).all()
    traces = lambda discount, lambda_: rltriton_jax.eligibility_traces(
        x, discount=discount, lambda_=lambda_, mask=jnp.array([1, 1, 0]), mask_mode="reset", **how
    ).sum()  # fmt: skip
    for got in jax.grad(traces, (0, 1))(*2 * [jnp.array([0.5, nan, nan])]):
        close(got, [0.5, 0.0, 0.0])
    values = jnp.array([nan, nan, nan, 3.0, 4.0, 5.0])
    windows = lambda discount: rltriton_jax.n_step_returns(jnp.ones(5), values, n=3, discount=discount, **how).sum()
    close(jax.grad(windows)(0.5), 26.0)
    returns = lambda discount: rltriton_jax.discounted_returns(
        x, discount=discount, terminated=ended, next_values=x, **how
    )
    close(returns(jnp.array([0.5, nan, 0.5])), [1.5, 1.0, 1.0])
    close(jax.grad(lambda d: returns(d).sum())(jnp.array([0.5, nan, 0.5])), [1.0, 0.0, 0.0])


@each_implementation
def test_a_trace_behind_a_masked_step_is_not_read(implementation):
    x, how = jnp.ones(4), {"mask": jnp.array([1, 0, 1, 1]), "mask_mode": "reset", "implementation": implementation}

    def f(ratio, lambda_, name):
        out = rltriton_jax.retrace(
            x, x, next_expected_q=2 * x, discount=0.5, lambda_=lambda_, clip_c=None, **{name: ratio}, **how
        )
        return (out.targets + out.advantages).sum()

    for name, one, much in (("rhos", 1.0, jnp.inf), ("log_rhos", 0.0, 1000.0)):
        ones, weights = jnp.full(4, one), jnp.full(4, 0.5)
        expected = jax.grad(f, (0, 1))(ones, weights, name)
        by_ratio, by_weight = jax.grad(f, (0, 1))(ones, weights.at[2].set(jnp.nan), name)
        close((by_ratio, by_weight), expected)
        close(by_weight[2], 0.0)
        close(jax.grad(f, 1)(ones.at[2].set(much), weights, name)[2], 0.0)


@each_implementation
def test_a_sum_past_the_range_of_float16_that_nothing_reads(implementation):
    f = lambda discount: rltriton_jax.discounted_returns(
        jnp.full(4, 30000, jnp.float16), discount=discount, implementation=implementation
    )[3]
    close(jax.grad(lambda d: f(d).astype(jnp.float32))(jnp.ones(4)), np.zeros(4))
