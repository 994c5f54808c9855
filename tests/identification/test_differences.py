"""Prediction difference, implicit weights, sensitivity and learning curves."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression as SklearnLinear

from emulon.algorithms import LassoRegression, LeastSquares, NearestNeighbours, OnlineSGD, RidgeRegression, Zero
from emulon.identification import (
    implicit_weights,
    learning_curve,
    sensitivity,
    squared_prediction_difference,
    weight_difference,
)
from emulon.identification.differences import fresh_queries
from emulon.identification.sampling import draw
from emulon.machine.programs import sgd
from emulon.tasks import Linear


def test_prediction_difference_is_equation_13_over_the_features():
    """By hand, dataset by dataset."""
    task = Linear(3, noise=0.4)
    xs, ys = (part.numpy() for part in task.held_out(5, 20, 7).pairs)
    curve = squared_prediction_difference(RidgeRegression(1.0), LeastSquares(), task, seed=5, datasets=20, points=7)
    assert curve.counts == (1, 2, 3, 4, 5, 6)
    for n in curve.counts:
        total = 0.0
        for x, y in zip(xs, ys, strict=True):
            ridge = np.linalg.solve(x[:n].T @ x[:n] + np.eye(3), x[:n].T @ y[:n])
            total += ((ridge - np.linalg.pinv(x[:n]) @ y[:n]) @ x[n]) ** 2 / 3
        assert curve[n].value == pytest.approx(total / 20)
        assert curve[n].low <= curve[n].value <= curve[n].high


def test_a_predictor_does_not_differ_from_itself():
    task = Linear(3)
    assert squared_prediction_difference(LeastSquares(), LeastSquares(), task, points=8).overall.value == 0
    assert weight_difference(LeastSquares(), LeastSquares(), task, points=8).overall.value == 0


def test_implicit_weights_of_a_linear_predictor_are_its_weights():
    task = Linear(4, noise=0.3)
    xs, ys = task.held_out(0, 16, 10).pairs
    for algorithm in (RidgeRegression(0.7), LassoRegression(0.1), OnlineSGD(0.05)):
        implicit = implicit_weights(algorithm, task, datasets=16, points=10)
        for place, n in enumerate(implicit.counts):
            expected = algorithm.run(xs[:, :n], ys[:, :n])
            torch.testing.assert_close(implicit.weights[:, place], expected, atol=1e-8, rtol=0.0)
        assert (implicit.linearity > 1 - 1e-9).all()
    assert implicit_weights(NearestNeighbours(3), task, datasets=16, points=10).linearity.mean() < 0.9


def test_implicit_weights_through_a_transformer_are_the_programs():
    task, machine = Linear(3), sgd(3, 5, 0.05).compile()
    curve = weight_difference(machine, OnlineSGD(0.05), task, datasets=8, points=5)
    assert curve.counts == (1, 2, 3, 4) and curve.overall.value < 1e-15
    assert weight_difference(machine, LeastSquares(), task, datasets=8, points=5).overall.value > 0.01


def test_sensitivity_is_the_weights_by_autograd_and_by_differences():
    task = Linear(3, noise=0.2)

    def without_gradient(xs, ys, x_query):
        return RidgeRegression(1.0).predict(xs, ys, x_query.detach())

    for other in (RidgeRegression(1.0), without_gradient):
        found = sensitivity(other, LeastSquares(), task, datasets=32, points=8)
        weights = weight_difference(RidgeRegression(1.0), LeastSquares(), task, datasets=32, points=8)
        for n in weights.counts:
            assert found.distance[n].value == pytest.approx(weights[n].value, rel=1e-6)
        assert 0.8 < found.cosine[7].value < 1
    same = sensitivity(SklearnLinear(fit_intercept=False), LeastSquares(), task, datasets=6, points=6, counts=[5])
    assert same.cosine[5].value == pytest.approx(1.0)
    assert sensitivity(Zero(), LeastSquares(), task, datasets=8, points=6).cosine.overall.value == 0


def test_learning_curves_end_at_the_noise():
    curve = learning_curve(LeastSquares(), Linear(4), datasets=64, points=12)
    assert curve[1].value > 0.3 and curve[4].value < 1e-12
    noisy = learning_curve(RidgeRegression(1.0), Linear(4, noise=1.0), datasets=512, points=40)
    assert noisy[39].low < 1.1 * (1 + 4 / 39) / 4 and noisy[39].high > 0.9 / 4
    assert learning_curve(Zero(), Linear(4), datasets=512, points=5).overall.value == pytest.approx(1, rel=0.15)


def test_weights_are_found_at_inputs_that_the_predictor_was_not_shown():
    """One that knows its examples by heart would seem to be linear in them."""
    task = Linear(3)
    drawn = draw(task, datasets=4, points=9)
    fresh = fresh_queries(task, drawn, None, 0)
    assert fresh.shape == (4, 6, 3) and torch.cdist(fresh.flatten(0, 1), drawn.xs.flatten(0, 1)).min() > 0
