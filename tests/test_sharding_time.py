"""Time over several devices: joined by O(batch) numbers, in plain jit and by axis_name."""

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
    ROWS,
    SCAN,
    each,
    each_implementation,
    seeded,
    split,
)
from meshes import MESHES, arrays, collectives, floating, mesh_of, near, pulled
from rltriton_jax import _backends
from rltriton_jax._backends._tiles import Tile
from table import as_tuple

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices")


@pytest.mark.parametrize("implementation, types", [(None, MESHES[0]), (None, MESHES[1]), (SCAN, MESHES[0])])
def test_time_sharded_in_jit(implementation, types):
    row = next(row for row in ROWS if str(row) == "gae-skip_truncated")
    of, traced, expected, cotangents = arrays(row, seeded(row, 16, (8,)))
    mesh = mesh_of((8,), ("x",), types)
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("x", None) if x.ndim == 2 else P()))
    sharded, given = {name: put(x) for name, x in traced.items()}, tuple(map(put, cotangents))
    near(jax.jit(of(implementation))(sharded), expected)
    near(jax.jit(partial(pulled, of(implementation)))(sharded, given), pulled(of(SCAN), traced, cotangents))
    if implementation is None:  # it goes to the columns and back, and no device holds all of it
        counts, moved = collectives(of(None), sharded)
        assert set(counts) == {"all-to-all"}
        assert moved <= 2 * sum(x.nbytes for x in traced.values()) / 8


def test_windows_over_sharded_time_in_jit():
    row = next(row for row in ROWS if str(row) == "n_step_returns-n_3_truncated")
    of, traced, expected, _ = arrays(row, seeded(row, 16, (8,)))

    def sharded(types):
        sharding = NamedSharding(mesh_of((8,), ("x",), types), P("x"))
        return {name: jax.device_put(x, sharding) if x.ndim == 2 else x for name, x in traced.items()}

    near(jax.jit(of(None))(sharded(AxisType.Auto)), expected)
    with pytest.raises(ValueError, match="n_step_returns: time is sharded over 'x' of an explicit mesh; pass"):
        jax.jit(of(None))(sharded(AxisType.Explicit))


def of_shards(row, kwargs, implementation):
    """(function of traced arguments, these) for shards of time: T rows each, and what stands past them apart."""
    traced, rest = split(kwargs)
    T = kwargs[row.spec.data].shape[kwargs["time_axis"]]
    assert kwargs["time_axis"] == 0
    traced = {name: jnp.asarray(x) for name, x in traced.items()}
    for name, past in (("values", "bootstrap_value"), ("episode_starts", "next_episode_start")):
        if name in traced and traced[name].shape[0] == T + 1:
            traced |= {past: traced[name][-1], name: traced[name][:-1]}
    if row.spec.forward:
        traced.pop("next_episode_start", None)
    public = partial(getattr(rltriton_jax, row.function), **rest, implementation=implementation, axis_name="t")
    return lambda traced: as_tuple(public(**traced)), traced


def check_shards(row, kwargs, implementation, shape=(4,), tolerance=1e-10):
    """The outputs and all gradients are those of the whole."""
    of, traced, expected, cotangents = arrays(row, kwargs)
    function, parts = of_shards(row, kwargs, implementation)
    T = kwargs[row.spec.data].shape[0]
    spec = P("t", *("x",)[: len(shape) - 1])

    def of_part(x):
        if x.ndim and x.shape[0] == T and x.ndim > 1:
            return P("t", *(None if n == 1 else name for n, name in zip(x.shape[1:], spec[1:], strict=False)))
        return P(*spec[1:]) if x.ndim else P()

    mesh = mesh_of(shape, ("t", "x")[: len(shape)])
    specs = {name: of_part(x) for name, x in parts.items()}
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(specs,), out_specs=spec)
    near(jax.jit(mapped)(parts), expected, tolerance)
    got = jax.jit(partial(pulled, mapped))(parts, cotangents)
    wanted = pulled(of(SCAN), traced, cotangents)
    if "values" in wanted and len(wanted["values"]) > T:
        got["values"] = jnp.concatenate([got["values"], got.pop("bootstrap_value")[None]])
    near(got, wanted, tolerance)


