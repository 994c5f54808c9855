"""Implicit linear weights (Eq. 14–15): the linear function that a predictor behaves like on one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.interrogate.curve import Curve, counts_for
from emulon.interrogate.prediction_difference import DATASETS, POINTS
from emulon.interrogate.task import Task
from emulon.predictor import as_predictor, predict_queries


@dataclass(frozen=True)
class ImplicitWeights:
    """`weights` (datasets, counts, features), and how much of the predictions they explain: R² (datasets, counts).

    An R² of 1 says that the predictor is linear in the query; below, the weights are only its best linear summary.
    """

    counts: tuple[int, ...]
    weights: Float[Tensor, "datasets counts features"]
    linearity: Float[Tensor, "datasets counts"]


def implicit_weights(
    predictor: object,
    task: Task,
    *,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int = POINTS,
    counts: Sequence[int] | None = None,
    queries: int | None = None,
) -> ImplicitWeights:
    """Least squares on the predictor's own answers at fresh inputs (twice as many as features unless told)."""
    asked = as_predictor(predictor)
    counts = counts_for(points, asked, counts=counts)
    xs, ys = task.sample(seed, datasets, points)
    fresh, _ = task.sample(seed + 1_000_003, datasets, queries or 2 * xs.shape[-1])
    answers = torch.stack([predict_queries(asked, xs[:, :n], ys[:, :n], fresh) for n in counts], dim=1).double()
    weights = (torch.linalg.pinv(fresh).unsqueeze(1) @ answers.unsqueeze(-1)).squeeze(-1)
    left = (answers - (fresh.unsqueeze(1) @ weights.unsqueeze(-1)).squeeze(-1)).square().sum(dim=-1)
    whole = answers.square().sum(dim=-1)
    return ImplicitWeights(counts, weights, 1 - torch.where(whole > 0, left / whole, 0.0))


def weight_difference(
    a: object,
    b: object,
    task: Task,
    *,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int = POINTS,
    counts: Sequence[int] | None = None,
) -> Curve:
    """E ‖w_a − w_b‖²/d for each number of examples (Eq. 15, normalised as Figure 1)."""
    counts = counts_for(points, as_predictor(a), as_predictor(b), counts=counts)
    first, second = (
        implicit_weights(one, task, seed=seed, datasets=datasets, points=points, counts=counts) for one in (a, b)
    )
    distance = (first.weights - second.weights).square().mean(dim=-1)
    return Curve.of("implicit weight difference / features", counts, distance)
