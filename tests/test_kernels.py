"""The kernels themselves: every tile shape in the interpreter, and compiled ahead of time for GPUs of both makers."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import rltriton_jax
from helpers import ROWS
from kernels_aot import compiled, kernel_of, run_fenced, spilled_bytes, walks_of
from rltriton_jax import _backends, _solve
from rltriton_jax._backends._tiles import Tile, tile_for
from rltriton_jax._backends._view import view
from table import as_tuple

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
look = pytest.importorskip("rltriton_jax.kernels.look")

TILES = [
    Tile(4, 2, 4, 1, False),
    Tile(1, 4, 8, 1, False, early=True),
    Tile(2, 1, 2, 1, False, segments=3),
    Tile(2, 4, 4, 1, False, segments=2, early=True),
    Tile(4, 4, 2, 1, True),
    Tile(8, 2, 1, 1, True, early=True),
    Tile(2, 4, 2, 1, True, segments=3),
    Tile(1, 8, 4, 1, True, segments=2, early=True),
    Tile(2, 2, 64, 1, False, early=True),  # 4 columns a thread
    Tile(1, 1, 32, 1, False, segments=21),  # more segments than are composed at once
]

# time is cut and read once, by so many programs
ONCE = [
    Tile(4, 2, 1, 1, True, segments=3, once=True),
    Tile(8, 1, 2, 1, True, segments=2, early=True, once=True),
    Tile(1, 4, 4, 1, True, segments=9, early=True, once=True),
    Tile(2, 2, 2, 1, False, segments=2, once=True),
    Tile(4, 1, 4, 1, False, segments=1, early=True, once=True),
    Tile(1, 1, 16, 1, False, segments=4, once=True),  # more chunks than one state is followed by
]


def call_of(row, T, batch_shape, seed, time_axis):
    kwargs = row.make(np.random.default_rng(seed), T=T, batch_shape=batch_shape, time_axis=time_axis)
    return getattr(rltriton_jax, row.function), kwargs


def calls_on(tiles, number, rounds, lengths, monkeypatch):
    """A share of the table's rows as calls whose kernels take tile `number`: (row, function, arguments)."""
    tile = tiles[number]
    rows = [row for row in ROWS if row.function != "n_step_returns"]
    monkeypatch.setattr(_backends, "tile_for", lambda v: tile._replace(rows=tile.rows and v.time_is_last))
    jax.clear_caches()
    for i, row in list(enumerate(rows))[number :: rounds * len(tiles)]:
        yield row, *call_of(row, lengths[(i // len(tiles)) % len(lengths)], (3,), i, 1 if tile.rows else 0)
    jax.clear_caches()


@pytest.mark.parametrize("number", range(len(TILES)))
def test_every_tile_gives_the_reference(number, monkeypatch, x64):
    """Tiles of either layout, cut in time and loading early or not, at lengths that do and do not fill them."""
    for row, f, kwargs in calls_on(TILES, number, 4, (16, 21, 5), monkeypatch):
        for k in (kwargs, row.poison(kwargs, np.nan)):
            got = as_tuple(f(**k, implementation="interpret"))
            for a, b in zip(got, row.reference(kwargs), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=str(row))


@pytest.mark.parametrize("number", range(len(ONCE)))
def test_one_pass_over_time_gives_the_reference(number, monkeypatch):
    """In 4 bytes, which is when it is taken, against float64 of the same numbers."""
    for row, f, kwargs in calls_on(ONCE, number, 3, (16, 37, 5), monkeypatch):
        kwargs = {k: np.float32(x) if getattr(x, "dtype", None) == np.float64 else x for k, x in kwargs.items()}
        wide = {k: np.float64(x) if getattr(x, "dtype", None) == np.float32 else x for k, x in kwargs.items()}
        expected = row.reference(wide)
        for k in (kwargs, row.poison(kwargs, np.nan)):
            got = as_tuple(f(**k, implementation="interpret"))
            for a, b in zip(got, expected, strict=True):
                assert a.dtype == jnp.float32
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * max(1, np.abs(b).max()), err_msg=str(row))


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.segments == 1] + ONCE, ids=str)
@pytest.mark.parametrize("length", [1, 7, 16, 33])
def test_nothing_is_written_beside_an_output_nor_left_out(tile, length):
    rng = np.random.default_rng(length)
    shape, axis = ((5, length), 1) if tile.rows else ((length, 5), 0)
    rewards, values = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2))
    ends = jnp.asarray(rng.random(shape) < 0.2)

    def gae(rewards, values, ends):
        return rltriton_jax.gae(
            rewards, values, bootstrap_value=0.5, terminated=ends, discount=0.9, lambda_=0.8, time_axis=axis
        )

    def gradient(rewards, values, ends):
        return jax.grad(lambda r, v: gae(r, v, ends).advantages.sum(), argnums=(0, 1))(rewards, values)

    for f in (gae, gradient):
        walk, avals, _, dtypes = walks_of(f, rewards, values, ends)[-1]
        operands = [
            rng.random(a.shape) < 0.2 if a.dtype == bool else rng.normal(size=a.shape).astype(a.dtype) for a in avals
        ]
        results, arrays = run_fenced(walk, operands, axis, dtypes, tile)
        assert all(np.isfinite(x).all() for x in results)
        assert all(x.intact() for x in arrays)


