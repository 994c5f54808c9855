"""Theorem D.1's grid: H sharp heads of n tokens each share one range; a head that is not meant falls silent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.certify import Certificate, rounding
from emulon.certify.perturbation import shifted_average
from emulon.constructions.linear_layer import CANCELLATION
from emulon.core.errors import EmulonError


@dataclass(frozen=True)
class SharpGrid:
    """p = heads·(tokens − 2) points L_k over [lo, hi]; token j of head h stands for k = h·(n−2) − 1 + j, h = 0..H−1.

    Keys are β·(2k·w, −k(L_k + L_0)), queries (x_i, 1), values L_k, but 0 for a head's first and last token. So the
    weights are ∝ exp(−(β/ΔL)(w·x_i − L_k)²).
    Claim: |Σ_h head_h − w·x_i| ≤ ΔL/2 + 12·q·max|L| for w·x_i ∈ [lo, hi], q = e^{−βΔL} ≤ 1/10.
    Proof. A point m steps farther than the nearest has its weight multiplied by at most q^{m²}. A head with both points
    around w·x_i in its interior gives them all but 2.2q; their average is off by at most ΔL/2, since the nearer one has
    the larger weight. In the cell where two heads meet each holds one of the two points, the other as its zero end: the
    sum is the same average, up to 4.4q. A head that lies elsewhere puts all but 1.1q on its zero end, and the next ones
    q^{2(n−2)} times less again. QED
    Corrected: t in the proof is never introduced (t = 0); ΔL is (hi − lo)/(p − 1), so that hi is an interior point of
    the last head: as printed L_p = hi has value zero, and the output falls off towards it. The offset enters the keys
    once: the proof of Theorem 4.1 applies it in A_h as well as in W_K.
    """

    tokens: int
    heads: int
    lo: float
    hi: float

    def __post_init__(self) -> None:
        if self.tokens < 3 or self.heads < 1 or self.points < 2:
            raise EmulonError(
                f"a head has tokens − 2 grid points and two are needed in all, got {self.tokens} tokens and "
                f"{self.heads} heads; give more of either"
            )

    @classmethod
    def within(cls, tolerance: float, tokens: int, lo: float, hi: float) -> SharpGrid:
        """H = ⌈(hi − lo)/((n − 2)·tolerance)⌉ up to a constant: first order, as the theorem says."""
        return cls(tokens, max(2, math.ceil((0.6 * (hi - lo) / tolerance + 1) / max(tokens - 2, 1))), lo, hi)

    @property
    def points(self) -> int:
        return self.heads * (self.tokens - 2)

    @property
    def spacing(self) -> float:
        return (self.hi - self.lo) / (self.points - 1)

    @property
    def q(self) -> float:
        """e^{−βΔL}: a hundredth of a spacing is left to it. As ΔL ≤ hi − lo ≤ 2·max|L|, it is at most 1/600."""
        return 0.01 * self.spacing / (12 * max(abs(self.lo), abs(self.hi)))

    @property
    def beta(self) -> float:
        return -math.log(self.q) / self.spacing

    @property
    def offsets(self) -> Tensor:
        """The grid index k of each head's first token."""
        return torch.arange(self.heads, dtype=torch.float64, device="cpu") * (self.tokens - 2) - 1

    @property
    def levels(self) -> Tensor:
        """L_k for every head and token."""
        return self.lo + self._index * self.spacing

    @property
    def values(self) -> Tensor:
        """The levels, with zero ends."""
        inside = torch.ones(self.tokens, dtype=torch.float64, device="cpu")
        inside[0] = inside[-1] = 0.0
        return self.levels * inside

    @property
    def intercepts(self) -> Tensor:
        """−β·ℓ_k, ℓ_k = k(L_k + L_0)."""
        return -self.beta * self._index * (self.levels + self.lo)

    @property
    def _index(self) -> Tensor:
        return self.offsets.unsqueeze(-1) + torch.arange(self.tokens, dtype=torch.float64, device="cpu")

    def certificate(self, features: int, dtype: torch.dtype) -> Certificate:
        """Of the sum of all heads, on rows and tokens with `features` entries."""
        largest = float(self.levels.abs().max())
        # Scores are β·k·(2w·x − L_k − L_0): large sums that cancel. Keys add offset·w and j·w, |offset| + j ≤ p + 2.
        # Four of the roundings are for products a little outside [lo, hi], which are let pass.
        magnitude = self.beta * (self.points + 2) * (2 * CANCELLATION * largest + 2 * largest)
        delta = rounding.softmax_weights(rounding.dot(features + 12, magnitude, dtype), 64.0, dtype)
        each = shifted_average(delta, 2 * largest) + rounding.average(self.tokens + 1, largest, dtype)
        terms = {
            "interpolation": self.spacing / 2,
            "sharpness": 12 * self.q * largest,
            "rounding": self.heads * each + 2 * rounding.gamma(self.heads, dtype) * largest,
        }
        return Certificate(terms, dtype)
