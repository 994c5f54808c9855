"""Squared prediction difference (Eq. 13) and the learning curve, which is the difference from the truth."""

from __future__ import annotations

from collections.abc import Sequence

from emulon.interrogate.curve import Curve, counts_for
from emulon.interrogate.task import Task
from emulon.predictor import as_predictor, predict_at

DATASETS = 256
POINTS = 40


def squared_prediction_difference(
    a: object,
    b: object,
    task: Task,
    *,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int = POINTS,
    counts: Sequence[int] | None = None,
) -> Curve:
    """E (a(D)(x′) − b(D)(x′))²/d for each number of examples in D; the 1/d is the normalisation of Figure 1."""
    first, second = as_predictor(a), as_predictor(b)
    counts = counts_for(points, first, second, counts=counts)
    xs, ys = task.sample(seed, datasets, points)
    difference = predict_at(first, xs, ys, counts) - predict_at(second, xs, ys, counts)
    return Curve.of("squared prediction difference / features", counts, difference.square() / xs.shape[-1])


def learning_curve(
    predictor: object,
    task: Task,
    *,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int = POINTS,
    counts: Sequence[int] | None = None,
) -> Curve:
    """E (a(D)(x′) − y′)²/d for each number of examples in D, the noise of y′ included."""
    asked = as_predictor(predictor)
    counts = counts_for(points, asked, counts=counts)
    xs, ys = task.sample(seed, datasets, points)
    error = predict_at(asked, xs, ys, counts) - ys[:, list(counts)]
    return Curve.of("squared error / features", counts, error.square() / xs.shape[-1])
