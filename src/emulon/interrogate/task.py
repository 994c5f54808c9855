"""A task as interrogation needs it: where in-context datasets come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.errors import EmulonError


@runtime_checkable
class Task(Protocol):
    """A distribution over datasets. The same seed gives the same datasets.

    Optional: `bayes_ridge`, the ridge parameter of the Bayes predictor, where the task has one.
    """

    @property
    def features(self) -> int: ...

    def sample(self, seed: int, batch: int, points: int) -> tuple[Tensor, Tensor]:
        """xs (batch, points, features) and ys (batch, points)."""
        ...


@dataclass(frozen=True)
class LinearTask:
    """y = w·x + noise·ε, w ~ N(0, prior²·I), x ~ N(0, I), in float64: the data of `003_…`."""

    features: int = 8
    noise: float = 0.0
    prior: float = 1.0

    def __post_init__(self) -> None:
        if self.features < 1 or not 0 <= self.noise < math.inf or not 0 < self.prior < math.inf:
            raise EmulonError(
                f"a linear task needs features ≥ 1, noise ≥ 0 and prior > 0, got {self.features}, {self.noise}, "
                f"{self.prior}"
            )

    @property
    def bayes_ridge(self) -> float:
        """The ridge parameter of the Bayes predictor, σ²/τ² (Eq. 18)."""
        return (self.noise / self.prior) ** 2

    def sample(
        self, seed: int, batch: int, points: int
    ) -> tuple[Float[Tensor, "batch points features"], Float[Tensor, "batch points"]]:
        generator = torch.Generator().manual_seed(seed)
        sizes = (batch, points, self.features), (batch, self.features, 1), (batch, points)
        xs, weights, noise = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
        return xs, self.prior * (xs @ weights).squeeze(-1) + self.noise * noise

    def __str__(self) -> str:
        return f"linear functions of {self.features} features, noise {self.noise:g}, prior {self.prior:g}"
