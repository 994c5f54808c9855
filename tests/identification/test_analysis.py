"""Distances to a few references by number of examples, and all there is to say about a predictor at once."""

import json

import pytest
import torch

from emulon.algorithms import LeastSquares, OnlineSGD, RidgeRegression
from emulon.identification import (
    REFERENCES,
    analyse,
    compare,
    identify,
    squared_prediction_difference,
    telling,
    weight_difference,
)
from emulon.tasks import Linear

TASK = Linear(3, noise=0.4)


def test_a_fitted_reference_predicts_what_its_algorithm_does():
    xs, ys = TASK.held_out(0, 6, 9).pairs
    known = dict(REFERENCES)
    for name, parameters, algorithm in (
        ("ridge", {"ridge": 0.7}, RidgeRegression(0.7)),
        ("sgd", {"step_size": 0.05}, OnlineSGD(0.05)),
        ("ols", {}, LeastSquares()),
    ):
        said = known[name].fitted(parameters).predict(xs[:, :8], ys[:, :8], xs[:, 8])
        torch.testing.assert_close(said, algorithm.predict(xs[:, :8], ys[:, :8], xs[:, 8]))


def test_the_comparison_is_the_two_distances_for_every_telling_reference():
    found = identify(OnlineSGD(0.05), TASK, datasets=32, points=8)
    matches = telling(found)
    assert [match.name for match in matches[:3]] == ["sgd", "ols", "ridge"]
    assert matches[3].name.startswith("gradient descent")
    said = compare(OnlineSGD(0.05), TASK, matches, datasets=32, points=8, seed=4)
    assert list(said.predictions) == list(said.weights) == [str(match) for match in matches]
    expected = squared_prediction_difference(OnlineSGD(0.05), LeastSquares(), TASK, datasets=32, points=8, seed=4)
    weights = weight_difference(OnlineSGD(0.05), LeastSquares(), TASK, datasets=32, points=8, seed=4)
    for n in range(1, 8):
        assert said.predictions["ols"][n].value == pytest.approx(expected[n].value)
        assert said.weights["ols"][n].value == pytest.approx(weights[n].value)
    assert said.predictions[str(found.nearest)].overall.value < 1e-12
    assert said.linearity.overall.value == pytest.approx(1)


def test_weights_are_compared_at_a_dozen_counts_at_most():
    said = compare(LeastSquares(), TASK, telling(identify(LeastSquares(), TASK, datasets=16)), datasets=16)
    assert len(said.predictions["ols"].counts) == 39 and len(said.weights["ols"].counts) == 12
    assert said.weights["ols"].counts[0] == 1 and said.weights["ols"].counts[-1] == 39


def test_an_analysis_says_whether_the_best_ridge_is_the_bayes_predictors():
    said = analyse(RidgeRegression(0.16), TASK, target="mine", datasets=64, points=10)
    assert said.identification.algorithm == "ridge" and said.bayes == pytest.approx(0.16) and said.agrees
    assert analyse(RidgeRegression(3.0), TASK, datasets=64, points=10).agrees is False
    without = analyse(LeastSquares(), Linear(3), datasets=16, points=6)
    assert without.bayes is None and without.agrees is None
    numbers = json.loads(json.dumps(said.as_numbers()))
    assert numbers["algorithm"] == "ridge" and numbers["best ridge"]["best"] == said.ridge.best
    assert numbers["comparison"]["predictions"]["ols"]["counts"] == list(range(1, 10))


def test_distances_are_measured_on_other_datasets_than_parameters_were_fitted_on():
    seen = []

    class Spy(RidgeRegression):
        def predict(self, xs, ys, x_query):
            seen.append(float(xs.flatten()[0]))
            return super().predict(xs, ys, x_query)

    analyse(Spy(0.5), Linear(2, noise=0.3), datasets=8, points=5)
    assert len(set(seen)) == 2
