"""The claims of Akyürek et al. 2022: their measurements on small sizes, and rules that can say no."""

from dataclasses import replace
from pathlib import Path

import pytest

from emulon.report.figure import chart
from reproduce.claim import Scale, Setting, all_claims
from reproduce.learning import figure_2, figure_3, figure_4
from reproduce.record import measure

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["learning-figure-1", "learning-figure-2", "learning-figure-4"])
def test_without_a_trained_learner_there_is_nothing_to_test(name, tmp_path):
    claim = all_claims()[name]
    few = {"learner": "noiseless_learner", "learners": ["small_learner"], "trained": []}
    few |= {"noises": [0.5], "priors": [1.0], "datasets": 8, "examples": [2], "probe": {}}
    claim = replace(claim, scales={"small": Scale(0.1, few | {"machine_datasets": 64})})
    verdict = measure(claim, "small", 0, tmp_path).verdict(claim)
    assert verdict.state == "cannot be tested here" and "needs the trained learner" in verdict.reason


def test_figure_2_finds_the_ridge_of_compiled_machines_at_any_noise_and_prior():
    sizes = {"noises": [0.25, 1.0], "priors": [2.0], "datasets": 64, "learners": ["small_learner"], "trained": []}
    claim = replace(figure_2.CLAIM, scales={"small": Scale(0.1, sizes)})
    numbers = measure(claim, "small", 0, RESULTS).numbers
    compiled = [each for each in numbers["cells"] if each["kind"] == "compiled"]
    assert [each["bayes"] for each in compiled] == [1 / 64, 0.25] and all(each["agrees"] for each in compiled)
    assert claim.judge(numbers).state == "holds"
    assert chart(claim.figure(numbers)).startswith("<svg")


def test_figure_2_trains_a_learner_for_every_noise_and_prior_and_asks_every_one(tmp_path):
    tiny = {"features": 2, "points": 6, "layers": 1, "width": 8, "heads": 1, "steps": 3, "batch": 4, "device": "cpu"}
    sizes = {"noises": [1.0], "priors": [1.0], "datasets": 16, "learners": [], "trained": [[0.5, 1.0], [1.0, 2.0]]}
    claim = replace(figure_2.CLAIM, scales={"gpu": Scale(0.1, sizes | {"training": tiny | {"evaluation_batch": 8}})})
    cells = measure(claim, "gpu", 0, tmp_path).numbers["cells"]
    assert [(each["kind"], each["bayes"]) for each in cells] == [("compiled", 1), ("trained", 0.25), ("trained", 0.25)]


def row(size, descent, ridge, least, spread=2.0, **fixed):
    left = {figure_3.DESCENT: descent, figure_3.RIDGE: ridge, figure_3.LEAST: least}
    left |= {figure_3.FIXED_RIDGE: fixed["fixed"]} if fixed else {}
    bars = {name: {"value": v, "low": v / spread, "high": spread * v} for name, v in left.items()}
    return {"size": size, "seed": 0, "unexplained": bars}


def test_a_tie_goes_to_the_limit_of_ridge_at_either_end():
    """One rule for both ends: ridge is named only where it is clearly nearer than descent and than least squares."""
    for left, expected in (
        ((0.10, 0.50, 0.60), figure_3.DESCENT),
        ((0.19, 0.10, 0.60), figure_3.DESCENT),
        ((0.21, 0.10, 0.60), figure_3.RIDGE),
        ((0.60, 0.10, 0.21), figure_3.RIDGE),
        ((0.60, 0.10, 0.19), figure_3.LEAST),
        ((0.18, 0.10, 0.19), figure_3.DESCENT),
    ):
        assert figure_3.phase(row(1, *left)["unexplained"]) == expected, left
    fixed = row(1, 0.1, 0.01, 0.6, fixed=0.2)
    assert figure_3.phases([fixed]) == [figure_3.RIDGE]
    assert figure_3.phases([fixed], figure_3.FIXED_RIDGE) == [figure_3.DESCENT]
    assert figure_3.phases([row(1, 0.1, 0.01, 0.6)], figure_3.FIXED_RIDGE) is None


def test_figure_3_trains_learners_of_every_depth_and_width_once(tmp_path, monkeypatch):
    training = figure_3.QUICK | {"steps": 2, "width": 8, "heads": 2}
    sizes = {"training": training, "depths": [1, 2], "widths": [4, 8], "datasets": 16, "seeds": 2}
    numbers = figure_3.over_depth(Setting(sizes, results=tmp_path))
    assert [(each["seed"], each["size"]) for each in numbers["layers"]] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert chart(figure_3.draw_depth(numbers)).startswith("<svg")
    wide = figure_3.over_width(Setting(sizes, results=tmp_path))
    assert figure_3.FIXED_RIDGE in wide["width"][0]["unexplained"]
    assert chart(figure_3.draw_depth(wide)).startswith("<svg")
    monkeypatch.setattr("reproduce.learners.fit", lambda *_, **__: pytest.fail("trained again"))
    assert figure_3.over_depth(Setting(sizes, results=tmp_path)) == numbers


@pytest.mark.parametrize("seed", range(2))
def test_figure_4_finds_where_the_machine_computes_what_it_is_asked_for(seed):
    found = figure_4.machine_scores(Setting({"machine_datasets": 512}, seed))
    assert found["Xᵀy"]["readable"] == found["Xᵀy"]["written"] == 2
    assert found["w"]["readable"] == found["w"]["written"] == 4
    assert all(max(each["control"]) < 0.1 and each["score"][0] < 0.1 for each in found.values())


def test_figure_4_probes_every_prefix_of_learners_that_are_trained_on_the_spot(tmp_path):
    training = {"recipe": "fast", "features": 3, "points": 9, "noise": 0.0, "layers": 2, "width": 8, "heads": 2}
    training |= {"steps": 2, "batch": 4, "evaluation_batch": 4}
    probe = {"steps": 4, "rate": 1e-4, "decay": 0.0, "one_cycle": False, "inner": 8, "batch": 6}
    sizes = {"learner_datasets": 32, "machine_datasets": 64, "examples": [1, 5], "points": 6, "training": training}
    sizes |= {"seeds": 2, "probe": probe, "bf16": True}
    found = figure_4.run(Setting(sizes, results=tmp_path))["learners"]
    assert [each["seed"] for each in found] == [0, 1] and found[0]["tokens"][-1] == "x6"
    scores = found[0]["w"]["linear"]["score"]
    assert len(scores) == 2 and len(scores[0]) == 3  # a probe a prefix; the embedding and two layers
    assert len(found[0]["w"]["mlp"]["looks_at"]) == 2 and len(found[0]["w"]["mlp"]["control"]) == 3


def test_a_quantity_is_dated_by_its_onset_and_not_by_the_best_layer_of_a_plateau():
    """R² of Akyürek et al.'s model in a run of ours: on the plateau the best layer is a matter of hundredths."""
    moment = [0.0, 0.0, 0.0, 0.0, 0.669, 0.616, 0.706, 0.739, 0.596, 0.566, 0.69, 0.736, 0.575, 0.762, 0.529]
    weights = [0.0, 0.0, 0.0, 0.0, 0.466, 0.403, 0.57, 0.564, 0.646, 0.646, 0.699, 0.653, 0.683, 0.681, 0.627]
    assert moment.index(max(moment)) > weights.index(max(weights))
    assert figure_4.onset(moment) == 6 and figure_4.onset(weights) == 8
    assert figure_4.onset([-0.2, -0.1]) == 1
