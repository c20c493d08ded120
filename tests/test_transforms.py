"""Every function under every transformation of JAX: the same numbers, the same programs, nothing traced twice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval

import rltriton_jax
from helpers import (
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
    function_of,
    loss_of,
    rows_named,
    seeded,
    split,
    weights,
    with_marks,
)
from rltriton_jax import _solve
from table import as_tuple

SMALL = {"T": 6, "batch_shape": (2,)}


def small(row, **shape):
    return cast(seeded(row, **{**SMALL, **shape}), np.float32)


def floating(row, traced):
    return {name: jnp.asarray(traced[name]) for name in row.differentiable(traced)}


def gae_of(implementation=None, **fixed):
    """The advantages of GAE, by positional arguments."""
    return lambda rewards, values, discount=0.9, lambda_=0.8: (
        rltriton_jax.gae(
            rewards, values, discount=discount, lambda_=lambda_, implementation=implementation, **fixed
        ).advantages
    )


def numbers(T=6, *batch, seed=0):
    rng = np.random.default_rng(seed)
    return (jnp.asarray(rng.normal(size=(n, *batch)), jnp.float32) for n in (T, T + 1))


# jit


@each_implementation
@each(ONE_EACH)
def test_jit_is_eager(implementation, row):
    kwargs = small(row)
    function, traced = function_of(row, kwargs, implementation)
    close(jax.jit(function)(traced), call(row.function, kwargs, implementation))
    with jax.disable_jit():
        close(function(traced), row.reference(kwargs))


@each_implementation
def test_outputs_are_named_tuples_through_transformations(implementation):
    rewards, values = numbers()
    run = functools.partial(rltriton_jax.gae, discount=0.9, lambda_=0.8, implementation=implementation)
    for out in (jax.jit(run)(rewards, values), jax.tree.map(lambda x: x + 0, run(rewards, values))):
        assert type(out) is rltriton_jax.GAE
        assert out._fields == ("advantages", "targets")
    shapes = jax.eval_shape(run, jax.ShapeDtypeStruct((4, 2), jnp.bfloat16), jax.ShapeDtypeStruct((5, 2), jnp.float32))
    assert [(x.shape, x.dtype) for x in shapes] == [((4, 2), jnp.float32)] * 2


# vmap


@pytest.mark.parametrize(
    "implementation, row, seed",
    [
        with_marks(x, row, seed, id=f"{row}-{seed}")
        for i, row in enumerate(rows_named(*{r.variant for r in ONE_EACH}, "no_time", "rhos_clips", "features_reset"))
        for x, seed in ((SCAN, 2 * i), (INTERPRET, 2 * i + 1), (TRITON, 2 * i))
    ],
)
def test_vmap_over_any_axis_of_any_arguments(implementation, row, seed):
    rng = np.random.default_rng(seed)
    variants = [cast(seeded(row, 5, (2,), seed=k), np.float32) for k in range(3)]
    function, traced = function_of(row, variants[0], implementation)
    names = [name for name in traced if rng.random() < 0.5] or [row.spec.data]
    axes = {name: int(rng.integers(np.ndim(traced[name]) + 1)) if name in names else None for name in traced}
    stacked = {
        name: value if axes[name] is None else np.stack([v[name] for v in variants], axes[name])
        for name, value in traced.items()
    }
    out_axis = int(rng.integers(-1, 3))
    got = jax.jit(jax.vmap(function, in_axes=(axes,), out_axes=out_axis))(stacked)
    for k, variant in enumerate(variants):
        alone = {**variants[0], **{name: variant[name] for name in names}}
        close(tuple(np.moveaxis(x, out_axis, 0)[k] for x in got), call(row.function, alone, implementation))
        close(tuple(np.moveaxis(x, out_axis, 0)[k] for x in got), row.reference(alone))


@each_implementation
@each([row for row in ONE_EACH if row.spec.discount])
def test_vmap_over_numbers(implementation, row):
    kwargs = small(row)
    function, traced = function_of(row, kwargs, implementation)
    discounts = np.array([0.0, 0.5, -0.9, 1.0], np.float32)
    by_discount = lambda g: function({**traced, "discount": g})
    for k, out in enumerate(zip(*jax.vmap(by_discount)(discounts), strict=True)):
        close(out, row.reference({**kwargs, "discount": float(discounts[k])}))
    if not row.spec.lambda_:
        return
    lambdas = np.array([0.0, 0.7, 1.0], np.float32)
    by_both = lambda g, lam: function({**traced, "discount": g, "lambda_": lam})
    grid = jax.vmap(jax.vmap(by_both, (None, 0)), (0, None))(discounts, lambdas)
    for i, j in np.ndindex(4, 3):
        expected = row.reference({**kwargs, "discount": float(discounts[i]), "lambda_": float(lambdas[j])})
        close(tuple(x[i, j] for x in grid), expected)


@each_implementation
def test_vmap_over_the_bounds_of_ratios(implementation):
    row = next(row for row in ROWS if str(row) == "vtrace-clip_pg_rho")
    kwargs = small(row)
    bounds = np.array([0.5, 1.0, np.inf], np.float32)
    function, traced = function_of(row, {**kwargs, "clip_c": 1.0}, implementation)
    for name in ("clip_rho", "clip_c", "clip_pg_rho"):
        got = jax.vmap(lambda bound, name=name: function({**traced, name: bound}))(bounds)
        for k, bound in enumerate(bounds):
            close(tuple(x[k] for x in got), row.reference({**kwargs, "clip_c": 1.0, name: bound}))


@each_implementation
def test_nested_vmap(implementation):
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(4, 3, 6, 2)), rng.normal(size=(7, 3, 4, 2))
    rewards, values = rewards.astype(np.float32), values.astype(np.float32)
    lambdas = np.array([0.0, 0.5, 0.9], np.float32)
    run = gae_of(implementation)
    per_lambda = jax.vmap(run, (0, 1, None, 0), out_axes=-1)
    got = jax.jit(jax.vmap(per_lambda, (0, 2, None, None)))(rewards, values, 0.9, lambdas)
    assert got.shape == (4, 6, 2, 3)
    for i, j in np.ndindex(4, 3):
        close(got[i, :, :, j], run(rewards[i, j], values[:, j, i], 0.9, lambdas[j]))


@each_implementation
def test_vmap_over_an_empty_axis_and_with_a_name(implementation):
    run = gae_of(implementation)
    assert jax.vmap(run)(jnp.zeros((0, 5)), jnp.zeros((0, 6))).shape == (0, 5)
    rewards, values = numbers(5, 3)
    mean = jax.vmap(lambda r, v: jax.lax.pmean(run(r, v), "env"), 1, axis_name="env")(rewards, values)
    close(mean[0], np.mean(run(rewards, values), axis=1))


@each_implementation
@each([row for row in ONE_EACH if row.function in ("gae", "vtrace", "discounted_returns", "eligibility_traces")])
def test_vmap_of_grad_and_grad_of_vmap(implementation, row):
    variants = [small(row, seed=k) for k in range(3)]
    function, traced = function_of(row, variants[0], implementation)
    loss = loss_of(function, weights(row.reference(variants[0])))
    names = row.differentiable(traced)
    stacked = {name: np.stack([v[name] for v in variants]) for name in traced}
    by = {name: jnp.asarray(stacked[name], jnp.float32) for name in names}
    each_gradient = jax.vmap(lambda by, rest: jax.grad(lambda by: loss({**rest, **by}))(by))
    of_sum = jax.grad(lambda by: jnp.sum(jax.vmap(loss)({**stacked, **by})))
    first, second = jax.jit(each_gradient)(by, stacked), jax.jit(of_sum)(by)
    for k in range(3):
        alone = {name: x[k] for name, x in stacked.items()}
        expected = jax.grad(lambda by, alone=alone: loss({**alone, **by}))({name: x[k] for name, x in by.items()})
        for name in names:
            close(first[name][k], expected[name], 1e-4)
            close(second[name][k], expected[name], 1e-4)
    shared = jax.jit(jax.grad(lambda g: jnp.sum(jax.vmap(lambda rest: loss({**rest, "discount": g}))(stacked))))(0.9)
    one_by_one = [
        jax.grad(lambda g, k=k: loss({n: x[k] for n, x in stacked.items()} | {"discount": g}))(0.9) for k in range(3)
    ]
    close(shared, sum(one_by_one), 1e-4)


# Control flow


@each_implementation
def test_inside_control_flow(implementation):
    rewards, values = numbers(5, 3)
    run = gae_of(implementation)
    once = run(rewards, values)

    def body(carry, step):
        out = run(rewards * step, values + carry)
        return carry + jnp.mean(out), out

    steps = jnp.arange(3.0)
    total, outs = jax.jit(lambda: jax.lax.scan(body, 0.0, steps))()
    expected, carry = [], 0.0
    for step in range(3):
        expected.append(run(rewards * step, values + carry))
        carry = carry + jnp.mean(expected[-1])
    close(outs, jnp.stack(expected))
    close(total, carry)

    def looped(x):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, run(s[1], values)), (0, x))[1]

    close(jax.jit(looped)(rewards), run(run(run(rewards, values), values), values))
    chosen = jax.jit(lambda p: jax.lax.cond(p, lambda: run(rewards, values), lambda: rewards))
    close(chosen(True), once)
    close(chosen(False), rewards)
    close(jax.lax.map(lambda r: run(r, values[:, 0]), rewards.T).T, run(rewards, jnp.tile(values[:, :1], 3)))


@each_implementation
def test_gradients_through_control_flow_and_remat(implementation):
    rewards, values = numbers(5, 3)
    run = gae_of(implementation)

    def update(carry, wrap):
        body = wrap(lambda c, step: (c + jnp.mean(jnp.sin(run(rewards * step, values * c))), None))
        return jax.lax.scan(body, carry, jnp.arange(1.0, 3.0))[0]

    plain = lambda c: functools.reduce(
        lambda c, step: c + jnp.mean(jnp.sin(run(rewards * step, values * c))), (1.0, 2.0), c
    )
    expected = jax.jit(jax.grad(plain))(0.5)
    for wrap in (
        lambda f: f,
        jax.checkpoint,
        functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable),
        functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    ):
        close(jax.jit(jax.grad(lambda c, wrap=wrap: update(c, wrap)))(0.5), expected, 1e-5)
    chosen = jax.grad(lambda c, p: jax.lax.cond(p, plain, lambda c: c, c))
    close(chosen(0.5, True), expected, 1e-5)


# Forward mode


@pytest.mark.parametrize(
    "implementation, row",
    [
        with_marks(x, row, id=str(row))
        for i, row in enumerate(
            rows_named(
                "steps", "skip_terminated", "reset_starts", "truncated", "bootstrap_batch", "initial_batch", "zeros"
            )
        )
        for x in ((SCAN, INTERPRET)[i % 2], TRITON)
    ],
)
def test_forward_mode_agrees_with_reverse_mode(x64, implementation, row):
    kwargs = seeded(row, 5, (2,))
    function, traced = function_of(row, kwargs, implementation)
    by = floating(row, traced)
    along = {name: jnp.asarray(x) for name, x in zip(by, weights(by.values(), 3), strict=True)}
    weigh = tuple(map(jnp.asarray, weights(row.reference(kwargs))))

    @jax.jit
    def both(by):
        run = lambda by: function({**traced, **by})
        outs, tangents = jax.jvp(run, (by,), (along,))
        return outs, tangents, jax.vjp(run, by)[1](weigh)[0]

    outs, tangents, pulled = both(by)
    close(outs, row.reference(kwargs))
    forward = sum(float(np.vdot(w, x)) for w, x in zip(weigh, tangents, strict=True))
    close(forward, sum(float(np.vdot(pulled[name], along[name])) for name in by))


@each_implementation
def test_jacobians_and_linearize(x64, implementation):
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=4), rng.normal(size=5)
    run = lambda v: gae_of(implementation)(rewards, v)
    forward = jax.jacfwd(run)(values)
    close(forward, jax.jacrev(run)(values))
    out, push = jax.linearize(run, values)
    close(out, run(values))
    close(push(jnp.ones(5)), forward @ np.ones(5))
    close(jax.linear_transpose(push, values)(jnp.ones(4))[0], np.ones(4) @ forward)


# One program


def walks(f, *args):
    """How many scans of ours a function runs."""

    def count(jaxpr):
        total = 0
        for eqn in jaxpr.eqns:
            total += eqn.primitive.name == "rltriton_walk"
            for sub in jax.tree.leaves(
                list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")
            ):
                sub = getattr(sub, "jaxpr", sub)
                total += count(sub) if hasattr(sub, "eqns") else 0
        return total

    return count(jax.make_jaxpr(f)(*args).jaxpr)


@each([row for row in ROWS if row.function != "n_step_returns"])
def test_one_scan_forward_and_one_backward(row):
    kwargs = small(row)
    function, traced = function_of(row, kwargs, None)
    loss = loss_of(function, weights(row.reference(kwargs)))
    by = floating(row, traced)
    assert walks(function, traced) == 1
    assert walks(jax.value_and_grad(lambda by: loss({**traced, **by})), by) == 2
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), by)
    assert walks(jax.vmap(lambda by: function({**traced, **by})), stacked) == 1
    assert walks(jax.vmap(jax.value_and_grad(lambda by: loss({**traced, **by}))), stacked) == 2


@each([row for row in ONE_EACH if row.function in ("gae", "vtrace", "retrace")])
@each_implementation
@pytest.mark.parametrize("number", [0, 1])
def test_an_output_that_nobody_uses_is_not_computed(number, implementation, row, x64):
    kwargs = seeded(row)
    function, traced = function_of(row, kwargs, implementation)
    expected, by = row.reference(kwargs)[number], floating(row, traced)
    one = lambda by: function({**traced, **by})[number]
    close(jax.jit(one)(by), expected)
    closed = jax.make_jaxpr(one)(by)
    rest, used = partial_eval.dce_jaxpr(closed.jaxpr, [True], instantiate=True)
    (walk,) = (eqn for eqn in rest.eqns if eqn.primitive.name == "rltriton_walk")
    assert all(used) and len(walk.outvars) == 1 and walk.params["walk"].shown == (number,)
    # it batches and differentiates as before
    left = lambda by: jaxpr_as_fun(ClosedJaxpr(rest, closed.consts))(*jax.tree.leaves(by))[0]
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), by)
    close(jax.vmap(left)(stacked)[1], expected)
    loss = lambda f: jax.grad(lambda by: jnp.sum(f(by) ** 2))
    jax.tree.map(close, loss(left)(by), loss(one)(by))
    jax.tree.map(close, jax.jvp(left, (by,), (by,)), jax.jvp(one, (by,), (by,)))


def test_the_cost_of_n_steps_does_not_grow_with_n():
    rewards, values = numbers(40)
    run = lambda n: walks(lambda r: rltriton_jax.n_step_returns(r, values, n=n, discount=0.9), rewards)
    assert run(1) == run(40) == run(1000) == 1
    assert run(2) == run(17) == 0 and run(18) == run(39) <= 5  # short windows are pointwise


@each_implementation
def test_new_numbers_do_not_trace_again(implementation):
    rewards, values = numbers(5, 2)
    traces = 0

    @jax.jit
    def update(rewards, values, discount, lambda_):
        nonlocal traces
        traces += 1
        return jax.value_and_grad(lambda v: jnp.sum(gae_of(implementation)(rewards, v, discount, lambda_)))(values)

    for discount, lambda_ in ((0.9, 0.8), (0.0, 1.0), (1.0, 0.0)):
        update(rewards, values, discount, lambda_)
    assert traces == 1


@each_implementation
def test_new_numbers_do_not_compile_again_outside_of_jit(implementation):
    rewards, values = numbers(5, 2)
    run = gae_of(implementation, terminated=jnp.zeros((5, 2), bool))
    run(rewards, values, 0.9, 0.8)
    size = _solve._compiled._cache_size()
    for discount, lambda_ in ((0.5, 0.8), (0.0, 1.0), (1.0, 0.0)):
        run(rewards, values, discount, lambda_)
    assert _solve._compiled._cache_size() == size


def test_donated_inputs():
    kwargs = {"discount": 0.9, "lambda_": 0.8, "time_axis": 1}
    rewards, values = jnp.ones((3, 5)), jnp.ones((3, 5))
    run = lambda r, v: rltriton_jax.gae(r, v, bootstrap_value=1.0, **kwargs)
    expected = jax.jit(run)(rewards, values)
    close(jax.jit(run, donate_argnums=(0, 1))(rewards, values), expected)
    assert rewards.is_deleted()


# Settings


@pytest.mark.parametrize("implementation", [SCAN, "associative_scan", INTERPRET])
@each(ONE_EACH)
def test_no_implicit_promotion(implementation, row):
    mixed = {
        **cast(seeded(row, **SMALL), jnp.bfloat16),
        row.spec.data: seeded(row, **SMALL)[row.spec.data].astype(np.float32),
    }
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for kwargs in (small(row), cast(seeded(row, **SMALL), jnp.float16), mixed):
            function, traced = function_of(row, kwargs, implementation)
            traced = {name: jnp.asarray(value) for name, value in traced.items()}
            by = {name: traced[name] for name in row.differentiable(traced)}
            loss = lambda by, function=function, traced=traced: sum(
                jnp.sum(x.astype(jnp.float32)) for x in function({**traced, **by})
            )
            jax.jit(jax.value_and_grad(loss)).lower(by)
            stacked = jax.tree.map(lambda x: jnp.stack([x, x]), by)
            jax.jit(jax.vmap(lambda by, f=function, t=traced: f({**t, **by}))).lower(stacked)


@each(ROWS)
def test_no_implicit_promotion_in_any_row(row):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        function, traced = function_of(row, small(row), SCAN)
        jax.jit(function).lower(traced)
        call(row.function, small(row, T=2), SCAN) if row in ONE_EACH else None


def test_second_derivatives_without_implicit_promotion():
    rewards, values = numbers(5, 2)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        loss = lambda v: jnp.sum(jnp.sin(gae_of(SCAN)(rewards, v)))
        slope = lambda v: jnp.sum(jnp.sin(jax.grad(loss)(v)))
        jax.jit(jax.grad(slope)).lower(values)


@each_implementation
@each(ONE_EACH)
def test_nothing_that_a_nan_check_would_stop(implementation, row):
    kwargs = small(row)
    function, traced = function_of(row, kwargs, implementation)
    loss = loss_of(function, weights(row.reference(kwargs)))
    with jax.debug_nans(True), jax.debug_infs(True):
        close(function(traced), row.reference(kwargs))
        jax.grad(lambda by: loss({**traced, **by}))(floating(row, traced))


@each_implementation
def test_64_bits_on_and_off_by_turns(implementation):
    rewards, values = np.ones(4), np.ones(5)
    run = lambda: rltriton_jax.gae(rewards, values, discount=0.9, lambda_=0.8, implementation=implementation)
    expected = rltriton_jax.gae(rewards, values, discount=0.9, lambda_=0.8)
    for on in (False, True, False, True):
        with jax.enable_x64(on):
            got = run()
            assert all(x.dtype == (np.float64 if on else np.float32) for x in got)
            close(tuple(map(np.asarray, got)), tuple(map(np.asarray, expected)), 1e-6)


@each_implementation
def test_64_bits_on_where_it_was_compiled_and_off_where_it_runs(implementation):
    with jax.enable_x64(True):
        rewards, values = jnp.ones(4), jnp.linspace(0, 1, 5)
        run = jax.jit(lambda *x: rltriton_jax.gae(*x, discount=0.9, lambda_=0.8, implementation=implementation))
        expected = tuple(map(np.asarray, run(rewards, values)))
        compiled = run.lower(rewards, values).compile()
    got = compiled(rewards, values)  # as a callback in a thread of the runtime's own has it
    assert all(x.dtype == np.float64 for x in got)
    close(tuple(map(np.asarray, got)), expected, 1e-15)


# Export


@pytest.mark.parametrize("implementation", [None, SCAN, "associative_scan"])
@each(ONE_EACH)
def test_export(implementation, row):
    kwargs = small(row)
    function, traced = function_of(row, kwargs, implementation)
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(traced)
    again = jax.export.deserialize(exported.serialize())
    assert again.platforms == ("cpu",)
    if jax.default_backend() == "cpu":
        close(again.call(traced), row.reference(kwargs))


def test_export_with_a_gradient():
    row = next(row for row in ONE_EACH if row.function == "gae")
    kwargs = small(row)
    function, traced = function_of(row, kwargs, None)
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(traced)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    weigh = weights(row.reference(kwargs))
    by = {name: x for name, x in floating(row, traced).items()}
    if jax.default_backend() == "cpu":
        got = jax.grad(lambda by: loss_of(again.call, weigh)({**traced, **by}))(by)
        expected = jax.grad(lambda by: loss_of(function, weigh)({**traced, **by}))(by)
        close(tuple(got.values()), tuple(expected.values()))


@pytest.mark.parametrize("implementation", [SCAN, "associative_scan"])
@each(ONE_EACH)
def test_export_for_a_batch_of_any_size(implementation, row):
    (batch,) = jax.export.symbolic_shape("batch")
    kwargs = small(row, batch_shape=(5,))
    traced, rest = split(kwargs)
    public = functools.partial(getattr(rltriton_jax, row.function), **rest, implementation=implementation)
    any_size = lambda x: jax.ShapeDtypeStruct([batch if n == 5 else n for n in x.shape], x.dtype)
    shapes = {name: any_size(x) if np.ndim(x) else x for name, x in traced.items()}
    exported = jax.export.export(jax.jit(lambda traced: public(**traced)), platforms=["cpu"])(shapes)
    again = jax.export.deserialize(exported.serialize())
    if jax.default_backend() == "cpu":
        got = again.call(traced)
        assert type(got) is type(public(**traced))
        close(as_tuple(got), row.reference(kwargs))


# A training step


@each_implementation
def test_a_jitted_update_of_many_agents(implementation):
    """PPO's core: agents with hyperparameters of their own, minibatches in a scan, gradients through values."""
    rng = np.random.default_rng(0)
    agents, T, B, D = 2, 6, 4, 3
    features = jnp.asarray(rng.normal(size=(agents, T + 1, B, D)), jnp.float32)
    rewards = jnp.asarray(rng.normal(size=(agents, T, B)), jnp.float32)
    terminated = jnp.asarray(rng.random((agents, T, B)) < 0.2)

    def train(features, rewards, terminated, discount, theta):
        def loss(theta, features):
            values = features @ theta
            out = rltriton_jax.gae(
                rewards, values, discount=discount, lambda_=0.9, terminated=terminated, implementation=implementation
            )
            return jnp.mean((values[:-1] - out.targets) ** 2)

        def epoch(theta, _):
            value, slope = jax.value_and_grad(loss)(theta, features)
            return theta - 0.1 * slope, value

        return jax.lax.scan(epoch, theta, None, length=20)

    discounts = jnp.array([0.9, 0.5])
    theta, losses = jax.jit(jax.vmap(train, (0, 0, 0, 0, None)))(features, rewards, terminated, discounts, jnp.zeros(D))
    assert np.all(np.asarray(losses)[:, -1] < np.asarray(losses)[:, 0])
    for k in range(agents):
        alone, _ = train(features[k], rewards[k], terminated[k], discounts[k], jnp.zeros(D))
        close(theta[k], alone, 1e-4)


def test_functions_have_no_state():
    rewards, values = numbers(5, 2)
    first = gae_of()(rewards, values)
    with pytest.raises(ValueError, match="gae"):
        gae_of()(rewards, values[:3])
    close(gae_of()(rewards, values), first)
    assert len(as_tuple(rltriton_jax.gae(rewards, values, discount=0.9, lambda_=0.8))) == 2
