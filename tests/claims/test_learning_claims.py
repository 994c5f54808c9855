"""The claims of Akyürek et al. 2022: their measurements on small sizes, and rules that can say no."""

from dataclasses import replace
from pathlib import Path

import pytest

from emulon.claims import Scale, Setting, all_claims
from emulon.claims.learning import figure_1, figure_2, figure_3, figure_4, lemmas_1_to_7, machines
from emulon.claims.record import measure
from emulon.report.chart import chart

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("number", [1, 2])
def test_theorems_hold_on_small_machines_and_are_drawn(number, tmp_path):
    sizes = {"features": [2, 4], "fixed": 2, "examples": [1, 3], "datasets": 8}
    claim = replace(all_claims()[f"learning-theorem-{number}"], scales={"small": Scale(0.1, sizes)})
    record = measure(claim, "small", 0, tmp_path)
    assert record.verdict(claim).state == "holds", record.verdict(claim)
    assert chart(claim.figure(record.numbers)).startswith("<svg")


def test_a_machine_that_grows_too_fast_or_breaks_its_bound_is_no_proof():
    def row(features, examples, depth, width, error=1e-12):
        shape = {"features": features, "examples": examples, "depth": depth, "width": width}
        return {**shape, "error": error, "bound": 1e-11, "gaussian": 1e-10}

    single, many = [row(4, 2, 3, 20), row(8, 2, 3, 40)], [row(4, 2, 3, 20), row(4, 4, 6, 20)]
    assert machines.judge({"one example": single, "many examples": many}, 1).state == "holds"
    for bad in (row(8, 2, 4, 40), row(8, 2, 3, 80), row(8, 2, 3, 40, error=1e-10)):
        assert machines.judge({"one example": [single[0], bad], "many examples": many}, 1).state == "does not hold"
    for bad in (row(4, 4, 12, 20), row(4, 4, 6, 24)):
        assert machines.judge({"one example": single, "many examples": [many[0], bad]}, 1).state == "does not hold"


def test_figure_1_asks_for_nearness_on_average_and_after_every_count_above_d():
    sizes = {"learner": "noiseless_learner", "datasets": 64}
    claim = replace(figure_1.CLAIM, scales={"small": Scale(0.1, sizes)})
    numbers = measure(claim, "small", 5, RESULTS).numbers
    own = [numbers["learners"][0][measure_of][figure_1.LEAST_SQUARES] for measure_of in ("predictions", "weights")]
    for each in own:
        each["value"] = [min(value, 0.009) for value in each["value"]]
        each["overall"] = 0.005
    assert claim.judge(numbers).state == "holds"
    own[1]["value"][own[1]["examples"].index(4)] = 0.02
    assert claim.judge(numbers).state == "does not hold"  # d is 3
    own[1]["value"][own[1]["examples"].index(4)] = 0.002
    own[1]["value"][own[1]["examples"].index(3)] = 0.02
    assert claim.judge(numbers).state == "holds"
    own[0]["overall"] = 10.0
    assert claim.judge(numbers).state == "does not hold"


@pytest.mark.parametrize("name", ["learning-figure-1", "learning-figure-2", "learning-figure-4"])
def test_without_a_trained_learner_there_is_nothing_to_test(name, tmp_path):
    claim = all_claims()[name]
    few = {"learner": "noiseless_learner", "learners": ["small_learner"], "trained": []}
    few |= {"noises": [0.5], "priors": [1.0], "datasets": 8}
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
    trained = next(each for each in numbers["cells"] if each["kind"] == "trained")
    trained["agrees"] = False
    assert claim.judge(numbers).state == "does not hold"
    compiled[0]["agrees"] = False
    assert claim.judge(numbers).state == "cannot be tested here"
    assert chart(claim.figure(numbers)).startswith("<svg")


def test_figure_2_trains_a_learner_for_every_noise_and_prior_and_asks_three_in_four(tmp_path):
    tiny = {"features": 2, "points": 6, "layers": 1, "width": 8, "heads": 1, "steps": 3, "batch": 4, "device": "cpu"}
    sizes = {"noises": [1.0], "priors": [1.0], "datasets": 16, "learners": [], "trained": [[0.5, 1.0], [1.0, 2.0]]}
    claim = replace(figure_2.CLAIM, scales={"gpu": Scale(0.1, sizes | {"training": tiny | {"evaluation_batch": 8}})})
    cells = measure(claim, "gpu", 0, tmp_path).numbers["cells"]
    assert [(each["kind"], each["bayes"]) for each in cells] == [("compiled", 1), ("trained", 0.25), ("trained", 0.25)]
    four = [cells[1] | {"agrees": k > 0} for k in range(4)]
    assert figure_2.judge({"cells": [cells[0], *four]}).state == "holds"
    assert figure_2.judge({"cells": [cells[0], *four, four[0]]}).state == "does not hold"


