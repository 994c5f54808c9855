"""Benchmarks print ratios and keep their numbers with machine and commit; what is fast is not a test's business."""

import json
import math
import time

import pytest

from benchmarks import bench, growth
from emulon.core.errors import WorkFailed
from reproduce.arguments import run_script


def command(*words: str) -> int:
    return run_script("benchmarks.bench", bench.main, words)


def test_a_benchmark_prints_ratios_and_writes_them_with_their_origin(tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert command("machine", "--json", str(path)) == 0
    assert "256 sequences" in capsys.readouterr().out
    numbers = json.loads(path.read_text())
    assert {"machine", "commit", "time", "torch"} <= set(numbers)
    first, *others = numbers["timings"]
    assert first["ratio"] == 1 and all(other["seconds"] > 0 for other in others)
    assert others[0]["ratio"] == pytest.approx(others[0]["seconds"] / first["seconds"])


def test_an_unknown_benchmark_is_refused_with_the_names(capsys):
    assert command("x") == 2
    assert "choose from identify, interpreter, machine, rows, runs, step" in capsys.readouterr().err
    assert command("interpeter") == 2 and "did you mean interpreter?" in capsys.readouterr().err


def test_growth_is_fitted_and_drawn(tmp_path, capsys, monkeypatch):
    sizes = [growth.Size(rows, 0.1, 1e-5 * rows, 1e-6 * rows, 1.0) for rows in (10_000, 100_000)]
    monkeypatch.setattr(bench, "growth", lambda report_progress: sizes)
    path = tmp_path / "rows.json"
    assert command("rows", "--json", str(path)) == 0
    said = json.loads(path.read_text())
    assert [line["rows"] for line in said["timings"]] == [10_000, 100_000]
    assert said["slopes"] == pytest.approx({"seconds": 1.0, "gigabytes": 1.0})
    assert "seconds grow like rows^1.00" in capsys.readouterr().out
    assert path.with_suffix(".svg").read_text().startswith("<svg")


def test_a_size_is_measured_and_one_that_fails_is_told(monkeypatch):
    size = growth._measured(30)
    assert size.rows == 30 and size.running > 0 and size.peak > size.memory > 0
    monkeypatch.setattr(growth.sys, "executable", "/bin/false")
    with pytest.raises(WorkFailed, match="the run on 30 rows failed: killed, perhaps for its memory"):
        list(growth.growth((30,)))
    assert command("rows") == 1


def test_a_slope_is_that_of_a_power():
    assert growth.slope([1, 10, 100], [3, 3000, 3_000_000]) == pytest.approx(3)


def test_a_step_that_drowns_in_noise_is_not_made_up():
    timing = bench._step("x", "a step", lambda steps: time.sleep(0.001 if steps == 1 else 0))
    assert math.isnan(timing.seconds) and timing.least < 0
