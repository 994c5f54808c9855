"""Softmax regression as a step that the frozen interpreter repeats: a module that says by itself how it is layers.

`emulon.compile_iteration(SoftmaxRegressionStep(x, classes), step.start(), 60)` is a program. `lower_into` writes the
step with what a `Builder` has: linear maps, scalar functions, 1/√t and products. A quotient is a product with the
square of 1/√t. scikit-learn's LogisticRegression without an intercept has C = 1/(samples·penalty).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from emulon.networks.builder import Builder


def identity(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


class SoftmaxRegressionStep(nn.Module):
    """A step of descent on the mean cross entropy of softmax(xᵢᵀW), plus (penalty/2)·‖W‖²; the state is W, flattened.

    Of W a part `kept` = 1 − step_size·penalty stays, and residuals pull by `pull` = Xᵀ·step_size/samples: these are
    rounded to float64 once, here, and are what the step is made of.
    """

    def __init__(self, x: Tensor, classes: Tensor, penalty: float = 0.1) -> None:
        super().__init__()
        self.x = x.double()
        self.targets = nn.functional.one_hot(classes.long()).double()
        # The Hessian of a softmax's cross entropy is at most 1/2.
        steepest = torch.linalg.matrix_norm(self.x, 2).square().item() / len(x) / 2
        step_size = 1 / (steepest + penalty)
        self.kept, self.pull = 1 - step_size * penalty, self.x.T.contiguous() * (step_size / len(x))

    def start(self) -> Tensor:
        """All weights zero, (1, features·classes)."""
        return torch.zeros(1, self.x.shape[1] * self.targets.shape[1], dtype=torch.float64)

    def forward(self, state: Tensor) -> Tensor:
        weights = state.reshape(len(state), self.x.shape[1], -1)
        off = torch.softmax(self.x @ weights, dim=-1) - self.targets
        return self.kept * state - (self.pull @ off).flatten(1)

    def lower_into(self, builder: Builder, place: str) -> None:
        (samples, classes), state = self.targets.shape, builder.at
        each, group = identity(samples), torch.ones(classes, 1, dtype=torch.float64)
        builder.linear(place, "scores", torch.kron(self.x, identity(classes)))
        powers = builder.function(place, "exp", "exp(t)")
        builder.linear(place, "sums", torch.kron(each, group.reshape(1, -1)))
        builder.root(place)
        builder.square(place)
        quotients = builder.linear(place, "sums for all", torch.kron(each, group))
        chances = builder.product(place, powers, quotients)
        kept, back = self.kept * identity(self.start().shape[1]), torch.kron(self.pull, identity(classes))
        shift = torch.cat([torch.zeros(len(kept), dtype=torch.float64), self.targets.flatten()])
        builder.divided(place, "step", torch.cat([kept, -back], dim=-1), 1.0, shift=shift, reads=(state, chances))
