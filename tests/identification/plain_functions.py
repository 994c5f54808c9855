"""Every reference algorithm as a plain function, with parameters drawn for a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import torch

from emulon.algorithms import (
    LassoRegression,
    LeastSquares,
    LinearRegression,
    NearestNeighbours,
    NewtonLeastSquares,
    OnlineSGD,
    PreviousTarget,
    RidgeRegression,
    Zero,
)

Case = tuple[str, dict[str, float], Callable]


def references(seed: int) -> Iterator[Case]:
    """(name, parameters, function)."""
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    ridge, penalty = between(0.01, 30), between(0.02, 0.5)
    steps, step, small = draw.randint(1, 60), between(0.01, 0.1), between(0.001, 0.02)
    safe, newton, sgd, k, kw = (
        draw.randint(1, 30),
        draw.randint(0, 7),
        between(0.005, 0.15),
        draw.randint(2, 8),
        draw.randint(2, 8),
    )
    yield "zero", {}, Zero().predict
    yield "previous target", {}, PreviousTarget().predict
    yield "mean target", {}, lambda x, y, q: y.mean(-1)
    yield "ols", {}, LeastSquares().predict
    yield "ols with intercept", {}, with_intercept(LeastSquares())
    yield "ridge", {"ridge": ridge}, RidgeRegression(ridge).predict
    yield "ridge with intercept", {"ridge": ridge}, with_intercept(RidgeRegression(ridge))
    yield (
        "ridge on the mean",
        {"penalty": penalty},
        lambda x, y, q: RidgeRegression(penalty * x.shape[1]).predict(x, y, q),
    )
    yield "lasso", {"penalty": penalty}, LassoRegression(penalty).predict
    yield "lasso with intercept", {"penalty": penalty}, with_intercept(LassoRegression(penalty))
    yield "gradient descent, safe steps", {"steps": safe}, LinearRegression(safe).predict
    yield "newton", {"steps": newton}, NewtonLeastSquares(newton).predict
    yield "sgd", {"step_size": sgd}, OnlineSGD(sgd).predict
    yield "knn", {"neighbours": k}, NearestNeighbours(k).predict
    yield "weighted knn", {"neighbours": kw}, NearestNeighbours(kw, weighted=True).predict
    bandwidth = between(0.5, 5)
    yield "kernel average", {"bandwidth": bandwidth}, lambda x, y, q: _kernel(x, y, q, bandwidth)
    yield "gradient descent", {"steps": steps, "step_size": step}, LinearRegression(steps, step).predict
    yield (
        "gradient descent on the sum",
        {"steps": steps, "step_size": small},
        lambda x, y, q: LinearRegression(steps, small * x.shape[1]).predict(x, y, q),
    )
    start = between(1e-5, 1e-3)
    yield "newton, fixed start", {"steps": newton, "start": start}, lambda x, y, q: _newton(x, y, q, newton, start)
    width, smooth = draw.randint(-1, 2), between(0.05, 5)
    yield "kernel ridge", {"width": width, "ridge": smooth}, lambda x, y, q: _kernel_ridge(x, y, q, width, smooth)


def nobodies(seed: int) -> Iterator[tuple[str, Callable]]:
    """Predictors that are none of the references."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    level, scale = draw.choice([-3.0, -0.1, 0.01, 1.0, 10.0]), math.exp(draw.uniform(-4, 3))
    weights = torch.randn(16, generator=generator, dtype=torch.float64)
    yield f"constant {level}", lambda x, y, q: torch.full(x.shape[:1], level, dtype=torch.float64)
    yield f"random {scale:.2g}", lambda x, y, q: scale * torch.randn(len(x), generator=generator, dtype=torch.float64)
    yield "fixed weights", lambda x, y, q: q @ weights[: q.shape[-1]]


def with_intercept(algorithm) -> Callable:
    """Fitted to the data less their means: the intercept is free of any penalty."""

    def predict(x, y, query):
        middle, mean = x.mean(-2, keepdim=True), y.mean(-1, keepdim=True)
        return mean.squeeze(-1) + algorithm.predict(x - middle, y - mean, query - middle.squeeze(-2))

    return predict


def _newton(x, y, query, steps, start):
    gram = x.mT @ x
    inverse = start * gram
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ gram @ inverse
    return (query.unsqueeze(-2) @ inverse @ x.mT @ y.unsqueeze(-1)).flatten()


def _kernel_ridge(x, y, query, width, ridge):
    def kernel(one, other):
        gap = one.unsqueeze(-2) - other.unsqueeze(-3)
        return torch.exp(-gap.square().sum(-1) / (x.shape[-1] * 2**width))

    solved = torch.linalg.solve(kernel(x, x) + ridge * torch.eye(x.shape[-2]).double(), y.unsqueeze(-1))
    return (kernel(query.unsqueeze(-2), x) @ solved).flatten()


def _kernel(x, y, query, bandwidth):
    weights = torch.exp(-(x - query.unsqueeze(-2)).square().sum(-1) / (2 * bandwidth))
    return (weights * y).sum(-1) / weights.sum(-1)
