"""Every algorithm ends where an independent solver of its objective ends, and keeps the contract of an algorithm."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn import linear_model, svm

from emulon import algorithms
from emulon.algorithms import ALGORITHMS, Algorithm

SAMPLES, FEATURES = 40, 3


def dataset(kind: str, *batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy data with two outliers, labels that no plane separates, or counts."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*batch, SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    score = x @ torch.tensor([1.0, -0.5, 0.05], dtype=torch.float64)
    noise = torch.randn(score.shape, generator=generator, dtype=torch.float64)
    if kind == "label":
        return x, torch.where(score + noise > 0, 1.0, -1.0).double()
    if kind == "count":
        return x, torch.poisson((0.5 * score).exp(), generator=generator)
    noise[..., :2] *= 6
    return x, score + noise


def least_squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(x, y, rcond=None)[0]


def ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    return np.linalg.solve(x.T @ x / len(y) + penalty * np.eye(x.shape[1]), x.T @ y / len(y))


def scikit(estimator: object) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda x, y: np.ravel(estimator.fit(x, y).coef_)


def minimum(derivative: Callable[[np.ndarray], np.ndarray], value: Callable[[np.ndarray], np.ndarray]):
    """scipy's minimum of a mean loss of the residual."""

    def solve(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        def both(w: np.ndarray) -> tuple[float, np.ndarray]:
            return value(x @ w - y).mean(), derivative(x @ w - y) @ x / len(y)

        return minimize(both, np.zeros(x.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-12}).x

    return solve


def huber_value(t: np.ndarray, delta: float) -> np.ndarray:
    return np.where(np.abs(t) < delta, t**2 / 2, delta * np.abs(t) - delta**2 / 2)


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: Algorithm
    kind: str
    reference: Callable[[np.ndarray, np.ndarray], np.ndarray]
    tolerance: float = 1e-7


FIT = {"fit_intercept": False, "tol": 1e-12, "max_iter": 100_000}
CASES = [
    Case("linear_regression", algorithms.LinearRegression(steps=400), "value", least_squares, 1e-12),
    Case("ridge", algorithms.Ridge(0.3, steps=400), "value", lambda x, y: ridge(x, y, 0.3), 1e-12),
    Case("heavy_ball", algorithms.HeavyBall(0.3, 0.8, steps=400), "value", lambda x, y: ridge(x, y, 0.3), 1e-12),
    Case("nesterov", algorithms.Nesterov(0.3, steps=400), "value", lambda x, y: ridge(x, y, 0.3), 1e-12),
    Case("fista", algorithms.Fista(0.3, steps=400), "value", scikit(linear_model.Lasso(alpha=0.3, **FIT)), 1e-9),
    Case("lasso", algorithms.Lasso(0.3, steps=400), "value", scikit(linear_model.Lasso(alpha=0.3, **FIT)), 1e-9),
    Case(
        "elastic_net",
        algorithms.ElasticNet(0.3, 0.7, steps=400),
        "value",
        scikit(linear_model.ElasticNet(alpha=0.3, l1_ratio=0.7, **FIT)),
        1e-9,
    ),
    # Not sklearn's HuberRegressor: it fits a scale as well.
    Case(
        "huber_regression",
        algorithms.HuberRegression(0.8, steps=800),
        "value",
        minimum(lambda t: np.clip(t, -0.8, 0.8), lambda t: huber_value(t, 0.8)),
    ),
    Case(
        "log_cosh_regression",
        algorithms.LogCoshRegression(steps=800),
        "value",
        minimum(np.tanh, lambda t: np.logaddexp(t, -t) - np.log(2)),
    ),
    Case(
        "logistic_regression",
        algorithms.LogisticRegression(0.05, steps=800),
        "label",
        scikit(linear_model.LogisticRegression(C=1 / (SAMPLES * 0.05), **FIT)),
        1e-6,
    ),
    Case(
        "squared_hinge",
        algorithms.SquaredHinge(0.05, steps=800),
        "label",
        scikit(svm.LinearSVC(loss="squared_hinge", dual=False, C=1 / (SAMPLES * 0.05), **FIT)),
        1e-6,
    ),
    Case(
        "poisson_regression",
        algorithms.PoissonRegression(0.05, steps=2000),
        "count",
        scikit(linear_model.PoissonRegressor(alpha=0.05, **FIT)),
        1e-6,
    ),
    Case("newton_least_squares", algorithms.NewtonLeastSquares(20), "value", least_squares, 1e-12),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_converges_to_what_an_independent_solver_finds(case: Case):
    x, y = dataset(case.kind)
    reference = torch.as_tensor(case.reference(x.numpy(), y.numpy()))
    assert type(case.algorithm) is ALGORITHMS[case.name]
    torch.testing.assert_close(case.algorithm.run(x, y), reference, atol=case.tolerance, rtol=0.0)


def test_every_algorithm_is_compared_with_a_reference():
    # These do not converge to weights: see test_step_sizes.py and test_gradient_descent.py.
    elsewhere = {"quantile_regression", "perceptron", "mini_batch_descent"}
    assert {case.name for case in CASES} | elsewhere == set(ALGORITHMS)
