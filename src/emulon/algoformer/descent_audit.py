"""A certificate for one run of gradient descent: what each loop did is measured, how errors travel is bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify.rounding import gamma
from emulon.certify.spectrum import enclosure


class DescentAudit:
    """Measures the defect of every step in float64 and carries it as `descent_error` does, with this data's spectrum.

    Claim: after any number of `watch`, |prediction − exact prediction| ≤ `bound`, (..., outputs). `feature_error`
    bounds how far the rows of xs and x_query given here are from the exact features, in norm.
    """

    def __init__(
        self,
        xs: Tensor,
        ys: Tensor,
        x_query: Tensor,
        step_size: float,
        feature_error: float = 0.0,
        label_error: float = 0.0,
    ) -> None:
        self.rows, self.query, self.step_size = xs.double(), x_query.double().unsqueeze(-2), step_size
        self.root, self.feature_error, self.label_error = math.sqrt(xs.shape[-2]), feature_error, label_error
        self.low, self.top = enclosure(self.rows)
        self.size = max(self.rows.norm(dim=-1).max().item(), self.query.norm(dim=-1).max().item())
        self.ops = gamma(sum(self.rows.shape[-2:]) + 8, torch.float64)
        self.residuals = -ys.double()
        self.prediction = torch.zeros_like(self.residuals[..., 0, :])
        self.direct = torch.zeros_like(self.prediction)
        self.shocks: list[Tensor] = []

    def watch(self, residuals: Tensor, prediction: Tensor, *, start: bool = False) -> None:
        """Take in residuals (..., N, outputs) and prediction (..., outputs), before the first step and after each."""
        after, guess, held = residuals.double(), prediction.double(), self.residuals.norm(dim=-2)
        if start:
            shock, direct = (after - self.residuals).norm(dim=-2) + self.root * self.label_error, guess.abs()
        else:
            scale = self.step_size / self.root**2
            back = scale * self.rows.mT @ self.residuals
            # What this check rounds, and what the features' own error moves: at most `room` in every entry.
            room = (self.ops * self.size + 3 * self.feature_error) * self.size * self.step_size * held / self.root
            room = room + self.ops * (held + self.prediction.abs() + guess.abs())
            shock = (after - self.residuals + self.rows @ back).norm(dim=-2) + self.root * room
            direct = (guess - self.prediction + (self.query @ back).squeeze(-2)).abs() + room
        self.shocks.append(shock)
        self.direct = self.direct + direct
        self.residuals, self.prediction = after, guess

    @property
    def bound(self) -> Tensor:
        cap = torch.where(self.step_size * self.top <= 1, 1.0, 2.0).double()
        last = len(self.shocks) - 1
        total = self.direct
        for step, shock in enumerate(self.shocks):
            steps = last - step
            gain = torch.minimum((cap * self.step_size * steps).sqrt(), self.step_size * self.top.sqrt() * steps)
            gain = torch.minimum(gain, cap / self.low.clamp(min=1e-300).sqrt())
            total = total + self.size * gain.unsqueeze(-1) * shock / self.root
        return total * (1 + 1e-6)
