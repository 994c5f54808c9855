"""Simple predictors, exact and in float64: what a learner's error has to be read against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm
from emulon.errors import EmulonError


class Baseline(ABC):
    """Supplies `answer` for one query a dataset; `predict` is the library's one signature."""

    @abstractmethod
    def answer(
        self,
        xs: Float[Tensor, "batch samples features"],
        ys: Float[Tensor, "batch samples"],
        x_query: Float[Tensor, "batch queries features"],
    ) -> Float[Tensor, "batch queries"]: ...

    def predict(
        self,
        xs: Float[Tensor, "*batch samples features"],
        ys: Float[Tensor, "*batch samples"],
        x_query: Float[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        """x_query is (..., features), or (..., queries, features)."""
        several = x_query.ndim == xs.ndim
        queries = x_query if several else x_query.unsqueeze(-2)
        samples, features = xs.shape[-2:]
        said = self.answer(
            xs.double().reshape(-1, samples, features),
            ys.double().reshape(-1, samples),
            queries.double().reshape(-1, queries.shape[-2], features),
        ).reshape(queries.shape[:-1])
        return said if several else said.squeeze(-1)


class Zero(Baseline):
    """Says 0: the error of knowing nothing."""

    def answer(self, xs, ys, x_query):
        return x_query.new_zeros(x_query.shape[:-1])


class LeastSquares(Baseline):
    """Ordinary least squares; the solution of least norm where several fit."""

    def answer(self, xs, ys, x_query):
        return _apply(torch.linalg.pinv(xs) @ ys.unsqueeze(-1), x_query)


@dataclass(frozen=True)
class ClosedRidge(Baseline):
    """(XᵀX + penalty·I)⁻¹Xᵀy. With penalty = σ²/τ² it is the Bayes predictor of linear data with prior N(0, τ²)."""

    penalty: float

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise EmulonError(f"a ridge penalty must be positive, got {self.penalty}; LeastSquares() has none")

    def answer(self, xs, ys, x_query):
        gram = xs.mT @ xs + self.penalty * torch.eye(xs.shape[-1], dtype=xs.dtype, device=xs.device)
        return _apply(torch.linalg.solve(gram, xs.mT @ ys.unsqueeze(-1)), x_query)


@dataclass(frozen=True)
class NearestNeighbours(Baseline):
    """The mean y of the `count` nearest x (all of them while there are fewer)."""

    count: int = 3

    def answer(self, xs, ys, x_query):
        near = torch.cdist(x_query, xs).topk(min(self.count, xs.shape[-2]), largest=False).indices
        return ys.unsqueeze(-2).expand(*near.shape[:-1], -1).gather(-1, near).mean(dim=-1)


def prefix_predictions(
    predictor: Baseline | Algorithm,
    xs: Float[Tensor, "batch points features"],
    ys: Float[Tensor, "batch points"],
) -> Float[Tensor, "batch points"]:
    """What the predictor says at x_i having seen the samples before it; 0 having seen none."""
    said = [ys.new_zeros(ys.shape[0])]
    for i in range(1, xs.shape[1]):
        said.append(predictor.predict(xs[:, :i], ys[:, :i], xs[:, i]))
    return torch.stack(said, dim=1)


def _apply(weights: Tensor, x_query: Tensor) -> Tensor:
    return (x_query @ weights).squeeze(-1)
