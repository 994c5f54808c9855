"""Implicit linear weights (Eq. 14–15): the linear function that a predictor behaves like on one dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.interrogate.curve import Curve
from emulon.interrogate.sampling import Drawn, Sampling, draw
from emulon.predictor import Predictor, as_predictor, predict_queries
from emulon.tasks import RegressionTask

# Fresh inputs come from a seed far from the datasets' own.
FRESH = 1_000_003


@dataclass(frozen=True)
class ImplicitWeights:
    """`weights` (datasets, counts, features), and how much of the predictions they explain: R² (datasets, counts).

    An R² of 1 says that the predictor is linear in the query; below, the weights are only its best linear summary.
    """

    counts: tuple[int, ...]
    weights: Float[Tensor, "datasets counts features"]
    linearity: Float[Tensor, "datasets counts"]

    def difference(self, other: ImplicitWeights) -> Curve:
        """E ‖w_a − w_b‖²/d for each number of examples (Eq. 15, normalised as Figure 1)."""
        distance = (self.weights - other.weights).square().mean(dim=-1)
        return Curve.of("implicit weight difference / features", self.counts, distance)


def implicit_weights(
    predictor: object, task: RegressionTask, *, queries: int | None = None, **sampling: Unpack[Sampling]
) -> ImplicitWeights:
    """Least squares on the predictor's own answers at fresh inputs (twice as many as features unless told)."""
    asked = as_predictor(predictor)
    drawn = draw(task, asked, **sampling)
    return weights_on(asked, drawn, fresh_queries(task, drawn, queries, sampling.get("seed", 0)))


def weight_difference(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """The distance of the implicit weights of a and b on the same datasets."""
    first, second = as_predictor(a), as_predictor(b)
    drawn = draw(task, first, second, **sampling)
    fresh = fresh_queries(task, drawn, None, sampling.get("seed", 0))
    return weights_on(first, drawn, fresh).difference(weights_on(second, drawn, fresh))


def fresh_queries(
    task: RegressionTask, drawn: Drawn, queries: int | None, seed: int
) -> Float[Tensor, "datasets queries features"]:
    return task.held_out(seed + FRESH, len(drawn.xs), queries or 2 * drawn.features).xs


def weights_on(asked: Predictor, drawn: Drawn, fresh: Float[Tensor, "datasets queries features"]) -> ImplicitWeights:
    """The implicit weights on these datasets, from the answers at these inputs."""
    xs, ys = drawn.xs, drawn.ys
    answers = torch.stack([predict_queries(asked, xs[:, :n], ys[:, :n], fresh) for n in drawn.counts], dim=1).double()
    weights = (torch.linalg.pinv(fresh).unsqueeze(1) @ answers.unsqueeze(-1)).squeeze(-1)
    left = (answers - (fresh.unsqueeze(1) @ weights.unsqueeze(-1)).squeeze(-1)).square().sum(dim=-1)
    whole = answers.square().sum(dim=-1)
    return ImplicitWeights(drawn.counts, weights, 1 - torch.where(whole > 0, left / whole, 0.0))
