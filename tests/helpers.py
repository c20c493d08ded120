"""What several test files share: implementations, calls of table rows, comparisons, numeric derivatives."""

import importlib.util
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax
from table import TABLE, Row, as_tuple

STATIC = ("time_axis", "mask_mode", "n", "reverse", "implementation")
PER_BATCH = ("bootstrap_value", "next_episode_start", "initial")
LINEAR = ("rewards", "values", "next_values", "bootstrap_value", "q_taken", "next_expected_q", "inputs", "initial")
FLAGS = ("terminated", "truncated", "episode_starts", "next_episode_start", "mask")


def _has_gpu():
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


HAS_GPU = _has_gpu()
_TRITON = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")]
_INTERPRET = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
SCAN, ASSOCIATIVE_SCAN = "scan", "associative_scan"
INTERPRET = pytest.param("interpret", marks=_INTERPRET, id="interpret")
TRITON = pytest.param("triton", marks=_TRITON, id="triton")
IMPLEMENTATIONS = (SCAN, ASSOCIATIVE_SCAN, INTERPRET, TRITON)

each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def with_marks(implementation, *values, id):
    """A parameter set of an implementation and further values, with the marks of the implementation."""
    marks = getattr(implementation, "marks", ())
    name = implementation.values[0] if marks else implementation
    return pytest.param(name, *values, marks=marks, id=f"{id}-{name}")


def accepted(row: Row) -> bool:
    """Whether the function takes the arguments of the row: n-step returns refuse masks."""
    return not (row.function == "n_step_returns" and row.options.mask)


ROWS = [row for row in TABLE if accepted(row)]


def each(rows):
    return pytest.mark.parametrize("row", rows, ids=str)


def rows_named(*variants):
    return [row for row in ROWS if row.variant in variants]


# One row of every function, with as much in it as the function takes.
FULLEST = {
    "linear_recurrence": "reverse_initial",
    "gae": "skip_truncated",
    "vtrace": "skip_truncated",
    "retrace": "skip_truncated",
    "off_policy_returns": "skip_truncated",
    "lambda_returns": "skip_truncated",
    "discounted_returns": "skip_truncated",
    "n_step_returns": "truncated",
    "eligibility_traces": "skip_initial",
    "episodic_prefix_sum": "skip_initial",
}
ONE_EACH = [row for row in ROWS if FULLEST[row.function] == row.variant]


def seeded(row, T=7, batch_shape=(3,), time_axis=0, seed=0):
    """The arguments of a row, the same ones every time."""
    rng = np.random.default_rng([seed, *map(ord, str(row))])
    return row.make(rng, T=T, batch_shape=batch_shape, time_axis=time_axis)


def split(kwargs):
    """(the arguments that can be traced, the others)"""
    traced = {k: v for k, v in kwargs.items() if k not in STATIC and v is not None}
    return traced, {k: v for k, v in kwargs.items() if k not in traced}


def function_of(row, kwargs, implementation) -> tuple[Callable, dict]:
    """(f, traced): the outputs of the row, as a tuple, by a function of the arguments that can be traced."""
    traced, rest = split(kwargs)
    public = getattr(rltriton_jax, row.function)
    return lambda traced: as_tuple(public(**traced, **rest, implementation=implementation)), traced


def call(function: str, kwargs, implementation=None):
    """The outputs as a tuple of NumPy arrays."""
    outputs = getattr(rltriton_jax, function)(**kwargs, implementation=implementation)
    return tuple(map(np.asarray, as_tuple(outputs)))


def cast(kwargs, dtype):
    """The floating arrays among the arguments in another type."""
    floating = lambda v: isinstance(v, np.ndarray) and v.dtype.kind == "f"
    return {k: v.astype(dtype) if floating(v) and k not in FLAGS else v for k, v in kwargs.items()}


TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def close(got, expected, tolerance=None):
    """Each of `got` equals each of `expected`, up to the rounding of its type relative to the largest number."""
    for a, b in zip(as_tuple(got), as_tuple(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b, np.float64)
        assert a.shape == b.shape
        bound = tolerance or TOLERANCE[a.dtype.name]
        finite = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b))
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=bound, atol=bound * finite.max(initial=1.0))


def equal(got, expected):
    for a, b in zip(as_tuple(got), as_tuple(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def live_of(row, kwargs):
    """Which elements of the outputs stand at steps that are not masked."""
    data = kwargs[row.spec.data]
    mask = np.asarray(kwargs.get("mask", True)) != 0
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (data.ndim - mask.ndim)), data.shape)


def weights(outputs, seed=0):
    """Numbers to weigh outputs by, so that a loss tells every element from every other."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=np.shape(x)) for x in outputs)


def loss_of(function, weigh):
    """The weighted sum of all outputs."""
    return lambda traced: sum(jnp.vdot(w.astype(x.dtype), x) for w, x in zip(weigh, function(traced), strict=True))


def numeric_gradient(f, kwargs, name, step=1e-5):
    """Central differences of the scalar f(kwargs) by every element of one argument."""
    value = np.asarray(kwargs[name], np.float64)
    out = np.zeros(value.shape)
    for index in np.ndindex(*value.shape):
        ends = []
        for sign in (1, -1):
            moved = value.copy()
            moved[index] += sign * step
            ends.append(f({**kwargs, name: moved if moved.ndim else float(moved)}))
        out[index] = (ends[0] - ends[1]) / (2 * step)
    return out


def without(kwargs, *names):
    return {name: value for name, value in kwargs.items() if name not in names}