SHARDED = (
    "linear_recurrence-initial_batch", "linear_recurrence-reverse_zeros", "gae-plain", "gae-skip_starts_past",
    "gae-reset_next_values_starts", "gae-features_reset", "vtrace-skip_steps_exact", "vtrace-truncated_rhos",
    "retrace-skip_truncated", "retrace-reset_steps_exact", "off_policy_returns-skip_starts_past",
    "lambda_returns-bootstrap_batch_exact", "lambda_returns-reset_bootstrap_batch",
    "discounted_returns-skip_bootstrap_batch",
    "discounted_returns-truncated_steps_exact", "n_step_returns-n_4", "n_step_returns-bootstrap_batch_exact",
    "eligibility_traces-skip_initial", "eligibility_traces-initial_steps_exact", "episodic_prefix_sum-reset_initial",
)  # fmt: skip


@pytest.mark.usefixtures("x64")
@each([row for row in ROWS if str(row) in SHARDED])
def test_shards_of_time(row):
    check_shards(row, seeded(row, 12, (2,)), None)


@pytest.mark.parametrize("implementation", [SCAN, ASSOCIATIVE_SCAN, INTERPRET])
@pytest.mark.parametrize("name", ["gae-skip_truncated", "eligibility_traces-reset_starts"])
def test_shards_of_time_by_each_implementation(name, implementation):
    row = next(row for row in ROWS if str(row) == name)
    check_shards(row, seeded(row, 6, (2,)), implementation, (2,), 2e-5)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", ["gae-skip_truncated", "retrace-reset_steps_exact", "linear_recurrence-initial_batch"])
@pytest.mark.parametrize("implementation", [INTERPRET])
def test_shards_that_are_cut_into_segments(implementation, name, columns, monkeypatch):
    """A shard of one column is walked by rows, of several by columns; the last segment is not full."""
    tile = Tile(2, 2, 2, 1, columns == 1, segments=3)
    monkeypatch.setattr(_backends, "tile_for", lambda view: tile._replace(rows=view.time_is_last))
    row = next(row for row in ROWS if str(row) == name)
    check_shards(row, seeded(row, 20, (columns,)), implementation, (2,), 2e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["retrace-skip_starts", "discounted_returns-skip_terminated", "episodic_prefix_sum-skip"]
)
def test_shards_without_a_live_step(name):
    row = next(row for row in ROWS if str(row) == name)
    kwargs = seeded(row, 16, (3,))
    for column, dead in enumerate([slice(2, 8), slice(8, None), slice(None)]):
        kwargs["mask"][dead, column] = False
    check_shards(row, row.poison(kwargs), None, (8,))


@pytest.mark.usefixtures("x64")
@each_implementation
def test_flags_below_the_range_of_the_data(implementation):
    rewards, ends = jnp.ones(8, jnp.float32), jnp.zeros(8).at[3].set(1e-300)
    gae = partial(rltriton_jax.gae, bootstrap_value=1.0, discount=0.5, lambda_=1.0, implementation=implementation)
    for name in ("terminated", "mask"):
        alone = lambda r, e, axis_name=None, name=name: gae(
            r, r, **{name: e}, **({"mask_mode": "reset"} if name == "mask" else {}), axis_name=axis_name
        )
        mapped = jax.shard_map(
            lambda r, e, f=alone: f(r, e, "t"), mesh=mesh_of((4,), ("t",)), in_specs=P("t"), out_specs=P("t"),
            check_vma=implementation != INTERPRET,
        )  # fmt: skip
        near(jax.jit(mapped)(rewards, ends), alone(rewards, ends), 1e-6)


@pytest.mark.usefixtures("x64")
def test_shards_of_one_step_and_of_columns_too():
    for row in (row for row in ROWS if str(row) in ("gae-reset_truncated", "linear_recurrence-initial_batch")):
        check_shards(row, seeded(row, 8, (2,)), None, (8,))
        check_shards(row, seeded(row, 8, (4,)), None, (4, 2))


