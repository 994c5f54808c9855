"""The default step sizes, and what they promise where the derivative jumps or has no bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from sklearn.linear_model import QuantileRegressor
from torch import Tensor

from emulon.algorithms import (
    GradientDescent,
    Perceptron,
    PoissonRegression,
    QuantileRegression,
    huber,
    logistic,
    squared,
)


def regression(seed: int, samples: int = 40, features: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, generator=generator, dtype=torch.float64)
    return x, x @ torch.arange(1.0, features + 1, dtype=torch.float64) + noise


def separable(seed: int, margin: float) -> tuple[Tensor, Tensor]:
    """30 points in 4 dimensions, at least `margin` on the right side of a random plane."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    u = torch.nn.functional.normalize(torch.randn(4, generator=generator, dtype=torch.float64), dim=0)
    y = torch.where(x @ u > 0, 1.0, -1.0).double()
    return x + margin * y.unsqueeze(-1) * u, y


@pytest.mark.parametrize(("loss", "curvature"), [(squared(), 1.0), (huber(), 1.0), (logistic(), 0.25)])
def test_the_default_is_one_over_the_smoothness_of_each_batch_element(loss, curvature):
    x = torch.randn(3, 8, 2, dtype=torch.float64)
    y = torch.ones(3, 8, dtype=torch.float64)
    largest = torch.linalg.matrix_norm(x, ord=2).square() / 8
    found = GradientDescent(loss, l2=0.5).resolved_step_size(x, y)
    torch.testing.assert_close(found, (1 / (curvature * largest + 0.5)).unsqueeze(-1))


@pytest.mark.parametrize("algorithm", [GradientDescent(squared()), QuantileRegression(0.3), Perceptron()])
def test_features_that_are_all_zero_teach_nothing_and_break_nothing(algorithm):
    x = torch.zeros(5, 2, dtype=torch.float64)
    assert torch.equal(algorithm.run(x, torch.ones(5, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), tau=st.sampled_from([0.05, 0.5, 0.7]), steps=st.sampled_from([1, 10, 100]))
def test_the_best_quantile_iterate_keeps_its_promise(seed: int, tau: float, steps: int):
    x, y = regression(seed, samples=15)
    exact = torch.as_tensor(QuantileRegressor(quantile=tau, alpha=0.0, fit_intercept=False).fit(x, y).coef_)
    algorithm = QuantileRegression(tau, steps=steps)
    gaps = [(algorithm.objective(x, y, w) - algorithm.objective(x, y, exact)).item() for w in algorithm.iterates(x, y)]
    rms = y.square().mean().sqrt().item()
    eigenvalue = torch.linalg.matrix_norm(x, ord=2).item() ** 2 / 15
    promise = max(tau, 1 - tau) * rms / (2 * math.sqrt(steps)) * (1 + eigenvalue * exact.square().sum().item() / rms**2)
    assert min(gaps[:-1]) <= promise


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), margin=st.sampled_from([0.05, 0.2, 1.0]))
def test_the_perceptron_separates_separable_data_and_stops(seed: int, margin: float):
    x, y = separable(seed, margin)
    iterates = Perceptron(steps=200).iterates(x, y)
    moves = (iterates.diff(dim=0) != 0).any(dim=-1)
    assert not moves[moves.sum() :].any() and not moves[-1]
    assert (y * (x @ iterates[-1]) > 0).all()


@pytest.mark.parametrize("margin", [0.2, 0.1, 0.05])
def test_the_perceptron_stops_in_time_where_it_is_hard(margin: float):
    """Two points that pull in opposite directions; the margin is along the other axis."""
    x = torch.tensor([[1.0, margin], [-0.9, margin]], dtype=torch.float64)
    bound = 2 * (1 + margin**2) / margin**2
    moves = (Perceptron(steps=1000).iterates(x, torch.ones(2).double()).diff(dim=0) != 0).any(dim=-1)
    assert bound / 100 < moves.sum() <= bound


@pytest.mark.parametrize("idle", [0, 1, 9])
@pytest.mark.parametrize("count", [3.0, 1000.0])
def test_the_poisson_bound_holds_where_the_objective_has_come_back_to_its_start(idle: int, count: float):
    """One sample x = 2 that matters and `idle` zeros: F(w) = F(0) again at t = 2w with e^t − count·t = 1, t > 0."""
    t = brentq(lambda t: math.exp(t) - count * t - 1, math.log(count), 20)
    x, y = torch.zeros(1 + idle, 1).double(), torch.zeros(1 + idle).double()
    x[0], y[0] = 2.0, count
    hessian = 4 * math.exp(t) / (1 + idle)
    bound = 1 / PoissonRegression(penalty=0.0).resolved_step_size(x, y).item()
    assert hessian <= bound <= 4 * hessian


@pytest.mark.parametrize("largest", [1, 30, 1000])
def test_poisson_descends_from_zero_even_to_large_counts(largest: int):
    """exp grows faster than any fixed curvature allows; here w·x has to reach log(1000)."""
    generator = torch.Generator().manual_seed(largest)
    x = torch.rand(50, 2, generator=generator, dtype=torch.float64)
    y = torch.poisson(largest ** x[:, 0], generator=generator)
    algorithm = PoissonRegression(penalty=0.0, steps=500)
    values = algorithm.objective(x.expand(501, -1, -1), y.expand(501, -1), algorithm.iterates(x, y))
    assert (values.diff() <= 1e-12 * values.abs().max()).all()
    assert values[-1] < values[0]
