"""Bad data and parameters are refused in one line that says what to do."""

import math

import pytest
import torch

from emulon.algorithms import (
    ALGORITHMS,
    RESIDUAL,
    ElasticNet,
    GradientDescent,
    LinearRegression,
    LogisticRegression,
    Loss,
    NewtonLeastSquares,
    huber,
    quantile,
    squared,
)
from emulon.core.errors import BadShape, EmulonError, OutOfDomain

X, Y = torch.randn(6, 2, dtype=torch.float64), torch.ones(6, dtype=torch.float64)


def test_data_that_is_not_finite():
    with pytest.raises(OutOfDomain, match="x contains NaN or infinity; clean or impute it first"):
        LinearRegression().run(X * math.nan, Y)


@pytest.mark.parametrize("query", [X[0, :1], X.expand(2, 6, 2), torch.tensor(1.0).double()])
def test_queries_of_the_wrong_shape_are_refused(query):
    with pytest.raises(BadShape, match=r"x_query has shape .* wanted \(2\) or \(queries, 2\)"):
        LinearRegression().predict(X, Y, query)


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: ALGORITHMS["ridge"](penalty=-0.1), "a penalty must be finite and not negative, got -0.1"),
        (lambda: ALGORITHMS["lasso"](penalty=math.nan), "a penalty must be finite and not negative, got nan"),
        (lambda: LogisticRegression(penalty=math.inf), "a penalty must be finite and not negative, got inf"),
        (lambda: ElasticNet(l1_ratio=1.5), "l1_ratio .* not 1.5"),
        (lambda: LinearRegression(steps=-1), "steps must be a whole number, 0 or more, got -1"),
        (lambda: NewtonLeastSquares(steps=-1), "steps must be a whole number, 0 or more, got -1"),
        (lambda: LinearRegression(step_size=0.0), "step_size must be positive and finite, got 0.0"),
        (lambda: GradientDescent(squared(), momentum=1.0), "momentum must be at least 0 and below 1, got 1.0"),
        (lambda: huber(0.0), "give a positive number, not 0.0"),
        (lambda: quantile(1.0), r"give a number inside \(0, 1\), not 1.0"),
        (lambda: Loss("mine", "t", -1.0, RESIDUAL, torch.abs, torch.sign), "curvature .* cannot be -1.0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_at_once(build, line):
    with pytest.raises(EmulonError, match=line) as refusal:
        build()
    assert "\n" not in str(refusal.value)


def test_an_unknown_link_is_refused():
    with pytest.raises(EmulonError, match="there is no link 'odds'; choose from margin, rate, residual"):
        Loss.of("t**2", link="odds")


def test_a_diverging_run_is_an_error_and_not_nan():
    with pytest.raises(OutOfDomain, match="take fewer, or a smaller step_size"):
        LinearRegression(steps=2000, step_size=100.0).run(X, Y)
