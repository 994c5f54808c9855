"""A certificate for one run of causal gradient descent: every loop's defect is measured, errors do not expand."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.certify.rounding import gamma


class CausalAudit:
    """Claim: after any number of `watch`, ‖ŵ^i − w^i‖₂ ≤ drift at every position i, (..., positions).

    Assumes: a step size of at most 2/max‖x‖², so that no exact step expands (`causal_error`). Each loop's defect is
    measured in float64, plus what that measurement may itself round.
    """

    def __init__(self, xs: Tensor, ys: Tensor, x_query: Tensor, step_size: float) -> None:
        self.rows, self.labels, self.step_size = xs.double(), ys.double().unsqueeze(-2), step_size
        self.points = torch.cat([self.rows, x_query.double().unsqueeze(-2)], dim=-2)
        samples, features = xs.shape[-2:]
        self.before = torch.ones(samples + 1, samples, dtype=torch.float64).tril(-1)
        self.counts = self.before.sum(dim=-1, keepdim=True).clamp(min=1)
        self.ops = gamma(samples + features + 8, torch.float64)
        self.weights = torch.zeros_like(self.points)
        self.drift = torch.zeros_like(self.points[..., 0])

    def watch(self, weights: Tensor) -> None:
        """Take in the computed w^i (..., positions, features) after one more loop."""
        after = weights.double()
        residuals = (self.weights @ self.rows.mT - self.labels) * self.before
        stepped = self.weights - self.step_size * residuals @ self.rows / self.counts
        # |w||x| + |y|, averaged against ‖x‖, is what the float64 of this check adds up.
        length = self.rows.norm(dim=-1).max()
        scale = self.weights.norm(dim=-1) * length + self.labels.abs().max()
        room = self.ops * (after.norm(dim=-1) + self.weights.norm(dim=-1) + self.step_size * scale * length)
        self.drift = (self.drift + (after - stepped).norm(dim=-1) + room) * (1 + 1e-9)
        self.weights = after

    def carried(self) -> Tensor:
        """|(ŵ^i − w^i)·x_i| ≤ this."""
        return self.drift * self.points.norm(dim=-1)

    def answer(self, predictions: Tensor) -> Tensor:
        """|prediction − ŵ^i·x_i|, with room for the rounding of this check."""
        exact = (self.weights * self.points).sum(dim=-1)
        room = self.ops * self.weights.norm(dim=-1) * self.points.norm(dim=-1)
        return (predictions.double() - exact).abs() + room
