"""A run beside its baselines: the picture, from kept numbers alone."""

import json
import math

from emulon import cli
from emulon.report.learners import draw_curve, run_figure

RECORD = {
    "config": {"model": "standard", "task": "linear"},
    "steps": 10,
    "curve": [5.0, 2.0, 1.0],
    "baselines": {"zero": [5.0, 5.0, 5.0], "ols": [5.0, 900.0, 1.5], "oracle": [5.0, 1e-20, 1e-20]},
}


def test_a_finished_run_has_its_curve_as_numbers_and_as_a_picture(tmp_path, capsys):
    run = tmp_path / "run"
    flags = "--features 2 --points 5 --noise 0.5 --width 8 --heads 1 --layers 1 --steps 4 --batch 4"
    assert cli.main(["train", "standard", *flags.split(), "--device", "cpu", "--out", str(run)]) == 0
    said = capsys.readouterr().out
    assert "step 4/4" in said and all(name in said for name in ("learner", "ols", "ridge", "gd", "knn"))
    record = json.loads((run / "curve.json").read_text())
    assert len(record["curve"]) == 5 and {"ols", "ridge", "gd", "knn"} <= record["baselines"].keys()
    assert record["steps"] == 4 and record["config"]["seed"] == 0 and record["seconds"] > 0 and record["machine"]
    picture = (run / "curve.svg").read_text()
    assert all(f">{name}<" in picture for name in ("standard", "ridge", "gd"))
    (run / "curve.svg").unlink()
    draw_curve(run)
    assert (run / "curve.svg").read_text() == picture


def test_a_baseline_far_from_the_learners_is_cut_off_and_says_how_far_it_went():
    (panel,) = run_figure(RECORD).panels
    ols, oracle = (series for series in panel.series if series.of in ("ols", "oracle"))
    assert ols.label == "ols (to 9e+02)" and [math.isnan(y) for y in ols.y] == [False, True, False]
    assert oracle.label == "oracle (to 1e-20)" and [math.isnan(y) for y in oracle.y] == [False, True, True]