def test_every_map_is_told_by_a_word_that_is_not_0():
    from rltriton_jax._backends._interpreter import run

    def there_and_back(a, y, words, heard_a, heard_y):
        i = tl.arange(0, 256)
        word = look.told(tl.load(a + i), tl.load(y + i))
        tl.store(words + i, word)
        told_a, told_y = look.heard(word)
        tl.store(heard_a + i, told_a)
        tl.store(heard_y + i, told_y)

    numbers = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38])
    bits = np.array([0x7F800001, 0xFF800001, 0x7FC00001, 0x7FFFFFFF, 1, 0x80000001], np.uint32)
    numbers = np.concatenate([numbers.view(np.uint32), bits])
    a, y = (np.ascontiguousarray(x).reshape(-1).view(np.float32) for x in np.meshgrid(numbers, numbers))
    words, heard_a, heard_y = np.zeros(a.size, np.int64), np.zeros_like(a), np.zeros_like(y)
    run(triton.jit(there_and_back), (1,), [a, y, words, heard_a, heard_y])
    assert (words != 0).all()
    np.testing.assert_array_equal(heard_a, a)
    np.testing.assert_array_equal(heard_y.view(np.uint32), y.view(np.uint32))


def _calls():
    x, flag = jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.ShapeDtypeStruct((256, 256), jnp.bool_)
    b = jax.ShapeDtypeStruct((256,), jnp.float32)
    options = {
        "gae": (lambda a, r, v, e, b: rltriton_jax.gae(
            r, v, bootstrap_value=b, terminated=e, discount=0.9, lambda_=0.9, time_axis=a), (x, x, flag, b)),
        "gae-skip": (lambda a, r, v, e, b: rltriton_jax.gae(
            r, v, bootstrap_value=b, mask=e, discount=0.9, lambda_=0.9, time_axis=a), (x, x, flag, b)),
        "gae-gradient": (lambda a, r, v, e, b, c: jax.vjp(lambda r, v: rltriton_jax.gae(
            r, v, bootstrap_value=b, terminated=e, discount=0.9, lambda_=0.9, time_axis=a), r, v)[1](
                rltriton_jax.GAE(c, c)), (x, x, flag, b, x)),
        "vtrace": (lambda a, r, v, e, b, rho: rltriton_jax.vtrace(
            r, v, bootstrap_value=b, terminated=e, log_rhos=rho, discount=0.9, time_axis=a), (x, x, flag, b, x)),
        "retrace": (lambda a, r, q, e, b, rho: rltriton_jax.retrace(
            r, q, next_expected_q=q, terminated=e, log_rhos=rho, discount=0.9, time_axis=a), (x, x, flag, b, x)),
        "eligibility_traces": (lambda a, r, e: rltriton_jax.eligibility_traces(
            r, terminated=e, discount=0.9, lambda_=0.9, time_axis=a), (x, flag)),
    }  # fmt: skip
    over_time = lambda f, n: jax.shard_map(
        f, mesh=AbstractMesh((4,), ("t",), axis_types=(AxisType.Auto,)), in_specs=(P("t"),) * n, out_specs=P("t")
    )
    shard = lambda r, v, e: rltriton_jax.gae(
        r, v, bootstrap_value=0.0, mask=e, discount=0.9, lambda_=0.9, axis_name="t"
    )
    unmasked = lambda r, v, e: rltriton_jax.gae(
        r, v, bootstrap_value=0.0, terminated=e, discount=0.9, lambda_=0.9, axis_name="t"
    )
    long, live = jax.ShapeDtypeStruct((8192, 64), jnp.float32), jax.ShapeDtypeStruct((8192, 64), jnp.bool_)
    options |= {
        "gae-over_time": (lambda a, *args: over_time(shard, 3)(*args), (long, long, live)),
        "gae-over_time-unmasked": (lambda a, *args: over_time(unmasked, 3)(*args), (long, long, live)),
        "gae-over_time-gradient": (lambda a, *args: over_time(
            lambda r, v, e, c: jax.vjp(lambda r, v: shard(r, v, e), r, v)[1](rltriton_jax.GAE(c, c)), 4)(*args),
            (long, long, live, long)),
    }  # fmt: skip
    return options


TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", _calls())
def test_kernels_compile_for_every_gpu_without_spilling(name, target):
    from triton.backends.compiler import GPUTarget

    f, args = _calls()[name]
    for axis in (0, 1):
        walk = walks_of(lambda *args, axis=axis: f(axis, *args), *args)[-1]
        kernel, _ = kernel_of(*walk)
        for which in ("scan", "reduce", "total"):
            if getattr(kernel, which) is not None:
                assert spilled_bytes(compiled(which, *walk, GPUTarget(*TARGETS[target]))) in (0, None), (axis, which)


@pytest.mark.parametrize(
    "shape, axis", [((1, 1 << 20), 1), ((16, 1 << 16), 1), ((128, 1 << 15), 1), ((1 << 16, 64), 0), ((4096, 2048), 0)]
)
@pytest.mark.parametrize("name", [name for name in _calls() if "over_time" not in name])
def test_long_series_are_read_once_without_spilling(name, shape, axis):
    from triton.backends.compiler import GPUTarget

    f, args = _calls()[name]
    batch = shape[1 - axis : 2 - axis]
    args = [jax.ShapeDtypeStruct(shape if a.ndim == 2 else batch, a.dtype) for a in args]
    walk = walks_of(lambda *args: f(axis, *args), *args)[-1]
    kernel, _ = kernel_of(*walk)
    assert (kernel.reduce is None and kernel.words > 0) == (axis == 1 or name != "gae-gradient")
    assert spilled_bytes(compiled("scan", *walk, GPUTarget("cuda", 90, 32))) in (0, None)


@pytest.mark.parametrize("shape, axis", [((16, 1 << 20), 1), ((1 << 17, 64), 0), ((1 << 18, 16), 0), ((1 << 16, 4), 0)])
@pytest.mark.parametrize("name", ["gae", "gae-skip", "vtrace"])
def test_what_is_told_is_heard_by_one_thread(name, shape, axis):
    """Threads that each hear a word for themselves hear it at other times, and part."""
    f, args = _calls()[name]
    batch = tuple(n for i, n in enumerate(shape) if i != axis)
    args = [jax.ShapeDtypeStruct(shape if a.ndim == 2 else batch, a.dtype) for a in args]
    kernel, _ = kernel_of(*walks_of(lambda *args: f(axis, *args), *args)[-1])
    text = text_of(f, args, None, axis, "ttgir")
    heard = re.findall(r"isVolatile.*tensor<([\dx]+)x!tt\.ptr<i64>, (#\w+)>", text)
    assert len(heard) == 2 * bool(kernel.words)
    for sizes, layout in heard:
        shape = [int(n) for n in sizes.split("x")]
        threads, warps = (
            [int(n) for n in re.search(rf"^{layout} = .*{field} = \[([\d, ]+)\]", text, re.M)[1].split(",")]
            for field in ("threadsPerWarp", "warpsPerCTA")
        )
        assert all(n % (t * w) == 0 for n, t, w in zip(shape, threads, warps, strict=True)), (shape, threads, warps)


