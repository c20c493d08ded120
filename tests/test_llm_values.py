"""LLM functions against known answers, the float64 loops of llm_reference, and their boundary rules."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llm_reference as reference
import rltriton_jax
from rltriton_jax import llm

FILE = json.loads((Path(__file__).parent / "llm_cases.json").read_text())
NAN = float("nan")
PRESETS = sorted(llm.GROUP_PRESETS)


def gae_of_outcome(scores, values, mask, **hyper):
    rewards = llm.place_outcome(scores, mask)
    return rltriton_jax.gae(rewards, values, mask=mask, bootstrap_value=0.0, time_axis=-1, **hyper)


def discounted_returns_of_ones(length, discount, dtype):
    returns = rltriton_jax.discounted_returns(jnp.ones((1, length), dtype), discount=discount, time_axis=-1)
    return {"first": returns[0, 0], "last": returns[0, -1]}


def trace_sum(gold_log_probs, window):
    deltas = llm.trace_turn_rewards(gold_log_probs)
    return jnp.sum(llm.trace_credit(deltas, jnp.zeros(deltas.shape[0]), window=window))


def tree_of_signatures(states, actions, **arguments):
    return llm.rollout_tree_advantages(
        state_ids=llm.state_action_ids(states), action_ids=llm.state_action_ids(actions), **arguments
    )


def tree_sum_at_first_state(**arguments):
    return jnp.sum(tree_of_signatures(**arguments)[:, 0])


def step_advantages_of_rewards(rewards, states, discount, **options):
    ids = llm.state_action_ids(states)
    returns = rltriton_jax.discounted_returns(rewards, discount=discount, mask=ids >= 0, time_axis=-1)
    return llm.step_group_advantages(returns, ids, **options)


def gigpo(scores, states, group_ids, omega, scale="group", **arguments):
    episode = llm.group_advantages(scores, group_ids, scale=scale)
    step = step_advantages_of_rewards(states=states, group_ids=group_ids, scale=scale, **arguments)
    return jnp.where(llm.state_action_ids(states) >= 0, episode[:, None] + omega * step, 0)


def discounted_group_advantages(turn_rewards, discount, **options):
    flat = llm.group_advantages(turn_rewards.reshape(-1), group_size=turn_rewards.size, **options)
    return rltriton_jax.discounted_returns(flat.reshape(turn_rewards.shape), discount=discount, time_axis=-1)


def gae_over_turns(rewards, values, turn_ids, **hyper):
    turns = rltriton_jax.gae(rewards, values, bootstrap_value=0.0, time_axis=-1, **hyper)
    return llm.turn_to_tokens(turns.advantages, turn_ids)


def returns_minus_baseline(rewards, mask, baseline):
    returns = rltriton_jax.discounted_returns(rewards, discount=1.0, mask=mask, time_axis=-1)
    return returns - baseline[:, None] * mask


def from_json(value):
    if isinstance(value, list) and value and not isinstance(np.asarray(value).reshape(-1)[0], str):
        array = np.asarray(value)
        return jnp.asarray(array, jnp.float32 if array.dtype == np.float64 else jnp.int32)
    if isinstance(value, list) and "NaN" in str(value):
        return jnp.asarray(np.asarray(value).astype(np.float32))
    return value


def call(case):
    inputs = {k: v if k in ("states", "actions") else from_json(v) for k, v in case["inputs"].items()}
    preset = llm.GROUP_PRESETS[inputs.pop("preset")] if "preset" in inputs else {}
    name = case["function"]
    function = globals().get(name) or getattr(llm, name, None) or getattr(rltriton_jax, name)
    return function(**inputs, **preset)


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["id"])
def test_known_answers(case):
    result = call(case)
    for key, expected in case["expected"].items():
        got = result[key] if isinstance(result, dict) else getattr(result, key) if isinstance(result, tuple) else result
        got = np.asarray(got, np.float64)
        atol = case.get("atol", 1e-6 if case["rtol"] else 0)
        np.testing.assert_allclose(got, np.asarray(expected, np.float64), rtol=case["rtol"], atol=atol, err_msg=key)


def test_case_file_says_why_the_rest_is_missing():
    ids = [row["id"] for row in FILE["cases"] + FILE["not_offered"]]
    assert len(set(ids)) == len(ids)
    assert all(row["note"] for row in FILE["cases"]) and all(row["reason"] for row in FILE["not_offered"])


def close(got, expected, tol=2e-5):
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tol, atol=tol)


def random_groups(rng, rows, groups):
    ids = rng.choice(np.concatenate([[-1], rng.choice(10_000, groups, replace=False)]), rows).astype(np.int32)
    scores = rng.choice([0.0, 0.1, 0.7, 1.0], rows).astype(np.float32)
    scores[ids == -1] = NAN
    return scores, ids, rng.integers(0, 2, rows) | (rng.random(rows) < 0.5), rng.integers(0, 5, rows)


@pytest.mark.parametrize("rows, groups, ddof, singleton", [(7, 2, 0, "zero"), (129, 50, 1, "raw")])
@pytest.mark.parametrize("scale", ["group", "batch", None])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "length_weighted", "none"])
def test_group_advantages_as_reference(rows, groups, ddof, singleton, baseline, scale):
    rng = np.random.default_rng(rows)
    scores, ids, mask, lengths = random_groups(rng, rows, groups)
    scores[mask == 0] = NAN
    options = {"baseline": baseline, "scale": scale, "ddof": ddof, "singleton": singleton, "mask": mask}
    options |= {"lengths": lengths} if baseline == "length_weighted" else {}
    got = llm.group_advantages(scores, ids, **options)
    close(got, reference.group_advantages(scores.astype(np.float64), ids, **options))
    assert np.all(np.asarray(got)[(ids == -1) | (mask == 0)] == 0)


@pytest.mark.parametrize("preset", PRESETS)
def test_group_size_is_the_same_as_ids(preset):
    rng = np.random.default_rng(3)
    scores, mask = rng.normal(size=24).astype(np.float32), rng.random(24) < 0.8
    options = dict(llm.GROUP_PRESETS[preset])
    if preset == "opo":
        options["lengths"] = rng.integers(1, 9, 24)
    by_size = llm.group_advantages(scores, group_size=4, mask=mask, **options)
    by_ids = llm.group_advantages(scores, np.repeat(np.arange(6), 4) * 1000, mask=mask, **options)
    close(by_size, by_ids, 1e-6)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equal_scores_give_exactly_zero(preset, dtype):
    options = dict(llm.GROUP_PRESETS[preset])
    if preset == "opo":
        options["lengths"] = jnp.arange(21)
    for value in (0.1, 1e-30, 1e30, -123456.7, 1 / 3):
        scores = jnp.full(21, value, dtype)
        for how in ({"group_size": 7}, {"group_ids": jnp.arange(21) % 3}):
            got = llm.group_advantages(scores, **how, **options)
            assert got.dtype == dtype
            assert np.all(np.asarray(got, np.float32) == 0)


def test_equal_scores_over_the_batch_give_exactly_zero():
    assert np.all(np.asarray(llm.group_advantages(jnp.full(21, 0.1), group_size=7, scale="batch")) == 0)


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e6, 1e30])
def test_std_neither_vanishes_nor_overflows(factor):
    scores = np.array([1, 1, 1, 0, 0, 0, 0, 0], np.float32)
    got = llm.group_advantages(scores * np.float32(factor), group_size=8, eps=0.0)
    close(got, reference.group_advantages(scores, group_size=8, eps=0.0), 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "factor, eps", [(f, e) for f in (1.0, 2e19, 1e20, 1e38, -1e38) for e in (0.0, 1e-8)] + [(1e-20, 0.0), (1e-37, 0.0)]
)
def test_whitening_neither_vanishes_nor_overflows(factor, eps, dtype):
    x = jnp.asarray(np.array([[1, 2, 3]]) * factor, dtype)
    tol = 1e-6 if dtype == "float32" else 2**-7
    expected = np.array([[-1, 0, 1]]) * np.sign(factor)
    close(llm.masked_whiten(x, jnp.ones((1, 3)), eps=eps), expected, tol)
    close(llm.group_advantages(x[0], group_size=3, eps=eps), expected[0], tol)
    turns = jnp.asarray(np.array([[1], [2], [3]]) * factor, dtype)
    close(llm.reinforce_plus_plus(turns, jnp.ones((3, 1)), eps=eps).advantages[:, 0], expected[0], tol)


def test_whitening_of_a_spread_below_sqrt_eps():
    got = llm.masked_whiten(jnp.array([1.0, 2.0, 3.0]) * 1e-25, jnp.ones(3))
    np.testing.assert_allclose(got, np.array([-1, 0, 1]) * 1e-21, rtol=1e-6, atol=1e-27)


def test_a_spread_beyond_the_largest_number():
    scores = jnp.array([3e38, -3e38, 0.0])
    close(llm.masked_whiten(scores, jnp.ones(3)), [1, -1, 0], 1e-6)
    for scale in ("group", "batch"):
        close(llm.group_advantages(scores, group_size=3, scale=scale), [1, -1, 0], 1e-6)
    close(llm.group_advantages(jnp.tile(scores, 99), group_size=297, ddof=0), np.tile([1, -1, 0], 99) * 1.5**0.5, 1e-5)
    np.testing.assert_allclose(llm.group_advantages(scores, group_size=3, scale=None), scores, rtol=1e-6, atol=1e32)


def test_length_weighted_baseline_counts_from_a_member_that_weighs():
    scores, lengths = jnp.array([-1e6, 0.1, 0.1, 0.1]), jnp.array([0, 1, 1, 1])
    options = {"baseline": "length_weighted", "scale": None, "lengths": lengths}
    for how in ({"group_size": 4}, {"group_ids": jnp.zeros(4, int)}):
        assert llm.group_advantages(scores, **how, **options)[1:].tolist() == [0, 0, 0]
        close(llm.group_advantages(scores.at[1].set(0.4), **how, **options)[1:], [0.2, -0.1, -0.1], 1e-6)


def test_equal_scores_give_zero_without_a_baseline_too():
    options = {"group_ids": jnp.array([0, 0, 1, 1, 2]), "baseline": "none", "ddof": 0, "eps": 0.0}
    scores = jnp.array([1.0, 1.0, 0.0, 2.0, 1.0])
    close(llm.group_advantages(scores, scale="batch", **options), [0, 0, 0, 2 / 0.4**0.5, 0], 1e-6)
    close(llm.group_advantages(scores, scale="group", **options), [0, 0, 0, 2, 0], 1e-6)
    np.testing.assert_array_equal(llm.group_advantages(scores, scale=None, **options), scores)


def test_scores_far_from_zero_keep_their_digits():
    scores = np.float32(10000) + np.array([0, 0.5, 1, 0.25], np.float32)
    close(llm.group_advantages(scores, group_size=4), reference.group_advantages(scores, group_size=4), 1e-6)


def test_non_finite_scores_count_nowhere_under_jit():
    scores = jnp.array([1.0, jnp.nan, 0.0, 0.5, jnp.inf, 2.0])
    ids = jnp.array([0, 0, 0, 0, 1, 1])
    got = jax.jit(lambda s: llm.group_advantages(s, ids, singleton="raw"))(scores)
    close(got, [1.0 / (0.5 + 1e-6) * 0.5, 0, -0.5 / (0.5 + 1e-6), 0, 0, 2.0], 1e-6)


def test_rows_of_no_group_change_nothing():
    scores, ids = jnp.array([1.0, 0.0, 3.0, 0.5]), jnp.array([4, 4, 9, 9])
    alone = llm.group_advantages(scores, ids)
    padded = llm.group_advantages(
        jnp.concatenate([jnp.full(3, jnp.nan), scores]), jnp.concatenate([jnp.full(3, -1), ids])
    )
    np.testing.assert_array_equal(padded, jnp.concatenate([jnp.zeros(3), alone]))


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 5), (4, 33)])
@pytest.mark.parametrize("shift_mean", [True, False])
@pytest.mark.parametrize("ddof", [0, 1])
def test_masked_whiten_as_reference(shape, ddof, shift_mean):
    rng = np.random.default_rng(sum(shape))
    x, mask = rng.normal(3, 2, shape).astype(np.float32), rng.random(shape) < 0.7
    x[~mask] = NAN
    got = llm.masked_whiten(x, mask, ddof=ddof, shift_mean=shift_mean)
    close(got, reference.masked_whiten(x, mask, ddof=ddof, shift_mean=shift_mean))
    assert np.all(np.asarray(got)[~mask] == 0)


def test_masked_whiten_of_too_few_or_equal_tokens():
    x = jnp.array([[0.1, jnp.nan, jnp.inf]])
    for mask in ([[0, 0, 0]], [[1, 0, 0]]):
        assert np.all(np.asarray(llm.masked_whiten(x, jnp.array(mask))) == 0)
    equal = jnp.full((3, 7), 0.1)
    assert np.all(np.asarray(llm.masked_whiten(equal, jnp.ones((3, 7)), eps=0.0)) == 0)


@pytest.mark.parametrize("shape, discount", [((1, 1), 0.9), ((3, 8), 1.0), ((4, 21), 0.95)])
def test_reinforce_plus_plus_as_reference(shape, discount):
    rng = np.random.default_rng(shape[1])
    rewards, mask = rng.normal(size=shape).astype(np.float32), rng.random(shape) < 0.6
    rewards[~mask] = NAN
    got = llm.reinforce_plus_plus(rewards, mask, discount=discount)
    advantages, returns = reference.reinforce_plus_plus(rewards, mask, discount=discount)
    close(got.returns, returns)
    close(got.advantages, advantages)


def test_reinforce_plus_plus_is_that_of_the_rows_without_dead_tokens():
    rng = np.random.default_rng(0)
    live = rng.normal(size=(3, 5)).astype(np.float32)
    spots = np.array([0, 2, 3, 6, 8])
    rewards, mask = np.full((3, 9), NAN, np.float32), np.zeros((3, 9))
    rewards[:, spots], mask[:, spots] = live, 1
    alone = llm.reinforce_plus_plus(live, np.ones((3, 5)), discount=0.9)
    spread = llm.reinforce_plus_plus(rewards, mask, discount=0.9)
    close(spread.advantages[:, spots], alone.advantages, 1e-6)
    close(spread.returns[:, spots], alone.returns, 1e-6)


@pytest.mark.parametrize("tokens", [0, 1, 6, 31])
def test_place_outcome_as_reference(tokens):
    rng = np.random.default_rng(tokens)
    scores, mask = rng.normal(size=5).astype(np.float32), (rng.random((5, tokens)) < 0.4).astype(np.int8)
    np.testing.assert_array_equal(
        llm.place_outcome(scores, mask), reference.place_outcome(scores, mask).astype(np.float32)
    )


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_turn_to_tokens_as_reference(turns):
    rng = np.random.default_rng(turns)
    values, ids = rng.normal(size=(3, turns)).astype(np.float32), rng.integers(-1, max(turns, 0), (3, 9), dtype=np.int8)
    expected = reference.turn_to_tokens(values, ids).astype(np.float32)
    np.testing.assert_array_equal(llm.turn_to_tokens(values, ids), expected)


def test_turn_to_tokens_does_not_read_turns_without_tokens():
    assert llm.turn_to_tokens(jnp.array([[jnp.nan, 2.0]]), jnp.array([[1, -1]])).tolist() == [[2.0, 0.0]]
    many = llm.turn_to_tokens(jnp.arange(200.0)[None], jnp.array([[127]], jnp.int8))
    assert many.tolist() == [[127.0]]


def random_trace(rng, shape):
    gold = -np.abs(rng.normal(2, 1, (shape[0], shape[1] + 1))).astype(np.float32)
    return gold, rng.normal(size=shape[0]).astype(np.float32), rng.random(shape) < 0.7


@pytest.mark.parametrize("window", [0, 1, 2, 3, 50])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (4, 7)])
def test_trace_as_reference(shape, window):
    gold, outcome, mask = random_trace(np.random.default_rng(shape[1]), shape)
    right = np.arange(shape[1]) < np.arange(1, shape[0] + 1)[:, None]
    for turn_mask in (None, mask, right):
        dead = np.zeros(shape, bool) if turn_mask is None else ~turn_mask
        unread = np.pad(dead, ((0, 0), (0, 1)), constant_values=True) & np.pad(
            dead, ((0, 0), (1, 0)), constant_values=True
        )
        deltas = llm.trace_turn_rewards(np.where(unread, NAN, gold).astype(np.float32), turn_mask=turn_mask)
        close(deltas, reference.trace_turn_rewards(gold, turn_mask=turn_mask))
        got = llm.trace_credit(
            np.where(dead, NAN, deltas).astype(np.float32), outcome, window=window, discount=0.7, turn_mask=turn_mask
        )
        expected = reference.trace_credit(
            np.asarray(deltas, np.float64), outcome, window=window, discount=0.7, turn_mask=turn_mask
        )
        close(got, expected)
        assert np.all(np.asarray(got)[dead] == 0)


def test_trace_token_advantages_as_reference():
    rng = np.random.default_rng(1)
    credit, outcome = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    ids, mask = rng.integers(-1, 4, (3, 11)), rng.random((3, 11)) < 0.7
    got = llm.trace_token_advantages(credit, outcome, ids, mask)
    close(got, reference.trace_token_advantages(credit, outcome, ids, mask))


def random_tree(rng, rollouts, turns):
    states = rng.integers(0, 3, (rollouts, turns)) * 77
    actions = rng.integers(0, 2, (rollouts, turns)) + 5
    groups = rng.choice([-1, 3, 11], rollouts)
    rewards = rng.choice([0.0, 0.3, 1.0], (rollouts, turns)).astype(np.float32)
    states[np.arange(turns) >= rng.integers(0, turns + 1, rollouts)[:, None]] = -1
    rewards[(states == -1) | (groups == -1)[:, None]] = NAN
    return rewards, states, actions, groups


@pytest.mark.parametrize("rollouts, turns", [(1, 1), (6, 4), (12, 9)])
@pytest.mark.parametrize("prior_count", [0, 2, 0.5])
@pytest.mark.parametrize("scale", [None, "group"])
def test_rollout_tree_as_reference(rollouts, turns, prior_count, scale):
    for seed in range(3):
        rewards, states, actions, groups = random_tree(np.random.default_rng([rollouts, seed]), rollouts, turns)
        options = {"discount": 0.9, "prior_count": prior_count, "scale": scale, "eps": 1e-3}
        got = llm.rollout_tree_advantages(rewards, states, actions, groups, **options)
        close(got, reference.rollout_tree_advantages(rewards, states, actions, groups, **options))
        assert np.all(np.asarray(got)[(states == -1) | (groups == -1)[:, None]] == 0)


def test_rollout_tree_counts_a_repeated_pair_once():
    got = llm.rollout_tree_advantages(
        jnp.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), jnp.zeros((2, 3), int), jnp.array([[1, 1, 2], [2, 2, 2]]),
        jnp.array([0, 0]), discount=0.5,
    )  # fmt: skip
    # First visits: (0, 1) returns 0.25; (0, 2) returns 1 and 0. V = 1.25 / 3, V0 = 0.5.
    value = (1.25 + 2 * 0.5) / 5
    close(got, [[0.25 - value, 0.25 - value, 0.5 - value], [0.5 - value] * 3], 1e-6)


@pytest.mark.parametrize("prior_count", [0, 2, 0.5])
@pytest.mark.parametrize("outcome", [0.1, 1 / 3, -123456.7, 1e-20, 1e20])
def test_rollout_tree_of_equal_returns_is_exactly_zero(prior_count, outcome):
    options = {"scale": "group", "discount": 1.0, "prior_count": prior_count}
    fork = jnp.array([[0]] + [[1]] * 6)
    equal = llm.rollout_tree_advantages(jnp.full((7, 1), outcome), fork, fork * 0, fork[:, 0] * 0, **options)
    assert np.all(np.asarray(equal) == 0)
    for seed in range(5):
        _, states, actions, groups = random_tree(np.random.default_rng(seed), 12, 9)
        rewards = llm.place_outcome(jnp.full(12, outcome), states >= 0)
        assert np.all(np.asarray(llm.rollout_tree_advantages(rewards, states, actions, groups, **options)) == 0)


def test_rollout_tree_of_equal_success_rates_is_exactly_zero():
    states, wins = jnp.repeat(jnp.arange(5), 7)[:, None], jnp.tile(jnp.arange(7) < 3, 5)[:, None]
    for prior_count in (0, 2, 0.3):
        got = llm.rollout_tree_advantages(
            wins * 1.0, states, states * 0, states[:, 0] * 0, prior_count=prior_count, scale="group"
        )
        assert np.all(np.asarray(got) == 0)


def test_rollout_tree_of_a_state_seen_once():
    got = llm.rollout_tree_advantages(
        jnp.array([[0.9], [0.1]]), jnp.array([[0], [1]]), jnp.zeros((2, 1), int), jnp.array([0, 0])
    )
    close(got, [[2 / 3 * 0.4], [-2 / 3 * 0.4]], 1e-6)


@pytest.mark.parametrize("options", [{}, {"scale": None}, {"baseline": "leave_one_out", "singleton": "raw"}])
def test_step_groups_as_reference(options):
    rewards, states, _, groups = random_tree(np.random.default_rng(7), 9, 5)
    got = llm.step_group_advantages(rewards, states, groups, **options)
    close(got, reference.step_group_advantages(rewards, states, groups, **options))


@pytest.mark.parametrize("batch, turns", [(1, 1), (4, 3), (16, 6)])
def test_multi_turn_as_reference(batch, turns):
    rng = np.random.default_rng(batch)
    rewards, mask = rng.choice([0.0, 0.1, 1.0], (batch, turns)).astype(np.float32), rng.random((batch, turns)) < 0.7
    groups = rng.choice([-1, 4, 8], batch)
    rewards[groups == -1] = NAN
    for agents in (None, rng.integers(-1, 3, batch), rng.integers(-1, 3, (batch, turns))):
        options = {"discount": 0.9, "agent_ids": agents}
        got = llm.multi_turn_advantages(rewards, groups, mask, **options)
        close(got, reference.multi_turn_advantages(rewards, groups, mask, **options))


def test_state_action_ids():
    ids = llm.state_action_ids([["a", ("b", 1)], [], ["a", None, 2, ("b", 1)]], turns=5)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[0, 1, -1, -1, -1], [-1] * 5, [0, -1, 2, 1, -1]]
    assert llm.state_action_ids([]).shape == (0, 0)


@pytest.mark.parametrize("tokens", [0, 1, 12])
def test_segments_as_reference(tokens):
    rng = np.random.default_rng(tokens)
    ids = np.sort(rng.integers(0, 4, (5, tokens)), axis=1)
    ids[:, max(tokens - 2, 1) :] = -1
    mask = rng.random((5, tokens)) < 0.6
    for m in (None, mask):
        ends = reference.segment_ends(ids, m)
        np.testing.assert_array_equal(llm.segment_ends(ids, m), ends)
        backwards = reference.segment_ends(ids[:, ::-1], None if m is None else m[:, ::-1])
        starts = np.concatenate([backwards[:, ::-1], np.ones((5, 1), bool)], axis=1)
        np.testing.assert_array_equal(llm.segment_starts(ids, m), starts)


def test_packed_rows_are_their_sequences_alone():
    rng = np.random.default_rng(2)
    ids = np.array([[0] * 5 + [1] * 4 + [2] * 3 + [-1] * 2])
    mask = np.array([[1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0]])
    rewards, values = rng.normal(size=(2, 1, 14)).astype(np.float32)
    hyper = {"discount": 0.9, "lambda_": 0.8, "time_axis": -1, "bootstrap_value": 0.0}
    by_ends = rltriton_jax.gae(rewards, values, mask=mask, terminated=llm.segment_ends(ids, mask), **hyper)
    by_starts = rltriton_jax.gae(rewards, values, mask=mask, episode_starts=llm.segment_starts(ids, mask), **hyper)
    for one in range(3):
        spot = ids[0] == one
        alone = rltriton_jax.gae(rewards[:, spot], values[:, spot], mask=mask[:, spot], **hyper)
        close(by_ends.advantages[:, spot], alone.advantages, 1e-6)
        close(by_starts.advantages[:, spot], alone.advantages, 1e-6)


def every_call(dtype, integers=False):
    """One small call of every function with floating inputs of `dtype`."""
    rng = np.random.default_rng(0)

    def floats(*shape):
        x = rng.normal(size=shape) if not integers else rng.integers(-3, 3, shape)
        return jnp.asarray(x, dtype)

    ids, mask = jnp.array([0, 0, 1, 1, -1]), jnp.asarray(rng.random((5, 6)) < 0.7)
    states = jnp.asarray(rng.integers(0, 2, (5, 6)))
    gold = -abs(floats(5, 7))
    return {
        "group_advantages": lambda: llm.group_advantages(floats(5), ids),
        "step_group_advantages": lambda: llm.step_group_advantages(floats(5, 6), states, ids),
        "masked_whiten": lambda: llm.masked_whiten(floats(5, 6), mask),
        "reinforce_plus_plus": lambda: llm.reinforce_plus_plus(floats(5, 6), mask, discount=0.9),
        "place_outcome": lambda: llm.place_outcome(floats(5), mask),
        "turn_to_tokens": lambda: llm.turn_to_tokens(floats(5, 2), states),
        "trace_turn_rewards": lambda: llm.trace_turn_rewards(gold),
        "trace_credit": lambda: llm.trace_credit(floats(5, 6), floats(5)),
        "trace_token_advantages": lambda: llm.trace_token_advantages(floats(5, 2), floats(5), states, mask),
        "rollout_tree_advantages": lambda: llm.rollout_tree_advantages(
            floats(5, 6), states, states, ids, scale="group"
        ),
        "multi_turn_advantages": lambda: llm.multi_turn_advantages(floats(5, 6), ids, mask),
    }


@pytest.mark.parametrize("name", every_call(jnp.float32))
def test_dtypes(name):
    for dtype in (jnp.bfloat16, jnp.float16):
        for leaf in jax.tree.leaves(every_call(dtype)[name]()):
            assert leaf.dtype == dtype
            assert np.isfinite(np.asarray(leaf, np.float32)).all()
    for leaf in jax.tree.leaves(every_call(jnp.int32, integers=True)[name]()):
        assert leaf.dtype == jnp.float32
    with jax.enable_x64(True):
        for leaf in jax.tree.leaves(every_call(jnp.float64)[name]()):
            assert leaf.dtype == jnp.float64


@pytest.mark.parametrize(
    "dtypes", [("int32", "bfloat16"), ("bfloat16", "int32"), ("bool", "float16"), ("float32", "bfloat16")]
)
def test_integers_do_not_widen_the_result(dtypes):
    turns, outcome = jnp.ones((1, 2), dtypes[0]), jnp.ones(1, dtypes[1])
    expected = jnp.result_type(*(d for d in dtypes if d not in ("int32", "bool")))
    assert llm.trace_credit(turns, outcome).dtype == expected
    ids = jnp.array([[0, 1]])
    assert llm.trace_token_advantages(turns, outcome, ids, ids >= 0).dtype == expected


@pytest.mark.parametrize("name", every_call(jnp.float32))
def test_strict_promotion(name):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        every_call(jnp.float32)[name]()
        every_call(jnp.bfloat16)[name]()


def test_bfloat16_is_computed_in_float32():
    rng = np.random.default_rng(5)
    scores = jnp.asarray(100 + rng.normal(size=64), jnp.bfloat16)
    got = llm.group_advantages(scores, group_size=64)
    expected = reference.group_advantages(np.asarray(scores, np.float64), group_size=64)
    close(got, expected, 2**-7)


def test_empty_batches():
    none = jnp.zeros((0,), jnp.int32)
    assert llm.group_advantages(jnp.zeros(0), none).shape == (0,)
    assert llm.group_advantages(jnp.zeros(0), group_size=4, scale="batch").shape == (0,)
    assert llm.masked_whiten(jnp.zeros((0, 3)), jnp.zeros((0, 3))).shape == (0, 3)
    assert llm.reinforce_plus_plus(jnp.zeros((2, 0)), jnp.zeros((2, 0))).returns.shape == (2, 0)
    assert llm.step_group_advantages(jnp.zeros((2, 0)), jnp.zeros((2, 0), int), jnp.array([0, 1])).shape == (2, 0)
    assert llm.trace_credit(jnp.zeros((2, 0)), jnp.zeros(2)).shape == (2, 0)
    assert llm.trace_turn_rewards(jnp.zeros((2, 1))).shape == (2, 0)
    tree = llm.rollout_tree_advantages(jnp.zeros((0, 3)), jnp.zeros((0, 3), int), jnp.zeros((0, 3), int), none)
    assert tree.shape == (0, 3)
    assert llm.multi_turn_advantages(jnp.zeros((0, 3)), none).shape == (0, 3)
