"""Every algorithm we ship passes `algorithm_checks`: named, solved outright, and descent on every loss."""

import math

import pytest

from emulon import algorithms
from emulon.algorithms import (
    ALGORITHMS,
    LOSSES,
    Algorithm,
    GradientDescent,
    LassoRegression,
    LeastSquares,
    NamedAlgorithm,
    OnlineSGD,
    RidgeRegression,
    ShermanMorrisonRidge,
    as_loss,
)
from emulon.testing import algorithm_checks

STEPS = 20
NAMED = [kind(steps=STEPS) for kind in ALGORITHMS.values()]
SOLVED = [LeastSquares(), RidgeRegression(0.3), ShermanMorrisonRidge(0.3), OnlineSGD(0.02, 0.1), LassoRegression(0.1)]


def descent(name):
    loss = as_loss(name)
    own = math.isfinite(loss.curvature) or loss.stand_in is not None
    return GradientDescent(loss, STEPS, None if own else 0.1, l2=0.1)


CASES = {type(one).__name__: one for one in [*NAMED, *SOLVED]} | {
    f"descent on {name}": descent(name) for name in LOSSES
}


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, id=f"{case}-{name}") for case, one in CASES.items() for name, check in algorithm_checks(one)],
)
def test_algorithm(check):
    check()


def test_every_algorithm_is_checked():
    public = [getattr(algorithms, name) for name in algorithms.__all__]
    shipped = {one for one in public if isinstance(one, type) and issubclass(one, Algorithm)}
    assert shipped - {Algorithm, NamedAlgorithm} == {type(one) for one in CASES.values()}


def test_descent_is_claimed_by_all_but_momentum_and_jumps():
    claimed = {case for case, one in CASES.items() if "objective_never_increases" in dict(algorithm_checks(one))}
    quiet = {
        "HeavyBall",
        "Nesterov",
        "Fista",
        "MiniBatchDescent",
        "QuantileRegression",
        "Perceptron",
        "descent on quantile",
        "descent on perceptron",
    }
    assert claimed == {case for case, one in CASES.items() if hasattr(one, "descent")} - quiet
