"""The PPO benchmark: its environment, its gate, its numbers and its exit code."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rltriton_jax.benchmark import _cartpole, _ppo, multi_gpu, ppo

KEY = jax.random.key(0)


@pytest.fixture(scope="module", autouse=True)
def _quick_to_compile():
    """Programs that run once or twice need no optimising."""
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "UNROLL", 2)
        yield
    jax.config.update(name, before)


def test_the_cart_moves_and_falls_as_gymnasiums_does():
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    physics = rng.uniform(-1, 1, (200, 4)) * (2.5, 2, 0.22, 2)
    actions = rng.integers(0, 2, 200)
    _, step = _cartpole.step(_cartpole.Carts(jnp.array(physics), jnp.zeros(200, int)), jnp.array(actions), KEY, 500)
    fell = []
    for state, action, got in zip(physics, actions, np.asarray(step.true_next), strict=True):
        env.state, env.steps_beyond_terminated = state, None
        observation, _, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(got, observation, rtol=1e-5, atol=1e-6)
        fell.append(terminated)
    assert 0 < sum(fell) < 200
    np.testing.assert_array_equal(step.terminated, fell)


def test_time_limit_and_reset_of_one_step():
    upright, out, leaning = (0.0, 0.0, 0.0, 0.0), (2.39, 3.0, 0.0, 0.0), (0.0, 0.0, -0.2, -2.0)
    physics = jnp.array([upright, upright, out, leaning, out])
    following, step = _cartpole.step(_cartpole.Carts(physics, jnp.array([8, 9, 3, 0, 9])), jnp.ones(5, int), KEY, 10)
    assert step.terminated.tolist() == [
        False,
        False,
        True,
        True,
        True,
    ]  # the fall counts where the limit is reached too
    assert step.truncated.tolist() == [False, True, False, False, False]
    assert following.age.tolist() == [9, 0, 0, 0, 0] and step.rewards.tolist() == [1.0] * 5
    np.testing.assert_array_equal(following.physics[0], step.true_next[0])
    assert jnp.all(jnp.abs(following.physics[1:]) <= _cartpole.SPREAD)
    assert len(jnp.unique(following.physics[1:, 0])) == 4
    assert step.true_next[2, 0] > 2.4 and step.true_next[3, 2] < -0.2095 and step.true_next[1, 1] > 0.15


def test_next_values_are_those_of_where_each_step_led():
    limit = 7
    setting = _ppo.Setting(envs=8, steps=40, hidden=(8,), epochs=1, minibatches=1, time_limit=limit)
    before = jax.jit(_ppo.start, static_argnums=0)(setting, KEY)
    assert 0 <= before.carts.age.min() < before.carts.age.max() < limit
    after, batch = jax.jit(_ppo.roll_out, static_argnums=0)(setting, before)
    want = _ppo.network(before.params, batch.true_next)[1]
    np.testing.assert_allclose(batch.next_values, want, rtol=1e-5, atol=1e-6)
    ended = np.asarray(batch.terminated | batch.truncated)
    age = np.asarray(before.carts.age)
    for t in range(setting.steps):  # no episode is longer than the limit, and none is cut before it
        np.testing.assert_array_equal(batch.truncated[t], (age + 1 == limit) & ~np.asarray(batch.terminated[t]))
        age = np.where(ended[t], 0, age + 1)
    assert batch.truncated.sum() > 20
    np.testing.assert_array_equal(after.carts.age, age)
    live = ~ended[:-1]
    np.testing.assert_array_equal(batch.observed[1:][live], batch.true_next[:-1][live])
    np.testing.assert_allclose(batch.next_values[:-1][live], batch.values[1:][live], rtol=1e-5, atol=1e-6)
    assert np.all(np.abs(batch.observed[1:][~live]) <= _cartpole.SPREAD)
    assert np.all(np.abs(batch.next_values[:-1] - batch.values[1:])[~live] > 1e-4)


def mixed(rewards, values, next_values, terminated, truncated):
    """A time limit taken for an end, as with a single flag `done`."""
    return ppo.by_scan(rewards, values, next_values, terminated | truncated, truncated)


def shifted(rewards, values, next_values, terminated, truncated):
    """The value of the next episode's first state in place of the true next one."""
    return ppo.by_scan(rewards, values, jnp.append(values[1:], next_values[-1:], 0), terminated, truncated)


def leaking(rewards, values, next_values, terminated, truncated):
    """The trace runs on behind a time limit."""
    return ppo.by_scan(rewards, values, next_values, terminated, jnp.zeros_like(truncated))


def raw(*operands):
    """Advantages in place of targets."""
    return (ppo.by_scan(*operands)[0],) * 2


WRONG = [mixed, shifted, leaking, raw]


