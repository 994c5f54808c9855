"""Linear functions: Gaussian, sparse, and with a scale that changes from dataset to dataset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import Lasso, LeastSquares, LinearRegression, NearestNeighbours, RidgeRegression
from emulon.predictor import Predictor
from emulon.tasks.task import RegressionTask, normal, uniform


@dataclass(frozen=True)
class Linear(RegressionTask):
    """y = w·x + noise·ε, w ~ N(0, prior²·I), x ~ N(0, I)."""

    features: int = 20
    points: int = 41
    noise: float = 0.0
    prior: float = 1.0

    def weights(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch features"]:
        return self.prior * normal(generator, batch, self.features)

    def draw(self, generator, xs):
        return (xs @ self.weights(generator, xs.shape[0]).unsqueeze(-1)).squeeze(-1)

    def predictors(self) -> dict[str, Predictor]:
        """OLS, ten steps of descent, the neighbours, and with noise the Bayes predictor: ridge with λ = σ²/τ²."""
        known: dict[str, Predictor] = {
            "ols": LeastSquares(),
            "gd": LinearRegression(steps=10),
            "knn": NearestNeighbours(),
        }
        if self.noise > 0:
            known["ridge"] = RidgeRegression((self.noise / self.prior) ** 2)
        return known


@dataclass(frozen=True)
class SparseLinear(Linear):
    """As `Linear`, with all but `nonzero` weights set to zero."""

    nonzero: int = 3

    def weights(self, generator, batch):
        order = uniform(generator, batch, self.features).argsort(dim=-1)
        return super().weights(generator, batch) * (order < self.nonzero)

    def predictors(self) -> dict[str, Predictor]:
        return super().predictors() | {"lasso": Lasso(penalty=0.1, steps=100)}


@dataclass(frozen=True)
class RidgeMixture(Linear):
    """As `Linear`, where each dataset draws its noise from `noises`, with equal chance: no single ridge is right."""

    noises: tuple[float, ...] = (0.1, 0.5, 1.0)

    def noise_scale(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch 1"]:
        which = uniform(generator, batch, 1) * len(self.noises)
        scales = torch.zeros_like(which)
        for k, noise in enumerate(self.noises):  # a comparison each, because copying a table would break a CUDA graph
            scales = torch.where((which >= k) & (which < k + 1), noise, scales)
        return scales

    def predictors(self) -> dict[str, Predictor]:
        ridges = {f"ridge_{noise:g}": RidgeRegression((noise / self.prior) ** 2) for noise in self.noises}
        return super().predictors() | ridges
