"""The compat modules against the libraries they stand for where installed, and against float64 loops otherwise."""

import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import types
import unittest

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from helpers import close
from rltriton_jax import compat

T, B, A = 6, 3, 4

MULTISTEP = (
    "lambda_returns",
    "n_step_bootstrapped_returns",
    "discounted_returns",
    "importance_corrected_td_errors",
    "truncated_generalized_advantage_estimation",
    "general_off_policy_returns_from_action_values",
    "general_off_policy_returns_from_q_and_v",
)
VTRACE = (
    "vtrace",
    "leaky_vtrace",
    "vtrace_td_error_and_advantage",
    "leaky_vtrace_td_error_and_advantage",
)
VALUE_LEARNING = ("td_lambda", "sarsa_lambda", "q_lambda", "retrace", "retrace_continuous")
NONLINEAR = (
    "transformed_lambda_returns",
    "transformed_n_step_returns",
    "transformed_general_off_policy_returns_from_action_values",
    "transformed_q_lambda",
    "transformed_retrace",
    "transformed_n_step_q_learning",
)
RLAX = (*MULTISTEP, *VTRACE, *VALUE_LEARNING, *NONLINEAR)
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


@pytest.mark.parametrize("module", [m.name for m in pkgutil.walk_packages(compat.__path__, f"{compat.__name__}.")])
def test_examples_run(module):
    assert not doctest.testmod(importlib.import_module(module)).failed


# --- rlax


def rlax_function(name):
    """rlax's function by keyword; one of them is no name of rlax's, but of its module."""
    rlax = pytest.importorskip("rlax")
    function = getattr(rlax, name, None) or getattr(importlib.import_module("rlax._src.multistep"), name)
    hidden = getattr(function, "__wrapped__", None)
    if hidden is None:
        return function
    required = [k for k, p in inspect.signature(hidden).parameters.items() if p.default is p.empty]

    @functools.wraps(function)
    def by_keyword(tx_pair, **kwargs):  # the decorator of these looks for arguments by position
        return function(tx_pair, *(kwargs.pop(k) for k in required), **kwargs)

    return by_keyword


def rlax_arguments(name, seed=0, per_step=False, masked=False, zeros=True):
    """Arguments by name for every parameter of a function, with time first and a batch behind it."""
    rng = np.random.default_rng(seed)
    short = name in ("general_off_policy_returns_from_q_and_v", "retrace_continuous")
    normal = lambda *shape: rng.normal(size=shape)
    probabilities = lambda: np.exp(logits := normal(T, B, A)) / np.exp(logits).sum(-1, keepdims=True)
    action_values = lambda: normal(T, B) if short else normal(T, B, A)
    rows = T - 1 if short else T
    of = {
        "values": lambda: normal(T + 1, B),
        "discount_t": lambda: np.where(rng.random((T, B)) < 0.25 * zeros, 0.0, rng.uniform(0.5, 1.1, (T, B))),
        "rho_tm1": lambda: np.exp(normal(T, B)),
        "mu_t": lambda: rng.uniform(0.1, 1.0, (T, B)),
        "log_rhos": lambda: normal(rows, B),
        "c_t": lambda: rng.uniform(0.0, 1.2, (rows, B)),
        "pi_t": probabilities,
        "q_tm1": action_values,
        "q_t": lambda: normal(rows, B) if short else normal(T, B, A),
        "target_q_t": action_values,
        "a_tm1": lambda: rng.integers(0, A, (T, B)),
        "a_t": lambda: rng.integers(0, A, (T, B)),
        "lambda_": lambda: rng.uniform(0.2, 1.0, (rows, B)) if per_step else 0.7,
        "n": lambda: 3,
        "sample_mask": lambda: rng.random((T, B)) < 0.7,
        **dict.fromkeys(("alpha", "alpha_"), lambda: 0.6),
        "clip_rho_threshold": lambda: 0.9,
        "clip_pg_rho_threshold": lambda: 1.3,
        "tx_pair": lambda: importlib.import_module("rlax").SIGNED_HYPERBOLIC_PAIR,
    }
    of["lambda_t"] = of["lambda_"]
    skipped = {"stop_target_gradients", "eps"} | (set() if masked else {"sample_mask"})
    names = [p for p in inspect.signature(getattr(compat.rlax, name)).parameters if p not in skipped]
    return {p: of.get(p, lambda: normal(T, B))() for p in names}


def split_static(kwargs):
    static = {k: v for k, v in kwargs.items() if k in ("n", "tx_pair", "stop_target_gradients")}
    return static, {k: v for k, v in kwargs.items() if k not in static}


def by_form(form, function, kwargs):
    """A function of one trajectory, on every column of a batch: one at a time, or mapped over axis 1."""
    static, traced = split_static(kwargs)
    call = lambda traced: function(**static, **traced)
    axes = {k: None if np.ndim(v) == 0 else 1 for k, v in traced.items()}
    if form == "vmap":
        return jax.vmap(call, (axes,), 1)(traced)
    call = jax.jit(call) if form == "jit" else call
    columns = [call({k: v if axes[k] is None else v[:, b] for k, v in traced.items()}) for b in range(B)]
    return jax.tree.map(lambda *x: jnp.stack(x, 1), *columns)


def one_trajectory(kwargs):
    return {k: v[:, 0] if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}


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


