"""A speedrun trains, keeps its record beside other tracks, and says whether the goal was reached."""

import dataclasses
import json

import pytest

from emulon.cli import main
from emulon.errors import EmulonError
from emulon.experiments import speedrun as module
from emulon.experiments.speedrun import attempt, compared, keep, lines, speedrun
from emulon.training.fit import fit

TINY = {"features": 2, "points": 5, "width": 16, "heads": 2, "batch": 8, "evaluation_batch": 16, "device": "cpu"}


@pytest.fixture
def tiny(monkeypatch):
    tracks = {name: dataclasses.replace(config, **TINY, start_features=1) for name, config in module.TRACKS.items()}
    tracks["standard"] = dataclasses.replace(tracks["standard"], layers=1)
    tracks["open"] = dataclasses.replace(tracks["open"], loops=2, window=1)
    monkeypatch.setattr(module, "TRACKS", tracks)
    monkeypatch.setattr(module, "ADAM", dataclasses.replace(module.ADAM, **TINY, layers=1, start_features=1))


def test_a_record_has_every_seed_and_adam_beside_them(tiny, tmp_path, capsys):
    assert main(["speedrun", "--steps", "6", "--seeds", "2", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "bench" / "speedrun.json").read_text())["standard"]
    assert [each["seed"] for each in record["attempts"]] == [0, 1] and not record["reached"]
    assert all(each["seconds"] > 0 and len(each["history"]) == 6 for each in record["attempts"])
    assert record["adam"]["steps"] == 6 and record["goal"] == {"after_d": 0.02, "after_2d": 0.0006}
    shown = capsys.readouterr().out
    assert shown.count("not reached") == 3 and "Adam 1e-4" in shown


def test_tracks_are_kept_side_by_side(tiny, tmp_path):
    for track in ("standard", "open"):
        path = keep(speedrun(track, seeds=[0], compare=False, steps=2), tmp_path)
    assert list(json.loads(path.read_text())) == ["standard", "open"]


def test_the_ratio_is_of_times_to_the_error_that_adam_ends_with():
    history = [{"seconds": float(k), "after_d": 1 / k, "after_2d": 0.1} for k in range(1, 9)]
    adam = {"after_d": 0.25, "seconds": 60.0}
    assert compared({"history": history}, adam)["ratio"] == 15.0
    assert compared({"history": history[:2]}, adam)["ratio"] is None


def test_reaching_the_goal_takes_both_errors_and_every_seed():
    fine = {"seed": 0, "steps": 1, "seconds": 1.0, "compile_seconds": 1.0, "after_d": 0.02, "after_2d": 0.0006}
    shown = lines({"attempts": [fine | {"reached": True}, fine | {"reached": False}]})
    assert [line.endswith("not reached") for line in shown] == [False, False, True]


def test_an_unknown_track_is_refused():
    with pytest.raises(EmulonError, match="did you mean standard"):
        speedrun("standart")


def test_errors_are_those_after_d_and_after_2d_examples_over_d(tiny):
    trained = fit(dataclasses.replace(module.TRACKS["standard"], steps=1, evaluate_every=1))
    curve = [0.0, 10.0, 20.0, 30.0, 40.0]  # after 0, 1, 2 = d, … examples
    found = attempt(dataclasses.replace(trained, curve=curve, history=[{"step": 1, "seconds": 1.0, "curve": curve}]))
    assert (found["after_d"], found["after_2d"]) == (10.0, 20.0)
    assert found["history"] == [{"step": 1, "seconds": 1.0, "after_d": 10.0, "after_2d": 20.0}]
