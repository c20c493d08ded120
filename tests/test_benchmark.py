"""The benchmark on tiny cases: its gate, its numbers, its files and its exit code."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rltriton_jax import _reference as reference
from rltriton_jax.benchmark import _cases, _cli, _data, _gate, _measure, _peers, _report, _timing
from rltriton_jax.benchmark._cases import Case
from rltriton_jax.benchmark._estimators import ESTIMATORS

TINY = ["--shape", "12x4", "--layout", "batch", "--implementation", "None", "--implementation", "scan", "--no-chains"]


def test_a_run_writes_every_number(tmp_path, capsys):
    path = tmp_path / "new" / "run.json"
    argv = [*TINY[:-1], "--implementation", "associative_scan", "--json", str(path), "--compare"]
    assert _cli.main(argv[:-1]) == 0
    run = json.loads(path.read_text())
    assert run["platform"] == "cpu" and run["cases_left"] == 0 and run["versions"]["jax"] == jax.__version__
    rows = {row["implementation"]: row for row in run["rows"]}
    assert list(rows) == ["None", "associative_scan", "scan"]
    for row in rows.values():
        assert row["status"] == "ok" and row["case"] == "gae [4, T=12] f32" and row["shape"] == [4, 12]
        assert row["bytes"] == 4 * (12 * 4 + 13 * 4 + 12 + 2 * 12 * 4)
        assert 0 <= row["error"] < 1e-6 and row["compile_s"] > 0 and row["temp_bytes"] >= 0 and row["ops"] > 0
        for name in ("time", "call", "copy"):
            assert 0 < row[name]["low"] <= row[name]["median"] <= row[name]["high"]
        assert row["of_copy"] == pytest.approx(row["copy"]["median"] / row["time"]["median"])
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["time"]["median"] / 1e3)
    assert rows["None"]["chain"]["method"] == "chain of 50 less chain of 10" and "chain" not in rows["scan"]
    assert rows["scan"]["loops"] == 1
    capsys.readouterr()
    assert _cli.main([*argv, str(path)]) == 0
    assert "Before and now" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["None", "scan"])
def test_a_wrong_implementation_is_named_and_the_run_fails(name, monkeypatch, capsys, tmp_path):
    found = _peers.calls

    def spoiled(case, gpu):
        calls = found(case, gpu)
        right = calls[name]
        return {**calls, name: lambda args: tuple(out.at[-1, 3].add(0.01) for out in right(args))}

    monkeypatch.setattr(_peers, "calls", spoiled)
    assert _cli.main([*TINY, "--json", str(tmp_path / "run.json")]) == 1
    rows = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert {row["implementation"]: row["status"] for row in rows} == {"None": "ok", "scan": "ok", name: "WRONG"}
    assert all("time" not in row for row in rows if row["status"] == "WRONG")
    assert f"{name} WRONG" in capsys.readouterr().err


def test_one_that_fails_does_not_end_the_run(monkeypatch, capsys):
    found = _peers.calls

    def broken(args):
        raise RuntimeError("out of order")

    monkeypatch.setattr(_peers, "calls", lambda case, gpu: {"None": broken, "scan": found(case, gpu)["scan"]})
    assert _cli.main(TINY) == 1
    out, err = capsys.readouterr()
    assert "out of order" in err and "scan" in out


def test_a_budget_ends_the_run_early_and_cleanly(tmp_path, capsys):
    assert _cli.main([*TINY, "--budget", "0", "--json", str(tmp_path / "run.json")]) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["rows"] == [] and run["cases_left"] == 1
    assert "1 of 1 cases were left" in capsys.readouterr().err


def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    assert _cli.main([*TINY, "--plots", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"fraction_of_copy.png", "speedup_scan.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--shape", "12"], "no shape"),
        (["--shape", "0x4"], "at least 1"),
        (["--shape", "12x6", "--layout", "inner"], "does not divide"),
        (["--shape", "12x4", "--masked", "--estimator", "n_step_returns"], "takes no mask"),
        (["--suite", "llm", "--layout", "time"], "no case is left"),
        (["--compare", "/dev/null"], "--json wrote"),
        ([*TINY, "--implementation", "cuda"], "invalid choice: 'cuda'"),
    ],
)
def test_arguments_that_cannot_be_used(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        _cli.main(argv)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("estimator, masked", [("gae", False), ("gae", True), ("n_step_returns", False)])
def test_every_implementation_can_be_asked_for(estimator, masked):
    case = Case(estimator, "batch", 12, 4, 1, "float32", False, masked)
    assert set(_peers.calls(case, gpu=True)) <= set(_peers.NAMES)


def test_shapes_may_be_written_short():
    assert _cli.shape("1Mx16") == (1 << 20, 16) and _cli.shape("64kx2k") == (65536, 2048)


@pytest.mark.parametrize("suite", _cases.SUITES)
def test_suites_hold_each_case_once_and_only_what_exists(suite):
    cases = _cases.SUITES[suite]()
    assert len(set(cases)) == len(cases) == len({case.label for case in cases})
    for case in cases:
        assert case.columns % case.inner == 0
        assert not case.masked or ESTIMATORS[case.estimator].masks


def test_any_beginning_of_the_full_suite_spans_it():
    beginning = _cases.full()[:60]
    assert {case.layout for case in beginning} == set(_cases.LAYOUTS)
    assert len({(case.length, case.columns) for case in beginning}) > 30
    assert {case.estimator for case in _cases.full()} == set(ESTIMATORS)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_reference_of_the_gate_agrees_with_the_loops_of_the_tests(estimator, masked):
    spec = ESTIMATORS[estimator]
    if masked and not spec.masks:
        pytest.skip("takes no mask")
    case = Case(estimator, "batch", 30, 3, masked=masked)
    args = _data.draw(case)
    options = {**spec.options, "time_axis": 1}
    wanted = getattr(reference, estimator)(**{k: np.asarray(x) for k, x in args.items()}, **options)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for i in range(3):
        got = _gate.reference(case, {k: np.asarray(x[i], np.float64) for k, x in args.items()})
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs[i], rtol=1e-6, atol=1e-6)  # the loops take float32 discounts


@pytest.mark.parametrize("estimator, layout", [("gae", "time"), ("vtrace", "inner"), ("off_policy_returns", "batch")])
@pytest.mark.parametrize("gradient", [False, True])
def test_every_peer_passes_the_gate_and_a_spoiled_one_does_not(estimator, layout, gradient):
    case = Case(estimator, layout, 19, 6, inner=2 if layout == "inner" else 1, gradient=gradient)
    inputs = _data.inputs(case)
    gate = _gate.Gate(case, *inputs)
    for name, call in _peers.calls(case, gpu=False).items():
        if name.startswith("scan unroll") and estimator != "gae":
            continue  # the same code, slow to compile
        function = jax.jit(_peers.with_gradient(case, call) if gradient else call)
        assert gate.passes(gate.error(function(*inputs))), name
    results = function(*inputs)
    if gradient:
        wrong = results[0], {**results[1], "rewards": 1.001 * results[1]["rewards"]}
    else:
        wrong = tuple(1.001 * out for out in results)
    assert not gate.passes(gate.error(wrong))


def test_nan_and_a_wrong_shape_never_pass():
    case = Case("discounted_returns", "time", 5, 3)
    (args,) = _data.inputs(case)
    gate = _gate.Gate(case, args)
    (right,) = _peers.calls(case, gpu=False)["scan"](args)
    assert gate.passes(gate.error((right,)))
    assert not gate.passes(gate.error((right.at[2, 0].set(jnp.nan),)))
    assert not gate.passes(gate.error((right.T,)))


def test_bytes_of_a_gradient_are_those_of_two_kernels():
    case = Case("vtrace", "time", 8, 4)
    step = 8 * 4 * 4
    values = step + 4 * 4
    forward = 2 * step + values + 8 * 4 + 2 * step
    assert _data.moved(case, _data.draw(case)) == forward
    backward = 8 * 4 + step + 2 * step + step + values
    assert _data.moved(dataclasses.replace(case, gradient=True), _data.draw(case)) == forward + backward


def test_rotation_overflows_the_cache_where_it_can():
    assert _timing.rotation(7_000_000) * 7_000_000 >= 2 * _timing.CACHE
    assert _timing.rotation(int(2 * _timing.CACHE)) == 1
    assert _timing.rotation(1000) == _timing.MOST_SETS


MODULE = """HloModule m

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}

