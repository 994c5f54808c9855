"""A certificate for one run of Newton–Schulz: what each loop did is measured, how errors travel is bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify.rounding import gamma
from emulon.certify.spectrum import enclosure


class NewtonAudit:
    """Measures the defect of every loop in float64; `newton_errors`'s recursion carries it, with this data's spectrum.

    Claim: after each `watch`, ‖(P̂ − P)Π‖_F ≤ inside and ‖(P̂ − P)(I − Π)‖_F ≤ outside, P the exact iterate M_k Xᵀ and Π
    the projection on the columns of X, one entry per problem. No exact iterate is computed: only P̂_{k+1} − F(P̂_k), plus
    what computing that may itself round.
    """

    def __init__(self, xs: Tensor, start_scale: float) -> None:
        self.rows = xs.double()
        self.low, self.top = (edge * self.rows.shape[-2] for edge in enclosure(self.rows))
        self.size = torch.linalg.matrix_norm(self.rows)
        self.ops = gamma(sum(self.rows.shape[-2:]) + 8, torch.float64)
        # Householder's basis spans the columns of X + ΔX with ‖ΔX‖ ≤ √d·γ_{12Nd}‖X‖ (Higham, Theorem 19.4).
        samples, features = self.rows.shape[-2:]
        self.basis = torch.linalg.qr(self.rows).Q
        cond = (self.top / self.low.clamp(min=1e-300)).sqrt()
        self.tilt = 2 * features**0.5 * gamma(12 * samples * features, torch.float64) * cond
        self.least = start_scale * self.low.clamp(min=0) ** 2
        self.before = start_scale * self.rows.mT @ self.rows @ self.rows.mT
        self.inside = self.outside = torch.zeros_like(self.low)
        self.first = self.ops * start_scale * self.size**3

    def watch(self, iterate: Tensor, *, start: bool = False) -> None:
        """Take the next computed P̂ (..., d, N) in; the first one is compared with αSXᵀ."""
        after, held = iterate.double(), torch.linalg.matrix_norm(self.before)
        stepped = self.before if start else 2 * self.before - self.before @ (self.rows @ self.before)
        room = self.first if start else self.ops * (3 * held + held**2 * self.size)
        whole = torch.linalg.matrix_norm(after - stepped) + room
        part = torch.linalg.matrix_norm((after - stepped) @ self.basis) + room + self.tilt * whole
        curve = self.top.sqrt() * self.inside
        if not start:
            grown = (2 - self.least + curve) * self.outside
            self.inside = (2 - 2 * self.least + curve) * self.inside
            self.outside, self.least = grown, self.least * (2 - self.least)
        self.inside = torch.where(self.low > 0, (self.inside + part) * (1 + 1e-9), math.inf)
        self.outside = torch.where(self.low > 0, (self.outside + whole) * (1 + 1e-9), math.inf)
        self.before = after

    def carried(self, ys: Tensor, x_query: Tensor) -> Tensor:
        """|x_query·(P̂ − P)y| ≤ this: only the part of y that no w can explain meets the error outside Π."""
        labels, length = ys.double(), x_query.double().norm(dim=-1)
        whole = labels.norm(dim=-1)
        explained = (self.basis @ (self.basis.mT @ labels.unsqueeze(-1))).squeeze(-1)
        left = (labels - explained).norm(dim=-1) + self.tilt * whole
        return length * (self.inside * whole + self.outside * left)

    def answer(self, ys: Tensor, x_query: Tensor, prediction: Tensor) -> Tensor:
        """|prediction − x_query·P̂y|, with room for the rounding of this check."""
        exact = ((x_query.double().unsqueeze(-2) @ self.before).squeeze(-2) * ys.double()).sum(dim=-1)
        room = x_query.double().norm(dim=-1) * ys.double().norm(dim=-1) * torch.linalg.matrix_norm(self.before)
        return (prediction.double() - exact).abs() + self.ops * room
