"""What claims of Akyürek et al. 2022 and Gao et al. 2024 are made of, part by part."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emulon.report.figure import chart
from emulon.training import TrainConfig
from reproduce.algoformer import figures_3_to_5, theorems
from reproduce.claim import Scale, Setting, all_claims
from reproduce.learners import trained
from reproduce.learning import figure_2, figure_3, figure_4
from reproduce.record import measure

RESULTS = Path(__file__).parents[2] / "results"
SMALL = {"samples": 12, "features": 3, "loops": 8, "problems": 2}


def test_prefix_iterates_are_descent_on_the_pairs_before():
    xs, ys, query = theorems.regression(Setting(SMALL, 3))
    every = theorems.prefix_iterates(xs, ys, query, 0.05, 4)
    for place in (1, 5, 11):
        alone = theorems.gradient_iterates(xs[:, :place], ys[:, :place], xs[:, place], 0.05, 4)
        torch.testing.assert_close(every[..., place], alone, rtol=0, atol=1e-12)
    assert not every[..., 0].any()


def test_claims_of_one_process_share_a_training():
    said = []
    setting = Setting({}, report_progress=lambda what, done: said.append(done))
    config = TrainConfig.of(**(figures_3_to_5.TRAINING | {"steps": 2, "width": 8, "heads": 2, "points": 7}))
    first = trained(config, setting, 0.5, 0.25)
    assert said and all(0.5 <= done <= 0.75 for done in said)
    heard = len(said)
    assert trained(config, setting) is first and len(said) == heard
    assert trained(config.changed(seed=1), setting) is not first


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
    assert figure_3.with_fixed([row(1, 0.1, 0.01, 0.6)]) == "a fixed λ was not asked for"


@pytest.mark.parametrize("seed", range(2))
def test_figure_4_finds_where_the_machine_computes_what_it_is_asked_for(seed):
    found = figure_4.machine_scores(Setting({"machine_datasets": 512}, seed))
    assert found["Xᵀy"]["readable"] == found["Xᵀy"]["written"] == 2
    assert found["w"]["readable"] == found["w"]["written"] == 4
    assert all(max(each["control"]) < 0.1 and each["score"][0] < 0.1 for each in found.values())


def test_a_quantity_is_dated_by_its_onset_and_not_by_the_best_layer_of_a_plateau():
    """R² of Akyürek et al.'s model in a run of ours: on the plateau the best layer is a matter of hundredths."""
    moment = [0.0, 0.0, 0.0, 0.0, 0.669, 0.616, 0.706, 0.739, 0.596, 0.566, 0.69, 0.736, 0.575, 0.762, 0.529]
    weights = [0.0, 0.0, 0.0, 0.0, 0.466, 0.403, 0.57, 0.564, 0.646, 0.646, 0.699, 0.653, 0.683, 0.681, 0.627]
    assert moment.index(max(moment)) > weights.index(max(weights))
    assert figure_4.onset(moment) == 6 and figure_4.onset(weights) == 8
    assert figure_4.onset([-0.2, -0.1]) == 1
