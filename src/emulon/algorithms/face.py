"""A familiar name for gradient descent on one particular objective."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm
from emulon.algorithms.gradient_descent import GradientDescent


class Face(Algorithm):
    """Supplies `descent`; the rest is the descent's. Parameters that make no sense are refused at once."""

    def __post_init__(self) -> None:
        _ = self.descent

    @property
    @abstractmethod
    def descent(self) -> GradientDescent:
        """The gradient descent underneath."""

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        return self.descent.weights_in_turn(x, y)

    def resolved_step_size(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Float[Tensor, "*batch 1"]:
        return self.descent.resolved_step_size(x, y)

    def objective(
        self,
        x: Real[Tensor, "*batch samples features"],
        y: Real[Tensor, "*batch samples"],
        weights: Float[Tensor, "*batch features"],
    ) -> Float[Tensor, "*batch"]:
        return self.descent.objective(x, y, weights)

    def mean_response(self, score: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return self.descent.mean_response(score)
