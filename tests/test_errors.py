"""Bad input to the public functions: an error that names the function and the argument, what came and what to pass."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax
from helpers import HAS_GPU, ONE_EACH, each, seeded, without
from table import FUNCTIONS

T, B = 4, 3
X, LONGER, BATCH, FLAGS = np.ones((T, B)), np.ones((T + 1, B)), np.ones(B), np.zeros((T, B), bool)
SHARED = {"discount": 0.9, "lambda_": 0.8}
GOOD = {
    "linear_recurrence": {"coefficients": X, "inputs": X},
    "gae": {"rewards": X, "values": LONGER, **SHARED},
    "vtrace": {"rewards": X, "values": LONGER, "rhos": X, **SHARED},
    "retrace": {"rewards": X, "q_taken": X, "next_expected_q": X, "rhos": X, **SHARED},
    "off_policy_returns": {"rewards": X, "q_taken": X, "next_expected_q": X, "traces": X, "discount": 0.9},
    "lambda_returns": {"rewards": X, "values": LONGER, **SHARED},
    "discounted_returns": {"rewards": X, "discount": 0.9},
    "n_step_returns": {"rewards": X, "values": LONGER, "n": 2, "discount": 0.9},
    "eligibility_traces": {"inputs": X, **SHARED},
    "episodic_prefix_sum": {"inputs": X},
}
BACKWARD = [f for f in GOOD if not FUNCTIONS[f].forward and f != "linear_recurrence"]
FORWARD = [f for f in GOOD if FUNCTIONS[f].forward]
WITH_VALUES = [f for f in GOOD if FUNCTIONS[f].values]
WITH_FLAGS = [*BACKWARD, *FORWARD]
WITH_DISCOUNT = [f for f in GOOD if FUNCTIONS[f].discount]
WITH_LAMBDA = [f for f in GOOD if FUNCTIONS[f].lambda_]
WITH_RATIOS = [f for f in GOOD if FUNCTIONS[f].ratios]
NO_MASK = ("linear_recurrence", "n_step_returns")


def raises(kind, function, kwargs, *parts):
    """The error of one call; its message names the function and holds all `parts`."""
    with pytest.raises(kind) as caught:
        getattr(rltriton_jax, function)(**kwargs)
    message = str(caught.value)
    for part in (f"{function}: ", *parts):
        assert part in message, message
    return message


def test_types_without_a_common_one_are_named():
    kwargs = {
        "rewards": jnp.ones(3, jnp.float8_e5m2),
        "values": jnp.ones(4, jnp.bfloat16),
        "discount": 0.9,
        "lambda_": 0.9,
    }
    raises(TypeError, "gae", kwargs, "float8_e5m2", "bfloat16")


def each_of(functions):
    return pytest.mark.parametrize("function", functions)


@each_of(GOOD)
def test_the_good_calls_are_good(function):
    getattr(rltriton_jax, function)(**GOOD[function])


def series_of(function):
    """Arguments that must have exactly the shape of the data."""
    names = ("coefficients", *FUNCTIONS[function].like_data, "rhos", "next_values")
    return [n for n in names if n in GOOD[function] and n != "coefficients"]


# Shapes


@each_of(GOOD)
@pytest.mark.parametrize("shape", [(T, B, 1), (T, 1, B), (T,), (B,), (T, 1), (1, B), (T + 2, B), (B, T), (1, T, B)])
def test_shapes_that_would_broadcast(function, shape):
    data = FUNCTIONS[function].data
    for name in series_of(function):
        message = raises(ValueError, function, {**GOOD[function], name: np.ones(shape)}, f"{name} has shape {shape}")
        assert f"{data} has shape {(T, B)}" in message
        assert f"pass shape {(T, B)}" in message
    if function in WITH_VALUES:
        raises(ValueError, function, {**GOOD[function], "values": np.ones(shape)}, f"values has shape {shape}", "pass")
        bad = {**GOOD[function], "values": X, "next_values": np.ones(shape)}
        raises(ValueError, function, bad, f"next_values has shape {shape}", f"pass shape {(T, B)}")


@each_of(WITH_DISCOUNT)
@pytest.mark.parametrize("name", ["discount", "lambda_"])
@pytest.mark.parametrize("shape", [(B,), (T, B, 1), (2, B), (T, 2), (T + 1, B), (1, T, B), (0, B), (B, T)])
def test_shapes_of_discount_and_lambda(function, name, shape):
    if name == "lambda_" and function not in WITH_LAMBDA:
        return
    raises(ValueError, function, {**GOOD[function], name: np.ones(shape)}, f"{name} has shape {shape}", "pass a scalar")


@pytest.mark.parametrize("shape", [(B,), (T, B, 1), (T + 1, B), (2, B)])
def test_shapes_of_coefficients(shape):
    bad = {**GOOD["linear_recurrence"], "coefficients": np.ones(shape)}
    raises(ValueError, "linear_recurrence", bad, f"coefficients has shape {shape}", f"inputs has shape {(T, B)}")


@each_of(WITH_FLAGS)
@pytest.mark.parametrize("name", ["terminated", "truncated", "episode_starts", "mask"])
@pytest.mark.parametrize("shape", [(), (B,), (T, B, 1), (T, 1), (1, B), (T + 2, B), (B, T)])
def test_shapes_of_flags(function, name, shape):
    if name == "mask" and function in NO_MASK:
        return
    kwargs = {**GOOD[function], name: np.zeros(shape, bool)}
    if name == "truncated" and function in BACKWARD and "next_expected_q" not in kwargs:
        kwargs = {**kwargs, "next_values": X}
        if "values" in kwargs:
            kwargs["values"] = X
    raises(ValueError, function, kwargs, f"{name} has shape {shape}", f"pass shape {(T, B)}", "or its leading axes")


@each_of(WITH_FLAGS)
def test_only_episode_starts_may_have_a_row_more(function):
    longer = np.zeros((T + 1, B), bool)
    getattr(rltriton_jax, function)(**GOOD[function], episode_starts=longer)
    raises(ValueError, function, {**GOOD[function], "terminated": longer}, f"terminated has shape {(T + 1, B)}")
    bad = {**GOOD[function], "episode_starts": np.zeros((T + 2, B), bool)}
    raises(ValueError, function, bad, f"shape {(T, B)} or shape {(T + 1, B)}")


@pytest.mark.parametrize("shape", [(T,), (1, B), (B, 1), (1,), (T, B)])
@pytest.mark.parametrize(
    "function, name",
    [
        *((f, "bootstrap_value") for f in (*WITH_VALUES, "discounted_returns")),
        *((f, "next_episode_start") for f in BACKWARD),
        *((f, "initial") for f in (*FORWARD, "linear_recurrence")),
    ],
)
def test_shapes_past_the_window(function, name, shape):
    kwargs = {**GOOD[function], name: np.ones(shape)}
    if name == "bootstrap_value" and function in WITH_VALUES:
        kwargs["values"] = X
    if name == "next_episode_start":
        kwargs["episode_starts"] = FLAGS
    raises(ValueError, function, kwargs, f"{name} has shape {shape}", f"pass a scalar or shape {(B,)}")


def test_values_past_the_window_have_the_features_of_the_data():
    inputs = np.ones((T, B, 2))
    for shape in ((B,), (2,), (B, 1)):
        bad = {"inputs": inputs, "initial": np.ones(shape)}
        raises(ValueError, "episodic_prefix_sum", bad, f"initial has shape {shape}", f"pass a scalar or shape {(B, 2)}")


@each_of(WITH_RATIOS)
@pytest.mark.parametrize("name", ["clip_rho", "clip_c"])
def test_bounds_are_scalars(function, name):
    raises(ValueError, function, {**GOOD[function], name: BATCH}, f"{name} must be a scalar; got shape {(B,)}")


@each_of(GOOD)
def test_data_without_time(function):
    data = FUNCTIONS[function].data
    kwargs = {k: 1.0 if np.ndim(v) else v for k, v in GOOD[function].items()}
    raises(ValueError, function, kwargs, f"{data} needs a time axis", "got a scalar", "Pass an array")


# What goes together


@each_of(WITH_VALUES)
def test_values_say_what_follows_the_window(function):
    good = {**GOOD[function], "values": X}
    message = raises(ValueError, function, good, "values has T rows", "bootstrap_value", "next_values", "T + 1 rows")
    assert "unknown" in message
    both = {**good, "bootstrap_value": BATCH, "next_values": X}
    raises(ValueError, function, both, "next_values already says", "drop bootstrap_value")
    for name, value in (("bootstrap_value", 0.0), ("next_values", X)):
        more = {**GOOD[function], name: value}
        raises(ValueError, function, more, "values has T + 1 rows", f"{name} is given", "pass the first T rows")
    nothing = {**GOOD[function], "values": None}
    wanted = "pass values or next_values" if function in ("lambda_returns", "n_step_returns") else "pass values"
    raises(ValueError, function, nothing, wanted, "got None")
    if function in ("gae", "vtrace"):
        raises(ValueError, function, {**nothing, "next_values": X}, "pass values", "got None")


@each_of([*WITH_VALUES, "discounted_returns"])
def test_truncated_needs_the_true_next_values(function):
    kwargs = {**GOOD[function], "truncated": FLAGS}
    raises(ValueError, function, kwargs, "truncated needs next_values", "values[t + 1]")
    if function in WITH_VALUES:
        kwargs = {**kwargs, "values": X, "bootstrap_value": 0.0}
        raises(ValueError, function, kwargs, "truncated needs next_values")


@each_of(WITH_FLAGS)
def test_one_convention_of_flags(function):
    next_values = {"next_values": X} if function in (*WITH_VALUES, "discounted_returns") else {}
    kwargs = {**GOOD[function], **next_values}
    if "values" in kwargs:
        kwargs["values"] = X
    both = {**kwargs, "terminated": FLAGS, "episode_starts": FLAGS}
    raises(ValueError, function, both, "both terminated and episode_starts", "pass one")
    both = {**kwargs, "truncated": FLAGS, "episode_starts": FLAGS}
    raises(ValueError, function, both, "truncated goes with terminated", "pass terminated and truncated")


@each_of(BACKWARD)
def test_what_follows_the_last_flag(function):
    kwargs = {**GOOD[function], "episode_starts": FLAGS}
    raises(ValueError, function, kwargs, "episode_starts has T rows", "pass next_episode_start, or T + 1 rows")
    longer = {**GOOD[function], "episode_starts": np.zeros((T + 1, B)), "next_episode_start": False}
    raises(ValueError, function, longer, "episode_starts has T + 1 rows", "next_episode_start is given", "pass one")
    alone = {**GOOD[function], "next_episode_start": False}
    raises(ValueError, function, alone, "next_episode_start goes with episode_starts")


@each_of(WITH_RATIOS)
def test_ratios_or_their_logarithms(function):
    raises(ValueError, function, {**GOOD[function], "log_rhos": X}, "pass one of log_rhos and rhos", "got both")
    raises(ValueError, function, without(GOOD[function], "rhos"), "pass one of log_rhos and rhos", "got neither")


# Types


def numeric(function):
    """(name, a value, good arguments with that value) of each argument that is a number."""
    spec, good = FUNCTIONS[function], GOOD[function]
    past = {n: BATCH for n in ("bootstrap_value", "initial") if n in spec.floating}
    for name, value in {**{n: good[n] for n in spec.floating if n in good}, **past}.items():
        shorter = {"values": X} if name == "bootstrap_value" and "values" in good else {}
        yield name, value, {**good, **shorter, name: value}


@each_of(GOOD)
def test_complex_numbers_and_other_things(function):
    for name, value, kwargs in numeric(function):
        raises(TypeError, function, {**kwargs, name: np.asarray(value) + 1j}, f"{name} must be real numbers", "complex")
        raises(TypeError, function, {**kwargs, name: "abc"}, f"{name} must be an array; got str")
        raises(TypeError, function, {**kwargs, name: np.full(np.shape(value), "x")}, f"{name} must be")
        raises(TypeError, function, {**kwargs, name: np.asarray(value) > 0}, f"{name} must be numbers; got dtype bool")
        raises(TypeError, function, {**kwargs, name: {"a": 1}}, f"{name} must be an array; got dict")
        raises(TypeError, function, {**kwargs, name: [[1.0], [1.0, 2.0]]}, f"{name} must be an array; got list")
        raises(TypeError, function, {**kwargs, name: jax.random.key(0)}, f"{name} must be real numbers")


@each_of(GOOD)
def test_integers_that_jax_would_wrap(function):
    for name, value, kwargs in numeric(function):
        if np.ndim(value):
            wide = np.full(np.shape(value), 2**40)
            raises(ValueError, function, {**kwargs, name: wide}, f"{name} holds {2**40}", "int32", "floating")
        else:
            raises(TypeError, function, {**kwargs, name: 10**400}, f"{name} must be an array; got int")


@each_of(GOOD)
def test_required_arguments_are_no_none(function):
    for name in GOOD[function]:
        if name not in ("values", "rhos", "n"):
            raises(TypeError, function, {**GOOD[function], name: None}, f"{name} is required; got None")


@each_of(GOOD)
def test_discount_and_lambda_have_no_hidden_default(function):
    parameters = inspect.signature(getattr(rltriton_jax, function)).parameters
    for name in ("discount", "lambda_"):
        if name in parameters and (function, name) not in (
            ("vtrace", "lambda_"),
            ("retrace", "lambda_"),
            ("n_step_returns", "lambda_"),
        ):
            assert parameters[name].default is inspect.Parameter.empty
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            with pytest.raises(TypeError, match=name):
                getattr(rltriton_jax, function)(**without(GOOD[function], name))


@each_of(WITH_FLAGS)
def test_types_of_flags(function):
    raises(
        TypeError, function, {**GOOD[function], "terminated": FLAGS * 1j}, "terminated must be real numbers or flags"
    )
    raises(TypeError, function, {**GOOD[function], "terminated": "yes"}, "terminated must be an array; got str")


# Choices


@each_of(GOOD)
def test_time_axis(function):
    for axis in (2, -3, 100):
        message = raises(ValueError, function, {**GOOD[function], "time_axis": axis}, f"time_axis={axis} is outside")
        assert "pass one of -2 to 1" in message
    for axis in (0.0, None, "time", True, jnp.array(0)):
        raises(TypeError, function, {**GOOD[function], "time_axis": axis}, "time_axis must be an int; got")


@each_of([f for f in GOOD if f != "linear_recurrence"])
@pytest.mark.parametrize("mode", ["drop", None, "", "SKIP", ["skip"]], ids=repr)
def test_mask_mode(function, mode):
    for mask in ({}, {} if function in NO_MASK else {"mask": FLAGS}):
        kwargs = {**GOOD[function], **mask, "mask_mode": mode}
        raises(ValueError, function, kwargs, f"mask_mode must be 'skip' or 'reset'; got {mode!r}")


@each_of(GOOD)
@pytest.mark.parametrize("name", ["cuda", "Triton", "", 0, True, ["scan"]], ids=repr)
def test_names_of_implementations(function, name):
    message = raises(ValueError, function, {**GOOD[function], "implementation": name}, f"got {name!r}")
    for known in ("None", "'triton'", "'associative_scan'", "'scan'", "'interpret'"):
        assert known in message


@pytest.mark.skipif(HAS_GPU, reason="for a machine without a GPU")
@each(ONE_EACH)
def test_triton_without_a_gpu_says_why(row):
    run = lambda: getattr(rltriton_jax, row.function)(**seeded(row), implementation="triton")
    for call in (run, jax.jit(run)):
        with pytest.raises(
            ValueError, match=f"{row.function}: implementation='triton' needs an NVIDIA or AMD GPU"
        ) as caught:
            call()
        assert "implementation='interpret'" in str(caught.value)


def test_steps_of_n_step_returns():
    good = without(GOOD["n_step_returns"], "n")
    for n in (0, -1, np.int32(-5)):
        raises(ValueError, "n_step_returns", {**good, "n": n}, "n must be at least 1", f"got {n}")
    for n in (1.0, None, True, "3", jnp.array(2)):
        raises(TypeError, "n_step_returns", {**good, "n": n}, "n must be an int", f"got {type(n).__name__}")
    with pytest.raises(TypeError, match="n_step_returns: n must be an int, known when the function is traced"):
        jax.jit(lambda n: rltriton_jax.n_step_returns(**good, n=n))(2)
    rltriton_jax.n_step_returns(**good, n=np.int64(2))


def test_masks_of_n_step_returns():
    kwargs = {**GOOD["n_step_returns"], "mask": ~FLAGS}
    raises(ValueError, "n_step_returns", kwargs, "mask is not supported", "use lambda_returns")


@each_of(GOOD)
def test_unknown_and_positional_arguments(function):
    with pytest.raises(TypeError, match="gamma"):
        getattr(rltriton_jax, function)(**GOOD[function], gamma=0.9)
    positional = [
        p for p in inspect.signature(getattr(rltriton_jax, function)).parameters.values() if p.kind != p.KEYWORD_ONLY
    ]
    with pytest.raises(TypeError, match="positional"):
        getattr(rltriton_jax, function)(*[X] * (len(positional) + 1))


# Under transformations


def test_errors_under_jit_and_vmap():
    run = lambda values: rltriton_jax.gae(X, values, **SHARED)
    for transformed in (jax.jit(run), jax.grad(lambda v: jnp.sum(run(v).advantages))):
        with pytest.raises(ValueError, match=re.escape("gae: values has shape (2, 3)")):
            transformed(np.ones((2, B)))
    with pytest.raises(ValueError, match=re.escape("gae: values has shape (2, 3)")):
        jax.vmap(run)(np.ones((6, 2, B)))


def test_flags_may_lack_the_features_of_the_data():
    inputs, flags = np.ones((T, B, 2)), np.zeros((T, B), bool)
    rltriton_jax.episodic_prefix_sum(inputs, terminated=flags, mask=~flags)
    rltriton_jax.episodic_prefix_sum(inputs, terminated=flags[:, 0])
    last = {"inputs": np.ones((B, 2, T)), "time_axis": -1}
    bad = {**last, "terminated": np.zeros((B, T), bool)}
    raises(ValueError, "episodic_prefix_sum", bad, f"terminated has shape {(B, T)}")


# Documentation


@each_of(GOOD)
def test_docstrings_name_every_argument(function):
    public = getattr(rltriton_jax, function)
    text = inspect.getdoc(public)
    for part in ("Args:", "Returns:", "Raises:", "Example:", "ValueError:", "TypeError:", ">>> "):
        assert part in text
    for name in inspect.signature(public).parameters:
        assert re.search(rf"\b{name}\b", text), name
