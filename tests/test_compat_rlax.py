"""compat.rlax against rlax where it is installed, by value, gradient and its own tests, and against float64 loops."""

import functools
import importlib
import inspect
import re
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from compat_inputs import (
    MULTISTEP,
    NONLINEAR,
    RLAX,
    VALUE_LEARNING,
    VTRACE,
    B,
    T,
    by_form,
    one_trajectory,
    rlax_arguments,
    rlax_function,
    split_static,
)
from helpers import close
from rltriton_jax import compat

OWN_TESTS = {  # what rlax's wheel ships, by module: the names to replace, and the test cases to run on them
    "multistep": (
        MULTISTEP,
        (
            "LambdaReturnsTest",
            "DiscountedReturnsTest",
            "NStepBootstrappedReturnsTest",
            "TDErrorTest",
            "TruncatedGeneralizedAdvantageEstimationTest",
        ),
    ),
    "vtrace": (VTRACE, ("VTraceTest",)),
    "value_learning": (
        VALUE_LEARNING,
        ("TDLambdaTest", "SarsaLambdaTest", "QLambdaTest", "RetraceTest", "RetraceContinuousTest"),
    ),
    "nonlinear_bellman": (
        NONLINEAR,
        ("TransformedQLambdaTest", "TransformedNStepQLearningTest", "TransformedRetraceTest"),
    ),
}


def leaves_close(got, expected, tolerance):
    close(tuple(jax.tree.leaves(got)), tuple(jax.tree.leaves(expected)), tolerance)


@pytest.mark.parametrize("name", RLAX)
def test_rlax_signature(name):
    theirs, ours = (inspect.signature(f).parameters for f in (rlax_function(name), getattr(compat.rlax, name)))
    if "tx_pair" not in theirs and name in NONLINEAR:  # the signature of what a decorator took, less its own argument
        ours = dict(list(ours.items())[1:])
    assert list(ours) == list(theirs)
    for p in ours:
        if p != "tx_pair":
            assert ours[p].default == theirs[p].default


@pytest.mark.parametrize("name", RLAX)
def test_rlax_values(name, x64):
    """One trajectory plain and jitted, and a batch of them through vmap over axis 1."""
    theirs, ours = rlax_function(name), getattr(compat.rlax, name)
    tolerance = 1e-6 if name in NONLINEAR else 1e-10
    for variant, forms in ({}, ("plain", "vmap")), ({"per_step": True, "masked": True}, ("jit", "vmap")):
        kwargs = rlax_arguments(name, **variant)
        expected = by_form("vmap", theirs, kwargs)
        for form in forms:
            leaves_close(by_form(form, ours, kwargs), expected, tolerance)


@pytest.mark.parametrize("name", (*MULTISTEP, *VTRACE, *VALUE_LEARNING))
def test_rlax_values_in_float32(name):
    kwargs = rlax_arguments(name)
    got = by_form("vmap", getattr(compat.rlax, name), kwargs)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(got))
    leaves_close(got, by_form("vmap", rlax_function(name), kwargs), None)


@pytest.mark.parametrize("name", RLAX)
def test_rlax_gradients(name, x64):
    """With the default of stop_target_gradients, and with a flag that is traced and the other of the two."""
    ours, theirs = getattr(compat.rlax, name), rlax_function(name)
    kwargs = rlax_arguments(name, masked=True, zeros=False)
    static, traced = split_static(kwargs)
    wanted = {k: jnp.asarray(v) for k, v in traced.items() if np.asarray(v).dtype.kind == "f"}
    axes = {k: None if np.ndim(v) == 0 else 1 for k, v in traced.items()}

    def loss(wanted, function, stopping):
        outs = jax.vmap(lambda traced: function(**static, **stopping, **traced), (axes,), 1)({**traced, **wanted})
        weigh = lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape)
        return sum(jnp.vdot(weigh(x), x) for x in jax.tree.leaves(outs))

    gradient = lambda function, **stopping: jax.grad(loss)(wanted, function, stopping)
    other = not inspect.signature(ours).parameters["stop_target_gradients"].default
    for flags in {}, {"stop_target_gradients": other}:
        expected = gradient(theirs, **flags)
        for got in gradient(ours, **flags), *([jax.jit(functools.partial(gradient, ours))(**flags)] if flags else []):
            for k in wanted:
                close(got[k], expected[k], 1e-5 if name in NONLINEAR else 1e-9)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("module, case", [(m, case) for m, (_, cases) in OWN_TESTS.items() for case in cases])
def test_rlax_own_tests(module, case, monkeypatch):
    """rlax's test cases (plain, jitted, mapped over batches), their functions replaced by ours."""
    pytest.importorskip("rlax")
    tests = pytest.importorskip(f"rlax._src.{module}_test")
    calls = []

    def counted(function):
        return functools.wraps(function)(lambda *args, **kwargs: calls.append(1) or function(*args, **kwargs))

    for name, (names, _) in OWN_TESTS.items():
        patched = importlib.import_module(f"rlax._src.{name}")
        for function in names:
            monkeypatch.setattr(patched, function, counted(getattr(compat.rlax, function)))
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(getattr(tests, case)).run(result)
    assert result.testsRun and calls
    assert not [trace for _, trace in (*result.failures, *result.errors)]