# --- what the other libraries compute, step by step


def backwards(x):
    return range(len(x) - 1, -1, -1)


def brax_loop(truncation, termination, rewards, values, bootstrap, lambda_, discount):
    following = np.concatenate([values[1:], bootstrap[None]])
    keep, alive = 1 - truncation, 1 - termination
    vs, a = np.zeros_like(values), np.zeros_like(bootstrap)
    for t in backwards(rewards):
        delta = keep[t] * (rewards[t] + discount * alive[t] * following[t] - values[t])
        a = delta + discount * alive[t] * keep[t] * lambda_ * a
        vs[t] = values[t] + a
    following = np.concatenate([vs[1:], bootstrap[None]])
    return vs, keep * (rewards + discount * alive * following - values)


def gae_loop(rewards, discounts, lambdas, values, next_values, cut):
    a, out = np.zeros_like(rewards[0]), np.zeros_like(rewards)
    for t in backwards(rewards):
        a = rewards[t] + discounts[t] * next_values[t] - values[t] + discounts[t] * lambdas[t] * (1 - cut[t]) * a
        out[t] = a
    return out


def tunix_loop(rewards, values, mask, gamma, lambda_):
    a = following = np.zeros(len(rewards))
    advantages = np.zeros_like(rewards)
    for t in backwards(rewards[0]):
        now = rewards[:, t] + gamma * following - values[:, t] + gamma * lambda_ * a
        a, following = np.where(mask[:, t], now, a), np.where(mask[:, t], values[:, t], following)
        advantages[:, t] = a
    live = advantages[mask != 0]
    return (advantages - live.mean()) / np.sqrt(live.var(ddof=1) + 1e-8), advantages + values


def window(seed=0, truncations=True, dtype=np.float64):
    """Time-major rewards, values, values of the true next states, and float flags of which one at most is set."""
    rng = np.random.default_rng(seed)
    kind = rng.random((T, B))
    terminated, truncated = kind < 0.2, (kind > 0.8) & truncations
    r, v, following = (rng.normal(size=(T, B)) for _ in range(3))
    return r, v, following, terminated.astype(dtype), truncated.astype(dtype)


def test_brax(x64):
    r, v, _, terminated, truncated = window()
    args = (truncated, terminated, r, v, v[0] + 1, 0.8, 0.9)
    expected = brax_loop(*args)
    close(compat.brax.compute_gae(*args), expected)
    close(jax.jit(compat.brax.compute_gae)(*args), expected)
    mapped = jax.vmap(compat.brax.compute_gae, (1, 1, 1, 1, 0, None, None), 1)
    close(mapped(*args), expected)
    loss = lambda r, v: sum(x.sum() for x in compat.brax.compute_gae(truncated, terminated, r, v, v[0]))
    assert not any(np.any(x) for x in jax.grad(loss, (0, 1))(r, v))
    parameters = inspect.signature(compat.brax.compute_gae).parameters
    assert (parameters["lambda_"].default, parameters["discount"].default) == (1.0, 0.99)


@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_purejaxrl(dtype, x64):
    r, v, _, done, _ = window(truncations=False)
    batch = types.SimpleNamespace(reward=jnp.asarray(r), value=jnp.asarray(v), done=jnp.asarray(done, dtype))
    last, alive = v[0] + 1, 1 - done
    following = np.concatenate([v[1:], last[None]])
    a = gae_loop(r, 0.9 * alive, np.full_like(r, 0.8), v, following, done)
    close(compat.purejaxrl.calculate_gae(batch, last, 0.9, 0.8), (a, a + v))
    # with flags that come with the observation, the same steps end their episodes one row later
    shifted = types.SimpleNamespace(
        reward=batch.reward, value=batch.value, done=jnp.concatenate([jnp.zeros_like(batch.done[:1]), batch.done[:-1]])
    )
    close(compat.purejaxrl.calculate_gae(shifted, last, 0.9, 0.8, batch.done[-1]), (a, a + v))


def test_tunix(x64):
    r, v, _, dead, _ = (x.T for x in window())
    mask = (1 - dead).astype(np.int32)
    got = compat.tunix.compute_gae_advantages(r, v, mask, 0.9, 0.8)
    for ours, theirs in zip(got, tunix_loop(r, v, mask, 0.9, 0.8)):
        close(ours, np.where(mask, theirs, 0.0))
    close(jax.jit(compat.tunix.compute_gae_advantages)(r, v, mask, 0.9, 0.8), got)
    close(compat.tunix.compute_mc_returns(r, 0.9), reference.discounted_returns(r, discount=0.9, time_axis=-1))


def test_tunix_with_a_single_live_token():
    """The sample variance of one number is 0 / 0 there."""
    got = compat.tunix.compute_gae_advantages(jnp.ones((1, 3)), jnp.zeros((1, 3)), jnp.array([[0, 1, 0]]), 0.9, 0.8)
    np.testing.assert_array_equal(got, ([[0, 0, 0]], [[0, 1, 0]]))


