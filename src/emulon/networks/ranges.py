"""Of a register: an interval for every feature, and how far its computed numbers may be from the exact ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

# Bounds are computed in float64, with sums of a few thousand terms: this factor outweighs their rounding.
LIFT = 1 + 1e-9


@dataclass(frozen=True)
class Box:
    """lo ≤ number ≤ hi, feature by feature.

    Attributes:
        lo: Lower ends (features,).
        hi: Upper ends (features,).

    Example:
        >>> compile_network(module, Box(torch.zeros(3).double(), torch.ones(3).double()))
    """

    lo: Float64[Tensor, " features"]
    hi: Float64[Tensor, " features"]

    @property
    def most(self) -> Float64[Tensor, " features"]:
        """The largest magnitude of every feature."""
        return torch.maximum(self.lo.abs(), self.hi.abs())

    @property
    def size(self) -> float:
        """The largest magnitude of all."""
        return self.most.max().item() if len(self.lo) else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """One interval for all features."""
        return self.lo.min().item(), self.hi.max().item()

    def is_inside(self, other: Box) -> bool:
        return bool((self.lo >= other.lo).all() and (self.hi <= other.hi).all())

    @staticmethod
    def beside(boxes: Sequence[Box]) -> Box:
        empty = torch.zeros(0, dtype=torch.float64, device="cpu")
        return Box(torch.cat([empty, *(box.lo for box in boxes)]), torch.cat([empty, *(box.hi for box in boxes)]))

    def split(self, size: int) -> tuple[Box, Box]:
        """The first features, so many, and the others."""
        return Box(self.lo[:size], self.hi[:size]), Box(self.lo[size:], self.hi[size:])

    def widened(self, by: float) -> Box:
        """By this part of the width, to both sides."""
        more = by * (self.hi - self.lo) + by * 1e-3 * self.most
        return Box(self.lo - more, self.hi + more)

    def scaled_up(self, by: float) -> Box:
        """By this part of the numbers themselves, which are positive and stay so."""
        return Box(self.lo / (1 + by), self.hi * (1 + by))


@dataclass(frozen=True)
class AttentionRanges:
    """The largest |q|, |k|, |v| and |q·k| of all heads."""

    q: float
    k: float
    v: float
    score: float


@dataclass(frozen=True)
class ValueRanges:
    """Ranges of what a layer reads and writes; of an attention's numbers inside, and of the parts of a composite."""

    inputs: Box
    output: Box
    attention: AttentionRanges | None = None
    parts: tuple[ValueRanges, ...] = ()


@dataclass(frozen=True)
class ErrorBound:
    """Of one register, in several cases (rows): of every number, and of a position's error vector in the 2-norm."""

    each: Float64[Tensor, "cases features"]
    length: Float64[Tensor, " cases"]

    @classmethod
    def of(cls, each: Tensor, length: Tensor | None = None) -> ErrorBound:
        """Both as small as the other lets them be; NaN is no bound."""
        each = each.nan_to_num(nan=math.inf, posinf=math.inf)
        whole = each.norm(dim=-1) * LIFT
        length = whole if length is None else torch.minimum(length.nan_to_num(nan=math.inf, posinf=math.inf), whole)
        return cls(torch.minimum(each, length.unsqueeze(-1)), length)

    def where(self, cases: Bool[Tensor, " cases"], otherwise: float = math.inf) -> ErrorBound:
        """This bound in some cases; no bound (or zero) in the others."""
        each = torch.where(cases.unsqueeze(-1), self.each, otherwise)
        return ErrorBound(each, torch.where(cases, self.length, otherwise))

    def least(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.of(torch.minimum(self.each, other.each), torch.minimum(self.length, other.length))

    def plus(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.of((self.each + other.each) * LIFT, (self.length + other.length) * LIFT)
