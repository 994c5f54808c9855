"""The claims of Gao et al. 2024: their measurements on small sizes, and rules that can say no."""

from dataclasses import replace

import pytest
import torch

from emulon.report.figure import chart
from emulon.training import TrainConfig
from reproduce.algoformer import figure_2, figure_3, figure_4, figure_5, learners, theorems
from reproduce.claim import Scale, Setting
from reproduce.learners import trained
from reproduce.record import measure

SMALL = {"samples": 12, "features": 3, "loops": 8, "problems": 2}
TINY = learners.TRAINING | {"steps": 2, "width": 8, "heads": 2}


def test_every_output_descends_by_itself():
    xs, labels, query = torch.randn(2, 6, 3).double(), torch.randn(2, 6, 4).double(), torch.randn(2, 3).double()
    together = theorems.descent(xs, labels, query, 0.1, 5)
    assert together.shape == (6, 2, 4)
    alone = theorems.gradient_iterates(xs, labels[..., 2], query, 0.1, 5)
    torch.testing.assert_close(together[..., 2], alone, rtol=0, atol=1e-12)


def test_prefix_iterates_are_descent_on_the_pairs_before():
    xs, ys, query = theorems.regression(Setting(SMALL, 3))
    every = theorems.prefix_iterates(xs, ys, query, 0.05, 4)
    for place in (1, 5, 11):
        alone = theorems.gradient_iterates(xs[:, :place], ys[:, :place], xs[:, place], 0.05, 4)
        torch.testing.assert_close(every[..., place], alone, rtol=0, atol=1e-12)
    assert not every[..., 0].any()


def test_figure_2_trains_every_model_on_every_task(tmp_path):
    small = figure_2.CLAIM.scales["small"].sizes
    sizes = {**small, "tasks": {task: {"steps": 2, "batch": 4} for task in figure_2.TASKS}, "seeds": 2}
    said: list[float] = []
    numbers = figure_2.run(Setting(sizes, results=tmp_path, report_progress=lambda what, done: said.append(done)))
    assert list(numbers) == list(figure_2.TASKS) and said == sorted(said) and 0 <= min(said) <= max(said) <= 1
    assert all(len(each["curves"][model]) == 2 for each in numbers.values() for model in figure_2.MODELS)


@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (figure_3, {"windows": [1, 3], "loops": 6}),
        (figure_4, {"layers": [1, 2], "heads": [1, 2], "standard": [3, 6]}),
        (figure_5, {"noises": [0.0, 1.0], "iterations": [5, 20]}),
    ],
)
def test_learners_that_learned_too_little_tell_nothing(module, sizes, tmp_path):
    claim = replace(module.CLAIM, scales={"small": Scale(0.1, {"training": TINY, "datasets": 64, **sizes})})
    record = measure(claim, "small", 0, tmp_path)
    verdict = record.verdict(claim)
    assert verdict.state == "not tested at scale" and "of the error of saying zero" in verdict.reason
    assert chart(claim.figure(record.numbers)).startswith("<svg")


def test_figures_3_and_5_train_every_cell_and_keep_what_is_paired(tmp_path):
    sizes = {"training": TINY, "datasets": 64, "noises": [1.0], "iterations": [5], "trained": [[4, 3], [2, 2]]}
    cells = figure_5.run(Setting(sizes, results=tmp_path))["cells"]
    assert [(each["loops"], each["window"]) for each in cells] == [(4, 3), (2, 2)]
    own, paired = cells[0]["errors"], cells[0]["paired"]["Newton, 5 steps"]
    difference = [a - b for a, b in zip(own["AlgoFormer"], own["Newton, 5 steps"], strict=True)][1:]
    assert paired["value"] == pytest.approx(sum(difference) / len(difference)) and paired["low"] < paired["high"]
    found = figure_3.run(Setting(sizes | {"trained": [2, 3], "windows": [1, 2], "loops": 5}, results=tmp_path))
    assert [(each["trained"], each["window"]) for each in found["learners"]] == [(2, 1), (2, 2), (3, 1), (3, 2)]


def test_claims_of_one_process_share_a_training():
    said = []
    setting = Setting({}, report_progress=lambda what, done: said.append(done))
    config = TrainConfig.of(**(TINY | {"points": 7}))
    first = trained(config, setting, 0.5, 0.25)
    assert said and all(0.5 <= done <= 0.75 for done in said)
    heard = len(said)
    assert trained(config, setting) is first and len(said) == heard
    assert trained(config.changed(seed=1), setting) is not first
