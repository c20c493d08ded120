"""The public functions, by every implementation, against the reference, known answers and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
import rltriton_jax
from helpers import (
    ASSOCIATIVE_SCAN,
    FLAGS,
    FULLEST,
    INTERPRET,
    LINEAR,
    ONE_EACH,
    PER_BATCH,
    ROWS,
    SCAN,
    TRITON,
    accepted,
    call,
    cast,
    close,
    each,
    each_implementation,
    equal,
    live_of,
    seeded,
    with_marks,
    without,
)
from table import FUNCTIONS, TABLE, as_tuple, load_cases

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")

TIME_MAJOR, BATCH_MAJOR, BETWEEN = ((3,), 0), ((3,), -1), ((2, 3), 1)
LAYOUTS = {TIME_MAJOR: "time_major", BATCH_MAJOR: "batch_major", BETWEEN: "between"}
SIZES = (2, 5, 16, 33, 70)
SEVERAL_CHUNKS = {TIME_MAJOR: 131, BATCH_MAJOR: 261}  # of the kernels, by their table of tiles


def _breadth():
    """Every row by every implementation, in layouts and sizes that take turns."""
    layouts = list(LAYOUTS)
    for i, row in enumerate(ROWS):
        yield INTERPRET, row, TIME_MAJOR, 7
        yield INTERPRET, row, BATCH_MAJOR, 5
        if i % 5 == 0:
            yield INTERPRET, row, BETWEEN, (3, 1, 9, 2)[i // 5 % 4]
        if i % 9 == 0:
            layout = layouts[i // 9 % 2]
            yield INTERPRET, row, layout, SEVERAL_CHUNKS[layout]
        yield SCAN, row, layouts[i % 3], SIZES[i % 5]
        yield ASSOCIATIVE_SCAN, row, layouts[(i + 1) % 3], (7, 2, 5, 12, 1, 3, 9)[i % 7]
        for layout in LAYOUTS:
            yield TRITON, row, layout, (131, 37, 1025)[i % 3]


@pytest.mark.parametrize(
    "implementation, row, layout, T",
    [with_marks(x, row, layout, T, id=f"{row}-{LAYOUTS[layout]}-{T}") for x, row, layout, T in _breadth()],
)
def test_values_and_what_is_not_read(x64, implementation, row, layout, T):
    batch_shape, time_axis = layout
    kwargs = seeded(row, T, batch_shape, time_axis)
    got = call(row.function, kwargs, implementation)
    close(got, row.reference(kwargs))
    dead = ~live_of(row, kwargs)
    for x in got:
        assert x.dtype == np.float64
        assert (x[dead] == 0).all()
    for fill in (np.nan,) if implementation == "interpret" else (np.nan, np.inf):
        equal(call(row.function, row.poison(kwargs, fill), implementation), got)


def _low_precision():
    """Every row, with types and implementations that take turns."""
    dtypes, implementations = (jnp.float32, jnp.bfloat16, jnp.float16), (SCAN, INTERPRET, ASSOCIATIVE_SCAN)
    for i, row in enumerate(ROWS):
        yield implementations[i // 3 % 3], row, dtypes[i % 3]
        yield TRITON, row, dtypes[i % 3]


@pytest.mark.parametrize(
    "implementation, row, dtype", [with_marks(x, row, d, id=f"{row}-{d.__name__}") for x, row, d in _low_precision()]
)
def test_low_precision(implementation, row, dtype):
    kwargs = cast(seeded(row, T=9), dtype)
    got = call(row.function, kwargs, implementation)
    assert all(x.dtype == dtype for x in got)
    close(got, row.reference(kwargs))
    equal(call(row.function, row.poison(kwargs), implementation), got)


@pytest.mark.parametrize("batch_major", [False, True], ids=["time_major", "batch_major"])
@pytest.mark.parametrize("case", load_cases(), ids=str)
@each_implementation
def test_known_answers(x64, implementation, case, batch_major):
    kwargs = dict(case.kwargs)
    data = kwargs[FUNCTIONS[case.function].data]
    if implementation == "interpret" and data.size > 10_000:
        pytest.skip("minutes in the interpreter")
    if not batch_major:
        case.check(call(case.function, kwargs, implementation))
        return
    for name, value in kwargs.items():
        if np.ndim(value) == data.ndim and name not in PER_BATCH:
            kwargs[name] = np.stack([value, value])
    kwargs["time_axis"] = kwargs.get("time_axis", 0) % data.ndim + 1
    outputs = call(case.function, kwargs, implementation)
    equal(tuple(x[0] for x in outputs), tuple(x[1] for x in outputs))
    case.check(tuple(x[1] for x in outputs))


@each_implementation
def test_the_carry_is_wider_than_bfloat16(implementation):
    kwargs = {"rewards": np.ones(1000, jnp.bfloat16), "discount": 0.999}
    close(call("discounted_returns", kwargs, implementation), reference.discounted_returns(**kwargs), 2.0**-8)
    kwargs = {"rewards": np.ones(100, np.float16), "discount": 1.0, "bootstrap_value": 60_000.0}
    mask = np.arange(100) < 50
    got = call("discounted_returns", {**kwargs, "mask": mask}, implementation)
    close(got, reference.discounted_returns(**kwargs, mask=mask))


# Empty and tiny inputs


@each_implementation
@each(ONE_EACH)
@pytest.mark.parametrize("T, batch_shape", [(0, (3,)), (4, (0,)), (0, ()), (3, (2, 0))], ids=str)
def test_empty(implementation, row, T, batch_shape):
    kwargs = cast(seeded(row, T, batch_shape, 0), np.float32)
    for x in call(row.function, kwargs, implementation):
        assert x.shape == (T, *batch_shape)
        assert x.dtype == np.float32


@each_implementation
@each(ONE_EACH)
@pytest.mark.parametrize("T", [1, 2])
def test_one_column_without_batch_axes(x64, implementation, row, T):
    kwargs = seeded(row, T, (), 0)
    close(call(row.function, kwargs, implementation), row.reference(kwargs))


@each_implementation
def test_nothing_but_masked_steps(x64, implementation):
    for row in ONE_EACH:
        if row.options.mask:
            kwargs = seeded(row)
            kwargs["mask"] = np.zeros_like(kwargs["mask"])
            for mode in ("skip", "reset"):
                for x in call(row.function, row.poison({**kwargs, "mask_mode": mode}), implementation):
                    equal(x, np.zeros(x.shape))


# Types


FLAG_DTYPES = (np.int8, np.uint8, np.int32, np.float16, np.float32, jnp.bfloat16)


@each_implementation
@pytest.mark.parametrize("dtype", FLAG_DTYPES, ids=lambda d: d.__name__)
def test_flags_of_any_type(implementation, dtype):
    for row in ROWS:
        if str(row) in ("gae-skip_truncated", "lambda_returns-reset_starts", "eligibility_traces-skip_starts_past"):
            kwargs = cast(seeded(row), np.float32)
            flags = {k: v for k, v in kwargs.items() if k in FLAGS}
            expected = call(row.function, kwargs, implementation)
            other = {k: np.asarray(v).astype(dtype) for k, v in flags.items()}
            equal(call(row.function, {**kwargs, **other}, implementation), expected)


@each_implementation
@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 256, -(2**31)], np.int32),
        np.array([0, 128, 255], np.uint8),
        np.array([0, -128, 2], np.int8),
        np.array([-0.0, 1e-30, np.nan], np.float32),
        np.array([0.0, 6e-8, -np.inf], np.float16),
        np.array([0, 1e-300, 0.5], np.float64),
        np.array([0, 2**40, -(2**63)], np.int64),
        np.array([0, 2**32, 2**63], np.uint64),
        np.array([0, 256, -1], np.int16),
    ],
    ids=lambda v: v.dtype.name,
)
def test_whatever_is_not_zero_is_true(x64, implementation, values):
    flags = np.tile(values, 3)
    rewards, later = np.arange(1.0, 10.0), np.arange(3.0, 12.0)
    for name in ("terminated", "truncated", "mask"):
        kwargs = {"rewards": rewards, "next_values": later, "discount": 0.5, "lambda_": 0.5}
        expected = reference.lambda_returns(**kwargs, **{name: np.tile([0, 1, 1], 3)})
        close(call("lambda_returns", {**kwargs, name: flags}, implementation), expected)


@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 2**40, -(2**63)], np.int64),
        np.array([0, 2**32, 2**63], np.uint64),
        np.array([0, 1e-300, 0.5], np.float64),
    ],
    ids=lambda v: v.dtype.name,
)
def test_flags_of_64_bits_need_no_x64(values):
    rewards, later = np.ones(3, np.float32), np.arange(3.0, 6.0, dtype=np.float32)
    for name in ("terminated", "truncated", "mask"):
        kwargs = {"rewards": rewards, "next_values": later, "discount": 0.5, "lambda_": 0.5}
        expected = reference.lambda_returns(**kwargs, **{name: np.array([0, 1, 1])})
        close(call("lambda_returns", {**kwargs, name: values}), expected)
    starts = rltriton_jax.gae(
        rewards, rewards, bootstrap_value=1.0, discount=0.5, lambda_=0.5, episode_starts=np.zeros(3),
        next_episode_start=values[1],
    )  # fmt: skip
    close(starts.advantages[-1], 0.0)


def test_parameters_may_be_large_integers():
    by_floats = lambda number: rltriton_jax.vtrace(
        jnp.ones(2), jnp.ones(2), bootstrap_value=number(2**40), rhos=jnp.ones(2), discount=number(2**70),
        clip_rho=number(10**10),
    )  # fmt: skip
    close(by_floats(int), by_floats(float))


def _dtypes_out(function, **dtypes):
    row = next(row for row in ONE_EACH if row.function == function)
    kwargs = cast(seeded(row), np.float32)
    for name, dtype in dtypes.items():
        kwargs[name] = np.asarray(kwargs[name]).astype(dtype)
    outputs = call(function, kwargs)
    close(outputs, row.reference(kwargs))
    assert len({x.dtype for x in outputs}) == 1
    return outputs[0].dtype


def test_types_of_results():
    bf16, f16, f32, f64 = jnp.bfloat16, np.float16, np.float32, np.float64
    assert _dtypes_out("gae", rewards=bf16) == f32
    assert _dtypes_out("gae", rewards=bf16, values=bf16) == f32  # next_values are float32
    assert _dtypes_out("gae", rewards=bf16, values=bf16, next_values=bf16) == bf16
    assert _dtypes_out("gae", rewards=bf16, values=f16, next_values=bf16) == f32
    assert _dtypes_out("gae", rewards=np.int32) == f32
    assert _dtypes_out("gae", rewards=np.int8, values=bf16, next_values=bf16) == bf16
    assert _dtypes_out("discounted_returns", rewards=np.int32, next_values=np.int32) == f32
    assert _dtypes_out("episodic_prefix_sum", inputs=np.uint8) == f32
    assert _dtypes_out("eligibility_traces", inputs=bf16) == bf16
    # what scales or weighs the result does not decide its type
    assert _dtypes_out("vtrace", rewards=bf16, values=bf16, next_values=bf16) == bf16
    assert _dtypes_out("retrace", rewards=f16, q_taken=f16, next_expected_q=f16) == f16
    assert _dtypes_out("off_policy_returns", rewards=f16, q_taken=f16, next_expected_q=f16) == f16
    assert _dtypes_out("lambda_returns", rewards=f16, next_values=f16, discount=f32) == f16
    # 64-bit numbers are 32-bit ones unless they are on
    assert _dtypes_out("gae", rewards=f64, values=f64, next_values=f64) == f32
    with jax.enable_x64(True):
        assert _dtypes_out("gae", rewards=f64) == f64
        assert _dtypes_out("gae", rewards=f32) == f32
        assert _dtypes_out("gae", rewards=f32, lambda_=f64) == f32
        assert _dtypes_out("gae", rewards=np.int64, values=np.int64, next_values=np.int64) == f64
        assert _dtypes_out("gae", rewards=np.int64, values=bf16, next_values=bf16) == bf16


@each_implementation
def test_integers_are_promoted_before_they_are_summed(implementation):
    rewards = np.full(6, 100, np.int8)
    got = call("discounted_returns", {"rewards": rewards, "discount": 1}, implementation)[0]
    equal(got, np.arange(600.0, 0.0, -100.0))
    got = call("episodic_prefix_sum", {"inputs": rewards.view(np.uint8), "initial": 1000}, implementation)[0]
    equal(got, np.arange(1100.0, 1700.0, 100.0))
    values = np.arange(7)
    got = call("gae", {"rewards": rewards, "values": values, "discount": 0.5, "lambda_": 1}, implementation)
    close(got, reference.gae(rewards, values, discount=0.5, lambda_=1))


@each_implementation
def test_integer_discounts(implementation):
    rewards, values, going_on = np.ones((6, 2)), np.full((7, 2), np.nan), np.zeros((6, 2), np.int32)
    values[:6] = 2.0
    going_on[:3] = 1
    got = call("gae", {"rewards": rewards, "values": values, "discount": going_on, "lambda_": 1}, implementation)
    close(got, reference.gae(rewards, values, discount=going_on, lambda_=1))
    got = call("linear_recurrence", {"coefficients": going_on, "inputs": rewards}, implementation)
    close(got, reference.linear_recurrence(going_on, rewards))


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, jnp.float32, np.array, jnp.asarray, np.bool_, int])
def test_numbers_of_any_kind(kind):
    rewards, values = np.ones((5, 2), np.float32), np.ones((6, 2), np.float32)
    if kind is np.bool_:
        kind = lambda x: np.array(x, np.int8)
    number = kind(1)
    kwargs = {"rewards": rewards, "values": values, "discount": number, "lambda_": number}
    got = call("gae", kwargs)
    assert all(x.dtype == np.float32 for x in got)
    close(got, reference.gae(rewards, values, discount=1.0, lambda_=1.0))


def test_lists_are_arrays():
    got = rltriton_jax.gae([1.0, 2.0], [0.5, 0.5, 0.5], discount=0.5, lambda_=0.5, terminated=[False, True])
    close(got, reference.gae([1.0, 2.0], [0.5, 0.5, 0.5], discount=0.5, lambda_=0.5, terminated=[0, 1]))


# Layouts and implementations


@each_implementation
@each(ONE_EACH)
def test_results_do_not_depend_on_the_layout(x64, implementation, row):
    kwargs = seeded(row, 11, (4, 3), 1)
    want = call(row.function, kwargs, implementation)
    names = [name for name, value in kwargs.items() if np.ndim(value) == 3]
    for axis in (0, 2, -1):
        moved = {**kwargs, **{name: np.moveaxis(kwargs[name], 1, axis) for name in names}, "time_axis": axis}
        got = call(row.function, moved, implementation)
        close(tuple(np.moveaxis(x, axis, 1) for x in got), want, 1e-13)
    arrays = {k: v for k, v in kwargs.items() if isinstance(v, np.ndarray)}
    rest = {k: v for k, v in kwargs.items() if k not in arrays}
    public = getattr(rltriton_jax, row.function)

    def alone(arrays):
        return public(**arrays, **{**rest, "time_axis": 0}, implementation=implementation)

    close(jax.vmap(alone)(arrays), want, 1e-13)


@each(ONE_EACH)
def test_the_default_implementation(row):
    kwargs = cast(seeded(row, T=40), np.float32)
    close(call(row.function, kwargs), row.reference(kwargs))


@each([row for row in TABLE if not accepted(row)][:3])
def test_n_step_returns_refuse_a_mask(row):
    with pytest.raises(ValueError, match="n_step_returns: mask is not supported"):
        call(row.function, seeded(row))


@each_implementation
@each([row for row in ROWS if row.variant == "terminated"])
def test_nan_in_a_live_step_stays_inside_its_episode(implementation, row):
    kwargs = cast(seeded(row, 9, ()), np.float32)
    kwargs["terminated"] = np.isin(np.arange(9), (2, 5))
    clean = call(row.function, kwargs, implementation)
    for name, value in kwargs.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim and len(value) >= 9:
            for fill in (np.nan, np.inf):
                dirty = {**kwargs, name: value.copy()}
                dirty[name][4] = fill
                outside = np.r_[0:3, 6:9]
                got = call(row.function, dirty, implementation)
                equal(tuple(x[outside] for x in got), tuple(x[outside] for x in clean))


@each_implementation
def test_ratios_that_overflow_are_clipped(implementation):
    rewards, values = np.ones(4, np.float32), np.full(5, 2.0, np.float32)
    shared = {"rewards": rewards, "discount": 0.9, "lambda_": 0.8}
    log_rhos = np.array([0.0, 1000.0, -1000.0, np.inf], np.float32)
    same = np.array([1.0, 1e30, 0.0, 1e30])
    for ratios in ({"log_rhos": log_rhos}, {"rhos": np.array([1.0, np.inf, 0.0, np.inf], np.float32)}):
        for clips in ({}, {"clip_rho": 2.5, "clip_c": 0.5}):
            got = call("vtrace", {**shared, "values": values, **ratios, **clips}, implementation)
            close(got, reference.vtrace(**shared, values=values, rhos=same, **clips))
            q = {"q_taken": values[1:], "next_expected_q": values[:-1]}
            got = call("retrace", {**shared, **q, **ratios, **clips}, implementation)
            close(got, reference.retrace(**shared, **q, rhos=same, **clips))


# Identities, at random sizes


def _numbers(seed, batch=True):
    """(T, a call of GAE with T + 1 rows, a generator) of a random size."""
    rng = np.random.default_rng([17, seed])
    T = int(rng.integers(1, 71))
    shape = (int(rng.integers(1, 6)),) if batch else ()
    kwargs = {
        "rewards": rng.normal(size=(T, *shape)),
        "values": rng.normal(size=(T + 1, *shape)),
        "terminated": rng.random((T, *shape)) < 0.15,
        "discount": rng.uniform(0.8, 1.0, size=(T, *shape)),
        "lambda_": rng.uniform(0.5, 1.0, size=(T, *shape)),
    }
    return T, kwargs, rng


each_seed = pytest.mark.parametrize(
    "implementation, seed",
    [
        with_marks(x, seed, id=str(seed))
        for seed, x in enumerate((SCAN, INTERPRET, ASSOCIATIVE_SCAN, SCAN, INTERPRET, TRITON, TRITON, TRITON))
    ],
)


@each_seed
def test_lambda_zero_gives_the_error_of_one_step(x64, implementation, seed):
    _, kwargs, _ = _numbers(seed)
    kwargs["lambda_"] = 0.0
    r, v, g, e = (kwargs[name] for name in ("rewards", "values", "discount", "terminated"))
    errors = r + g * np.where(e, 0.0, v[1:]) - v[:-1]
    close(call("gae", kwargs, implementation), (errors, errors + v[:-1]))
    one_step = errors + v[:-1]
    close(call("lambda_returns", kwargs, implementation), one_step)
    close(call("n_step_returns", {**without(kwargs, "lambda_"), "n": 1}, implementation), one_step)
    close(call("eligibility_traces", {"inputs": r, "discount": g, "lambda_": 0.0}, implementation), r)


@each_seed
def test_lambda_one_gives_sums_of_rewards(x64, implementation, seed):
    T, kwargs, _ = _numbers(seed)
    r, v, g, e = (kwargs[name] for name in ("rewards", "values", "discount", "terminated"))
    sums, behind = np.zeros_like(r), v[-1]
    for t in reversed(range(T)):
        sums[t] = behind = r[t] + np.where(e[t], 0.0, g[t] * behind)
    ones = {**kwargs, "lambda_": 1.0}
    close(call("gae", ones, implementation), (sums - v[:-1], sums))
    close(call("lambda_returns", ones, implementation), sums)
    close(call("n_step_returns", {**ones, "n": T}, implementation), sums)
    rest = without(ones, "values", "lambda_")
    close(call("discounted_returns", {**rest, "bootstrap_value": v[-1]}, implementation), sums)


@each_seed
def test_on_policy_vtrace_is_gae_and_retrace_a_lambda_return(x64, implementation, seed):
    _, kwargs, _ = _numbers(seed)
    advantages, targets = call("gae", kwargs, implementation)
    close(call("lambda_returns", kwargs, implementation), targets)
    on_policy = {"log_rhos": np.zeros(targets.shape)}
    close(call("vtrace", {**kwargs, **on_policy}, implementation), (targets, advantages))
    rest, v = without(kwargs, "values"), kwargs["values"]
    kwargs["lambda_"] = rest["lambda_"] = 0.9
    q = {"q_taken": v[:-1], "next_expected_q": v[1:]}
    expected = call("lambda_returns", kwargs, implementation)[0]
    close(call("retrace", {**rest, **q, **on_policy}, implementation)[0], expected)
    traces = np.full(targets.shape, 0.9)
    rest = without(rest, "lambda_")
    close(call("off_policy_returns", {**rest, **q, "traces": traces}, implementation)[0], expected)


@each_seed
def test_n_steps_are_sums_over_n_rewards(x64, implementation, seed):
    T, kwargs, rng = _numbers(seed, batch=False)
    r, v = kwargs["rewards"], kwargs["values"]
    for n in sorted({1, int(rng.integers(1, T + 1)), max(T - 1, 1), T, T + 5}):
        expected = np.zeros(T)
        for t in range(T):
            stop = min(t + n, T)
            powers = 0.9 ** np.arange(stop - t)
            expected[t] = powers @ r[t:stop] + 0.9 ** (stop - t) * v[stop]
        close(call("n_step_returns", {"rewards": r, "values": v, "n": n, "discount": 0.9}, implementation), expected)
    n = int(rng.integers(2, T + 2))
    kwargs = {**kwargs, "n": n}
    close(call("n_step_returns", kwargs, implementation), reference.n_step_returns(**kwargs))


def taking_turns(rows):
    """Rows with an implementation and a seed each, that take turns."""
    turns = (SCAN, INTERPRET, ASSOCIATIVE_SCAN)
    return pytest.mark.parametrize(
        "implementation, row, seed",
        [
            with_marks(x, row, seed, id=f"{row}-{seed}")
            for i, row in enumerate(rows)
            for x, seed in ((turns[i % 3], i), (turns[(i + 1) % 3], i + 1), (TRITON, i))
        ],
    )


@taking_turns([row for row in ONE_EACH if row.options.mask == "skip"])
def test_skip_is_deleting_rows(x64, implementation, row, seed):
    rng = np.random.default_rng([23, seed])
    T = int(rng.integers(2, 40))
    kwargs = seeded(row, T, (), 0, seed)
    keep = np.flatnonzero(kwargs["mask"])
    shorter = without(kwargs, "mask", "mask_mode")
    for name, value in shorter.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) >= T:
            shorter[name] = value[np.append(keep, T)[: len(keep) + len(value) - T]]
    expected = [np.zeros(T) for _ in row.outputs]
    for out, short in zip(expected, call(row.function, shorter, implementation), strict=True):
        out[keep] = short
    close(call(row.function, kwargs, implementation), tuple(expected))


@taking_turns([row for row in ONE_EACH if row.function not in ("linear_recurrence", "n_step_returns")])
def test_inserting_dead_rows_changes_nothing(x64, implementation, row, seed):
    rng = np.random.default_rng([29, seed])
    T = int(rng.integers(1, 40))
    kwargs = seeded(row, T, (), 0, seed)
    at = np.sort(rng.integers(0, T + 1, size=5))
    longer = dict(kwargs)
    for name, value in kwargs.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) >= T:
            dead = 0 if name == "mask" else rng.integers(0, 2, size=5) if name in FLAGS else np.nan
            longer[name] = np.insert(value, at, dead)
    expected = tuple(np.insert(x, at, 0.0) for x in call(row.function, kwargs, implementation))
    close(call(row.function, longer, implementation), expected)


@taking_turns([row for row in ROWS if row.variant == "truncated"])
def test_a_window_of_episodes_is_each_episode_alone(x64, implementation, row, seed):
    rng = np.random.default_rng([31, seed])
    T = int(rng.integers(8, 71))
    kwargs = seeded(row, T, (), 0, seed)
    kwargs.update(terminated=np.zeros(T, bool), truncated=np.zeros(T, bool))
    kwargs.pop("bootstrap_value", None)
    bounds = np.sort(rng.choice(np.arange(1, T), 2, replace=False))
    kwargs["truncated"][bounds[0] - 1] = kwargs["terminated"][bounds[1] - 1] = True
    parts = []
    for first, stop in zip((0, *bounds), (*bounds, T), strict=True):
        part = {k: v[first:stop] if isinstance(v, np.ndarray) and v.ndim else v for k, v in kwargs.items()}
        parts.append(call(row.function, part, implementation))
    whole = call(row.function, kwargs, implementation)
    close(whole, tuple(np.concatenate(x) for x in zip(*parts, strict=True)))


@each_seed
def test_splitting_the_window_and_carrying(x64, implementation, seed):
    T, kwargs, rng = _numbers(seed + 10)
    k = int(rng.integers(0, T + 1))
    lam = kwargs["lambda_"] = 0.9
    v = kwargs["values"]

    def run(function, rows, **extra):
        part = {name: kwargs[name][rows] for name in ("rewards", "discount", "terminated")}
        return call(function, {**part, **extra}, implementation)[0]

    def joined(early, late):
        return np.concatenate([early, late])

    early, late = slice(0, k), slice(k, T)
    behind = run("discounted_returns", late, bootstrap_value=v[-1])
    past = behind[0] if k < T else v[-1]
    front = run("discounted_returns", early, bootstrap_value=past)
    close(run("discounted_returns", slice(0, T), bootstrap_value=v[-1]), joined(front, behind))

    behind = run("lambda_returns", late, values=v[k:], lambda_=lam)
    past = (1 - lam) * v[k] + lam * behind[0] if k < T else v[-1]
    front = run("lambda_returns", early, values=v[:k], lambda_=lam, bootstrap_value=past)
    close(call("lambda_returns", kwargs, implementation), joined(front, behind))

    behind = run("gae", late, values=v[k:], lambda_=lam)
    past = v[k] + lam * behind[0] if k < T else v[-1]
    front = run("gae", early, values=v[:k], lambda_=lam, bootstrap_value=past)
    close(call("gae", kwargs, implementation)[0], joined(front, behind))

    x, g, e = (kwargs[name] for name in ("rewards", "discount", "terminated"))
    start = rng.normal(size=x.shape[1:])

    def forward(function, rows, initial, **extra):
        part = {name: value[rows] for name, value in extra.items()}
        more = {"lambda_": lam} if "discount" in extra else {}
        return call(function, {"inputs": x[rows], **part, **more, "initial": initial}, implementation)[0]

    for function, extra in (
        ("eligibility_traces", {"discount": g, "terminated": e}),
        ("episodic_prefix_sum", {"terminated": e}),
        ("linear_recurrence", {"coefficients": g}),
    ):
        front = forward(function, early, start, **extra)
        carried = start
        if k:
            carried = front[-1] * (1.0 if function != "eligibility_traces" else g[k - 1] * lam)
            if "terminated" in extra:
                carried = np.where(e[k - 1], 0.0, carried)
        behind = forward(function, late, carried, **extra)
        close(forward(function, slice(0, T), start, **extra), joined(front, behind))


@each_seed
def test_linear_in_rewards_and_values(x64, implementation, seed):
    rng = np.random.default_rng([37, seed])
    T = int(rng.integers(1, 71))
    rows = [row for row in ROWS if row.variant in ("bootstrap_batch", "initial_batch", "truncated")]
    for row in rows[seed % 3 :: 3]:
        one = seeded(row, T, (2,), 0, seed)
        names = [name for name in LINEAR if one.get(name) is not None]
        two = {**one, **{name: rng.normal(size=np.shape(one[name])) for name in names}}
        both = {**one, **{name: 2.0 * one[name] - 3.0 * two[name] for name in names}}
        ones, twos = (call(row.function, x, implementation) for x in (one, two))
        expected = tuple(2.0 * a - 3.0 * b for a, b in zip(ones, twos, strict=True))
        close(call(row.function, both, implementation), expected)


def test_every_function_is_in_the_table():
    public = {name for name in dir(rltriton_jax) if name in FUNCTIONS}
    assert public == set(FUNCTIONS) == set(FULLEST)
    callables = {n for n, f in vars(rltriton_jax).items() if callable(f) and not n.startswith("_")}
    assert {n for n in callables if n.islower()} == public
    for row in ONE_EACH:
        assert len(as_tuple(getattr(rltriton_jax, row.function)(**seeded(row)))) == len(row.outputs)


@each_implementation
def test_a_negative_clip_is_the_least(implementation):
    """Of a ratio and of its logarithm alike."""
    for clip in (-1.0, 0.0):
        of = lambda clip=clip, **ratio: rltriton_jax.vtrace(
            np.ones(3), np.zeros(4), **ratio, clip_c=clip, discount=0.5, implementation=implementation
        ).targets  # fmt: skip
        close(of(log_rhos=np.zeros(3)), np.asarray(of(rhos=np.ones(3))))
    close(of(log_rhos=np.zeros(3)), [1.0, 1.0, 1.0])


@each_implementation
def test_integers_are_summed_in_float64_where_that_is_the_result(implementation, x64):
    large = np.array([2**24 + 1, 2, 4])
    for initial in (None, jnp.int64(0), jnp.float32(0)):
        sums = rltriton_jax.episodic_prefix_sum(large, initial=initial, implementation=implementation)
        if sums.dtype == np.float64:
            np.testing.assert_array_equal(sums, np.cumsum(large))
        else:
            assert initial is not None and initial.dtype == sums.dtype
    returns = rltriton_jax.discounted_returns(large, discount=jnp.float32(1), implementation=implementation)
    np.testing.assert_array_equal(returns, np.cumsum(large[::-1])[::-1])


def test_the_type_of_a_recurrence_does_not_depend_on_its_length():
    for length in (0, 1, 2):
        x = rltriton_jax.linear_recurrence(jnp.ones(length, jnp.float32), jnp.ones(length, jnp.bfloat16))
        assert x.dtype == jnp.float32
