"""What only a GPU shows: races, sizes around every tile, arrays past 2^31 elements, memory that runs out, threads."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax
from helpers import HAS_GPU, ONE_EACH, each, function_of, seeded, weights
from table import as_tuple

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")]
HOW = "triton"
REPEATS = 10_000
BIG = (1 << 31) + (1 << 16)


def bits(x):
    return jax.lax.bitcast_convert_type(x, {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize])


def differing(f, args, repeats):
    """In how many of `repeats` calls within one program an output of f differs in a bit from the first call's."""

    @jax.jit
    def count(args):
        first = [bits(x) for x in jax.tree.leaves(f(*args))]

        def again(i, wrong):
            held, _ = jax.lax.optimization_barrier((args, i))  # or XLA would call it once for all
            outs = [bits(x) for x in jax.tree.leaves(f(*held))]
            return wrong + sum(jnp.any(a != b).astype(jnp.int32) for a, b in zip(outs, first, strict=True))

        return jax.lax.fori_loop(0, repeats, again, jnp.int32(0))

    return int(count(args))


def data(shape, dtype=jnp.float32, seed=0):
    """Rewards, values, flags, a mask."""
    keys = jax.random.split(jax.random.key(seed), 4)
    rewards, values = (jax.random.normal(k, shape).astype(dtype) for k in keys[:2])
    return rewards, values, jax.random.uniform(keys[2], shape) < 0.05, jax.random.uniform(keys[3], shape) < 0.9


def gae(axis, mask_mode, how, ends=True):
    def advantages(rewards, values, terminated, mask):
        discount, lambda_ = (0.99, 0.95) if ends else (1.0, 1 - 2.0**-13)  # of which float32 rounds nothing
        return rltriton_jax.gae(
            rewards, values, bootstrap_value=0.5, terminated=terminated if ends else None,
            mask=mask if mask_mode else None, mask_mode=mask_mode or "skip", discount=discount, lambda_=lambda_,
            time_axis=axis, implementation=how,
        )  # fmt: skip

    return advantages


# A tile of columns, of rows, a whole series, a few columns inside, and time read once where it is cut
SHAPES = [((128, 512), 0), ((512, 128), 1), ((24, 4096), 1), ((64, 300, 3), 1)]
CUT = [((4096, 24), 0), ((70001, 5), 0), ((9001, 72), 0), ((3, 70001), 1), ((64, 9001), 1)]