# --- Stoix


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("per_step", [True, False])
def test_stoix_advantages(time_major, per_step, x64):
    r, v, following, terminated, truncated = window()
    g, l = 0.9 * (1 - terminated), np.linspace(0.5, 1, T * B).reshape(T, B) if per_step else np.full((T, B), 0.8)
    a = gae_loop(r, g, l, v, following, truncated)
    lay = lambda x: x if time_major else np.swapaxes(x, 0, 1)
    gae = functools.partial(compat.stoix.batch_truncated_generalized_advantage_estimation, time_major=time_major)
    mixing = lay(l) if per_step else 0.8
    args = (lay(r), lay(g), mixing)
    close(gae(*args, v_tm1=lay(v), v_t=lay(following), truncation_t=lay(truncated)), (lay(a), lay(a + v)))
    values = np.concatenate([v, following[-1:]])
    plain = gae_loop(r, g, l, v, values[1:], 0 * r)
    close(gae(*args, lay(values)), (lay(plain), lay(plain + v)))
    scaled = (plain - plain.mean()) / np.sqrt(plain.var() + 1e-5)
    close(gae(*args, lay(values), standardize_advantages=True), (lay(scaled), lay(plain + v)))
    for stop in (False, True):
        loss = lambda r, stop: sum(map(jnp.sum, gae(r, *args[1:], lay(values), stop_target_gradients=stop)))
        assert np.any(jax.grad(loss)(args[0], stop)) != stop


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("per_step", [True, False])
def test_stoix_returns(time_major, per_step, x64):
    r, _, following, terminated, _ = window()
    lay = lambda x: x if time_major else np.swapaxes(x, 0, 1)
    r, g, v = lay(r), lay(0.9 * (1 - terminated)), lay(following)
    l = np.linspace(0.5, 1, T * B).reshape(r.shape) if per_step else 0.8
    shared = dict(discount=g, time_axis=0 if time_major else 1)
    returns = reference.lambda_returns(r, next_values=v, lambda_=l, **shared)
    close(compat.stoix.batch_lambda_returns(r, g, v, l, time_major=time_major), returns)
    q = np.stack([v - 1, v, v - 0.5], -1)
    close(compat.stoix.batch_q_lambda(r, g, q, l, time_major=time_major), returns)
    last = np.take(v, -1, shared["time_axis"])
    returns = reference.discounted_returns(r, bootstrap_value=last, **shared)
    close(compat.stoix.batch_discounted_returns(r, g, v, time_major=time_major), returns)
    returns = reference.discounted_returns(r, bootstrap_value=2.0, **shared)
    close(compat.stoix.batch_discounted_returns(r, g, 2.0, time_major=time_major), returns)
    if not time_major:
        returns = reference.n_step_returns(r, next_values=v, n=2, lambda_=l, **shared)
        close(compat.stoix.batch_n_step_bootstrapped_returns(r, g, v, 2, l), returns)


