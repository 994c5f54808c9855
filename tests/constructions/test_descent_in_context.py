"""Corollaries 3.1.1 to 3.1.4: gradient steps and whole descents, against the exact algorithms."""

from functools import lru_cache

import pytest
import torch
from construction_cases import f64, normal

from emulon.algorithms import (
    ElasticNet,
    HuberRegression,
    LinearRegression,
    LogisticRegression,
    Perceptron,
    PoissonRegression,
    QuantileRegression,
)
from emulon.certify import Domain
from emulon.constructions import DescentInContext

X = normal(32, 8)
W = normal(8, seed=1)
TARGETS = X @ W + 0.1 * normal(32, seed=2)
LABELS = torch.where(TARGETS >= 0, 1.0, -1.0).double()
COUNTS = torch.poisson(torch.exp((0.2 * X @ W).clamp(max=3)), generator=torch.Generator().manual_seed(3))

# (algorithm, y, tolerance asked, error allowed): 1e-9, but 1e-6 where the loss or the penalty has a kink
DESCENTS = {
    "squared": (LinearRegression(), TARGETS, 1e-9, 1e-9),
    "logistic": (LogisticRegression(0.1), LABELS, 1e-9, 1e-9),
    "poisson": (PoissonRegression(0.1), COUNTS, 1e-8, 1e-9),
    "huber": (HuberRegression(), TARGETS, 1e-3, 1e-6),
    "elastic net": (ElasticNet(0.1), TARGETS, 1e-4, 1e-6),
    "perceptron": (Perceptron(), LABELS, 1e-3, 1e-6),
    "quantile": (QuantileRegression(), TARGETS, 1e-3, 1e-6),
}


@lru_cache
def descent(name):
    algorithm, y, tolerance, _ = DESCENTS[name]
    return DescentInContext.of(algorithm, X, y, tolerance)


@pytest.mark.parametrize("name", DESCENTS)
def test_a_hundred_steps_end_at_the_exact_algorithms_weights(name):
    algorithm, y, tolerance, allowed = DESCENTS[name]
    module = descent(name)
    path, exact = module.run(X, y).iterates, algorithm.iterates(X, y)
    assert path.shape == exact.shape == (101, 8) and module.certificate.bound <= tolerance
    assert (path[-1] - exact[-1]).abs().max() <= allowed
    assert exact[-1].abs().max() > 0.1
    if not (module.certificate.bands and module.run(X, y).entered_band):
        module.certificate.verify(path, exact)


def test_a_run_that_keeps_clear_of_the_jump_is_covered_and_one_that_does_not_says_so():
    assert not descent("perceptron").run(X, LABELS).entered_band
    assert descent("quantile").run(X, TARGETS).entered_band


def test_strong_convexity_makes_a_better_promise_of_the_same_step():
    algorithm = LinearRegression()
    geometric = DescentInContext.of(algorithm, X, TARGETS, 1e-6)
    step = geometric.step
    plain = DescentInContext("squared", step.domain, 1e-6, steps=100, step_size=step.step_size)
    ratio = {m: m.certificate.bound / m.step.certificate.bound for m in (geometric, plain)}
    assert ratio[plain] == pytest.approx(100 * 8**0.5, rel=1e-6)
    assert ratio[geometric] < 0.7 * ratio[plain]
    geometric.certificate.verify(geometric(X, TARGETS), algorithm.run(X, TARGETS))


def test_an_exact_step_size_of_two_over_l_is_still_gentle_and_one_beyond_is_refused():
    domain = Domain(samples=4, features=1, x=1.0, y=1.0, w=4.0)
    x, y = torch.ones(4, 1, dtype=f64), torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=f64)
    module = DescentInContext("squared", domain, 1e-6, steps=20, step_size=2.0)
    swinging = module.run(x, y).iterates[:, 0]
    torch.testing.assert_close(swinging[::2], torch.zeros(11, dtype=f64), atol=module.certificate.bound, rtol=0)
    torch.testing.assert_close(swinging[1::2], torch.ones(10, dtype=f64), atol=module.certificate.bound, rtol=0)


def test_descents_on_several_datasets_at_once():
    x, y = normal(3, 10, 2), normal(3, 10, seed=1)
    algorithm = LinearRegression(steps=5, step_size=0.2)
    module = DescentInContext.of(algorithm, x, y, 1e-6)
    torch.testing.assert_close(module.run(x, y[0]).iterates[2], module.run(x[2], y[0]).iterates, rtol=0, atol=1e-9)
    module.certificate.verify(module(x, y), algorithm.run(x, y))