@pytest.mark.parametrize("mask_mode", [None, "skip"])
@pytest.mark.parametrize("shape, axis", SHAPES + CUT)
def test_ten_thousand_calls_give_the_same_bits(shape, axis, mask_mode):
    f = gae(axis, mask_mode, HOW)
    args = data(shape)
    expected = gae(axis, mask_mode, "scan")(*args)
    for a, b in zip(f(*args), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert differing(f, args, REPEATS) == 0
    loss = lambda rewards, values, *flags: jnp.sum(jnp.sin(f(rewards, values, *flags).advantages))
    assert differing(jax.grad(loss, (0, 1)), args, REPEATS // 10) == 0


@pytest.mark.parametrize("mask_mode", [None, "skip"])
@pytest.mark.parametrize("shape, axis", CUT)
def test_a_state_that_never_ends_is_passed_on(shape, axis, mask_mode):
    """Nobody may go on before all that came before is told."""
    f, args = gae(axis, mask_mode, HOW, ends=False), data(shape)
    with jax.enable_x64(True):
        expected = jax.jit(gae(axis, mask_mode, "associative_scan", ends=False))(
            *(np.asarray(x, np.float64) if x.dtype == jnp.float32 else x for x in args)
        )
    for a, b in zip(f(*args), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())
    assert differing(f, args, REPEATS // 10) == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_lengths_and_columns_around_powers_of_two(axis):
    near = sorted({1, 2, 3, 5, *(n + d for n in (8, 32, 64, 128, 512, 1024) for d in (-1, 0, 1))})
    for i, length in enumerate(near):
        for columns, mask_mode in ((near[(7 * i + 3) % len(near)], None), ((1, 31, 33)[i % 3], "skip")):
            shape = (length, columns) if axis == 0 else (columns, length)
            args = data(shape, seed=length)
            got, expected = (jax.jit(gae(axis, mask_mode, how))(*args) for how in (HOW, "scan"))
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=f"{shape} {mask_mode}")


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-5), (jnp.bfloat16, 1e-2)])
@pytest.mark.parametrize("T, batch", [(1003, (257,)), (131, (5003,)), (4097, (3, 5)), (20011, ())])
@each(ONE_EACH)
def test_odd_sizes_in_narrow_types(row, T, batch, dtype, tolerance):
    """Against the plain loop in float64 of the same numbers, which the other tests hold to the reference."""
    kwargs = seeded(row, T, batch)
    narrow = {
        name: np.asarray(x, dtype) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x
        for name, x in kwargs.items()
    }
    function, traced = function_of(row, narrow, HOW)
    got = as_tuple(jax.jit(function)(traced))
    wide = {n: np.asarray(x, np.float64) if getattr(x, "dtype", None) == dtype else x for n, x in narrow.items()}
    with jax.enable_x64(True):
        function, traced = function_of(row, wide, "scan")
        expected = as_tuple(jax.jit(function)(traced))
    for a, b in zip(got, expected, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def room():
    """Bytes that arrays may take on the device."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_more_elements_than_32_bits_count(axis):
    length = 1 << 12
    columns = -(-BIG // length)
    shape = (length, columns) if axis == 0 else (columns, length)
    if room() < 3 * BIG * 2:
        pytest.skip("needs 13 GB")
    row = jnp.linspace(-1, 1, length).astype(jnp.bfloat16)
    returns = lambda x, axis: rltriton_jax.discounted_returns(x, discount=0.9, time_axis=axis, implementation=HOW)
    along = (slice(None), None) if axis == 0 else (None, slice(None))
    got = jax.jit(returns, static_argnums=1)(jnp.broadcast_to(row[along], shape), axis)
    expected = jax.jit(returns, static_argnums=1)(row, 0)[along].astype(jnp.float32)
    assert bool(jnp.all(jnp.abs(got.astype(jnp.float32) - expected) <= 2.0**-7 * jnp.abs(expected)))


def test_memory_that_runs_out_is_an_error_and_loses_nothing():
    limit = room()
    if not limit:
        pytest.skip("the device does not say how much memory it has")
    columns = limit // (4 * 1024) * 2 // 5  # rewards fit twice and a bit, so that values and outputs do not
    rewards = jax.block_until_ready(jnp.ones((1024, columns)))
    f = jax.jit(
        lambda r: rltriton_jax.gae(r, 2 * r, bootstrap_value=0.0, discount=0.5, lambda_=0.5, implementation=HOW)
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED|[Oo]ut of memory"):
        jax.block_until_ready(f(rewards))
    assert float(jnp.min(rewards)) == float(jnp.max(rewards)) == 1.0
    small = f(rewards[:, :128])
    np.testing.assert_allclose(small.advantages[-1], -1.0)
    jax.block_until_ready(small)


def test_threads_do_not_disturb_each_other():
    """Programs that run at once, each with workspaces of its own."""
    calls = [(gae(axis, mask, HOW), data(shape, seed=i), gae(axis, mask, "scan"))
             for i, ((shape, axis), mask) in enumerate([(s, m) for s in SHAPES + CUT for m in (None, "skip")])]  # fmt: skip
    expected = [plain(*args) for _, args, plain in calls]
    wrong = []

    def work(k):
        f, args, _ = calls[k]
        for _ in range(100):
            for a, b in zip(f(*args), expected[k], strict=True):
                if not np.allclose(a, b, rtol=2e-5, atol=2e-5):
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@each(ONE_EACH)
def test_gradients_do_not_depend_on_the_run(row):
    function, traced = function_of(row, seeded(row, 300, (70,)), HOW)
    weigh = weights(row.reference(seeded(row, 300, (70,))))
    floating = {n: x for n, x in traced.items() if jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)}

    def loss(by):
        outs = as_tuple(function({**traced, **by}))
        return sum(jnp.vdot(jnp.asarray(w, x.dtype), x) for w, x in zip(weigh, outs, strict=True))

    assert differing(jax.grad(loss), (floating,), 200) == 0
