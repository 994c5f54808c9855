"""Stochastic gradient descent, once over the examples in the order they come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Real
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm
from emulon.algorithms.data import require_data
from emulon.errors import EmulonError


@dataclass(frozen=True)
class OnlineSGD(Algorithm):
    """w ← w − step_size·(x_i(w·x_i − y_i) + 2·ridge·w) from w = 0: Eq. 11 of `003_…`, and the register machine's `sgd`.

    The iterates are the weights after 0, 1, 2, … examples: one pass serves every prefix.
    """

    step_size: float
    ridge: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.step_size < math.inf or not 0 <= self.ridge < math.inf:
            raise EmulonError(f"need step_size > 0 and ridge ≥ 0, got {self.step_size} and {self.ridge}")

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        require_data(x, y)
        x, y = x.double(), y.double()
        weights = x.new_zeros(*x.shape[:-2], x.shape[-1])
        yield weights
        for one, target in zip(x.unbind(-2), y.unbind(-1), strict=True):
            residual = (weights * one).sum(dim=-1) - target
            weights = (1 - 2 * self.step_size * self.ridge) * weights - self.step_size * residual.unsqueeze(-1) * one
            yield weights