@pytest.mark.usefixtures("x64")
@each_implementation
@pytest.mark.parametrize(
    "name", ["gae-skip_truncated", "vtrace-truncated_rhos", "vtrace-rhos", "linear_recurrence-initial_batch"]
)
def test_derivatives_of_every_order_over_shards(implementation, name):
    row = next(row for row in ROWS if str(row) == name)
    of, traced, expected, cotangents = arrays(row, seeded(row, 6, (2,)))
    whole, (function, parts) = of(implementation), of_shards(row, seeded(row, 6, (2,)), implementation)
    mesh = mesh_of((2,), ("t",))
    specs = {n: P("t") if x.ndim and x.shape[0] == 6 else P() for n, x in parts.items()}
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(specs,), out_specs=P("t"))
    by = {n: x for n, x in floating(parts).items() if n in (row.spec.data, "values", "log_rhos", "rhos", "discount")}

    def of_parts(parts):
        if "bootstrap_value" not in parts or "bootstrap_value" in traced:
            return whole(parts)
        rows = jnp.concatenate([parts["values"], parts["bootstrap_value"][None]])
        return whole({**{n: x for n, x in parts.items() if n in traced}, "values": rows})

    def slope(f, by):
        outs = lambda by: zip(f({**parts, **by}), cotangents, strict=True)
        return jax.grad(lambda by: sum(jnp.sum(jnp.sin(out) * ct) for out, ct in outs(by)))(by)

    def twice(f, by):
        """The forward derivative of the gradient."""
        return jax.jvp(partial(slope, f), (by,), (jax.tree.map(jnp.cos, by),))

    def back_twice(f, by):
        return jax.grad(lambda by: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(slope(f, by))))(by)

    for derivative in (twice, back_twice):
        near(jax.jit(partial(derivative, mapped))(by), jax.jit(partial(derivative, of_parts))(by), 1e-9)


@each_implementation
def test_shards_of_a_population(implementation):
    """vmap outside of shard_map, inside of it, over hyperparameters, and without jit."""
    mesh, rng = mesh_of((4,), ("t",)), np.random.default_rng(0)
    rewards, values = (jnp.asarray(rng.normal(size=(8, 3)), jnp.float32) for _ in range(2))
    discounts = jnp.array([0.5, 0.9, 1.0])
    gae = partial(rltriton_jax.gae, lambda_=0.8, bootstrap_value=0.5, implementation=implementation)
    over_time = partial(jax.shard_map, mesh=mesh, in_specs=(P("t"), P("t"), P()))

    def one(r, v, d):
        return gae(r, v, discount=d, axis_name="t").advantages

    expected = [gae(rewards, values, discount=d).advantages for d in discounts]
    by_column = jnp.stack([gae(rewards[:, i], values[:, i], discount=d).advantages for i, d in enumerate(discounts)], 1)
    within = over_time(jax.vmap(one, (None, None, 0)), out_specs=P(None, "t"))
    outside = jax.vmap(over_time(one, out_specs=P("t")), (None, None, 0))
    for f in (within, outside, jax.jit(within), jax.jit(outside)):
        near(f(rewards, values, discounts), jnp.stack(expected), 1e-6)
    near(over_time(jax.vmap(one, (1, 1, 0), 1), out_specs=P("t"))(rewards, values, discounts), by_column, 1e-6)
    unchecked = over_time(one, out_specs=P("t"), check_vma=False)
    near(jax.jit(unchecked)(rewards, values, discounts[1]), expected[1], 1e-6)


def _exchanged(T, mask_mode, gradient):
    """Collectives of GAE over eight shards of T steps in all, 64 columns."""
    mesh = mesh_of((8,), ("t",))
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(T, 64)).astype("f4") for _ in range(2)] + [rng.normal(size=64).astype("f4")]
    mask = None if mask_mode is None else rng.random((T, 64)) < 0.5

    def advantages(rewards, values, bootstrap_value, mask):
        return rltriton_jax.gae(
            rewards, values, bootstrap_value=bootstrap_value, discount=0.9, lambda_=0.9, mask=mask,
            mask_mode=mask_mode or "skip", axis_name="t",
        )  # fmt: skip

    specs = (P("t"), P("t"), P(), None if mask is None else P("t"))
    mapped = jax.shard_map(advantages, mesh=mesh, in_specs=specs, out_specs=P("t"))
    if gradient:
        mapped = jax.grad(lambda *args, f=mapped: jnp.sum(f(*args)[0] ** 2), (0, 1))
    return collectives(mapped, *args, mask)


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("mask_mode", [None, "skip", "reset"])
def test_shards_exchange_as_much_as_they_have_columns(mask_mode, gradient):
    counts, moved = _exchanged(64, mask_mode, gradient)
    assert (counts, moved) == _exchanged(1024, mask_mode, gradient)
    assert moved <= 8 * (13 if gradient else 9) * (64 * 4)
    if mask_mode != "skip":  # the nearest live row is looked for before
        assert counts == {"all-to-all": 2 if gradient else 1}