# What a step reads least, in the types of which a thread loads most: some versions of Triton fail on such kernels
THIN = {
    "discounted_returns": dict(discount=0.9),
    "episodic_prefix_sum": {},
    "eligibility_traces": dict(discount=0.9, lambda_=0.9),
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("name", THIN)
def test_kernels_without_flags_compile(name, dtype):
    from triton.backends.compiler import GPUTarget

    for shape in ((1, 8192), (512, 8192)):
        x = jax.ShapeDtypeStruct(shape, dtype)
        (walk,) = walks_of(lambda x: getattr(rltriton_jax, name)(x, **THIN[name], time_axis=1), x)
        kernel, _ = kernel_of(*walk)
        for which in ("scan", "reduce"):
            if getattr(kernel, which) is not None:
                assert compiled(which, *walk, GPUTarget("cuda", 90, 32)).asm["cubin"]


def text_of(f, args, tile, axis, stage):
    """The kernel of a call at one stage of its compilation for an H200."""
    from triton.backends.compiler import GPUTarget

    walk = walks_of(lambda *args: f(axis, *args), *args)[-1]
    return compiled("scan", *walk, GPUTarget("cuda", 90, 32), tile).asm[stage]


def conversions(f, args, tile, axis):
    """How often the kernel changes the layout of a tile through shared memory."""
    return len(re.findall(r"st\.shared", text_of(f, args, tile, axis, "ptx")))


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_compiled_does_not_grow_with_the_steps_of_a_run(axis):
    """But for the recurrence itself: Triton's passes take the cube of what they are given."""
    f, args = _calls()["vtrace"]
    few, many = (
        text_of(f, args, Tile(4, steps, 1 if axis else 32, 4 if not axis else 1, bool(axis)), axis, "ttir")
        for steps in (4, 16)
    )
    for operation in ("tt.load", "tt.store", "math.exp"):
        assert few.count(operation) == many.count(operation) > 0


@pytest.mark.parametrize("columns", [256, 253])
@pytest.mark.parametrize("name", ["gae", "gae-skip", "gae-gradient", "vtrace"])
def test_neighbours_in_a_warp_load_neighbouring_columns(name, columns):
    f, args = _calls()[name]
    args = [jax.ShapeDtypeStruct((*a.shape[:-1], columns), a.dtype) for a in args]
    text = text_of(f, args, Tile(4, 8, 32, 4, False, 1, True), 0, "ttgir")
    layouts = re.findall(r"tt\.load .*tensor<4x32x8x!tt\.ptr<\w+>, (#\w+)>", text)
    assert layouts
    for layout in layouts:
        assert re.search(rf"^{layout} = .*threadsPerWarp = \[1, 32, 1\]", text, re.M)


def test_loops_do_not_spread_a_carry_through_shared_memory():
    x, flag = jax.ShapeDtypeStruct((64, 2048), jnp.float32), jax.ShapeDtypeStruct((64, 2048), jnp.bool_)
    f = lambda a, r, e: rltriton_jax.discounted_returns(r, terminated=e, discount=0.9, time_axis=a)
    assert conversions(f, (x, flag), Tile(128, 4, 1, 4, True, 1, True), 1) < 20


def test_masked_columns_do_not_change_layout_to_gather():
    f, args = _calls()["gae-skip"]
    assert conversions(f, args, Tile(8, 8, 32, 8, False, 1, True), 0) < 20


def test_steps_adjacent_in_memory_are_loaded_16_bytes_at_once():
    f, args = _calls()["gae"]
    wide = [
        jax.ShapeDtypeStruct((4096, 256), a.dtype) if a.ndim == 2 else jax.ShapeDtypeStruct((4096,), a.dtype)
        for a in args
    ]
    ptx = text_of(f, wide, None, 1, "ptx")
    assert "ld.global.v4" in ptx and "st.global.v4" in ptx


def test_columns_are_composed_without_shuffles_inside_of_a_run():
    f, args = _calls()["gae"]
    ptx = text_of(f, args, Tile(1, 8, 32, 1, False), 0, "ptx")
    assert "shfl" not in ptx and "bar.sync" not in ptx


def view_of(walk):
    return view(walk[0], [tuple(a.shape) for a in walk[1]], walk[2], tuple(a.dtype for a in walk[1]))


@pytest.mark.parametrize("shape", [(16, 1 << 20), (1, 1 << 24), (64, 1 << 17), (64, 1000), (64, 8192), (8, 3)])
def test_time_is_cut_where_columns_are_few(shape):
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    (walk,) = walks_of(lambda x: rltriton_jax.discounted_returns(x, discount=0.9, time_axis=1), x)
    seen = view_of(walk)
    for once in (True, False):
        tile = tile_for(seen._replace(once=once))
        chunk = tile.runs * tile.steps
        assert tile.once == (once and shape[1] > chunk)
        assert 1 <= tile.segments <= -(-shape[1] // chunk)
        assert (tile.segments > 1) == (shape[1] > chunk)


@pytest.mark.parametrize(
    "shape, axis, tiny",
    [
        ((16, 8192), 0, True),
        ((17, 8), 0, False),
        ((16, 1 << 14), 0, False),
        ((4096, 8, 1), 1, True),
        ((256, 16), 1, False),
    ],
)
def test_none_leaves_short_and_small_calls_to_xla(shape, axis, tiny):
    assert _solve._tiny(shape, axis) == tiny


def test_more_elements_than_32_bits_count_are_addressed_in_64():
    x = jax.ShapeDtypeStruct((1 << 16, (1 << 15) + 8), jnp.float32)
    (walk,) = walks_of(lambda x: rltriton_jax.discounted_returns(x, discount=0.9, time_axis=1), x)
    assert view_of(walk).big


def test_jax_triton_that_was_imported_without_a_backend_gets_it(monkeypatch):
    """Its 0.4 takes Triton 3.6's backend for missing, unless a name was put there before."""
    from rltriton_jax._backends import _jax_triton

    library = pytest.importorskip("jax_triton", exc_type=ImportError).triton_lib
    if not hasattr(library, "_TMA_TF32"):
        pytest.skip("its 0.3 does not look for the name")
    monkeypatch.setattr(library, "cb", None)
    monkeypatch.setattr(library, "_TMA_TF32", 0)
    _jax_triton.load.__wrapped__()
    assert library.cb is importlib.import_module("triton.backends.nvidia.compiler")
    assert library._TMA_TF32 > 0
