"""Least squares by Newton–Schulz: the inverse of XᵀX by multiplications alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Real
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm, require_steps
from emulon.algorithms.data import require_data
from emulon.certify.spectrum import largest_eigenvalue


@dataclass(frozen=True)
class NewtonLeastSquares(Algorithm):
    """Minimises ‖Xw − y‖²: M ← 2M − M S M with S = XᵀX, from M_0 = S/‖S‖², and w_k = M_k Xᵀ y.

    Claim: I − M_k S = (I − S²/‖S‖²)^(2^k): the correct digits double with every step, once there is one. That takes
    about 2·log2 of S's condition number.
    Proof. I − M_{k+1} S = I − 2M_k S + (M_k S)² = (I − M_k S)². The eigenvalues of I − S²/‖S‖² lie in [0, 1). QED
    Assumes: S invertible. If it is not, M_k tends to the pseudo-inverse and w to the solution of least norm; but
    rounding errors off the range of S double with every step, so do not take many more steps than it needs.

    The iterates begin at M_0 Xᵀ y, not at zero. No intercept. Limit: scikit-learn's LinearRegression.
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