@pytest.mark.parametrize("name", ["vtrace-rhos", "retrace-steps", "eligibility_traces-reset_steps_exact"])
def test_shards_exchange_once_each_way(name):
    row = next(row for row in ROWS if str(row) == name)
    _, _, _, cotangents = arrays(row, seeded(row, 8, (2,)))
    function, parts = of_shards(row, seeded(row, 8, (2,)), None)
    specs = {n: P("t") if x.ndim and x.shape[0] == 8 else P() for n, x in parts.items()}
    mapped = jax.shard_map(function, mesh=mesh_of((4,), ("t",)), in_specs=(specs,), out_specs=P("t"))
    assert collectives(mapped, parts)[0] == {"all-to-all": 1}
    counts = collectives(partial(pulled, mapped), parts, cotangents)[0]
    assert counts.pop("all-reduce", 0) <= len(parts)  # of what is the same on all shards
    assert counts == {"all-to-all": 2}


@pytest.mark.parametrize("implementation", [INTERPRET])
def test_one_bootstrap_for_a_population_over_shards(implementation):
    """What crosses has more columns than the end in whose place it stands; shards are cut into segments."""
    mesh, rng = mesh_of((2,), ("t",)), np.random.default_rng(0)
    rewards, values = (jnp.asarray(rng.normal(size=(2, 512, 3)), jnp.float32) for _ in range(2))
    gae = partial(rltriton_jax.gae, discount=0.9, lambda_=0.8)

    def shard(r, v, end):
        return gae(r, v, bootstrap_value=end, axis_name="t", implementation=implementation)

    def over_time(r, v, end):
        mapped = jax.vmap(shard, (1, 1, None), 1)
        mapped = jax.shard_map(mapped, mesh=mesh, in_specs=(P("t"), P("t"), P()), out_specs=P("t"))
        return mapped(jnp.swapaxes(r, 0, 1), jnp.swapaxes(v, 0, 1), end)

    end = jnp.arange(3.0)
    expected = jax.vmap(lambda r, v: gae(r, v, bootstrap_value=end), out_axes=1)(rewards, values)
    near(jax.jit(over_time)(rewards, values, end), expected)


@pytest.mark.parametrize("implementation", [None, SCAN])
def test_a_scalar_may_differ_between_shards(implementation):
    rng = np.random.default_rng(0)
    rewards, values = (jnp.asarray(rng.normal(size=(8, 3)), jnp.float32) for _ in range(2))
    discounts = jnp.linspace(0.5, 1.0, 4)
    gae = partial(rltriton_jax.gae, lambda_=0.8, bootstrap_value=0.5, implementation=implementation)

    def shard(r, v, d):
        return gae(r, v, discount=d[0], axis_name="t")

    over_time = jax.shard_map(shard, mesh=mesh_of((4,), ("t",)), in_specs=P("t"), out_specs=P("t"))
    near(over_time(rewards, values, discounts), gae(rewards, values, discount=jnp.repeat(discounts, 2)[:, None]), 1e-6)


def test_arguments_that_shards_cannot_take():
    mesh = mesh_of((4,), ("t",))
    gae = partial(rltriton_jax.gae, discount=0.9, lambda_=0.9)
    x = jnp.ones((8, 2))

    def over_time(f, *args):
        return jax.shard_map(f, mesh=mesh, in_specs=P("t"), out_specs=P("t"))(*args)

    with pytest.raises(ValueError, match="gae: axis_name='t' is no mesh axis here; call it inside jax.shard_map"):
        gae(x, x, bootstrap_value=0.0, axis_name="t")
    with pytest.raises(ValueError, match="gae: axis_name='t' is no mesh axis here; call it inside jax.shard_map"):
        jax.vmap(lambda x: gae(x, x, bootstrap_value=0.0, axis_name="t"), axis_name="t")(x)
    with pytest.raises(ValueError, match="gae: values has T \\+ 1 rows.*its first T rows, and bootstrap_value"):
        over_time(lambda r: gae(r, jnp.ones((3, 2)), axis_name="t"), x)
    with pytest.raises(ValueError, match="gae: episode_starts has T \\+ 1 rows.*and next_episode_start"):
        starts = jnp.zeros((3, 2), bool)
        over_time(lambda r: gae(r, r, bootstrap_value=0.0, episode_starts=starts, axis_name="t"), x)
    n_step = partial(rltriton_jax.n_step_returns, bootstrap_value=0.0, discount=0.9, axis_name="t")
    with pytest.raises(ValueError, match="n=4 reaches past the next shard of 2 steps; shard time over fewer devices"):
        over_time(lambda r: n_step(r, r, n=4), x)
