"""The references that are solved outright, or in one pass, against scikit-learn, numpy and each other."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso as SklearnLasso
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from emulon.algorithms import (
    LassoRegression,
    LeastSquares,
    NearestNeighbours,
    OnlineSGD,
    PreviousTarget,
    RidgeRegression,
    ShermanMorrisonRidge,
    Zero,
    lasso_path,
)
from emulon.core.errors import BadShape, EmulonError


def datasets(batch: int = 5, samples: int = 12, features: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(batch, samples, features, generator=generator, dtype=torch.float64)
    y = torch.randn(batch, samples, generator=generator, dtype=torch.float64)
    return x, y, torch.randn(batch, 3, features, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("samples", [2, 4, 12])
def test_least_squares_is_the_pseudo_inverse(samples: int):
    x, y, _ = datasets(samples=samples)
    expected = (torch.linalg.pinv(x) @ y.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(LeastSquares().run(x, y), expected, atol=1e-10, rtol=0.0)


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_ridge_is_scikit_learns_and_sherman_morrison_solves_it_on_every_prefix(ridge: float):
    x, y, queries = datasets()
    ours = RidgeRegression(ridge).predict(x, y, queries)
    for i in range(len(x)):
        theirs = SklearnRidge(alpha=ridge, fit_intercept=False).fit(x[i], y[i]).predict(queries[i])
        np.testing.assert_allclose(ours[i], theirs, atol=1e-10)
    path = ShermanMorrisonRidge(ridge).iterates(x, y)
    for n in range(1, 13):
        expected = RidgeRegression(ridge).run(x[:, :n], y[:, :n])
        torch.testing.assert_close(path[:, n], expected, atol=1e-9, rtol=0.0)


def test_online_sgd_takes_one_example_after_the_other():
    x, y, _ = datasets(batch=1)
    w = np.zeros(4)
    for x_i, y_i in zip(x[0].numpy(), y[0].numpy(), strict=True):
        w = w - 0.1 * (x_i * (x_i @ w - y_i) + 2 * 0.3 * w)
    np.testing.assert_allclose(OnlineSGD(0.1, ridge=0.3).run(x, y)[0], w, atol=1e-14)


@pytest.mark.parametrize("samples", [3, 12])
def test_the_lasso_path_is_scikit_learns(samples: int):
    x, y, _ = datasets(samples=samples)
    weights = LassoRegression(0.1).run(x, y)
    for i in range(len(x)):
        theirs = SklearnLasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(x[i], y[i])
        np.testing.assert_allclose(weights[i], theirs.coef_, atol=1e-8)
    assert (weights == 0).any() and (weights != 0).any()


@pytest.mark.parametrize("samples", [1, 3, 5, 12])
def test_the_lasso_path_is_optimal_at_every_penalty(samples: int):
    """|slope| ≤ penalty, with equality and the weight's sign where a weight is not zero."""
    x, y, _ = datasets(batch=200, samples=samples, features=5)
    gram, moment = x.mT @ x / samples, (x.mT @ y.unsqueeze(-1)).squeeze(-1) / samples
    path = lasso_path(gram, moment)
    for penalty in (1.0, 0.3, 0.1, 0.01, 1e-4):
        weights = path.at(penalty)
        slope = moment - (gram @ weights.unsqueeze(-1)).squeeze(-1)
        assert (slope.abs() <= penalty + 1e-9).all()
        assert ((slope - penalty * weights.sign()).abs()[weights != 0] < 1e-9).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_neighbours_are_scikit_learns(weighted: bool):
    x, y, queries = datasets()
    queries[0, 0] = x[0, 5]  # an example at the query
    for k in (1, 3, 12):
        ours = NearestNeighbours(k, weighted).predict(x, y, queries)
        for i in range(len(x)):
            theirs = KNeighborsRegressor(k, weights="distance" if weighted else "uniform").fit(x[i], y[i])
            np.testing.assert_allclose(ours[i], theirs.predict(queries[i]), atol=1e-12)
    assert torch.equal(NearestNeighbours(40).predict(x, y, queries), NearestNeighbours(12).predict(x, y, queries))


def test_baselines_say_nothing_and_the_last_target():
    x, y, queries = datasets()
    assert torch.equal(Zero().predict(x, y, queries), torch.zeros(5, 3, dtype=torch.float64))
    assert torch.equal(PreviousTarget().predict(x, y, queries[:, 0]), y[:, -1])
    assert torch.equal(PreviousTarget().predict(x, y, queries), y[:, -1:].expand(5, 3))


def test_what_makes_no_sense_is_refused():
    for build in (
        lambda: RidgeRegression(0.0),
        lambda: ShermanMorrisonRidge(-1.0),
        lambda: OnlineSGD(0.0),
        lambda: LassoRegression(-0.1),
        lambda: NearestNeighbours(0),
    ):
        with pytest.raises(EmulonError):
            build()
    x, y, queries = datasets()
    with pytest.raises(BadShape):
        NearestNeighbours().predict(x, y, queries[:2])
