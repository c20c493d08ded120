"""Tuning: which tiles are admitted, by a timer that lies as told, and which files of tiles are refused."""

import json
import math

import jax
import pytest

from rltriton_jax import _backends, tune
from rltriton_jax._backends import _tuned
from rltriton_jax._backends._tiles import Tile
from rltriton_jax.benchmark._cases import Case

TABLE = Tile(runs=16, steps=8, columns=32, warps=8, rows=False)
OTHER = TABLE._replace(warps=4)
DEVICE = "NVIDIA H200"


class Fake:
    """Times by `pace[tile]`, a number or one per repetition; counts what it is asked."""

    estimators = ("gae",)

    def __init__(self, pace, errors=(), estimators=("gae",)):
        self.pace, self.errors, self.estimators, self.asked = pace, dict(errors), estimators, []

    def error(self, tile, which, repetition):
        error = self.errors.get(tile, 0.0)
        if isinstance(error, Exception):
            raise error
        return error

    def seconds(self, tile, which, repetition):
        self.asked.append((tile, which, repetition))
        pace = self.pace.get(tile, 1.0)
        if isinstance(pace, dict):
            pace = pace[which]
        return pace[repetition] if isinstance(pace, tuple) else pace


def test_a_faster_tile_is_admitted_after_three_interleaved_repetitions():
    bench = Fake({OTHER: 0.9})
    verdict = tune.judge(bench, TABLE, OTHER)
    assert verdict.admitted and verdict.error == 0.0
    assert verdict.speedups == pytest.approx([1 / 0.9] * 3)
    assert bench.asked == [(tile, 0, k) for k in range(3) for tile in (TABLE, OTHER, OTHER, TABLE)]


@pytest.mark.parametrize(
    "pace, errors, reason",
    [
        (0.98, 0.0, "not faster"),
        ((0.9, 0.9, 0.98), 0.0, "not faster"),
        ((0.9, 1.1, 0.9), 0.0, "not faster"),
        (0.5, 1.5, "wrong"),
        (0.5, math.nan, "wrong"),
        (0.5, RuntimeError("no such tile"), "failed"),
        (0.0, 0.0, "failed"),
        (math.nan, 0.0, "failed"),
    ],
)
def test_a_tile_that_is_slow_once_or_wrong_or_fails_is_not(pace, errors, reason):
    verdict = tune.judge(Fake({OTHER: pace}, {OTHER: errors}), TABLE, OTHER)
    assert not verdict.admitted and verdict.reason.startswith(reason)


def test_a_wrong_tile_is_not_timed():
    bench = Fake({}, {OTHER: 2.0})
    tune.judge(bench, TABLE, OTHER)
    assert bench.asked == []


def test_other_estimators_must_not_lose():
    bench = Fake({OTHER: {0: 0.8, 1: 1.1}}, estimators=("gae", "vtrace"))
    verdict = tune.judge(bench, TABLE, OTHER)
    assert not verdict.admitted and "vtrace" in verdict.reason
    assert tune.judge(Fake({OTHER: {0: 0.8, 1: 1.0}}, estimators=("gae", "vtrace")), TABLE, OTHER).admitted


def test_search_climbs_and_logs_every_candidate():
    step, top = TABLE._replace(runs=8, warps=4), TABLE._replace(runs=8, warps=2)
    log = []
    found = tune.search(Fake({OTHER: 0.9, step: 0.8, top: 0.7}), TABLE, log.append)
    assert found is not None and found.tile == top
    assert found.speedups == pytest.approx([1 / 0.7] * 3)  # against the table, not against the step before
    tiles = [verdict.tile for verdict in log]
    assert len(set(tiles)) == len(tiles) and TABLE not in tiles and {OTHER, step, top} <= set(tiles)
    assert all(tune.sensible(tile) for tile in tiles)


def test_search_keeps_the_table_where_nothing_is_faster_or_no_time_is_left():
    assert tune.search(Fake({}), TABLE, lambda verdict: None) is None
    log = []
    assert tune.search(Fake({OTHER: 0.1}), TABLE, log.append, over=lambda: True) is None and log == []


KEY = "columns T7 C12 R2"


def stored(path, verdict=None):
    verdict = verdict or tune.Verdict(OTHER, True, "", [1.1, 1.05, 1.2], 0.1)
    tune.store(path, DEVICE, KEY, verdict, {"shape": [128, 4096]})
    return json.loads(path.read_text())


def test_a_stored_file_is_read_back_and_keeps_its_other_tiles(tmp_path):
    path = tmp_path / "new" / "tiles.json"
    stored(path)
    assert _tuned.read(path, DEVICE) == {KEY: OTHER}
    tune.store(path, DEVICE, "columns T9 C12 R2", tune.Verdict(TABLE, True, "", [1.1] * 3, 0.0), {})
    assert _tuned.read(path, DEVICE) == {KEY: OTHER, "columns T9 C12 R2": TABLE}
    assert [p.name for p in path.parent.iterdir()] == ["tiles.json"]


def test_a_stale_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "tiles.json"
    content = stored(path)
    content["triton"] = "0.0"
    content["tiles"]["columns T9 C12 R2"] = content["tiles"][KEY]
    path.write_text(json.dumps(content))
    assert list(stored(path)["tiles"]) == [KEY]