def test_stoix_off_policy(x64):
    """Batch-major, and row by row what the functions of one trajectory give."""
    of = lambda name: {k: np.moveaxis(np.asarray(v), 1, 0) for k, v in rlax_arguments(name, per_step=True).items()}
    for name, ours in (
        ("general_off_policy_returns_from_q_and_v", compat.stoix.batch_general_off_policy_returns_from_q_and_v),
        ("retrace_continuous", compat.stoix.batch_retrace_continuous),
    ):
        kwargs = of(name)
        one = getattr(compat.rlax, name)
        close(ours(**kwargs), np.stack([one(**{k: v[b] for k, v in kwargs.items()}) for b in range(B)]))
    kwargs = {k: v[0] for k, v in of("importance_corrected_td_errors").items()}
    r, g, rho, l, v = (kwargs[k] for k in ("r_t", "discount_t", "rho_tm1", "lambda_", "values"))
    cut = np.array([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    for truncation in (None, cut):
        stops = np.zeros(T) if truncation is None else cut
        a = gae_loop(r, g, l * np.append(rho[1:], 1), v[:-1], v[1:], stops)
        close(compat.stoix.importance_corrected_td_errors(**kwargs, truncation_t=truncation), rho * a)


@pytest.mark.parametrize(
    "name, stops",
    [
        ("batch_truncated_generalized_advantage_estimation", False),
        ("batch_n_step_bootstrapped_returns", True),
        ("batch_general_off_policy_returns_from_q_and_v", False),
        ("batch_retrace_continuous", True),
        ("batch_lambda_returns", False),
        ("batch_discounted_returns", False),
        ("importance_corrected_td_errors", False),
        ("batch_q_lambda", True),
    ],
)
def test_stoix_stop_gradient_defaults(name, stops):
    assert inspect.signature(getattr(compat.stoix, name)).parameters["stop_target_gradients"].default is stops


def test_stoix_array_lambda_of_a_square_batch(x64):
    """Stoix transposes everything but lambda there, which shows only where B = T does not make it an error."""
    r, g, v, l = (np.random.default_rng(i).uniform(0.2, 1, (4, 4)) for i in range(4))
    for name in ("batch_lambda_returns", "batch_q_lambda"):
        function = getattr(compat.stoix, name)
        third = v[..., None] if name == "batch_q_lambda" else v
        time_major = function(r.T, g.T, np.swapaxes(third, 0, 1), l.T, time_major=True)
        close(function(r, g, third, l), time_major.T)
    close(compat.stoix.batch_n_step_bootstrapped_returns(r, g, v, 9, l), compat.stoix.batch_lambda_returns(r, g, v, l))


def test_stoix_errors():
    x = jnp.zeros((2, 5))
    gae = compat.stoix.batch_truncated_generalized_advantage_estimation
    with pytest.raises(ValueError, match="neither values nor both"):
        gae(x, x, 0.9, v_tm1=x)
    with pytest.raises(ValueError, match="true next states"):
        gae(x, x, 0.9, jnp.zeros((2, 6)), truncation_t=x)
    with pytest.raises(ValueError, match="batch_lambda_returns: v_t has shape"):
        compat.stoix.batch_lambda_returns(x, x, x[:, :-1])


# --- rl-triton


def rl_triton_inputs():
    r, v, following, terminated, truncated = (x.T for x in window())
    bootstrap = np.where(truncated, following, 0.0)
    bootstrap[:, -1] = following[:, -1]
    after = np.append(v[:, 1:], following[:, -1:], 1)
    return r, v, terminated, truncated, bootstrap, np.where(truncated, following, after)


def test_rl_triton_advantages(x64):
    r, v, terminated, truncated, bootstrap, after = rl_triton_inputs()
    rng = np.random.default_rng(1)
    log_pi, log_mu = -rng.random((B, T)), -rng.random((B, T))
    shared = dict(discount=0.9, terminated=terminated, time_axis=1)
    cut = dict(shared, next_values=after, truncated=truncated)
    ours = compat.rl_triton
    got = ours.compute_gae(r, v, terminated, truncated, 0.9, 0.8, bootstrap)
    close(got, reference.gae(r, v, lambda_=0.8, **cut)[0])
    last = bootstrap[:, -1]
    expected = reference.gae(r, v, lambda_=0.8, bootstrap_value=last, **shared)[0]
    close(ours.compute_gae(r, v, terminated, None, 0.9, 0.8, last_value=last), expected)
    close(ours.compute_gae(r, v, terminated, None, 0.9, 0.8, bootstrap), expected)
    # lambda 1 gives the return less the value, which a carry that begins with the bootstrap does not
    returns = ours.compute_discounted_returns(r, terminated, truncated, 0.9, bootstrap)
    close(ours.compute_gae(r, v, terminated, truncated, 0.9, 1.0, bootstrap), returns - v)
    got = ours.compute_vtrace(log_pi, log_mu, v, r, terminated, truncated, 0.9, 0.7, 0.8, bootstrap)
    clips = dict(clip_rho=0.7, clip_c=0.8, clip_pg_rho=0.7)
    close(got, reference.vtrace(r, v, log_rhos=log_pi - log_mu, **clips, **cut))
    with pytest.raises(ValueError, match="pass one of them"):
        ours.compute_vtrace(r, r, v, r, terminated, bootstrap_values=bootstrap, last_value=last)
    with pytest.raises(ValueError, match="last_value does not go with truncateds"):
        ours.compute_gae(r, v, terminated, truncated, last_value=last)


def test_rl_triton_returns(x64):
    r, _, terminated, truncated, bootstrap, after = rl_triton_inputs()
    done, alive, ours = terminated + truncated, 1 - terminated - truncated, compat.rl_triton
    for l in (0.8, 1.0):
        g, expected = bootstrap[:, -1], np.zeros_like(r)
        for t in backwards(r[0]):
            continued = alive[:, t] * ((1 - l) * after[:, t] + l * g) + truncated[:, t] * bootstrap[:, t]
            g = expected[:, t] = r[:, t] + 0.9 * continued
        close(ours.compute_lambda_returns(r, after, terminated, truncated, 0.9, l, bootstrap), expected)
    close(ours.compute_discounted_returns(r, terminated, truncated, 0.9, bootstrap), expected)
    seed = np.arange(1.0, B + 1)
    z = c = seed
    traces, sums, since = np.zeros_like(r), np.zeros_like(r), np.zeros_like(r)
    s = seed
    for t in range(T):
        before = 1 - done[:, t - 1] if t else 1.0
        traces[:, t] = z = r[:, t] + 0.9 * 0.8 * before * z
        sums[:, t] = c = r[:, t] + before * c
        since[:, t] = s = r[:, t] + (1 - done[:, t]) * s
    close(ours.compute_eligibility_traces(r, done, 0.9, 0.8, seed), traces)
    close(ours.compute_episodic_prefix_sum(r, done, seed), sums)
    close(ours.compute_episodic_prefix_sum(r, done, seed, boundary="starts_at"), since)
    with pytest.raises(ValueError, match="boundary is 'at'"):
        ours.compute_episodic_prefix_sum(r, done, boundary="at")


def test_rl_triton_retrace(x64):
    """The advantage of a truncated or last step bootstraps from its own next state, not from the next episode."""
    r, q, terminated, truncated, _, _ = rl_triton_inputs()
    a = rlax_arguments("retrace")
    pi, following_pi, next_q = (np.swapaxes(a[k], 0, 1) for k in ("pi_t", "pi_t", "q_t"))
    following_pi = np.roll(following_pi, 1, -1)
    actions, mu = a["a_t"].T, a["mu_t"].T
    rho = np.take_along_axis(pi, actions[..., None], -1)[..., 0] / mu
    args = (pi, mu, q, next_q, actions, r, terminated, truncated, 0.9, 0.8, 0.7, 0.6)
    shared = dict(rhos=rho, discount=0.9, lambda_=0.8, clip_c=0.7, clip_rho=0.6, time_axis=1)
    shared |= dict(terminated=terminated, truncated=truncated)
    for weights, keyword in ((pi, {}), (following_pi, {"next_action_probs_target": following_pi})):
        expected = reference.retrace(r, q, next_expected_q=(weights * next_q).sum(-1), **shared)
        close(compat.rl_triton.compute_retrace(*args, **keyword), expected)
    # what one row gives is what its episodes give by themselves
    _, together = compat.rl_triton.compute_retrace(*args)
    cuts = [0, *(np.flatnonzero(terminated[0] + truncated[0]) + 1), T]
    for first, end in zip(cuts, cuts[1:]):
        if first < end:
            one = [x[:1, first:end] if np.ndim(x) else x for x in args]
            close(compat.rl_triton.compute_retrace(*one)[1], together[:1, first:end])


@pytest.mark.parametrize(
    "lambda_, next_value, bootstrap, ends, last",
    [
        (1.0, np.nan, 3.0, {}, 3.0),
        (0.0, 3.0, np.nan, {}, 3.0),
        (0.5, np.nan, np.nan, {"terminateds": 1.0}, 0.0),
        (0.5, np.nan, 3.0, {"truncateds": 1.0}, 3.0),
    ],
)
def test_rl_triton_lambda_returns_read_what_counts(lambda_, next_value, bootstrap, ends, last):
    """NaN in the last column, where it weighs 0 or an episode ends."""
    row = lambda x: jnp.array([[0.0, x]])
    flags = {k: row(ends.get(k, 0.0)) for k in ("terminateds", "truncateds")}
    call = lambda l, following, boundary: compat.rl_triton.compute_lambda_returns(
        jnp.ones((1, 2)), row(following), **flags, gamma=0.5, lambda_=l, bootstrap_values=row(boundary)
    )
    end = 1 + 0.5 * last
    np.testing.assert_allclose(call(lambda_, next_value, bootstrap), [[1 + 0.5 * lambda_ * end, end]])
    gradients = jax.grad(lambda *x: jnp.sum(call(*x)), (0, 1, 2))(lambda_, next_value, bootstrap)
    assert np.isfinite(gradients).all()


# --- no steps at all


def without_steps():
    """Calls of windows of two columns that hold no step, and the shape of each result; by name."""
    x, q, flags = jnp.zeros((2, 0)), jnp.zeros((2, 0, A)), jnp.zeros((2, 0), bool)
    one, t, tq, last = jnp.zeros((2, 1)), jnp.zeros((0, 2)), jnp.zeros((0, 2, A)), jnp.zeros(2)
    actions = jnp.zeros((2, 0), jnp.int32)
    stoix, triton = compat.stoix, compat.rl_triton
    batch = types.SimpleNamespace(done=t, value=t, reward=t)
    return {
        "brax": (lambda: compat.brax.compute_gae(t, t, t, t, last), (0, 2)),
        "purejaxrl": (lambda: compat.purejaxrl.calculate_gae(batch, last, 0.9, 0.5), (0, 2)),
        "tunix": (lambda: compat.tunix.compute_gae_advantages(x, x, flags, 0.9, 0.5), (2, 0)),
        "tunix.mc": (lambda: compat.tunix.compute_mc_returns(x), (2, 0)),
        "stoix.gae": (lambda: stoix.batch_truncated_generalized_advantage_estimation(x, x, 0.5, one), (2, 0)),
        "stoix.n_step": (lambda: stoix.batch_n_step_bootstrapped_returns(x, x, x, 2), (2, 0)),
        "stoix.q_and_v": (lambda: stoix.batch_general_off_policy_returns_from_q_and_v(x, x, x, x, x), (2, 0)),
        "stoix.retrace": (lambda: stoix.batch_retrace_continuous(x, x, x, x, x, x, 0.5), (2, 0)),
        "stoix.lambda_returns": (lambda: stoix.batch_lambda_returns(x, x, x, 0.5), (2, 0)),
        "stoix.discounted": (lambda: stoix.batch_discounted_returns(x, x, x), (2, 0)),
        "stoix.time_major": (lambda: stoix.batch_discounted_returns(t, t, t, time_major=True), (0, 2)),
        "stoix.scalar": (lambda: stoix.batch_discounted_returns(x, x, 1.0), (2, 0)),
        "stoix.errors": (lambda: stoix.importance_corrected_td_errors(x[0], x[0], x[0], 0.5, one[0]), (0,)),
        "stoix.q_lambda": (lambda: stoix.batch_q_lambda(t, t, tq, 0.5, time_major=True), (0, 2)),
        "rl_triton.gae": (lambda: triton.compute_gae(x, x, x, x, bootstrap_values=x), (2, 0)),
        "rl_triton.last_value": (lambda: triton.compute_gae(x, x, x, last_value=last), (2, 0)),
        "rl_triton.vtrace": (lambda: triton.compute_vtrace(x, x, x, x, x, x, last_value=last), (2, 0)),
        "rl_triton.retrace": (lambda: triton.compute_retrace(q, x, x, q, actions, x, x, x, 0.9), (2, 0)),
        "rl_triton.lambda_returns": (lambda: triton.compute_lambda_returns(x, x, x, x, bootstrap_values=x), (2, 0)),
        "rl_triton.discounted": (lambda: triton.compute_discounted_returns(x, x, x, bootstrap_values=x), (2, 0)),
        "rl_triton.traces": (lambda: triton.compute_eligibility_traces(x, x, 0.9, 0.5, last), (2, 0)),
        "rl_triton.sums": (lambda: triton.compute_episodic_prefix_sum(x, x, last), (2, 0)),
    }


@pytest.mark.parametrize("name", [*without_steps(), *RLAX])
def test_no_steps_give_empty_results(name):
    if name in RLAX:
        if name in NONLINEAR:
            pytest.importorskip("rlax")
        kwargs = one_trajectory(rlax_arguments(name, masked=True, per_step=True))
        kwargs = {k: v[: int(k == "values")] if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
        call, shape = lambda: getattr(compat.rlax, name)(**kwargs), (0,)
    else:
        call, shape = without_steps()[name]
    for out in jax.tree.leaves(call()):
        assert (out.shape, out.dtype) == (shape, jnp.float32)


# --- shapes that would broadcast to something else, and errors that say what to pass


def misfits():
    """Calls with an argument that does not fit, and what the error says; by name."""
    r, q, a, row, square = jnp.ones(3), jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), jnp.ones((3, 4)), jnp.ones((3, 3))
    rlax, stoix, triton = compat.rlax, compat.stoix, compat.rl_triton
    one = jnp.ones((1, 2))
    leaky, leaky_advantage = rlax.leaky_vtrace, rlax.leaky_vtrace_td_error_and_advantage
    vtrace = lambda last: triton.compute_vtrace(row, row, row, row, row, row, last_value=last)
    td_errors = lambda l: rlax.importance_corrected_td_errors(r, r, r, l, jnp.ones(4))
    retrace = lambda a_tm1, a_t: rlax.retrace(q, q, a_tm1, a_t, r, r, q, r, 0.9)
    discounted = lambda v, **kwargs: stoix.batch_discounted_returns(square, square, v, **kwargs)
    return {
        "brax one": (lambda: compat.brax.compute_gae(*[row.T] * 4, r[:1]), "compute_gae: bootstrap_value", "(1,)"),
        "brax column": (lambda: compat.brax.compute_gae(*[jnp.ones((2, 3, 3))] * 4, r), "bootstrap_value", "(3,)"),
        "triton one": (lambda: vtrace(r[:1]), "compute_vtrace: last_value", "(1,)"),
        "triton gae": (lambda: triton.compute_gae(row, row, row, last_value=r[:1]), "compute_gae: last_value", "(1,)"),
        "alpha_": (lambda: leaky(r, r, r, r, r, r[:, None]), "leaky_vtrace: alpha_", "(3, 1)"),
        "alpha": (lambda: leaky_advantage(r, r, r, r, r, r[:, None]), "advantage: alpha", "(3, 1)"),
        "clip": (lambda: leaky(r, r, r, r, r, 1.0, 1.0, r[:, None]), "clip_rho_threshold", "(3, 1)"),
        "clip pg": (
            lambda: rlax.vtrace_td_error_and_advantage(r, r, r, r, r, clip_pg_rho_threshold=r[:, None]),
            "clip_pg_rho_threshold",
            "(3, 1)",
        ),
        "leaky lambda": (lambda: leaky(r, r, r, r, r, 1.0, r[:2]), "leaky_vtrace: lambda_", "(2,)"),
        "stoix row": (lambda: discounted(r), "batch_discounted_returns: v_t", "(3,)"),
        "stoix time": (lambda: discounted(r, time_major=True), "batch_discounted_returns: v_t", "(3,)"),
        "stoix shape": (lambda: discounted(square[:2]), "batch_discounted_returns: v_t", "(2, 3)"),
        "stoix q": (
            lambda: stoix.batch_q_lambda(square, square, jnp.ones((1, 3, 2)), 0.5), "batch_q_lambda: q_t", "(1, 3, 2)"
        ),
        "stoix q_and_v": (
            lambda: stoix.batch_general_off_policy_returns_from_q_and_v(one, square, square, square, one),
            "batch_general_off_policy_returns_from_q_and_v: q_t",
            "(1, 2)",
        ),
        "stoix retrace": (
            lambda: stoix.batch_retrace_continuous(square, one, square, square, square, one, 0.5),
            "batch_retrace_continuous: q_t",
            "(1, 2)",
        ),
        "errors lambda": (lambda: td_errors(r[:2]), "importance_corrected_td_errors: lambda_", "(2,)"),
        "retrace lambda": (
            lambda: rlax.retrace_continuous(r, r[:2], r, r, r, r[:2], r), "retrace_continuous: lambda_", "(3,)"
        ),
        "short actions": (lambda: retrace(a, a[:2]), "retrace: a_t", "(2,)"),
        "float actions": (lambda: retrace(a + 0.5, a), "retrace: a_tm1", "float32"),
        "sarsa": (lambda: rlax.sarsa_lambda(q, a, r, r, q, a + 0.5, 0.9), "sarsa_lambda: a_t", "float32"),
        "triton actions": (
            lambda: triton.compute_retrace(*[jnp.ones((3, 4, 2)), row, row, jnp.ones((3, 4, 2))], *[row] * 4, 0.9),
            "compute_retrace: actions",
            "float32",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", misfits())
def test_misfits_are_refused(name):
    call, argument, got = misfits()[name]
    with pytest.raises(
        TypeError if got == "float32" else ValueError, match=f"{argument} has .*{re.escape(got)}.*; pass "
    ):
        call()


@pytest.mark.parametrize("flag", [np.int64(2**32), np.float64(1e-300)], ids=["low half 0", "tiny"])
def test_flags_of_the_host_keep_all_their_bits(flag):
    """Without x64 JAX would keep of these only what is 0."""
    x, rlax, triton = jnp.ones((3, 4)), compat.rlax, compat.rl_triton
    q, actions = jnp.ones((3, 4, 2)), jnp.zeros((3, 4), jnp.int32)
    none = jnp.zeros((3, 4))
    for call in (
        lambda flags: compat.brax.compute_gae(flags, none, x, x, x[0], 0.9, 0.9),
        lambda flags: compat.brax.compute_gae(none, flags, x, x, x[0], 0.9, 0.9),
        lambda flags: triton.compute_gae(x, x, none, flags, bootstrap_values=2 * x),
        lambda flags: triton.compute_vtrace(x, x, x, x, none, flags, bootstrap_values=2 * x),
        lambda flags: triton.compute_retrace(q, x, x, q, actions, x, flags, none, 0.9),
        lambda flags: triton.compute_lambda_returns(x, x, flags, None, 0.9, 0.9),
        lambda flags: triton.compute_lambda_returns(x, x, none, flags, 0.9, 0.9, 2 * x),
        lambda flags: rlax.vtrace(*[x[0]] * 5, sample_mask=flags[1]),
    ):
        flags = np.zeros((3, 4), flag.dtype)
        flags[1, 1] = flag
        chex.assert_trees_all_equal(call(flags), call(flags != 0))
        assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(call(flags)), jax.tree.leaves(call(flags * 0))))


def test_a_list_of_lambdas_is_an_array():
    r = jnp.ones(2)
    errors = functools.partial(compat.rlax.importance_corrected_td_errors, r, r, r, values=jnp.ones(3))
    close(errors(lambda_=[0.5, 0.2]), errors(lambda_=jnp.array([0.5, 0.2])))


# --- NaN behind the end of an episode, where (1 - done) * nan is NaN


HYPERBOLIC = types.SimpleNamespace(apply=jnp.arcsinh, apply_inv=jnp.sinh)


def behind_the_end():
    """Calls whose value behind step 1, which ends an episode, is `junk`; by name."""
    r, v, g = jnp.ones(4), jnp.full(4, 0.5), jnp.array([0.9, 0.0, 0.9, 0.9])
    done, none, rho = jnp.array([0.0, 1.0, 0.0, 0.0]), jnp.zeros(4), jnp.array([0.5, 2.0, 1.0, 0.7])
    row, a, q = (lambda x: x[None]), jnp.zeros(4, jnp.int32), jnp.full((4, 2), 0.5)
    rlax, stoix, triton = compat.rlax, compat.stoix, compat.rl_triton
    at = lambda x, junk: x.at[1].set(junk)
    live = {"stop_target_gradients": False}
    return {
        "rlax.retrace_probabilities": lambda x: rlax.retrace(
            q, q, a, a, r, g, at(q, x), at(v, x), at(v, x), 0.0, **live
        ),
        "rlax.retrace_continuous": lambda x: rlax.retrace_continuous(
            v, at(v, x)[:3], at(v, x), r, g, at(v, x)[:3], at(v, x)[:3], **live
        ),
        "rlax.off_policy": lambda x: rlax.general_off_policy_returns_from_action_values(
            at(q, x), a, r, g, at(v, x), at(q, x)
        ),
        "rlax.transformed_retrace": lambda x: rlax.transformed_retrace(
            q, at(q, x), a, a, r, g, at(q, x), at(v, x), at(v, x), **live
        ),
        "rlax.transformed_q_lambda": lambda x: rlax.transformed_q_lambda(q, a, r, g, at(q, x), 0.5, **live),
        "rlax.transformed_lambda_returns": lambda x: rlax.transformed_lambda_returns(HYPERBOLIC, r, g, at(v, x), 0.5),
        "rlax.transformed_n_step": lambda x: rlax.transformed_n_step_returns(HYPERBOLIC, r, g, at(v, x), 2),
        "rlax.transformed_off_policy": lambda x: rlax.transformed_general_off_policy_returns_from_action_values(
            HYPERBOLIC, at(q, x), a, r, g, v, at(q, x)
        ),
        "rlax.transformed_n_step_q": lambda x: rlax.transformed_n_step_q_learning(q, a, at(q, x), a, r, g, 2, **live),
        "rlax.lambda_returns": lambda x: rlax.lambda_returns(r, g, at(v, x), 0.5),
        "rlax.n_step": lambda x: rlax.n_step_bootstrapped_returns(r, g, at(v, x), 2, 0.5),
        "rlax.td_lambda": lambda x: rlax.td_lambda(v, r, g, at(v, x), 0.5, stop_target_gradients=False),
        "rlax.q_lambda": lambda x: rlax.q_lambda(q, a, r, g, at(q, x), 0.5, stop_target_gradients=False),
        "rlax.retrace": lambda x: rlax.retrace(q, at(q, x), a, a, r, g, q, v, 0.9, stop_target_gradients=False),
        "rlax.vtrace": lambda x: rlax.vtrace_td_error_and_advantage(
            v, at(v, x), r, g, rho, stop_target_gradients=False
        ),
        "rlax.leaky_vtrace": lambda x: rlax.leaky_vtrace(v, at(v, x), r, g, rho, 0.5, stop_target_gradients=False),
        "rlax.masked": lambda x: rlax.vtrace(
            v, at(v, x), at(r, x), g + 0.5, at(rho, x), stop_target_gradients=False, sample_mask=done == 0
        ),
        "stoix.gae": lambda x: stoix.batch_truncated_generalized_advantage_estimation(
            row(r), row(g), 0.5, v_tm1=row(v), v_t=row(at(v, x))
        ),
        "stoix.lambda_returns": lambda x: stoix.batch_lambda_returns(row(r), row(g), row(at(v, x)), 0.5),
        "purejaxrl": lambda x: compat.purejaxrl.calculate_gae(
            types.SimpleNamespace(done=done[:2], value=v[:2], reward=r[:2]), jnp.asarray(x), 0.9, 0.5
        ),
        "brax": lambda x: compat.brax.compute_gae(none[:2], done[:2], r[:2], v[:2], jnp.asarray(x), 0.5),
        "tunix": lambda x: compat.tunix.compute_gae_advantages(row(r), row(at(v, x)), row(1 - done), 0.9, 0.5),
        "rl_triton.gae": lambda x: triton.compute_gae(row(r[:2]), row(v[:2]), row(done[:2]), last_value=row(x)),
        "rl_triton.truncated": lambda x: triton.compute_gae(
            row(r), row(v.at[2].set(x)), row(none), row(done), bootstrap_values=row(done)
        )[:, :2],
        "rl_triton.vtrace": lambda x: triton.compute_vtrace(
            row(none[:2]), row(none[:2]), row(v[:2]), row(r[:2]), row(done[:2]), last_value=row(x)
        ),
        "rl_triton.retrace": lambda x: triton.compute_retrace(
            row(q), row(v), row(v), row(at(q, x)), row(a), row(r), row(done), row(none), 0.9
        ),
        "rl_triton.lambda_returns": lambda x: triton.compute_lambda_returns(
            row(r), row(at(v, x)), row(done), bootstrap_values=row(v)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("junk", [np.nan, np.inf])
@pytest.mark.parametrize("name", behind_the_end())
def test_what_is_behind_the_end_is_not_read(name, junk):
    call = lambda x: jax.tree.leaves(behind_the_end()[name](jnp.asarray(x)))
    for got, expected in zip(call(junk), call(3.0), strict=True):
        np.testing.assert_array_equal(got, expected)
    gradient = jax.grad(lambda x: sum(jnp.sum(out) for out in call(x)))(float(junk))
    assert gradient == 0


@pytest.mark.parametrize("name", ["retrace", "transformed_retrace"])
def test_probabilities_behind_the_end_send_no_nan_to_lambda(name):
    q, r, a = jnp.ones((3, 2)), jnp.ones(3), jnp.zeros(3, jnp.int32)
    pi, mu, g = q.at[1].set(np.nan), r.at[1].set(np.nan), jnp.array([0.9, 0.0, 0.9])
    function = functools.partial(getattr(compat.rlax, name), q, q, a, a, r, g, stop_target_gradients=False)
    gradients = jax.grad(lambda *x: jnp.sum(function(*x)), (0, 1, 2))(pi, mu, 0.5)
    assert all(np.isfinite(x).all() for x in gradients)


def test_errors_name_the_arguments_of_the_function_that_was_called():
    x, wide = jnp.ones((3, 2)), jnp.ones((3, 5))
    batch = types.SimpleNamespace(done=x, value=x, reward=x)
    values = dict(values=x[:, 0], v_tm1=x[:, 0])
    for call, kind, text in (
        (lambda: compat.brax.compute_gae(x, x, x, None, 1.0), TypeError, "compute_gae: values is required"),
        (lambda: compat.brax.compute_gae(wide, x, x, x, 1.0), ValueError, "compute_gae: truncation has shape (3, 5)"),
        (
            lambda: compat.brax.compute_gae(x, x, x, x, jnp.ones(3)),
            ValueError,
            "compute_gae: bootstrap_value has shape",
        ),
        (
            lambda: compat.purejaxrl.calculate_gae(batch, jnp.ones(4), 0.9, 0.9),
            ValueError,
            "calculate_gae: last_val has",
        ),
        (
            lambda: compat.rlax.lambda_returns(x[:, 0], None, x[:, 0], 0.9),
            TypeError,
            "lambda_returns: discount_t is required",
        ),
        (
            lambda: compat.stoix.batch_n_step_bootstrapped_returns(x, x, x, 2, lambda_t="0.9"),
            TypeError,
            "batch_n_step_bootstrapped_returns: lambda_t must be an array; got str",
        ),
        (
            lambda: compat.rlax.discounted_returns(x[:, 0], x[:, 0], None),
            TypeError,
            "discounted_returns: v_t is required",
        ),
        (
            lambda: compat.rl_triton.compute_gae(x, x, x * 1j),
            TypeError,
            "terminated must be real numbers or flags",
        ),
        (
            lambda: compat.stoix.batch_truncated_generalized_advantage_estimation(x, x, 0.9, **values),
            ValueError,
            "got values and v_tm1 or v_t",
        ),
    ):
        with pytest.raises(kind, match=re.escape(text)):
            call()