def test_rlax_functions_against_the_loops(x64):
    """The same numbers where rlax is not installed."""
    a = rlax_arguments("vtrace", per_step=True)
    r, g, v, v0, l, rho = (a[k] for k in ("r_t", "discount_t", "v_t", "v_tm1", "lambda_", "rho_tm1"))
    values = np.concatenate([v0, v[-1:]])
    per_column = lambda f, *args: jax.vmap(f, 1, 1)(*args)
    ours = compat.rlax
    close(
        per_column(ours.lambda_returns, r, g, v, l), reference.lambda_returns(r, next_values=v, discount=g, lambda_=l)
    )
    close(
        per_column(functools.partial(ours.n_step_bootstrapped_returns, n=2), r, g, v),
        reference.n_step_returns(r, next_values=v, n=2, discount=g),
    )
    close(
        per_column(ours.discounted_returns, r, g, v),
        reference.discounted_returns(r, discount=g, bootstrap_value=v[-1]),
    )
    close(
        per_column(ours.truncated_generalized_advantage_estimation, r, g, l, values),
        reference.gae(r, values, discount=g, lambda_=l)[0],
    )
    targets, _ = reference.vtrace(r, v0, next_values=v, rhos=rho, discount=g, lambda_=l)
    close(per_column(ours.vtrace, v0, v, r, g, rho, l), targets - v0)
    one = {"log_rhos": np.log(rho), "discount": g, "lambda_": l}
    targets, _ = reference.retrace(r, v0, next_expected_q=v, **one)
    close(per_column(ours.retrace_continuous, v0, v0[1:], v, r, g, np.log(rho)[1:], l[1:]), targets - v0)


@pytest.mark.parametrize(
    "name",
    (
        "lambda_returns",
        "discounted_returns",
        "importance_corrected_td_errors",
        "truncated_generalized_advantage_estimation",
        "general_off_policy_returns_from_q_and_v",
        *VTRACE,
        "td_lambda",
        "retrace_continuous",
    ),
)
def test_batches_are_not_transposed(name):
    static, traced = split_static(rlax_arguments(name))
    axes = {k: None if np.ndim(v) == 0 else 1 for k, v in traced.items()}
    mapped = jax.vmap(lambda traced: getattr(compat.rlax, name)(**static, **traced), (axes,), 1)
    shapes = re.findall(r"\[([\d,]+)\] = transpose", str(jax.make_jaxpr(mapped)(traced)))
    assert all(np.prod(list(map(int, shape.split(",")))) <= B for shape in shapes), shapes  # a row may be


def test_other_names_come_from_rlax():
    rlax = pytest.importorskip("rlax")
    assert compat.rlax.huber_loss is rlax.huber_loss
    assert compat.rlax.lambda_returns is not rlax.lambda_returns
    with pytest.raises(AttributeError):
        compat.rlax.no_such_name  # noqa: B018


def test_rlax_functions_take_one_trajectory():
    two = jnp.zeros((5, 2))
    with pytest.raises(ValueError, match=r"lambda_returns: r_t has shape \(5, 2\).*vmap"):
        compat.rlax.lambda_returns(two, two, two)
    with pytest.raises(ValueError, match="values has shape"):
        compat.rlax.truncated_generalized_advantage_estimation(two[:, 0], two[:, 0], 0.9, two[:, 0])


def test_rlax_ratios_that_overflow():
    """exp(log_rho) is inf where min(1, inf) has a NaN for a gradient."""
    zero, g = jnp.zeros(3), jnp.full(3, 0.9)
    loss = lambda log_rhos: jnp.sum(
        compat.rlax.retrace_continuous(zero, zero[1:], zero, zero + 1, g, log_rhos, 0.9, stop_target_gradients=False)
    )
    assert np.isfinite(jax.grad(loss)(jnp.array([200.0, -1.0]))).all()


@pytest.mark.parametrize(
    "name", ("lambda_returns", "importance_corrected_td_errors", *VTRACE, "td_lambda", "retrace", "retrace_continuous")
)
def test_rlax_lambda_of_one_row(name, x64):
    """It holds for every step, as a scalar does."""
    kwargs = one_trajectory(rlax_arguments(name))
    function = getattr(compat.rlax, name)
    leaves_close(function(**{**kwargs, "lambda_": np.full(1, 0.7)}), function(**kwargs), 1e-12)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("name", VTRACE)
def test_rlax_steps_that_are_not_learnable_may_be_nan(name, stop, x64):
    """The value of such a step is read as that of the next state of the step in front, and its ratio as 1."""
    kwargs = one_trajectory(rlax_arguments(name, per_step=True))
    kwargs["sample_mask"] = np.arange(T) != 2
    fills = dict(v_tm1=kwargs["v_t"][1], v_t=0, r_t=0, discount_t=1, rho_tm1=1, lambda_=1)

    def call(filled, series):
        at = {k: series[k].at[2].set(x if filled else np.nan) for k, x in fills.items()}
        return getattr(compat.rlax, name)(**{**kwargs, **at}, stop_target_gradients=stop)

    series = {k: jnp.asarray(kwargs[k]) for k in fills}
    leaves_close(call(False, series), call(True, series), 1e-12)
    gradient = jax.grad(lambda series: sum(map(jnp.sum, jax.tree.leaves(call(False, series)))))(series)
    assert all(np.isfinite(x).all() for x in gradient.values())


@pytest.mark.parametrize("name", [name for name in VTRACE if "leaky" in name])
def test_leaky_vtrace_of_infinite_ratios(name, x64):
    kwargs = one_trajectory(rlax_arguments(name))
    kwargs |= {"rho_tm1": np.array([0.5, np.inf, 1, np.inf, 2, 0.1])}
    alpha = "alpha_" if "alpha_" in kwargs else "alpha"
    del kwargs[alpha]
    expected = getattr(compat.rlax, name.removeprefix("leaky_"))(**kwargs)
    leaves_close(getattr(compat.rlax, name)(**kwargs, **{alpha: 1.0}), expected, 1e-12)
