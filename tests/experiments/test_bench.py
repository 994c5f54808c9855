"""Benchmarks print ratios and keep their numbers with machine and commit; what is fast is not a test's business."""

import json

import pytest

from emulon.cli import main


def test_a_benchmark_prints_ratios_and_writes_them_with_their_origin(tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", "machine", "--json", str(path)]) == 0
    assert "256 sequences" in capsys.readouterr().out
    numbers = json.loads(path.read_text())
    assert {"machine", "commit", "time", "torch"} <= set(numbers)
    first, *others = numbers["timings"]
    assert first["ratio"] == 1 and all(other["seconds"] > 0 for other in others)
    assert others[0]["ratio"] == pytest.approx(others[0]["seconds"] / first["seconds"])


def test_an_unknown_benchmark_is_refused_with_the_names(capsys):
    assert main(["bench", "x"]) == 2
    assert "choose from identify, interpreter, machine" in capsys.readouterr().err
