"""Columns over several devices: they stay where they are, in plain jit, under meshes and in shard_map."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax
from helpers import (
    ASSOCIATIVE_SCAN,
    INTERPRET,
    ONE_EACH,
    SCAN,
    seeded,
)
from meshes import MESHES, PLAIN, arrays, collectives, gae_of, mesh_of, near, pulled

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices")


LAYOUTS = [((8, 4), 0, (None, "x", "y")), ((2, 4), 1, ("x", None, "y")), ((8,), -1, (("x", "y"), None))]


def specs_of(traced, data, axis, spec):
    """The spec of every argument, of which flags may lack trailing axes and other arguments the axis of time."""

    def of(x):
        if x.ndim == 0 or x.ndim < len(spec) - 1:
            return P()
        columns = spec[:axis] + spec[axis + 1 :]
        entries = spec[: x.ndim] if x.ndim >= axis + 1 and x.shape[axis] in (data[axis], data[axis] + 1) else columns
        return P(*(None if n == 1 else e for n, e in zip(x.shape, entries, strict=True)))

    return {name: of(x) for name, x in traced.items()}


def _columns():
    for i, row in enumerate(ONE_EACH):
        for j, implementation in enumerate((None, PLAIN[1 + i % 2])):
            yield row, implementation, LAYOUTS[(i + j) % 3], MESHES[(i + j) % 2]


@pytest.mark.parametrize("row, implementation, layout, types", list(_columns()), ids=str)
def test_columns_stay_on_their_devices(row, implementation, layout, types):
    batch, time_axis, spec = layout
    kwargs = seeded(row, 5, batch, time_axis)
    of, traced, expected, cotangents = arrays(row, kwargs)
    function, gradient = of(implementation), partial(pulled, of(implementation))
    mesh = mesh_of((2, 4), ("x", "y"), types)
    specs = specs_of(traced, expected[0].shape, time_axis % len(spec), spec)
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    sharded = {name: put(x, specs[name]) for name, x in traced.items()}
    outputs = jax.jit(function)(sharded)
    near(outputs, expected)
    for x in outputs:
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), x.ndim)
    assert collectives(function, sharded) == ({}, 0)

    whole = {name for name, spec in specs.items() if not any(spec)}  # its cotangent is a sum over devices
    given = tuple(put(ct, P(*spec)) for ct in cotangents)
    near(jax.jit(gradient)(sharded, given), pulled(of(SCAN), traced, cotangents))
    own = lambda traced, given: {n: ct for n, ct in gradient(traced, given).items() if n not in whole}
    assert collectives(own, sharded, given) == ({}, 0)
    for name, ct in jax.jit(own)(sharded, given).items():
        assert ct.sharding.is_equivalent_to(NamedSharding(mesh, specs[name]), ct.ndim)


@pytest.mark.parametrize("implementation", [INTERPRET])
@pytest.mark.parametrize("types", MESHES)
def test_the_interpreter_takes_sharded_inputs(implementation, types):
    row = next(row for row in ONE_EACH if row.function == "gae")
    of, traced, expected, cotangents = arrays(row, seeded(row, 5, (8,)))
    mesh = mesh_of((8,), ("x",), types)
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P(None, "x") if x.ndim == 2 else P()))
    sharded = {name: put(x) for name, x in traced.items()}
    near(jax.jit(of(implementation))(sharded), expected)
    got = jax.jit(partial(pulled, of(implementation)))(sharded, tuple(map(put, cotangents)))
    near(got, pulled(of(SCAN), traced, cotangents))


def _batch(mesh, *names, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (8, 5, 4), (8, 6, 4)
    return [jax.device_put(rng.normal(size=s).astype("f4"), NamedSharding(mesh, P(*names))) for s in shapes]


@pytest.mark.parametrize("types", MESHES)
@pytest.mark.parametrize("implementation", [None, SCAN])
def test_vmap_over_a_sharded_axis(implementation, types):
    mesh = mesh_of((2, 4), ("x", "y"), types)
    args = _batch(mesh, "x", None, "y")
    gae = partial(gae_of, implementation=implementation)
    mapped = jax.vmap(gae, spmd_axis_name="x" if types == AxisType.Auto else None)
    plain = [np.asarray(x) for x in args]
    expected = [np.stack(x) for x in zip(*(gae_of(*each) for each in zip(*plain, strict=True)), strict=True)]
    near(jax.jit(mapped)(*args), expected)
    assert collectives(mapped, *args) == ({}, 0)

    def over_discounts(rewards, values, discounts):
        return jax.vmap(lambda discount: jax.vmap(partial(gae_of, discount=discount))(rewards, values))(discounts)

    outputs = jax.jit(over_discounts)(*args, jnp.array([0.5, 0.9]))
    near([x[1] for x in outputs], expected)
    assert outputs[0].sharding.is_equivalent_to(NamedSharding(mesh, P(None, "x", None, "y")), 4)
    assert collectives(over_discounts, *args, jnp.array([0.5, 0.9])) == ({}, 0)

    def tangents(rewards, values):
        return jax.jvp(lambda rewards: mapped(rewards, values), (rewards,), (jnp.cos(rewards),))[1]

    near(jax.jit(tangents)(*args), tangents(*plain))
    assert collectives(tangents, *args) == ({}, 0)


@pytest.mark.parametrize("types", MESHES)
def test_under_a_set_mesh_and_in_a_scan(types):
    mesh = mesh_of((2, 4), ("x", "y"), types)
    args = _batch(mesh, "x", None, "y")

    def improved(rewards, values):
        step = lambda r, _: (r + jax.grad(lambda r: jnp.sum(jax.vmap(gae_of)(r, values)[0] ** 2))(r), None)
        return jax.lax.scan(step, rewards, None, length=2)[0]

    expected = improved(*map(np.asarray, args))
    near(jax.jit(improved)(*args), expected, 1e-4)
    assert collectives(improved, *args) == ({}, 0)
    with jax.set_mesh(mesh):
        near(jax.jit(improved)(*args), expected, 1e-4)
        near(jax.vmap(gae_of)(*args), jax.vmap(gae_of)(*map(np.asarray, args)))


def test_operands_sharded_in_different_ways():
    mesh = mesh_of((2, 4), ("x", "y"), AxisType.Explicit)
    rewards, values = _batch(mesh, "x")
    whole = jax.device_put(values, NamedSharding(mesh, P()))
    gae = partial(rltriton_jax.gae, discount=0.9, lambda_=0.9, time_axis=1)
    gradient = jax.jit(jax.grad(lambda *args: jnp.sum(gae(*args)[0] ** 2), (0, 1)))
    near(gradient(rewards, whole), gradient(np.asarray(rewards), np.asarray(values)))
    across = jax.device_put(values, NamedSharding(mesh, P("y")))
    with pytest.raises(ValueError, match=r"sharded over \('y',\) along axis 0.*pass one of them through jax.sharding"):
        jax.jit(gae)(rewards, across)


# Columns in shard_map


def _mapped_columns():
    for i, row in enumerate(ONE_EACH):
        yield row, (None, SCAN, ASSOCIATIVE_SCAN)[i % 3], MESHES[i % 2]
    for i, row in enumerate(row for row in ONE_EACH if row.function in ("vtrace", "eligibility_traces")):
        yield pytest.param(row, INTERPRET.values[0], MESHES[i], marks=INTERPRET.marks)


@pytest.mark.parametrize("row, implementation, types", list(_mapped_columns()), ids=str)
def test_columns_in_shard_map(row, implementation, types):
    of, traced, expected, cotangents = arrays(row, seeded(row, 5, (8,)))
    mesh = mesh_of((8,), ("x",), types)
    specs = specs_of(traced, expected[0].shape, 0, (None, "x"))
    sharded = {name: jax.device_put(x, NamedSharding(mesh, specs[name])) for name, x in traced.items()}
    given = tuple(jax.device_put(ct, NamedSharding(mesh, P(None, "x"))) for ct in cotangents)
    on = partial(jax.shard_map, mesh=mesh)
    mapped = on(of(implementation), in_specs=(specs,), out_specs=P(None, "x"))
    near(jax.jit(mapped)(sharded), expected)
    assert collectives(mapped, sharded) == ({}, 0)
    gradient = pulled(of(SCAN), traced, cotangents)
    near(jax.jit(partial(pulled, mapped))(sharded, given), gradient)
    of_floating = {name: specs[name] for name in gradient}
    inside = on(partial(pulled, of(implementation)), in_specs=(specs, P(None, "x")), out_specs=of_floating)
    near(jax.jit(inside)(sharded, given), gradient)


@pytest.mark.parametrize("types", MESHES)
@pytest.mark.parametrize("implementation", [None, SCAN])
def test_one_axis_manual_and_one_automatic(implementation, types):
    mesh = mesh_of((2, 4), ("x", "y"), types)
    args = _batch(mesh, "x", None, "y")
    gae = jax.vmap(partial(gae_of, implementation=implementation))
    mapped = jax.shard_map(gae, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    near(jax.jit(mapped)(*args), jax.vmap(gae_of)(*map(np.asarray, args)))
