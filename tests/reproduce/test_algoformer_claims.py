"""The claims of Gao et al. 2024: their measurements on small sizes, and rules that can say no."""

from dataclasses import replace

import pytest
import torch

from emulon.report.chart import chart
from emulon.training import TrainConfig
from reproduce import Scale, Setting, all_claims
from reproduce.algoformer import figure_2, figure_3, figure_4, figure_5, iterates, learners, section_4_1
from reproduce.algoformer.convergence import gradient_iterates
from reproduce.algoformer.theorem_4_2 import prefix_iterates
from reproduce.learners import trained
from reproduce.record import measure

SMALL = {"samples": 12, "features": 3, "loops": 8, "problems": 2}
TINY = learners.TRAINING | {"steps": 2, "width": 8, "heads": 2}


@pytest.mark.parametrize("number", ["3.1", "3.2", "3.3", "4.1", "4.2"])
def test_theorems_hold_on_small_problems_and_are_drawn(number, tmp_path):
    claim = replace(all_claims()[f"algoformer-theorem-{number}"], scales={"small": Scale(0.1, SMALL)})
    record = measure(claim, "small", 1, tmp_path)
    assert record.verdict(claim).state == "holds", record.verdict(claim)
    assert len(record.numbers["ours"]["errors"]) == 9
    assert chart(claim.figure(record.numbers)).startswith("<svg")


def test_a_theorem_does_not_hold_with_a_broken_bound_more_layers_or_a_large_error():
    one = {"errors": [0.0, 1e-12], "bounds": [1e-11, 1e-11], "sizes": {"loop": [1, 2]}, "stated": {"loop": [1, 2]}}
    good = {iterates.TWO: one, iterates.OURS: one}
    assert iterates.judge(good).state == "holds"
    for broken in ({"bounds": [1e-11, 1e-13]}, {"sizes": {"loop": [2, 2]}}, {"errors": [0, 1e-3], "bounds": [1, 1]}):
        assert iterates.judge(good | {iterates.TWO: one | broken}).state == "does not hold"


def test_every_output_descends_by_itself():
    xs, labels, query = torch.randn(2, 6, 3).double(), torch.randn(2, 6, 4).double(), torch.randn(2, 3).double()
    together = iterates.descent(xs, labels, query, 0.1, 5)
    assert together.shape == (6, 2, 4)
    alone = gradient_iterates(xs, labels[..., 2], query, 0.1, 5)
    torch.testing.assert_close(together[..., 2], alone, rtol=0, atol=1e-12)


def test_prefix_iterates_are_descent_on_the_pairs_before():
    xs, ys, query = iterates.regression(Setting(SMALL, 3))
    every = prefix_iterates(xs, ys, query, 0.05, 4)
    for place in (1, 5, 11):
        alone = gradient_iterates(xs[:, :place], ys[:, :place], xs[:, place], 0.05, 4)
        torch.testing.assert_close(every[..., place], alone, rtol=0, atol=1e-12)
    assert not every[..., 0].any()


def figure_2_numbers(algoformer: float, fell_by: float = 1.05):
    """Two seeds a model, looped the worst; `fell_by` over the last tenth of the steps."""
    errors = {"standard": 0.2, "looped": 0.3, "algoformer": algoformer}
    curves = {name: [[1.0, error], [1.0, error]] for name, error in errors.items()}
    fell = {name: [error * fell_by] * 2 + [error] for name, error in errors.items()}
    learning = {name: [{"steps": [5, 6, 7], "error": error}] * 2 for name, error in fell.items()}
    shown = {"curves": curves, "learning": learning, "baselines": {"oracle": [0.9, 0.0]}}
    one = {"steps": 7, "batch": 4, **shown}
    return dict.fromkeys(figure_2.TASKS, one)


def test_figure_2_wants_the_lowest_error_on_every_task():
    for error, state in ((0.1, "holds"), (0.25, "does not hold")):
        verdict = figure_2.judge(figure_2_numbers(error))
        assert verdict.state == state and "after 7, 7, 7 steps" in verdict.reason
    still = figure_2.judge(figure_2_numbers(0.1, fell_by=1.2))
    assert still.state == "not tested at scale" and "still falling: standard on representation" in still.reason
    assert "Φ* known" in chart(figure_2.figure(figure_2_numbers(0.1)))


def test_figure_2_trains_every_model_on_every_task(tmp_path):
    small = figure_2.CLAIM.scales["small"].sizes
    sizes = {**small, "tasks": {task: {"steps": 2, "batch": 4} for task in figure_2.TASKS}, "seeds": 2}
    said: list[float] = []
    numbers = figure_2.run(Setting(sizes, results=tmp_path, report_progress=lambda what, done: said.append(done)))
    assert list(numbers) == list(figure_2.TASKS) and said == sorted(said) and 0 <= min(said) <= max(said) <= 1
    assert all(len(each["curves"][model]) == 2 for each in numbers.values() for model in figure_2.MODELS)


def test_newton_takes_fewer_loops_than_descent_and_both_as_many_as_without_a_transformer(tmp_path):
    sizes = {"samples": 12, "features": 3, "gradient": 200, "newton": 12}
    claim = replace(section_4_1.CLAIM, scales={"small": Scale(0.1, sizes)})
    record = measure(claim, "small", 0, tmp_path)
    assert record.verdict(claim).state == "holds" and chart(claim.figure(record.numbers)).startswith("<svg")
    for reaches in ([9, 8], [None, None], [500, 500]):
        changed = {"curves": [record.numbers["curves"][0], record.numbers["curves"][1] | {"reaches": reaches}]}
        assert section_4_1.judge(changed).state == "does not hold"


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


