"""What the tests of sharded inputs share: meshes, collectives of a compiled program, gradients of traced arguments."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import rltriton_jax
from helpers import (
    ASSOCIATIVE_SCAN,
    SCAN,
    function_of,
    split,
    weights,
)

PLAIN = (None, SCAN, ASSOCIATIVE_SCAN)
MESHES = (AxisType.Auto, AxisType.Explicit)


def mesh_of(shape, names, types=AxisType.Auto):
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=(types,) * len(names), devices=devices)


def collectives(f, *args):
    """(how many of each kind, bytes that come out of them) in the compiled f(*args)."""
    text = jax.jit(f).lower(*args).compile().as_text()
    counts, total = Counter(), 0
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
    for shapes, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text):
        counts[kind] += 1
        for dtype, dims in re.findall(r"(pred|[a-z]+\d+)\[([\d,]*)\]", shapes):
            size = 1 if dtype == "pred" else int(re.sub(r"\D", "", dtype)) // 8
            total += size * int(np.prod([int(n) for n in dims.split(",") if n], initial=1))
    return dict(counts), total


def floating(traced):
    return {name: x for name, x in traced.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def pulled(function, traced, cotangents):
    """The cotangents of every floating argument."""
    return jax.vjp(lambda by: function({**traced, **by}), floating(traced))[1](cotangents)[0]


def arrays(row, kwargs):
    """(function of the traced arguments, these as arrays, the outputs, cotangents for them)."""

    def of(implementation):
        return function_of(row, kwargs, implementation)[0]

    traced = {name: jnp.asarray(x) for name, x in split(kwargs)[0].items()}
    outputs = jax.jit(of(SCAN))(traced)
    return of, traced, outputs, tuple(jnp.asarray(w, x.dtype) for w, x in zip(weights(outputs), outputs, strict=True))


def near(got, expected, tolerance=2e-5):
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    for a, b in zip(got, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(initial=1.0))


def gae_of(rewards, values, discount=0.9, implementation=None):
    return rltriton_jax.gae(rewards, values, discount=discount, lambda_=0.95, implementation=implementation)
