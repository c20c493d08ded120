"""The main job, `python -m rltriton_jax`: what it checks, prints, writes and returns."""

import importlib
import inspect
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax
from rltriton_jax._demo import _calls, _data, _measure, _rollout, main
from rltriton_jax._demo._measure import Comparison

PLAIN = ["--implementation", "scan", "--implementation", "associative_scan"]


@pytest.fixture
def run(tmp_path):
    """The exit code and the JSON of a run."""
    pytest.importorskip("rich")

    def run(*args):
        path = tmp_path / "results.json"
        code = main([*args, "--json", str(path)])
        return code, json.loads(path.read_text())

    return run


def test_every_estimator_has_a_call():
    public = [name for name, f in vars(rltriton_jax).items() if inspect.isfunction(f) and not name.startswith("_")]
    assert sorted(_calls.CALLS) == sorted(public)


def test_random_data(run, capsys):
    code, written = run("--shape", "9x5", *PLAIN, "--seed", "3")
    assert code == 0
    assert (written["shape"], written["dtype"], written["seed"]) == ([9, 5], "float32", 3)
    results = written["results"]
    assert {(r["estimator"], r["implementation"]) for r in results} == {
        (estimator, name) for estimator in _calls.CALLS for name in ("scan", "associative_scan")
    }
    assert all(r["ok"] and r["failure"] is None and r["wall_seconds"] > 0 for r in results)
    assert all(r["columns_checked"] == 5 and 0 <= r["error_loop"] < 2e-5 for r in results)
    assert all((r["error_associative_scan"] is None) == (r["implementation"] == "associative_scan") for r in results)
    printed = capsys.readouterr().out
    assert all(name in printed for name in _calls.CALLS) and "WRONG" not in printed


@pytest.mark.parametrize("dtype", _measure.TOLERANCE)
def test_dtypes(run, dtype):
    code, written = run("--shape", "7x4", *PLAIN, "--dtype", dtype, "--estimator", "vtrace", "--estimator", "gae")
    assert code == 0 and written["dtype"] == dtype
    assert [r["estimator"] for r in written["results"]] == ["gae", "gae", "vtrace", "vtrace"]
    assert (max(r["error_loop"] for r in written["results"]) < 1e-12) == (dtype == "float64")


def test_interpreter_runs_on_a_slice(run, capsys):
    pytest.importorskip("triton")
    code, written = run("--shape", "40x9", "--implementation", "interpret", "--estimator", "gae")
    assert code == 0
    assert [r["shape"] for r in written["results"]] == [list(_measure.INTERPRETED)]
    assert "interpreter is slow" in capsys.readouterr().out


def test_columns_are_sampled(run, capsys, monkeypatch):
    monkeypatch.setattr(_measure, "CHECKED_COLUMNS", 3)
    code, written = run("--shape", "6x50", *PLAIN, "--estimator", "retrace")
    assert code == 0 and {r["columns_checked"] for r in written["results"]} == {3}
    assert "checked 3 of 50 columns" in capsys.readouterr().out


@pytest.mark.parametrize("mode", _rollout.MODES)
def test_rollout(run, mode):
    pytest.importorskip("gymnasium")
    code, written = run("--steps", "130", "--envs", "4", *PLAIN, "--autoreset", mode, "--estimator", "gae")
    assert code == 0 and written["shape"] == [130, 4]
    assert ("resetting steps" in written["data"]) == (mode == "next-step")


@pytest.mark.parametrize("fault", ["value", "nan", "raise"])
def test_a_wrong_implementation_is_told(run, capsys, monkeypatch, fault):
    right = rltriton_jax.gae

    def wrong(*args, implementation, **kwargs):
        out = right(*args, implementation=implementation, **kwargs)
        if implementation != "scan":
            return out
        if fault == "raise":
            raise RuntimeError("no scan today")
        return out._replace(advantages=out.advantages.at[2, 1].add(1e-3 if fault == "value" else jnp.nan))

    monkeypatch.setattr(rltriton_jax, "gae", wrong)
    code, written = run("--shape", "9x5", *PLAIN, "--estimator", "gae", "--estimator", "vtrace")
    assert code == 1
    assert [(r["estimator"], r["implementation"]) for r in written["results"] if not r["ok"]] == [("gae", "scan")]
    printed = capsys.readouterr().out
    assert ("WRONG" if fault == "value" else "FAILED") in printed
    assert ("no scan today" in printed) == (fault == "raise")


