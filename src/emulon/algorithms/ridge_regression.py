"""Ridge regression, solved outright and example by example: the same weights by two roads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Real
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm
from emulon.algorithms.data import require_data
from emulon.errors import EmulonError


@dataclass(frozen=True)
class RidgeRegression(Algorithm):
    """(XᵀX + ridge·I)⁻¹ Xᵀy, without intercept: scikit-learn's Ridge has alpha = ridge, our `Ridge` penalty = ridge/n.

    With targets of noise σ² and weights drawn from N(0, τ²I), ridge = σ²/τ² is the Bayes predictor.
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        require_ridge(self.ridge)

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        require_data(x, y)
        x, y = x.double(), y.double()
        gram = x.mT @ x + self.ridge * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        yield torch.linalg.solve(gram, x.mT @ y.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class ShermanMorrisonRidge(Algorithm):
    """Ridge regression on the first 0, 1, 2, … examples: the iterates are the solutions on every prefix.

    Claim: with P = (Σ xxᵀ + ridge·I)⁻¹, k = Px, l = k/(1 + x·k), one more example makes it P − k lᵀ and w + l(y − w·x).
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        require_ridge(self.ridge)

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        require_data(x, y)
        x, y = x.double(), y.double()
        inverse = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) / self.ridge
        weights = x.new_zeros(*x.shape[:-2], x.shape[-1])
        yield weights
        for one, target in zip(x.unbind(-2), y.unbind(-1), strict=True):
            k = (inverse @ one.unsqueeze(-1)).squeeze(-1)
            gain = k / (1 + (one * k).sum(dim=-1, keepdim=True))
            weights = weights + gain * (target - (weights * one).sum(dim=-1)).unsqueeze(-1)
            inverse = inverse - k.unsqueeze(-1) * gain.unsqueeze(-2)
            yield weights


def require_ridge(ridge: float) -> None:
    if not 0 < ridge < math.inf:
        raise EmulonError(f"ridge must be positive and finite, got {ridge}; LeastSquares has none")
