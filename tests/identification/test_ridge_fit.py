"""The ridge parameter that explains a predictor best, of all on a grid."""

import pytest

from emulon.algorithms import RidgeRegression, Zero
from emulon.core.errors import EmulonError
from emulon.identification import best_ridge, ridge_table, squared_prediction_difference
from emulon.tasks import Linear


def test_the_bayes_predictors_best_ridge_is_noise_over_prior_everywhere_in_the_table():
    cells = ridge_table(
        lambda task: RidgeRegression(task.bayes_ridge), [0.25, 0.5, 1.0], [0.5, 1.0, 2.0], 4, datasets=64, points=16
    )
    assert len(cells) == 9
    for cell in cells:
        assert cell.agrees and cell.fit.best == pytest.approx(cell.bayes, rel=0.2), cell
        assert cell.fit.difference.value < 1e-3
    assert not cells[0].fit.agrees(10 * cells[0].bayes)


def test_a_ridge_between_two_points_of_the_grid_agrees_within_its_step():
    fit = best_ridge(RidgeRegression(0.6), Linear(4, noise=0.5), grid=(0.1, 0.5, 1.0, 2.0), datasets=64, points=16)
    assert fit.best == 0.5 and fit.agrees(0.6) and not fit.agrees(1.5)
    with pytest.raises(EmulonError, match="rising"):
        best_ridge(Zero(), Linear(4), grid=(1.0, 0.5))
    with pytest.raises(EmulonError, match="noise > 0"):
        ridge_table(lambda task: Zero(), [0.0], [1.0])


def test_a_difference_is_that_of_the_predictions_over_the_features():
    task, size = Linear(4, noise=0.5), {"datasets": 16, "points": 9}
    fit = best_ridge(RidgeRegression(0.6), task, grid=(0.5,), **size)
    expected = squared_prediction_difference(RidgeRegression(0.6), RidgeRegression(0.5), task, **size)
    assert fit.difference.value == pytest.approx(expected.overall.value)