@pytest.fixture(scope="module")
def batch():
    keys = jax.random.split(KEY, 4)
    rewards, values, next_values = jax.random.normal(keys[0], (3, 18, 40))
    terminated = jax.random.uniform(keys[1], rewards.shape) < 0.1
    truncated = (jax.random.uniform(keys[2], rewards.shape) < 0.1) & ~terminated
    next_values = next_values.at[:-1].set(jnp.where(terminated | truncated, next_values, jnp.roll(values, -1, 0))[:-1])
    empty = dict.fromkeys(_ppo.Batch._fields)
    flags = dict(terminated=terminated, truncated=truncated)
    return _ppo.Batch(**{**empty, **flags, "rewards": rewards, "values": values, "next_values": next_values})


@pytest.fixture(scope="module")
def results(batch):
    """Advantages and targets by every variant, and by the wrong ones."""
    every = {**ppo.VARIANTS, **{f.__name__: f for f in WRONG}}
    return jax.jit(lambda *operands: {name: tuple(gae(*operands)) for name, gae in every.items()})(*batch.operands())


@pytest.mark.parametrize("name", ppo.VARIANTS)
def test_every_variant_passes_the_gate(batch, results, name):
    assert ppo.advantage_error(batch, results[name], results[ppo.BASE]) < ppo.TOLERANCE


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gae_does_not_pass_the_gate(batch, results, wrong):
    base, got = results[ppo.BASE], results[wrong.__name__]
    assert ppo.advantage_error(batch, got, base) > 100 * ppo.TOLERANCE
    assert ppo.advantage_error(batch, base, got) > 100 * ppo.TOLERANCE
    assert ppo.advantage_error(batch, got, got) > 100 * ppo.TOLERANCE  # the loops in Python see it in the base too


def test_nan_does_not_pass_the_gate(batch, results):
    base = results[ppo.BASE]
    assert ppo.advantage_error(batch, (base[0].at[3, 1].set(jnp.nan), base[1]), base) == np.inf
    before, after, spoiled = (_state(jnp.array(w)) for w in ([0.0, 0.0], [3.0, 4.0], [3.0, jnp.nan]))
    assert ppo.drift(spoiled, after, before) == np.inf


def _state(weights, gradient=None):
    mean = {"body": [(weights if gradient is None else gradient,)]}
    return _ppo.State({"body": [(weights,)]}, _ppo.Adam(mean, mean, jnp.int32(1)), None, None)


def test_drift_is_a_part_of_the_way():
    before, after = _state(jnp.array([1.0, 1.0])), _state(jnp.array([4.0, 5.0]))
    assert ppo.drift(after, after, before) == 0
    assert ppo.drift(_state(jnp.array([4.0, 5.5])), after, before) == pytest.approx(0.1)
    same_step = _state(jnp.array([4.0, 5.0]), jnp.array([4.0, 7.5]))  # of another gradient
    assert ppo.drift(same_step, after, before) == pytest.approx(0.5)


