"""A speedrun trains, keeps its record beside other tracks, and says by its rule whether it is a record."""

import dataclasses
import json

import pytest
from scipy.stats import ttest_1samp

from benchmarks import speedrun as module
from benchmarks.speedrun import adam_sweep, attempt, keep, lines, p_below, speedrun, verdict
from emulon.core.errors import EmulonError
from emulon.training.fit import fit

TINY = {"features": 2, "points": 5, "width": 16, "heads": 2, "batch": 8, "evaluation_batch": 16, "device": "cpu"}


@pytest.fixture
def tiny(monkeypatch):
    tracks = {name: config.changed(**TINY, start_features=1) for name, config in module.TRACKS.items()}
    tracks["standard"] = tracks["standard"].changed(layers=1)
    tracks["open"] = tracks["open"].changed(loops=2, window=1)
    monkeypatch.setattr(module, "TRACKS", tracks)
    monkeypatch.setattr(module, "ADAM", tracks["standard"].changed(optimiser="adam"))


def test_a_record_has_every_seed_and_says_what_the_rule_says(tiny, tmp_path, capsys):
    assert module.main(["--steps", "6", "--seeds", "2", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "bench" / "speedrun.json").read_text())["standard"]
    assert [each["seed"] for each in record["attempts"]] == [0, 1] and not record["record"]
    assert all(each["seconds"] > 0 and len(each["history"]) == 6 for each in record["attempts"])
    assert record["goal"] == {"after_d": 0.02, "after_2d": 0.0006}
    assert "no record" in capsys.readouterr().out


def test_tracks_are_kept_side_by_side(tiny, tmp_path):
    for track in ("standard", "open"):
        path = keep(track, speedrun(track, tmp_path, seeds=[0], steps=2), tmp_path)
    assert list(json.loads(path.read_text())) == ["standard", "open"]


def test_a_speedrun_that_was_stopped_goes_on_with_the_next_attempt(tiny, tmp_path, monkeypatch):
    first = speedrun("standard", tmp_path, seeds=[0, 1], steps=2)["attempts"]
    monkeypatch.setattr(module, "fit", lambda *_, **__: pytest.fail("measured again"))
    assert speedrun("standard", tmp_path, seeds=[0, 1], steps=2)["attempts"] == first
    monkeypatch.undo()
    monkeypatch.setattr(module, "fit", lambda *_, **__: pytest.fail("other steps are other attempts"))
    with pytest.raises(pytest.fail.Exception):
        speedrun("standard", tmp_path, seeds=[0], steps=3)


def test_the_baseline_is_the_best_of_five_rates_with_a_seed_that_did_not_choose_it(tiny, tmp_path):
    record = adam_sweep(tmp_path, steps=4)
    assert [each["rate"] for each in record["sweep"]] == list(module.RATES)
    best = min(record["sweep"], key=lambda each: each["after_d"])
    assert record["best"]["rate"] == best["rate"] and record["best"]["seed"] == 1
    assert len(lines(record)) == 1 + len(module.RATES) + 1


def test_the_baseline_differs_from_the_standard_track_in_its_optimiser_and_steps_alone():
    standard, adam = (config.options() for config in (module.TRACKS["standard"], module.ADAM))
    assert {name for name in standard if standard[name] != adam[name]} == {"optimiser", "steps"}


def test_p_is_that_of_the_one_sided_t_test():
    for values in ([0.018, 0.019, 0.0195, 0.0185, 0.02], [0.021, 0.019, 0.0199], [0.01] * 3 + [0.03]):
        assert p_below(values, 0.02) == pytest.approx(ttest_1samp(values, 0.02, alternative="less").pvalue, abs=1e-6)
    assert p_below([0.01], 0.02) == 1.0 and p_below([0.01, 0.01], 0.02) == 0.0 and p_below([0.02, 0.02], 0.02) == 1.0


def attempts(after_d, after_2d=(1e-4, 2e-4), seeds=8):
    spread = [(after_d[k % len(after_d)], after_2d[k % len(after_2d)]) for k in range(seeds)]
    return [{"seed": k, "seconds": 30.0 + k, "after_d": a, "after_2d": b} for k, (a, b) in enumerate(spread)]


def test_a_record_takes_eight_seeds_and_means_that_are_clearly_below_both_goals():
    good = verdict(attempts([0.018, 0.019]))
    assert good["record"] and good["seconds"] == 33.5 and good["mean"]["after_d"] == pytest.approx(0.0185)
    assert verdict(attempts([0.018] * 7 + [0.0205]))["record"]  # one attempt may be above, the mean may not
    assert not verdict(attempts([0.0145, 0.0245]))["record"]  # below, but not clearly
    assert not verdict(attempts([0.018, 0.019], seeds=7))["record"]
    assert not verdict(attempts([0.018, 0.019], after_2d=[5e-4, 7e-4]))["record"]


def test_an_unknown_track_is_refused(tmp_path):
    with pytest.raises(EmulonError, match="did you mean standard"):
        speedrun("standart", tmp_path)


def test_errors_are_those_after_d_and_after_2d_examples_over_d(tiny):
    trained = fit(module.TRACKS["standard"].changed(steps=1, evaluate_every=1))
    curve = [0.0, 10.0, 20.0, 30.0, 40.0]  # after 0, 1, 2 = d, … examples
    found = attempt(dataclasses.replace(trained, curve=curve, history=[{"step": 1, "seconds": 1.0, "curve": curve}]))
    assert (found["after_d"], found["after_2d"]) == (10.0, 20.0)
    assert found["history"] == [{"step": 1, "seconds": 1.0, "after_d": 10.0, "after_2d": 20.0}]
