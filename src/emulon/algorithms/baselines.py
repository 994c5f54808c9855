"""Predictors without weights: trivial baselines, nearest neighbours, and the Bayes predictor of a set of tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.algorithm import Answers, Inputs, Queries, Targets, require_data, require_queries
from emulon.core.arrays import accepts_arraylike, as_tensor
from emulon.core.errors import EmulonError


@dataclass(frozen=True)
class Zero:
    """Predicts 0."""

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Targets, x_query: Queries) -> Answers:
        require_data(xs, ys)
        require_queries(xs, x_query)
        return x_query.double().new_zeros(x_query.shape[:-1])


@dataclass(frozen=True)
class PreviousTarget:
    """Predicts the target of the last example."""

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Targets, x_query: Queries) -> Answers:
        require_data(xs, ys)
        require_queries(xs, x_query)
        last = ys.double()[..., -1]
        return last.unsqueeze(-1).expand(x_query.shape[:-1]) if x_query.ndim == xs.ndim else last


@dataclass(frozen=True)
class NearestNeighbours:
    """The mean target of the `neighbours` nearest examples (of all, while there are fewer).

    `weighted` weighs them by 1/distance, as scikit-learn's weights="distance"; an example at the query decides alone.
    Akyürek et al. 2022 print the squared distance itself as the weight, which would favour the far ones: a slip.

    Args:
        neighbours: How many.
        weighted: Whether near examples weigh more.
    """

    neighbours: int = 3
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise EmulonError(f"neighbours must be at least 1, got {self.neighbours}")

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Targets, x_query: Queries) -> Answers:
        """x_query is (..., features) or (..., queries, features)."""
        require_data(xs, ys)
        require_queries(xs, x_query)
        several = x_query.ndim == xs.ndim
        queries = x_query.double() if several else x_query.double().unsqueeze(-2)
        distance = torch.cdist(queries, xs.double(), compute_mode="donot_use_mm_for_euclid_dist")
        near = distance.topk(min(self.neighbours, xs.shape[-2]), largest=False)
        targets = ys.double().unsqueeze(-2).expand(*distance.shape).gather(-1, near.indices)
        weights = inverse_distance(near.values) if self.weighted else torch.ones_like(targets)
        answers = (weights * targets).sum(dim=-1) / weights.sum(dim=-1)
        return answers if several else answers.squeeze(-1)


def inverse_distance(distance: Float[Tensor, "... neighbours"]) -> Float[Tensor, "... neighbours"]:
    """1/distance; where some distances are zero, 1 for those and 0 for the others."""
    exact = distance == 0
    return torch.where(exact.any(dim=-1, keepdim=True), exact.to(distance.dtype), 1 / distance)


@dataclass(frozen=True, eq=False)
class TaskMixture:
    """E(y | examples) where w is one of `vectors`, each as likely as the others, and y = w·x + noise·ε.

    The posterior of a vector is in proportion to exp(−‖Xw − y‖²/(2·noise²)), and the answer is its mean of w·x: what
    Raventós et al. 2023 call dMMSE, the Bayes predictor of a learner with a fixed set of tasks. With noise → 0 it is
    the vector that fits best; ridge regression is the same for a Gaussian of vectors.

    Args:
        vectors: (tasks, features), a tensor or any array of numbers.
        noise: Standard deviation of the targets, positive.
    """

    vectors: Any
    noise: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "vectors", as_tensor(self.vectors, "vectors").double())
        if not 0 < self.noise < math.inf:
            raise EmulonError(f"a mixture of tasks needs a noise that is positive and finite, got {self.noise}")

    @accepts_arraylike("xs", "ys", "x_query", like="x_query")
    def predict(self, xs: Inputs, ys: Targets, x_query: Queries) -> Answers:
        """x_query is (..., features) or (..., queries, features)."""
        require_data(xs, ys)
        require_queries(xs, x_query)
        vectors: Tensor = self.vectors.to(xs.device)
        left = (xs.double() @ vectors.mT - ys.double().unsqueeze(-1)).square().sum(dim=-2)
        posterior = torch.softmax(left / (-2 * self.noise**2), dim=-1)
        said = x_query.double() @ vectors.mT
        return (said * (posterior.unsqueeze(-2) if x_query.ndim == xs.ndim else posterior)).sum(dim=-1)
