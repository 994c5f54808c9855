"""Ordinary least squares, solved outright."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Real
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm
from emulon.algorithms.data import require_data


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