def test_an_error_outside_of_the_checked_columns_is_told():
    data = _data.draw((9, 200), "float32", 0)
    comparison = Comparison("gae", data, 0)
    unchecked = next(i for i in range(200) if i not in comparison.columns)
    base = comparison._base()
    comparison._kept = tuple(x.at[4, unchecked].add(1.0) for x in base)
    result = comparison.run("scan")
    assert result.error_loop < 1e-6 < result.error_associative_scan and not result.ok


def _without(monkeypatch, *names):
    real = importlib.import_module

    def import_module(name, *args):
        if name in names:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize("names", [("rich",), ("gymnasium",), ("rich", "gymnasium")])
def test_missing_extra(monkeypatch, capsys, names):
    _without(monkeypatch, *names)
    assert main([]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in names) and 'pip install ".[demo]"' in error
    assert ("--shape" in error) == (names == ("gymnasium",))


def test_random_data_need_no_gymnasium(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert run("--shape", "5x2", *PLAIN, "--estimator", "gae")[0] == 0


@pytest.mark.parametrize(
    "args, message",
    [
        (["--shape", "128"], "no shape"),
        (["--steps", "0"], "at least 1"),
        (["--implementation", "magic"], "invalid choice"),
        (["--help"], ""),
    ],
)
def test_arguments(args, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == (0 if args == ["--help"] else 2)
    assert message in capsys.readouterr().err


def test_unusable_implementation(monkeypatch, capsys):
    monkeypatch.setattr(_measure, "why_not", lambda name: "it is Sunday" if name == "scan" else None)
    with pytest.raises(SystemExit):
        main(["--shape", "4x4", "--implementation", "scan"])
    assert "scan cannot run here: it is Sunday" in capsys.readouterr().err


def _counting(gymnasium, ends):
    """An environment whose observation is (number of the episode, step, 0, 0), and which ends as `ends` says."""

    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        action_space = gymnasium.spaces.Discrete(2)
        episode = -1

        def _observation(self):
            return np.array([self.episode, self.step_number, 0, 0], np.float64)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.episode, self.step_number = self.episode + 1, 0
            return self._observation(), {}

        def step(self, action):
            self.step_number += 1
            length, terminates = ends[self.episode % len(ends)]
            done = self.step_number == length
            return self._observation(), 1.0, done and terminates, done and not terminates, {}

    return Counting


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_rollout_has_the_true_next_state(monkeypatch, mode):
    gymnasium = pytest.importorskip("gymnasium")
    ends = [[(3, True), (2, False)], [(4, False)]]
    env = gymnasium.vector.SyncVectorEnv(
        [_counting(gymnasium, e) for e in ends], autoreset_mode=gymnasium.vector.AutoresetMode[mode]
    )
    monkeypatch.setattr(_rollout._Agent, "value", lambda self, x: 100 * x[..., 0] + x[..., 1])
    data = _rollout.play(env, 20, 0)
    env.close()
    for column, episodes in enumerate(ends):
        live = np.asarray(data.mask[:, column])
        assert (mode == "SAME_STEP") == live.all()
        here, following = (np.asarray(x[:, column])[live] for x in (data.values, data.next_values))
        expected = [
            (100 * e + t, terminates and t + 1 == length, not terminates and t + 1 == length)
            for e in range(20)
            for length, terminates in [episodes[e % len(episodes)]]
            for t in range(length)
        ][: len(here)]
        value, terminated, truncated = (np.array(x) for x in zip(*expected, strict=True))
        np.testing.assert_array_equal(here, value)
        np.testing.assert_array_equal(following, value + 1)
        np.testing.assert_array_equal(np.asarray(data.terminated[:, column])[live], terminated)
        np.testing.assert_array_equal(np.asarray(data.truncated[:, column])[live], truncated)
