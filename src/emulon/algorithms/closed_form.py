"""Least squares and ridge regression without gradients: solved outright, example by example, or by Newton–Schulz."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Real
from torch import Tensor

from emulon.algorithms.algorithm import ALGORITHMS, Algorithm, require_data, require_steps
from emulon.certify.spectrum import largest_eigenvalue
from emulon.core.errors import EmulonError


@dataclass(frozen=True)
class LeastSquares(Algorithm):
    """argmin ‖Xw − y‖², and where many w attain it the one of least norm, by an SVD (LAPACK's gelsd).

    The limit of `LinearRegression`, `NewtonLeastSquares` and of ridge regression without a penalty. No intercept.
    """

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        require_data(x, y)
        yield torch.linalg.lstsq(x.double(), y.double().unsqueeze(-1), driver="gelsd").solution.squeeze(-1)


@dataclass(frozen=True)
class RidgeRegression(Algorithm):
    """(XᵀX + ridge·I)⁻¹ Xᵀy, without intercept: scikit-learn's Ridge has alpha = ridge, our `Ridge` penalty = ridge/n.

    With targets of noise σ² and weights drawn from N(0, τ²I), ridge = σ²/τ² is the Bayes predictor.

    Args:
        ridge: Penalty, positive.
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

    Args:
        ridge: Penalty, positive.
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


@ALGORITHMS.register
@dataclass(frozen=True)
class NewtonLeastSquares(Algorithm):
    """Minimises ‖Xw − y‖²: M ← 2M − M S M with S = XᵀX, from M_0 = S/‖S‖², and w_k = M_k Xᵀ y.

    Claim: I − M_k S = (I − S²/‖S‖²)^(2^k): the correct digits double with every step, once there is one. That takes
    about 2·log2 of S's condition number.
    Proof. I − M_{k+1} S = I − 2M_k S + (M_k S)² = (I − M_k S)². The eigenvalues of I − S²/‖S‖² lie in [0, 1). QED
    Assumes: S invertible. If it is not, M_k tends to the pseudo-inverse and w to the solution of least norm; but
    rounding errors off the range of S double with every step, so do not take many more steps than it needs.

    The iterates begin at M_0 Xᵀ y, not at zero. No intercept. Limit: scikit-learn's LinearRegression.

    Args:
        steps: How many.
    """

    steps: int = 30

    def __post_init__(self) -> None:
        require_steps(self.steps)

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        require_data(x, y)
        x, y = x.double(), y.double()
        s = x.mT @ x
        target = x.mT @ y.unsqueeze(-1)
        norm = x.shape[-2] * largest_eigenvalue(x).unsqueeze(-1)
        inverse = torch.where(norm > 0, s / norm.square(), 0.0)
        yield (inverse @ target).squeeze(-1)
        for _ in range(self.steps):
            inverse = 2 * inverse - inverse @ s @ inverse
            yield (inverse @ target).squeeze(-1)


def require_ridge(ridge: float) -> None:
    if not 0 < ridge < math.inf:
        raise EmulonError(f"ridge must be positive and finite, got {ridge}; LeastSquares has none")
