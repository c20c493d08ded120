"""The reference against known answers, closed forms and the identities that every estimator satisfies."""

import numpy as np
import pytest

import reference
from table import FUNCTIONS, TABLE, as_tuple, load_cases

T = 8
PER_BATCH = ("bootstrap_value", "next_episode_start", "initial")
LINEAR = ("rewards", "values", "next_values", "bootstrap_value", "q_taken", "next_expected_q", "inputs", "initial")
FLAGS = ("terminated", "truncated", "episode_starts", "next_episode_start")


def each(condition=lambda row: True):
    return pytest.mark.parametrize("row", [row for row in TABLE if condition(row)], ids=str)


def seeded(row, **shape):
    rng = np.random.default_rng(sum(map(ord, str(row))))
    return row.make(rng, **{"T": T, "batch_shape": (3,), **shape}), rng


def close(got, expected):
    for a, b in zip(as_tuple(got), as_tuple(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def column(row, kwargs, index):
    """The call that one column of the batch makes by itself, with `[T]` arrays."""
    data = kwargs[row.spec.data]
    axis = kwargs["time_axis"] % data.ndim
    out = {"time_axis": 0}
    for name, value in kwargs.items():
        if isinstance(value, np.ndarray):
            axes = data.ndim - (name in PER_BATCH)
            value = value.reshape(value.shape + (1,) * (axes - value.ndim))
            if name not in PER_BATCH:
                value = np.moveaxis(value, axis, -1)
            value = value[tuple(min(i, size - 1) for i, size in zip(index, value.shape, strict=False))]
        out.setdefault(name, value)
    return out


def columns(row, kwargs):
    """(column of the outputs as a tuple of [T] arrays, the call of that column alone)"""
    outputs = row.reference(kwargs)
    axis = kwargs["time_axis"] % outputs[0].ndim
    outputs = tuple(np.moveaxis(x, axis, -1) for x in outputs)
    for index in np.ndindex(*outputs[0].shape[:-1]):
        yield tuple(x[index] for x in outputs), column(row, kwargs, index)


def per_row(kwargs, length=T):
    """Names of the arguments of a column that have one row for each step."""
    return [k for k, v in kwargs.items() if isinstance(v, np.ndarray) and v.ndim and len(v) in (length, length + 1)]


@pytest.mark.parametrize("case", load_cases(), ids=str)
def test_known_answers(case):
    case.check(getattr(reference, case.function)(**case.kwargs))


@each()
@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
def test_what_must_not_be_read_is_not_read(row, fill):
    for axis in (0, 1):
        kwargs, _ = seeded(row, time_axis=axis)
        poisoned = row.poison(kwargs, fill)
        for clean, dirty in zip(row.reference(kwargs), row.reference(poisoned), strict=True):
            np.testing.assert_array_equal(dirty, clean)


def test_poison_reaches_every_kind_of_argument():
    reached = set()
    for row in TABLE:
        kwargs, _ = seeded(row)
        for name, value in row.poison(kwargs).items():
            if isinstance(value, float | np.ndarray) and np.isnan(value).any():
                reached.add((row.function, name))
    for function, spec in FUNCTIONS.items():
        missed = {name for name in spec.floating if (function, name) not in reached}
        assert missed <= ({"coefficients", "inputs"} if function == "linear_recurrence" else set()), function


@each(lambda row: not row.options.features)
def test_time_axis_and_columns(row):
    kwargs, _ = seeded(row, batch_shape=(2, 3), time_axis=1)
    names = [name for name, value in kwargs.items() if np.ndim(value) == 3]
    first = {**kwargs, **{name: np.moveaxis(kwargs[name], 1, 0) for name in names}, "time_axis": 0}
    last = {**kwargs, **{name: np.moveaxis(kwargs[name], 1, 2) for name in names}, "time_axis": -1}
    expected = row.reference(kwargs)
    close(tuple(np.moveaxis(x, 0, 1) for x in row.reference(first)), expected)
    close(tuple(np.moveaxis(x, 2, 1) for x in row.reference(last)), expected)
    for got, alone in columns(row, kwargs):
        close(got, row.reference(alone))


@each(lambda row: row.options.features)
def test_features_share_flags(row):
    for axis in (0, 1):
        kwargs, _ = seeded(row, time_axis=axis)
        for got, alone in columns(row, kwargs):
            close(got, row.reference(alone))


@each(lambda row: row.options.mask == "skip")
def test_skip_is_deleting_rows(row):
    kwargs, _ = seeded(row)
    for got, alone in columns(row, kwargs):
        keep = np.flatnonzero(alone.pop("mask"))
        rest = {**alone, **{k: alone[k][np.append(keep, T)[: len(keep) + len(alone[k]) - T]] for k in per_row(alone)}}
        expected = [np.zeros(T) for _ in got]
        for out, short in zip(expected, row.reference(rest), strict=True):
            out[keep] = short
        close(got, tuple(expected))


@each(lambda row: row.options.mask != "reset" and row.function != "linear_recurrence")
def test_inserting_dead_rows_changes_nothing(row):
    kwargs, rng = seeded(row)
    for got, alone in columns(row, kwargs):
        alone.setdefault("mask", np.ones(T, bool))
        at = np.sort(rng.integers(0, T + 1, size=4))
        longer = dict(alone)
        for name in per_row(alone):
            dead = 0 if name == "mask" else rng.integers(0, 2, size=4) if name in FLAGS else np.nan
            longer[name] = np.insert(alone[name], at, dead)
        close(row.reference(longer), tuple(np.insert(x, at, 0.0) for x in got))


def ends(kwargs):
    """(terminated, truncated) of each step of a column, from whichever flags it has."""
    terminated = np.asarray(kwargs.get("terminated", np.zeros(T))) != 0
    if "episode_starts" in kwargs:
        past = np.atleast_1d(kwargs.get("next_episode_start", False))
        terminated = np.concatenate([kwargs["episode_starts"], past])[1 : T + 1]
    return terminated, np.asarray(kwargs.get("truncated", np.zeros(T))) != 0


@each(lambda row: row.options.flags and not row.options.mask)
def test_a_batch_of_episodes_is_each_episode_alone(row):
    kwargs, _ = seeded(row)
    for got, whole in columns(row, kwargs):
        terminated, truncated = ends(whole)
        dropped = "episode_starts" in whole and whole["episode_starts"][0]
        if "values" in whole and "bootstrap_value" in whole:
            whole["values"] = np.append(whole["values"], whole.pop("bootstrap_value"))
        first = 0
        for t in range(T):
            if not (terminated[t] or truncated[t] or t == T - 1):
                continue
            part = {k: v for k, v in whole.items() if k not in FLAGS}
            for name in set(per_row(whole)) - set(FLAGS):
                part[name] = whole[name][first : t + 1 + (len(whole[name]) > T)]
            if not row.spec.forward and terminated[t]:
                part["terminated"] = np.arange(first, t + 1) == t
            elif row.function == "discounted_returns" and truncated[t]:
                part["bootstrap_value"] = whole["next_values"][t]
            if row.spec.forward and (first > 0 or dropped):
                part["initial"] = None
            close(tuple(x[first : t + 1] for x in got), row.reference(part))
            first = t + 1


@each(lambda row: row.options.mask == "reset" and not row.spec.like_data and row.options.past != "next_values")
def test_reset_is_each_live_run_alone(row):
    kwargs, _ = seeded(row)
    for got, whole in columns(row, kwargs):
        terminated, truncated = ends(whole)
        mask = whole.pop("mask") != 0
        if "values" in whole and "bootstrap_value" in whole:
            whole["values"] = np.append(whole["values"], whole.pop("bootstrap_value"))
        for x in got:
            np.testing.assert_array_equal(x[~mask], 0.0)
        for first in np.flatnonzero(mask & ~np.append(False, mask[:-1])):
            stop = first + int(np.append(mask[first:], False).argmin())
            part = {k: v for k, v in whole.items() if k not in FLAGS}
            for name in set(per_row(whole)) - set(FLAGS):
                part[name] = whole[name][first : stop + (len(whole[name]) > T)]
            part["terminated"] = (terminated | truncated)[first:stop]
            part["terminated"][-1] |= stop < T
            if first > 0 or ("episode_starts" in whole and whole["episode_starts"][0]):
                part.pop("initial", None)
            close(tuple(x[first:stop] for x in got), row.reference(part))


@each(lambda row: row.function != "linear_recurrence" or row.options.initial)
def test_linear_in_rewards_and_values(row):
    one, _ = seeded(row)
    two, _ = seeded(row)
    rng = np.random.default_rng(5)
    names = [name for name in LINEAR if one.get(name) is not None]
    two.update({name: rng.normal(size=np.shape(one[name])) for name in names})
    both = {**one, **{name: 2.0 * one[name] - 3.0 * two[name] for name in names}}
    close(
        row.reference(both),
        tuple(2.0 * a - 3.0 * b for a, b in zip(row.reference(one), row.reference(two), strict=True)),
    )


@each()
def test_empty_windows_and_batches(row):
    for shape in ({"T": 0}, {"batch_shape": (0,)}, {"T": 0, "batch_shape": ()}):
        kwargs, _ = seeded(row, **shape)
        for x in row.reference(kwargs):
            assert x.shape == kwargs[row.spec.data].shape
            assert x.size == 0


# Closed forms


def decayed(steps, coefficients):
    """sum_k steps_k prod_{t <= j < k} coefficients_j for every t, from a matrix of products."""
    n = len(steps)
    weights = [[np.prod(coefficients[t:k]) if k >= t else 0.0 for k in range(n)] for t in range(n)]
    return np.array(weights) @ steps


@pytest.fixture
def numbers():
    rng = np.random.default_rng(3)
    return {
        "rewards": rng.normal(size=T),
        "values": rng.normal(size=T + 1),
        "discount": rng.uniform(0.5, 1.0, size=T),
        "lambda_": rng.uniform(0.2, 0.9, size=T),
        "rhos": np.exp(rng.normal(size=T)),
    }


def test_gae_is_a_decayed_sum_of_errors(numbers):
    r, v, g, lam = (numbers[k] for k in ("rewards", "values", "discount", "lambda_"))
    advantages, targets = reference.gae(r, v, discount=g, lambda_=lam)
    close(advantages, decayed(r + g * v[1:] - v[:-1], g * lam))
    close(targets, advantages + v[:-1])


def test_vtrace_is_a_decayed_sum_of_corrections(numbers):
    r, v, g, lam, rho = (numbers[k] for k in ("rewards", "values", "discount", "lambda_", "rhos"))
    clips = {"clip_rho": 1.5, "clip_c": 0.9, "clip_pg_rho": 1.2}
    targets, advantages = reference.vtrace(r, v, rhos=rho, discount=g, lambda_=lam, **clips)
    corrections = np.minimum(1.5, rho) * (r + g * v[1:] - v[:-1])
    close(targets, v[:-1] + decayed(corrections, g * lam * np.minimum(0.9, rho)))
    following = v[1:] + lam * np.append(targets[1:] - v[1:-1], 0.0)
    close(advantages, np.minimum(1.2, rho) * (r + g * following - v[:-1]))


def test_retrace_is_a_decayed_sum_of_corrections(numbers):
    r, v, g, lam, rho = (numbers[k] for k in ("rewards", "values", "discount", "lambda_", "rhos"))
    q, expected = v[:-1], np.sin(v[1:])
    targets, advantages = reference.retrace(
        r, q, next_expected_q=expected, log_rhos=np.log(rho), discount=g, lambda_=lam, clip_c=0.8, clip_rho=1.3
    )
    carried = g * np.append(lam[1:] * np.minimum(0.8, rho[1:]), 0.0)
    close(targets, q + decayed(r + g * expected - q, carried))
    close(advantages, np.minimum(1.3, rho) * (r + g * np.append(targets[1:], expected[-1]) - q))


def test_discounted_returns_are_a_decayed_sum(numbers):
    r, g = numbers["rewards"], numbers["discount"]
    got = reference.discounted_returns(r, discount=g, bootstrap_value=2.0)
    close(got, decayed(np.append(r, 2.0), np.append(g, 0.0))[:-1])


def test_n_step_returns_are_sums_over_n_rewards(numbers):
    r, v = numbers["rewards"], numbers["values"]
    got = reference.n_step_returns(r, v, n=3, discount=0.9)
    expected = []
    for t in range(T):
        stop = min(t + 3, T)
        powers = 0.9 ** np.arange(stop - t)
        expected.append(powers @ r[t:stop] + 0.9 ** (stop - t) * v[stop])
    close(got, np.array(expected))


def test_lambda_returns_average_n_step_returns(numbers):
    r, v, lam = numbers["rewards"], numbers["values"], 0.7
    depths = [reference.n_step_returns(r, v, n=n, discount=0.9) for n in range(1, T + 1)]
    expected = sum((1 - lam) * lam**k * depth for k, depth in enumerate(depths)) + lam**T * depths[-1]
    close(reference.lambda_returns(r, v, discount=0.9, lambda_=lam), expected)


def test_traces_and_sums(numbers):
    x, g, lam = numbers["rewards"], numbers["discount"], numbers["lambda_"]
    flipped = decayed(x[::-1], (g * lam)[::-1][1:])
    close(reference.eligibility_traces(x, discount=g, lambda_=lam), flipped[::-1])
    close(reference.episodic_prefix_sum(x, initial=2.0), 2.0 + np.cumsum(x))


def test_linear_recurrence(numbers):
    a, b = numbers["discount"], numbers["rewards"]
    reverse = reference.linear_recurrence(a, b, 2.0, reverse=True)
    close(reverse, decayed(np.append(b, 2.0), np.append(a, 0.0))[:-1])
    close(
        reference.linear_recurrence(a, b, 2.0), reference.linear_recurrence(a[::-1], b[::-1], 2.0, reverse=True)[::-1]
    )


# One estimator in terms of another


def with_values(function="gae"):
    return each(lambda row: row.function == function and "no_batch" not in row.variant and row.variant != "no_time")


def without(kwargs, *names):
    return {name: value for name, value in kwargs.items() if name not in names}


@with_values()
def test_lambda_zero_gives_errors(row):
    kwargs, _ = seeded(row)
    advantages, targets = row.reference({**kwargs, "lambda_": 0.0})
    rest = without(kwargs, "lambda_")
    close(targets, reference.n_step_returns(**rest, n=1, lambda_=0.3))
    close(targets, reference.lambda_returns(**rest, lambda_=0.0))
    close(advantages, reference.vtrace(**kwargs | {"lambda_": 0.0}, rhos=np.ones(targets.shape))[1])


@each(lambda row: row.function == "gae" and row.options.past != "next_values")
def test_lambda_one_is_monte_carlo_minus_values(row):
    kwargs, _ = seeded(row)
    ones = {**kwargs, "lambda_": 1.0}
    advantages, targets = row.reference(ones)
    rest = without(ones, "lambda_", "values", "bootstrap_value")
    rows = np.moveaxis(kwargs["values"], kwargs["time_axis"], 0)
    past = kwargs.get("bootstrap_value", rows[-1])
    close(targets, reference.discounted_returns(**rest, bootstrap_value=past))
    live = kwargs.get("mask", np.ones(advantages.shape)) != 0
    live = np.broadcast_to(live.reshape(live.shape + (1,) * (advantages.ndim - live.ndim)), advantages.shape)
    close(advantages, np.where(live, targets - rows[:T], 0.0))


@with_values()
def test_targets_are_lambda_returns(row):
    kwargs, _ = seeded(row)
    if "next_values" in kwargs:
        kwargs = without(kwargs, "next_values", "truncated")
        kwargs["bootstrap_value"] = 0.5
    close(row.reference(kwargs)[1], reference.lambda_returns(**kwargs))


@with_values("lambda_returns")
def test_n_steps_up_to_the_window_are_lambda_returns(row):
    kwargs, _ = seeded(row)
    for n in (T, T + 5):
        close(reference.n_step_returns(**kwargs, n=n), row.reference(kwargs))


@with_values()
def test_on_policy_vtrace_is_gae(row):
    kwargs, _ = seeded(row)
    advantages, targets = row.reference(kwargs)
    got, policy = reference.vtrace(**kwargs, log_rhos=np.zeros(targets.shape))
    close(got, targets)
    close(policy, advantages)


@with_values("retrace")
def test_retrace_is_an_off_policy_return(row):
    kwargs, _ = seeded(row)
    rest = without(kwargs, "log_rhos", "rhos", "lambda_", "clip_c", "clip_rho")
    rho = kwargs["rhos"] if "rhos" in kwargs else np.exp(kwargs["log_rhos"])
    limit = kwargs.get("clip_c", 1.0)
    lam = np.asarray(kwargs["lambda_"])
    lam = lam.reshape(lam.shape + (1,) * (rho.ndim - lam.ndim))
    traces = lam * (rho if limit is None else np.minimum(limit, rho))
    close(row.reference(kwargs)[0], reference.off_policy_returns(**rest, traces=traces))


def test_on_policy_retrace_with_sampled_values_is_the_lambda_return(numbers):
    r, q, g = numbers["rewards"], numbers["values"], numbers["discount"]
    shared = {"discount": g, "lambda_": 0.8, "terminated": np.arange(T) == 4}
    got, _ = reference.retrace(r, q[:-1], next_expected_q=q[1:], rhos=np.ones(T), **shared)
    close(got, reference.lambda_returns(r, q, **shared))


def test_ratios_and_their_logarithms_agree():
    for row in TABLE:
        if row.function in ("vtrace", "retrace"):
            kwargs, _ = seeded(row)
            other = without(kwargs, "log_rhos", "rhos")
            if "rhos" in kwargs:
                other["log_rhos"] = np.log(kwargs["rhos"])
            else:
                other["rhos"] = np.exp(kwargs["log_rhos"])
            close(row.reference(other), row.reference(kwargs))


@each(lambda row: row.options.flags == "starts" and not row.options.mask)
def test_starts_are_terminations_one_step_later(row):
    kwargs, _ = seeded(row)
    starts = kwargs["episode_starts"]
    past = kwargs.get("next_episode_start", np.zeros(starts.shape[1:], bool))
    other = without(kwargs, "episode_starts", "next_episode_start")
    other["terminated"] = np.concatenate([starts[1:], past[None]])
    if kwargs.get("initial") is not None:
        first = starts[0].reshape(starts.shape[1:] + (1,) * (np.ndim(kwargs["initial"]) - starts.ndim + 1))
        other["initial"] = np.where(first, 0.0, kwargs["initial"])
    close(row.reference(other), row.reference(kwargs))
    all_rows = {**without(kwargs, "next_episode_start"), "episode_starts": np.concatenate([starts, past[None]])}
    close(row.reference(all_rows), row.reference(kwargs))


# Splitting the window and carrying


@pytest.mark.parametrize("k", [1, 3, T - 1])
@pytest.mark.parametrize("ended", [False, True])
def test_split_and_carry(numbers, k, ended):
    r, v, g, lam = (numbers[name] for name in ("rewards", "values", "discount", "lambda_"))
    e = np.arange(T) == (k - 1 if ended else 5)
    early = {"terminated": e[:k], "discount": g[:k]}
    late = {"terminated": e[k:], "discount": g[k:]}
    whole = {"terminated": e, "discount": g}

    behind = reference.discounted_returns(r[k:], **late, bootstrap_value=2.0)
    front = reference.discounted_returns(r[:k], **early, bootstrap_value=behind[0])
    close(np.append(front, behind), reference.discounted_returns(r, **whole, bootstrap_value=2.0))

    behind = reference.lambda_returns(r[k:], v[k:], **late, lambda_=lam[k:])
    past = (1 - lam[k - 1]) * v[k] + lam[k - 1] * behind[0]
    front = reference.lambda_returns(r[:k], v[:k], **early, lambda_=lam[:k], bootstrap_value=past)
    close(np.append(front, behind), reference.lambda_returns(r, v, **whole, lambda_=lam))

    behind, _ = reference.gae(r[k:], v[k:], **late, lambda_=lam[k:])
    front, _ = reference.gae(r[:k], v[:k], **early, lambda_=lam[:k], bootstrap_value=v[k] + lam[k - 1] * behind[0])
    close(np.append(front, behind), reference.gae(r, v, **whole, lambda_=lam)[0])

    front = reference.eligibility_traces(r[:k], **early, lambda_=lam[:k])
    carried = 0.0 if e[k - 1] else g[k - 1] * lam[k - 1] * front[-1]
    behind = reference.eligibility_traces(r[k:], **late, lambda_=lam[k:], initial=carried)
    close(np.append(front, behind), reference.eligibility_traces(r, **whole, lambda_=lam))

    front = reference.episodic_prefix_sum(r[:k], terminated=e[:k])
    behind = reference.episodic_prefix_sum(r[k:], terminated=e[k:], initial=0.0 if e[k - 1] else front[-1])
    close(np.append(front, behind), reference.episodic_prefix_sum(r, terminated=e))

    front = reference.linear_recurrence(g[:k], r[:k], 2.0)
    behind = reference.linear_recurrence(g[k:], r[k:], front[-1])
    close(np.append(front, behind), reference.linear_recurrence(g, r, 2.0))


# Cuts and selections


def test_a_number_as_discount_is_no_cut_and_an_array_is():
    values = np.array([0.5, np.nan])
    assert np.isnan(reference.gae([1.0], values, discount=0.0, lambda_=1.0)[0][0])
    assert reference.gae([1.0], values, discount=[0.0], lambda_=1.0)[0][0] == 0.5


def test_a_discount_of_zero_drops_the_carry():
    r = np.array([1.0, np.nan])
    assert reference.discounted_returns(r, discount=0.0)[0] == 1.0
    assert reference.discounted_returns(r, discount=[0.0, 1.0])[0] == 1.0


@pytest.mark.parametrize("row", [row for row in TABLE if row.variant == "terminated"], ids=str)
def test_nan_in_a_live_step_stays_inside_its_episode(row):
    kwargs, _ = seeded(row, batch_shape=())
    e = kwargs["terminated"] = np.isin(np.arange(T), (2, 5))
    clean = row.reference(kwargs)
    for name in per_row(kwargs):
        if name != "terminated":
            dirty = {**kwargs, name: kwargs[name].copy()}
            dirty[name][4] = np.nan
            for a, b in zip(row.reference(dirty), clean, strict=True):
                outside = np.r_[0:3, 6:T]
                np.testing.assert_array_equal(a[outside], b[outside])
    assert e.sum() == 2


def test_truncated_needs_next_values():
    for call in (reference.gae, reference.lambda_returns):
        with pytest.raises(ValueError, match="next_values"):
            call(np.ones(3), np.ones(4), discount=1.0, lambda_=1.0, truncated=[0, 1, 0])
