"""Distances between predictors by number of examples, the best ridge parameter, and the whole analysis of one."""

import json

import numpy as np
import pytest
import torch

from emulon.algorithms import LassoRegression, LeastSquares, NearestNeighbours, OnlineSGD, RidgeRegression, Zero
from emulon.core.errors import EmulonError
from emulon.identification import Curve, Interval, analyse, best_ridge, squared_prediction_difference, weight_difference
from emulon.identification.analysis import fresh_queries, weights_on
from emulon.identification.sampling import bounds, draw, intervals
from emulon.machine.programs import sgd
from emulon.tasks import Linear

TASK = Linear(3, noise=0.4)


def test_prediction_difference_is_equation_13_over_the_features():
    """By hand, dataset by dataset."""
    xs, ys = (part.numpy() for part in TASK.held_out(5, 20, 7).pairs)
    curve = squared_prediction_difference(RidgeRegression(1.0), LeastSquares(), TASK, seed=5, datasets=20, points=7)
    assert curve.counts == (1, 2, 3, 4, 5, 6)
    for n in curve.counts:
        total = 0.0
        for x, y in zip(xs, ys, strict=True):
            ridge = np.linalg.solve(x[:n].T @ x[:n] + np.eye(3), x[:n].T @ y[:n])
            total += ((ridge - np.linalg.pinv(x[:n]) @ y[:n]) @ x[n]) ** 2 / 3
        assert curve[n].value == pytest.approx(total / 20)
        assert curve[n].low <= curve[n].value <= curve[n].high


def test_implicit_weights_of_a_linear_predictor_are_its_weights():
    task = Linear(4, noise=0.3)
    drawn = draw(task, datasets=16, points=10)
    fresh = fresh_queries(task, drawn, 0)
    for algorithm in (RidgeRegression(0.7), LassoRegression(0.1), OnlineSGD(0.05)):
        implicit = weights_on(algorithm, drawn, fresh)
        for place, n in enumerate(implicit.counts):
            expected = algorithm.run(drawn.xs[:, :n], drawn.ys[:, :n])
            torch.testing.assert_close(implicit.weights[:, place], expected, atol=1e-8, rtol=0.0)
        assert (implicit.linearity > 1 - 1e-9).all()
    assert weights_on(NearestNeighbours(3), drawn, fresh).linearity.mean() < 0.9
    # One that knows its examples by heart would seem to be linear in them.
    assert fresh.shape == (16, 8, 4) and torch.cdist(fresh.flatten(0, 1), drawn.xs.flatten(0, 1)).min() > 0


def test_implicit_weights_through_a_transformer_are_the_programs():
    task, machine = Linear(3), sgd(3, 5, 0.05).compile()
    curve = weight_difference(machine, OnlineSGD(0.05), task, datasets=8, points=5)
    assert weight_difference(OnlineSGD(0.05), OnlineSGD(0.05), task, points=5).overall.value == 0
    assert curve.counts == (1, 2, 3, 4) and curve.overall.value < 1e-15
    assert weight_difference(machine, LeastSquares(), task, datasets=8, points=5).overall.value > 0.01


def test_the_comparison_is_the_two_distances_for_every_telling_reference_on_other_datasets():
    said = analyse(OnlineSGD(0.05), TASK, datasets=32, points=8, seed=3)
    names = list(said.comparison.predictions)
    assert [name.partition("(")[0] for name in names[:3]] == ["sgd", "ols", "ridge"]
    assert names[3].startswith("gradient descent") and list(said.comparison.weights) == names
    size = {"datasets": 32, "points": 8, "seed": 4}
    expected = squared_prediction_difference(OnlineSGD(0.05), LeastSquares(), TASK, **size)
    weights = weight_difference(OnlineSGD(0.05), LeastSquares(), TASK, **size)
    for n in range(1, 8):
        assert said.comparison.predictions["ols"][n].value == pytest.approx(expected[n].value)
        assert said.comparison.weights["ols"][n].value == pytest.approx(weights[n].value)
    assert said.comparison.predictions[names[0]].overall.value < 1e-8
    assert said.comparison.linearity.overall.value == pytest.approx(1)


def test_an_analysis_says_whether_the_best_ridge_is_the_bayes_predictors():
    said = analyse(RidgeRegression(0.16), TASK, target="mine", datasets=64, points=10)
    assert said.identification.algorithm == "ridge" and said.bayes == pytest.approx(0.16) and said.agrees
    assert analyse(RidgeRegression(3.0), TASK, datasets=64, points=10).agrees is False
    without = analyse(LeastSquares(), Linear(3), datasets=16, points=6)
    assert without.bayes is None and without.agrees is None
    numbers = json.loads(json.dumps(said.as_numbers()))
    assert numbers["algorithm"] == "ridge" and numbers["best ridge"]["best"] == said.ridge.best
    assert numbers["comparison"]["predictions"]["ols"]["counts"] == list(range(1, 10))


@pytest.mark.parametrize(
    ("ridge", "grid", "best"), [(0.25, None, 0.25), (4.0, None, 4.0), (0.6, (0.1, 0.5, 1.0, 2.0), 0.5)]
)
def test_the_best_ridge_agrees_within_the_grids_step(ridge, grid, best):
    task, size = Linear(4, noise=0.5), {"datasets": 64, "points": 16}
    fit = best_ridge(RidgeRegression(ridge), task, **({"grid": grid} if grid else {}), **size)
    assert fit.best == pytest.approx(best) and fit.agrees(ridge) and not fit.agrees(10 * ridge)
    expected = squared_prediction_difference(RidgeRegression(ridge), RidgeRegression(fit.best), task, **size)
    assert fit.difference.value == pytest.approx(expected.overall.value)
    with pytest.raises(EmulonError, match="rising"):
        best_ridge(Zero(), task, grid=(1.0, 0.5))


def test_intervals_cover_the_mean_about_as_often_as_they_say_and_leave_a_fortieth_out_at_either_end():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 400, generator=generator, dtype=torch.float64).exp()
    truth = float(np.exp(0.5))
    covered = sum(one.low <= truth <= one.high for one in intervals(values)) / 400
    assert 0.86 < covered < 0.98
    assert str(Interval(1.0, 0.5, 2.0)) == "1 [0.5, 2]"
    low, high = bounds(torch.arange(1001).double().unsqueeze(-1) / 1000)
    assert (low.item(), high.item()) == pytest.approx((0.025, 0.975))


def test_a_curve_has_a_mean_for_every_count_and_one_for_all():
    curve = Curve.of("error", (2, 5), torch.tensor([[1.0, 4.0], [3.0, 8.0]], dtype=torch.float64))
    assert (curve[2].value, curve[5].value, curve.overall.value) == (2, 6, 4)
    assert 1 <= curve[2].low <= 2 <= curve[2].high <= 3
    assert str(curve).splitlines()[0] == "error" and str(curve).splitlines()[2].startswith("   5  6 [")
