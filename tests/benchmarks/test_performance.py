"""Benchmarks keep their numbers with machine and commit, a row each; what is fast is not a test's business."""

import json

import pytest

from benchmarks import performance
from reproduce.arguments import run_script


def command(*words: str) -> int:
    return run_script("benchmarks.performance", performance.main, words)


def test_parts_are_measured_and_written_with_their_origin(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(performance, "RUNS", [("Ridge", 300, 4)])
    monkeypatch.setattr(performance, "GROWING", (30,))
    assert command("runs", "rows", "--out", str(tmp_path)) == 0
    assert "Ridge, 200 steps, 300 × 4" in capsys.readouterr().out
    said = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("runs", "rows")}
    assert {"machine", "commit", "time", "torch"} <= set(said["runs"])
    run, exact, audit = said["runs"]["rows"]
    assert run["ratio"] == pytest.approx(run["seconds"] / exact["seconds"], rel=1) and audit["seconds"] > 0
    [size] = said["rows"]["rows"]
    assert size["rows"] == 30 and size["seconds"] > 0 and 0 < size["gigabytes"] < 10


def test_what_is_compared_takes_its_turn_after_a_round_that_does_not_count():
    order: list[str] = []
    taken = performance.rounds({name: lambda name=name: order.append(name) for name in "ab"}, 2)
    assert "".join(order) == "ababab" and [len(each) for each in taken.values()] == [2, 2]
    assert performance.ratio([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]) == 2.0


def test_an_unknown_part_is_refused_with_the_names(capsys):
    assert command("x") == 2 and "choose from networks, planted, rows, runs, startup, step" in capsys.readouterr().err
    assert command("text") == 2 and "--llama FOLDER" in capsys.readouterr().err