def test_lemmas_want_one_layer_small_errors_and_tricks_that_work():
    def numbers(layers=1, error=1e-12, trick=1e-6):
        instruction = {"layers": layers, "error": error, "bound": 1e-11}
        printed = {"4 in Eq. 118, as printed": [1.0], "6, pads as printed": [0.5]}
        tricks = {name: [trick] for name in lemmas_1_to_7.TRICKS}
        return {"instructions": {"mul": instruction}, "tricks": tricks | printed}

    assert lemmas_1_to_7.judge(numbers()).state == "holds"
    for wrong in ({"layers": 2}, {"error": 1e-10}, {"trick": 1e-2}):
        assert lemmas_1_to_7.judge(numbers(**wrong)).state == "does not hold"


def row(size, *left):
    parts = zip(figure_3.PHASES, left, strict=True)
    return {"size": size, "unexplained": {name: {"value": v, "low": v / 2, "high": 2 * v} for name, v in parts}}


def test_figure_3_wants_all_phases_in_order():
    descent, ridge, least = row(1, 0.1, 0.5, 0.6), row(2, 0.5, 0.1, 0.5), row(4, 0.5, 0.1, 0.15)
    assert [figure_3.phase(each) for each in (descent, ridge, least)] == list(figure_3.PHASES)
    for rows, state in (
        ([descent, ridge, least], "holds"),
        ([descent, least, ridge], "does not hold"),
        ([ridge, least], "does not hold"),
    ):
        assert figure_3.judge({"layers": rows, "width": []}).state == state
    assert figure_3.judge({"layers": [descent, least], "width": [ridge]}).state == "does not hold"


def test_figure_3_trains_learners_of_every_depth_and_width(tmp_path):
    training = figure_3.QUICK | {"steps": 2, "width": 8, "heads": 2}
    sizes = {"training": training, "depths": [1, 2], "widths": [4, 8], "datasets": 16}
    numbers = figure_3.run(Setting(sizes, results=tmp_path))
    assert [each["size"] for each in numbers["layers"]] == [1, 2] and len(numbers["width"]) == 2
    assert chart(figure_3.figure(numbers)).startswith("<svg")


@pytest.mark.parametrize("seed", range(2))
def test_figure_4_finds_where_the_machine_computes_what_it_is_asked_for(seed):
    found = figure_4.machine_scores(Setting({"machine_datasets": 512}, seed))
    assert found["Xᵀy"]["readable"] == found["Xᵀy"]["written"] == 2
    assert found["w"]["readable"] == found["w"]["written"] == 4
    assert all(max(each["control"]) < 0.1 and each["score"][0] < 0.1 for each in found.values())


def test_figure_4_probes_a_learner_that_is_trained_on_the_spot():
    training = {"recipe": "fast", "features": 3, "points": 9, "noise": 0.0, "layers": 2, "width": 8, "heads": 2}
    training |= {"steps": 2, "batch": 4, "evaluation_batch": 4}
    sizes = {"learner_datasets": 32, "examples": 5, "points": 6, "training": training}
    found = figure_4.learner_scores(Setting(sizes))
    assert found["tokens"][-1] == "x6" and len(found["w"]["linear"]["score"]) == 3  # the embedding and two layers


def test_figure_4_needs_every_part_of_what_is_said():
    def probe(best, score, looks_at="y3"):
        return {"score": [0.0] * best + [score], "control": [0.0], "best": best, "looks_at": looks_at}

    def numbers(layer=1, mlp=0.9, looks_at="y3", readable=2):
        machine = {name: {"readable": readable, "written": 2} for name in figure_4.REGISTERS}
        moment = {"linear": probe(layer, 0.8), "mlp": probe(layer, mlp, looks_at)}
        return {
            "machine": machine,
            "learner": {"examples": 3, "Xᵀy": moment, "w": {"linear": probe(2, 0.7), "mlp": probe(2, 0.8)}},
        }

    assert figure_4.judge(numbers()).state == "holds"
    for wrong in ({"layer": 3}, {"mlp": 0.8}, {"looks_at": "y1"}, {"readable": 3}, {"mlp": 0.4}):
        assert figure_4.judge(numbers(**wrong)).state == "does not hold"
