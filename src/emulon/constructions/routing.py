"""How strongly a query must ask for its own sample, and what that costs in rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulon.approximation import Grid
from emulon.certify import Domain, rounding
from emulon.constructions.codes import Codes


@dataclass(frozen=True)
class Routing:
    """The routing constant C of Theorem 3.1, for any grid: `allowed` is how much of F may leak to other samples."""

    domain: Domain
    codes: Codes
    paper: bool
    allowed: float

    def advantage(self, grid: Grid) -> float:
        """How much, in log weight, another sample's tokens can be ahead before routing.

        For the paper's grid its own M = 2·L*·(2dB² + 2B), corrected and with β folded in: max|slope|·2·residual. Ours
        is the range of the log-normaliser, which is far smaller.
        """
        return float(grid.slopes.abs().max()) * 2 * grid.range if self.paper else grid.log_normaliser_range

    def leak(self, grid: Grid) -> float:
        """ε₀: leaking that much of the largest value, twice, stays within what is allowed and below a rounding."""
        largest = 2 * max(float(grid.values.abs().max()), 1e-300)
        return min(self.allowed / largest, rounding.unit(grid.dtype) / 2)

    def strength(self, grid: Grid) -> float:
        """C·gap ≥ M + ln((n − 1)/ε₀): then all other samples together weigh at most ε₀."""
        others = max(self.domain.samples - 1, 1)
        # The 0.1 outweighs the rounding of codes and scores many times over.
        return (self.advantage(grid) + math.log(others / self.leak(grid)) + 0.1) / self.codes.gap

    def score_error(self, grid: Grid) -> float:
        """Rounding of one score: a sum of d + 2 + width products, keys rounded once themselves."""
        slope, intercept = float(grid.slopes.abs().max()), float(grid.intercepts.abs().max())
        magnitude = slope * self.domain.absolute + intercept + self.strength(grid) * 1.001
        return rounding.dot(self.domain.features + 3 + self.codes.width, magnitude, grid.dtype)

    def rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        return grid.rounding_error(deviation, size, self.score_error(grid))