def test_what_was_not_reproduced_cannot_be_stored(tmp_path):
    with pytest.raises(ValueError, match="not reproduced"):
        stored(tmp_path / "tiles.json", tune.Verdict(OTHER, True, "", [1.1, 1.1], 0.0))
    assert list(tmp_path.iterdir()) == []


def edited(**change):
    def edit(content):
        content.update(change)

    return edit


def in_tile(**change):
    def edit(content):
        content["tiles"][KEY]["tile"].update(change)

    return edit


@pytest.mark.parametrize(
    "edit, reason",
    [
        (edited(format=0), "format"),
        (edited(device="NVIDIA A100"), "device"),
        (edited(rltriton_jax="0.0.0"), "rltriton_jax"),
        (edited(triton="1.0"), "triton"),
        (edited(kernels="0"), "kernels"),
        (edited(tiles=[]), "no tiles"),
        (edited(tiles={"columns": {}}), "no entry"),
        (edited(tiles={KEY: 3}), "no entry"),
        (in_tile(warps=3), "warps is 3"),
        (in_tile(warps=0), "warps is 0"),
        (in_tile(warps=True), "warps is True"),
        (in_tile(warps="4"), "warps is '4'"),
        (in_tile(warps=64), "no tile"),
        (in_tile(columns=1 << 20), "columns is"),
        (in_tile(runs=1024, columns=1024), "no tile"),
        (in_tile(rows=True), "no tile"),
        (in_tile(rows=1), "rows is 1"),
        (in_tile(more=1), "fields"),
        (lambda content: content["tiles"][KEY]["tile"].pop("runs"), "fields"),
        (lambda content: content["tiles"][KEY].pop("speedups"), "not reproduced"),
        (lambda content: content["tiles"][KEY].update(speedups=[1.1, 1.1, 0.9]), "not reproduced"),
        (lambda content: content["tiles"][KEY].update(speedups=[1.1, 1.1, "2"]), "not reproduced"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(edit, reason, tmp_path):
    path = tmp_path / "tiles.json"
    content = stored(path)
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=reason):
        _tuned.read(path, DEVICE)


@pytest.fixture
def on_gpu(monkeypatch, tmp_path):
    """Overrides as on a GPU, from a file in `tmp_path`."""
    path = tmp_path / "tiles.json"
    device = type("Device", (), {"device_kind": DEVICE})()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setenv(_tuned.VARIABLE, str(path))
    _tuned.load_overrides.cache_clear()
    yield path
    _tuned.load_overrides.cache_clear()


def test_a_good_file_is_used(on_gpu):
    stored(on_gpu)
    assert dict(_tuned.load_overrides()) == {KEY: OTHER}


@pytest.mark.parametrize("text", [None, "", "{", "[]", "[" * 100000, "\0"])
def test_a_bad_file_is_refused_with_one_warning(on_gpu, text):
    if text is not None:
        on_gpu.write_text(text)
    with pytest.warns(UserWarning, match="does not use the tuned tiles") as caught:
        assert not _tuned.load_overrides()
        assert not _tuned.load_overrides()
    assert len(caught) == 1


def test_without_a_file_or_when_off_nothing_is_said(on_gpu, monkeypatch, tmp_path, recwarn):
    monkeypatch.delenv(_tuned.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _tuned.path_for(DEVICE) == tmp_path / "rltriton_jax" / "tiles-NVIDIA-H200.json"
    assert not _tuned.load_overrides()
    _tuned.load_overrides.cache_clear()
    on_gpu.write_text("{")
    monkeypatch.setenv(_tuned.VARIABLE, "off")
    assert _tuned.path_for(DEVICE) is None and not _tuned.load_overrides()
    assert not recwarn.list


@pytest.mark.parametrize(
    "layout, key", [("time", "columns T5 C3 R2"), ("batch", "rows T5 C3 R2"), ("inner", "inner 1 T5 C3 R2")]
)
def test_a_bench_runs_the_tile_it_is_told(layout, key, monkeypatch):
    """With the kernels in the interpreter: the forced tile is built, and the gate sees its result."""
    case = Case("gae", layout, 40, 8, inner=2 if layout == "inner" else 1)
    used, table_tile = [], _backends.tile_for

    def asking(view):
        used.append(_tuned.override_for(view) or table_tile(view))
        return used[-1]

    monkeypatch.setattr(_backends, "tile_for", asking)
    bench = tune.OnDevice([case], "interpret")
    assert _tuned.key_of(bench.view) == key
    assert _tuned.key_of(bench.view._replace(mirrored=True)) == f"{key} adjoint"  # which no call of it has tried
    tile = table_tile(bench.view)._replace(runs=8, steps=4, columns=8, warps=1)
    assert bench.error(tile, 0, 0) <= 1
    assert used[-1] == tile


def test_tuning_without_a_gpu_says_what_is_needed(capsys):
    with pytest.raises(SystemExit) as stopped:
        tune.main(["--shape", "128x4096"])
    assert stopped.value.code == 2 and "no GPU" in capsys.readouterr().err