def test_a_wrong_gae_ends_the_run_with_1(monkeypatch, capsys, tmp_path):
    traced = []

    def late(*operands):
        """Right on the data of the gate, wrong within the update."""
        traced.append(1)
        advantages, targets = ppo.by_scan(*operands)
        return advantages if len(traced) == 1 else -advantages, targets

    monkeypatch.setattr(ppo, "VARIANTS", {ppo.BASE: ppo.by_scan, "mixed": mixed, "late": late})
    path = tmp_path / "run.json"
    assert ppo.main(["--small", "--network", "16", "--rounds", "1", "--json", str(path)]) == 1
    rows = {row["gae"]: row for row in json.loads(path.read_text())["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == {ppo.BASE: "ok", "mixed": "WRONG", "late": "WRONG"}
    assert rows[ppo.BASE]["share"] > 0
    assert all("update" not in rows[name] and "share" not in rows[name] for name in ("mixed", "late"))
    assert rows["mixed"]["advantage_error"] > 100 * ppo.TOLERANCE
    assert rows["late"]["advantage_error"] < ppo.TOLERANCE and rows["late"]["parameter_error"] > ppo.DRIFT
    out, err = capsys.readouterr()
    assert "mixed WRONG: advantages or targets differ by" in err
    assert "late WRONG: parameters or gradients of one update differ by" in err and "WRONG" in out


def test_a_run_writes_every_number(capsys, tmp_path):
    path = tmp_path / "new" / "run.json"
    assert ppo.main(["--small", "--network", "64x64", "--envs", "32", "--json", str(path)]) == 0
    run = json.loads(path.read_text())
    assert run["platform"] == "cpu" and run["versions"]["jax"] == jax.__version__
    assert (run["rounds"], run["sizes_left"], run["sizes_failed"]) == (3, 0, [])
    assert [row["gae"] for row in run["rows"]] == ["lax.scan", "lax.associative_scan", "rltriton_jax"]
    sizes = dict(network="64x64", envs=32, steps=16, hidden=[64, 64], epochs=4, minibatches=4, status="ok", why="")
    for row in run["rows"]:
        assert {name: row[name] for name in sizes} == sizes
        assert 0 < row["terminated"] < 512 and 0 < row["truncated"] < 512
        assert 0 <= row["advantage_error"] < 2e-5 and 0 <= row["parameter_error"] < 1e-2 and row["compile_s"] > 0
        for name, repetitions in (("update", 3), ("gae_alone", 7)):
            assert 0 < row[name]["low"] <= row[name]["median"] <= row[name]["high"] < 6e7
            assert row[name]["repetitions"] == repetitions
        assert row["share"] == row["gae_alone"]["median"] / row["update"]["median"] and 0 < row["share"] < 1
        assert row["env_steps_per_s"] == pytest.approx(512e6 / row["update"]["median"])
    out = capsys.readouterr().out
    assert "64x64, 32 x 16" in out and all(row["gae"] in out for row in run["rows"])


def test_a_size_that_fails_does_not_lose_the_others(monkeypatch, capsys):
    def measure(setting, rounds, seed):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ppo, "measure", measure)
    assert ppo.main(["--envs", "4", "--envs", "8", "--steps", "4", "--network", "16"]) == 1
    err = capsys.readouterr().err
    assert "16, 4 x 4: RuntimeError: out of memory" in err and "16, 8 x 4: RuntimeError" in err


def test_a_budget_ends_the_run_cleanly(capsys):
    assert ppo.main(["--budget", "0"]) == 0
    assert "12 of 12 sizes were left" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--envs", "0"], "--envs and --steps must be at least 1"),
        (["--envs", "3", "--steps", "5"], "4 minibatches do not divide 3 x 5 rows; change --envs or --steps"),
        (["--small", "--rounds", "0"], "--rounds must be at least 1"),
        (["--network", "8x8"], "invalid choice"),
    ],
)
def test_arguments_that_cannot_be_used(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        ppo.main(argv)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_every_round_runs_every_program_and_begins_with_another(monkeypatch):
    order = []
    programs = {name: lambda state, name=name: order.append(name) or state + 1 for name in "abc"}
    states = dict.fromkeys(programs, 0)
    timings = ppo.interleaved(programs, states, 4)
    assert "".join(order) == "abcbcacababc"
    assert states == dict(a=4, b=4, c=4) and {t.repetitions for t in timings.values()} == {4}


def test_gae_alone_runs_as_many_calls_as_it_divides_by(batch):
    calls = []

    def counting(rewards, values, *rest):
        jax.debug.callback(lambda: calls.append(1))
        return rewards, values

    timing = ppo.alone(counting, batch.operands())
    jax.effects_barrier()
    assert len(calls) % ppo.CALLS == 0 and timing.method.startswith("fori_loop of 100")


def test_the_update_over_several_devices_is_the_update_on_one():
    row = multi_gpu.ppo_update(jax.make_mesh((2,), ("x",), devices=jax.devices()[:2]), 64, 8)
    assert row["error"] < 1e-6 and row["shape"] == (8, 64) and row["gpus"] == 2


def test_ppo_loss_by_hand():
    params = {"body": [], "policy": (jnp.array([[0.0, 2.0]]),), "value": (jnp.array([[3.0]]), jnp.array([1.0]))}
    observed, actions = jnp.array([[1.0], [0.5]]), jnp.array([1, 0])
    logits = np.array([[0.0, 2.0], [0.0, 1.0]])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    taken = probabilities[[0, 1], [1, 0]]
    old = np.log(taken) - np.log([1.5, 1.1])  # the first ratio is clipped
    advantages, targets = np.array([2.0, -1.0]), np.array([3.0, 3.0])
    gain = (1.2 * 2.0 + 1.1 * -1.0) / 2
    wrong = ((4.0 - 3.0) ** 2 + (2.5 - 3.0) ** 2) / 2
    entropy = -np.sum(probabilities * np.log(probabilities)) / 2
    args = params, observed, actions, jnp.array(old), jnp.array(advantages), jnp.array(targets)
    np.testing.assert_allclose(_ppo.loss(*args), wrong - gain, rtol=1e-5)
    np.testing.assert_allclose(_ppo.loss(*args, 0.5, 0.1), 0.5 * wrong - gain - 0.1 * entropy, rtol=1e-5)


def test_adam_by_hand():
    params, zero = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.zeros(2)}
    moments = _ppo.Adam(zero, zero, jnp.zeros((), jnp.int32))
    want, first, second = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step in (1, 2, 3):
        gradient = np.array([0.5, -0.1]) * step
        params, moments = _ppo.adam(params, moments, {"w": jnp.array(gradient)})
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        want = want - 1e-3 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-5)
    np.testing.assert_allclose(params["w"], want, rtol=1e-5)
    assert int(moments.steps) == 3