%command_buffer (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused
  ROOT %n = f32[8]{0} fusion(%a), kind=kLoop, calls=%fused
}

ENTRY %main.5 (p: f32[8]) -> (f32[8], f32[8]) {
  %p = f32[8]{0} parameter(0)
  %c = f32[8]{0} call(%p), to_apply=%command_buffer
  %t = (f32[8]{0}, f32[8]{0}) custom-call(%c), custom_call_target="triton", metadata={op_name="x"}
  %g = f32[8]{0} get-tuple-element(%t), index=0
  %k = f32[8]{0} copy(%g)
  ROOT %r = (f32[8]{0}, f32[8]{0}) tuple(%g, %k)
}
"""


def test_launches_are_counted_through_what_the_entry_calls():
    assert _measure.launches(MODULE) == (4, 0, 3)


def test_tables_do_without_rich(monkeypatch, capsys):
    import sys

    from rltriton_jax.benchmark import _show

    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    _show.table("title", ("a", "b"), [["1", ""], ["2", "x"]])
    with _show.progress(2) as move:
        move(1, "case")
    out, err = capsys.readouterr()
    assert out.splitlines() == ["title", "a  b", "1  -", "2  x"] and err == "[1/2] case\n"


def test_what_was_measured_twice_is_compared():
    timing = dict(low=9.0, median=10.0, high=11.0, method="cupti")
    row = {"case": "c", "implementation": "triton", "time": timing, "of_copy": 0.5}
    faster = {**row, "time": {**timing, "low": 4.9, "median": 5.0, "high": 5.1}, "of_copy": 1.0}
    verdicts = [_report.compared([a], [b])[2][0][4:] for a, b in ((row, faster), (faster, row), (row, row))]
    assert verdicts == [
        ["2.00x", "0.50", "1.00", "faster"],
        ["0.50x", "1.00", "0.50", "SLOWER"],
        ["1.00x", "0.50", "0.50", "within the spread"],
    ]