def test_figure_3_wants_calm_that_grows_with_the_window():
    def learner(window, last):
        return {"window": window, "trained": 2, "errors": [0.5, 0.1, last], "left": 0.01}

    alike = ((0.1, 0.101), "not tested at scale")
    for lasts, state in (((0.3, 0.1), "holds"), ((0.1, 0.3), "does not hold"), ((0.4, 0.3), "does not hold"), alike):
        numbers = {"learners": [learner(window, last) for window, last in zip((1, 3), lasts, strict=True)]}
        assert figure_3.judge(numbers).state == state


def test_figure_4_wants_heads_to_help_and_standard_to_be_worse():
    def learner(model, layers, heads, error):
        return {"model": model, "layers": layers, "heads": heads, "curve": [error], "left": 0.01}

    for few, standard, deep, deeper, state in (
        (0.3, 0.4, 0.1, 0.3, "holds"),
        (0.1, 0.4, 0.1, 0.3, "does not hold"),
        (0.3, 0.1, 0.1, 0.3, "does not hold"),
        (0.3, 0.4, 0.3, 0.3, "does not hold"),
        (0.3, 0.4, 0.1, 0.1, "does not hold"),
    ):
        numbers = {
            "a": learner("algoformer", 1, 4, 0.2),
            "b": learner("algoformer", 1, 1, few),
            "c": learner("standard", 3, 4, standard),
            "d": learner("algoformer", 2, 4, deep),
            "e": learner("standard", 6, 4, 0.35),
            "f": learner("standard", 22, 4, deeper),
        }
        assert figure_4.judge(numbers).state == state


def test_figure_5_wants_newton_exact_and_the_learner_better_in_noise_by_paired_differences():
    def cells(newton=1e-30, highs=(-0.1, -0.1), **changed):
        quiet = {"AlgoFormer": [1.0, 1e-3], "Newton, 5 steps": [1.0, newton], "descent, 5 steps": [1.0, 0.1]}
        loud = {"AlgoFormer": [0.1, 2.6], "Newton, 5 steps": [2.0, 3.0], "descent, 5 steps": [2.0, 2.5]}
        one = {"loops": 4, "window": 3, "examples": [1, 2], "left": 0.01}
        paired = [{name: {"low": -1.0, "high": high} for name in loud if name != "AlgoFormer"} for high in highs]
        cell = one | {"noise": 1.0, "errors": loud} | changed
        return {"cells": [one | {"noise": 0.0, "errors": quiet}, *(cell | {"paired": each} for each in paired)]}

    verdict = figure_5.judge(cells())
    assert verdict.state == "holds" and "below every one after 0 of 1" in verdict.reason
    assert figure_5.judge(cells(newton=1e-6)).state == "does not hold"
    assert figure_5.judge(cells(highs=(-0.1, 0.01))).state == "does not hold"  # one of two trained learners
    without = cells()
    for each in without["cells"]:
        each.pop("paired", None)
    assert figure_5.judge(without).state == "not tested as printed"
    assert figure_5.judge({"cells": cells()["cells"][1:]}).state == "not tested at scale"  # none without noise


def test_figures_3_and_5_train_every_cell_and_keep_what_is_paired(tmp_path):
    sizes = {"training": TINY, "datasets": 64, "noises": [1.0], "iterations": [5], "trained": [[4, 3], [2, 2]]}
    cells = figure_5.run(Setting(sizes, results=tmp_path))["cells"]
    assert [(each["loops"], each["window"]) for each in cells] == [(4, 3), (2, 2)]
    own, paired = cells[0]["errors"], cells[0]["paired"]["Newton, 5 steps"]
    difference = [a - b for a, b in zip(own["AlgoFormer"], own["Newton, 5 steps"], strict=True)][1:]
    assert paired["value"] == pytest.approx(sum(difference) / len(difference)) and paired["low"] < paired["high"]
    found = figure_3.run(Setting(sizes | {"trained": [2, 3], "windows": [1, 2], "loops": 5}, results=tmp_path))
    assert [(each["trained"], each["window"]) for each in found["learners"]] == [(2, 1), (2, 2), (3, 1), (3, 2)]


def test_figure_4_leaves_16_heads_out_and_is_judged_by_what_was_measured():
    def learner(heads, error):
        return {"model": "algoformer", "layers": 1, "heads": heads, "curve": [error], "left": 0.01}

    numbers = {"8": learner(8, 0.1), "4": learner(4, 0.2), "16": learner(16, 0.3)}
    assert "falls with heads: yes" in figure_4.judge(numbers).reason
    assert "falls with heads: no" in figure_4.judge(numbers | {"4": learner(4, 0.05)}).reason


def test_claims_of_one_process_share_a_training():
    said = []
    setting = Setting({}, report_progress=lambda what, done: said.append(done))
    config = TrainConfig.of(**(TINY | {"points": 7}))
    first = trained(config, setting, 0.5, 0.25)
    assert said and all(0.5 <= done <= 0.75 for done in said)
    heard = len(said)
    assert trained(config, setting) is first and len(said) == heard
    assert trained(config.changed(seed=1), setting) is not first
