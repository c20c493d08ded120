"""Both modes of differentiation by one walk each way, and whole programs for GPUs that are not there."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import h200
import rltriton_jax
from helpers import (
    INTERPRET,
    ONE_EACH,
    ROWS,
    SCAN,
    each,
    each_implementation,
    seeded,
)
from meshes import MESHES, arrays, floating, gae_of, near, pulled

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices")


@pytest.mark.usefixtures("x64")
@each_implementation
@each(ONE_EACH)
def test_tangents_are_the_transpose_of_gradients(row, implementation):
    of, traced, expected, cotangents = arrays(row, seeded(row, 5, (2,)))
    function, by = of(implementation), floating(traced)
    rng = np.random.default_rng(1)
    tangents = {name: jnp.asarray(rng.normal(size=x.shape)) for name, x in by.items()}

    @jax.jit
    def both(by, tangents, cotangents):
        f = lambda by: function({**traced, **by})
        outputs, out = jax.jvp(f, (by,), (tangents,))
        return outputs, out, jax.vjp(f, by)[1](cotangents)[0]

    outputs, out, back = both(by, tangents, cotangents)
    near(outputs, expected, 1e-12)
    forward = sum(np.vdot(ct, x) for ct, x in zip(cotangents, out, strict=True))
    np.testing.assert_allclose(forward, sum(np.vdot(back[name], tangents[name]) for name in by), rtol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("implementation", [SCAN, INTERPRET])
def test_jacobians_and_hessians(implementation):
    row = next(row for row in ROWS if str(row) == "vtrace-skip_starts_past")
    of, traced, _, _ = arrays(row, seeded(row, 4, (1,)))
    by = {name: traced[name] for name in ("rewards", "values", "log_rhos", "discount")}
    function = lambda by: of(implementation)({**traced, **by})
    forward = jax.jit(jax.jacfwd(function))(by)
    near(forward, jax.jit(jax.jacrev(function))(by), 1e-10)
    if implementation == SCAN:
        loss = lambda by: sum(jnp.sum(jnp.sin(x)) for x in function(by))
        hessian = jax.jit(jax.hessian(loss))(by)
        near(hessian, jax.jit(jax.jacrev(jax.jacfwd(loss)))(by), 1e-10)
        near(hessian, jax.jit(jax.jacfwd(jax.jacfwd(loss)))(by), 1e-10)
        near(hessian, jax.jit(jax.jacrev(jax.jacrev(loss)))(by), 1e-10)
        _, tangent = jax.linearize(function, by)
        near(tangent(by), jax.jvp(function, (by,), (by,))[1], 1e-12)


def _walks(f, *args):
    return len(re.findall("rltriton_walk", str(jax.make_jaxpr(f)(*args))))


@each(ONE_EACH)
def test_one_walk_each_way(row):
    of, traced, _, cotangents = arrays(row, seeded(row))
    assert _walks(of(None), traced) == 1
    assert _walks(partial(pulled, of(None)), traced, cotangents) == 2
    tangents = lambda by: jax.jvp(lambda by: of(None)({**traced, **by}), (by,), (by,))
    assert _walks(tangents, floating(traced)) == 2


@h200.needs_compiler
@pytest.mark.parametrize("types", MESHES)
def test_four_gpus_run_one_kernel_each_way_and_exchange_nothing(types):
    mesh = h200.mesh_of((4,), ("x",), types)
    T, B, spec = 16, 4 * 65536, P(None, "x")
    args = [((T, B), jnp.float32, spec), ((T + 1, B), jnp.float32, spec), ((T, B), jnp.bool_, spec)]

    def gae(rewards, values, terminated):
        return rltriton_jax.gae(rewards, values, discount=0.99, lambda_=0.95, terminated=terminated)

    def with_gradient(rewards, values, terminated):
        outputs, pull = jax.vjp(lambda *by: gae(*by, terminated), rewards, values)
        return outputs, pull(outputs)

    for f, kernels in ((gae, 1), (with_gradient, 2)):
        program = h200.compiled(f, mesh, args)
        assert h200.launches(program) == {"custom-call": kernels}
        assert all(s.is_equivalent_to(NamedSharding(mesh, spec), 2) for s in jax.tree.leaves(program.output_shardings))


@h200.needs_compiler
@pytest.mark.parametrize("batch, kernels", [(8192, 0), (16384, 1)])
def test_a_gpu_gets_no_kernel_where_launching_it_costs_the_most(batch, kernels):
    args = [((16, batch), jnp.float32, P()), ((17, batch), jnp.float32, P())]
    program = h200.compiled(gae_of, h200.mesh_of((1,), ("x",)), args)
    assert h200.launches(program)["custom-call"] == kernels


@h200.needs_compiler
def test_a_gpu_transposes_nothing_under_vmap():
    mesh = h200.mesh_of((1,), ("x",))
    T, N, B = 16, 8, 65536
    args = [((T, N, B), jnp.float32, P()), ((T + 1, N, B), jnp.float32, P())]
    loss = lambda *args: jnp.sum(jax.vmap(gae_of, in_axes=1, out_axes=1)(*args)[0] ** 2)
    mapped = h200.launches(h200.compiled(jax.vmap(gae_of, in_axes=1, out_axes=1), mesh, args))
    assert mapped == {"custom-call": 1}
    gradient = h200.launches(h200.compiled(jax.value_and_grad(loss, (0, 1)), mesh, args))
    assert gradient["custom-call"] == 2 and not gradient["transpose"]


@h200.needs_compiler
def test_gpus_share_time_by_numbers_of_columns():
    mesh = h200.mesh_of((4,), ("t",))
    gae = partial(rltriton_jax.gae, discount=0.99, lambda_=0.95, bootstrap_value=0.0, axis_name="t")
    mapped = jax.shard_map(gae, mesh=mesh, in_specs=P("t"), out_specs=P("t"))
    args = [((4096, 65536), jnp.float32, P("t"))] * 2
    program = h200.compiled(mapped, mesh, args)
    assert program.memory_analysis().temp_size_in_bytes < 100 * 65536 * 4


@h200.needs_compiler
def test_gpus_read_their_time_twice_and_exchange_once_each_way():
    mesh, spec = h200.mesh_of((2,), ("t",)), P(None, "t")
    gae = partial(rltriton_jax.gae, discount=0.99, lambda_=0.95, bootstrap_value=0.5, time_axis=1, axis_name="t")
    mapped = jax.shard_map(lambda r, v: gae(r, v).advantages, mesh=mesh, in_specs=spec, out_specs=spec)
    args = [((16, 1 << 20), jnp.float32, spec)] * 2
    forward = h200.compiled(mapped, mesh, args)
    assert h200.exchanges(forward) == {"all-to-all": 1}
    launches = h200.launches(forward)
    assert launches["custom-call"] == 2 and launches["fusion"] == 2  # what is sent, and what came
    assert "all-to-all-start" not in launches  # it stays in the stream of the kernels
    assert "partition-id" not in (forward.as_text() or "")  # which the driver would write in that stream

    def with_gradient(*args):
        out, pull = jax.vjp(mapped, *args)
        return out, pull(out)

    program = h200.compiled(with_gradient, mesh, args)
    assert h200.launches(program)["custom-call"] == 4
    assert h200.exchanges(program) == {"all-to-all": 2}
    whole = re.findall(r"f32\[16,524288\]\S* fusion.*?calls=%?(\S+?)[,\s]", program.as_text().split("ENTRY", 1)[1])
    assert all("dynamic_update_slice" in name for name in whole)  # a row changed in place
