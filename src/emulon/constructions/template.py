"""The layout that Theorem 3.1 and its corollaries share: n samples × K grid points as tokens, n queries, one head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.approximation import Approximation, Grid, approximate
from emulon.attention import Slots
from emulon.certify import Domain, rounding
from emulon.constructions.codes import Codes, circular, one_hot
from emulon.errors import ToleranceTooTight
from emulon.expression import Function

Way = Literal["auto", "paper", "spectral", "piecewise"]
# Of a tolerance, what may leak to other samples' tokens; the rest is for interpolation and rounding.
LEAK_SHARE = 0.02


@dataclass(frozen=True)
class Template:
    """A grid for f on the domain's residuals, the codes that route, and how strongly they do.

    Token (i, j) is key (slope_j·x_i, slope_j·y_i, value_j·x_i, intercept_j, C·code_i); query c is (w, −1, 0, 1, code_c).
    Their product is score_j(w·x_i − y_i) + C·code_i·code_c: the grid's score, raised for one's own sample.
    `strength` is C; `leak` bounds the total weight of all other samples' tokens.
    """

    f: Approximation
    domain: Domain
    codes: Codes
    strength: float
    leak: float
    slots: Slots

    @property
    def grid(self) -> Grid:
        return self.f.grid

    def keys(self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"]) -> dict[str, Tensor]:
        """The key half of every token, (..., samples·keys, ·) by slot name."""
        grid = self.grid
        slopes, values, intercepts = (part.unsqueeze(-1) for part in (grid.slopes, grid.values, grid.intercepts))
        parts = {
            "key_x": slopes * x.unsqueeze(-2),
            "key_y": slopes * y[..., None, None],
            "value": values * x.unsqueeze(-2),
            "key_bias": intercepts.expand(*y.shape, len(grid), 1),
            "key_code": (self.strength * self.codes.vectors).unsqueeze(-2).expand(*x.shape[:-1], len(grid), -1),
        }
        return {name: part.flatten(-3, -2) for name, part in parts.items()}

    def queries(self, w: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """The query half of the first n tokens, (..., samples, ·) by slot name."""
        n = self.domain.samples
        ones = w.new_ones(*w.shape[:-1], n, 1)
        return {
            "query_x": w.unsqueeze(-2).expand(*w.shape[:-1], n, w.shape[-1]),
            "query_y": -ones,
            "query_bias": ones,
            "query_code": self.codes.vectors.expand(*w.shape[:-1], n, -1),
        }

    def tokens(self, x: Tensor, y: Tensor, w: Tensor, **more: Tensor) -> Tensor:
        """The whole prompt (..., samples·keys, width): the key half everywhere, the query half in the first n tokens."""
        x, y, w = _together(x, y, w)
        keys, queries = self.keys(x, y), self.queries(w)
        prompt = self.slots.pack(**keys, **more)
        for name, part in queries.items():
            prompt[..., : self.domain.samples, self.slots[name]] = part
        return prompt


def _together(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One batch shape for all three."""
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-1], w.shape[:-1])
    return x.expand(*lead, *x.shape[-2:]), y.expand(*lead, y.shape[-1]), w.expand(*lead, w.shape[-1])


def template(
    f: Function,
    domain: Domain,
    tolerance: float | None,
    points: int | None,
    grid: Way,
    dtype: torch.dtype,
    scale: float,
    extra: int = 0,
) -> Template:
    """A template whose outputs scale·F(residual)·x are within the tolerance, the leak included.

    `scale` is what multiplies F·x afterwards; `extra` the width of further slots a construction reads from each token.
    """
    codes = one_hot(domain.samples, dtype) if grid == "paper" else circular(domain.samples, dtype)
    entry = max(domain.x * scale, 1e-300)
    share = None if tolerance is None else tolerance / entry
    routing = _Routing(domain, codes, grid, 0.1 * torch.finfo(dtype).eps if share is None else LEAK_SHARE * share)
    try:
        approximation = approximate(
            f,
            (-domain.residual, domain.residual),
            tolerance=None if share is None else (1 - LEAK_SHARE) * share,
            points=points,
            grid=grid,
            dtype=dtype,
            rounding=routing.rounding_error,
        )
    except ToleranceTooTight as error:
        assert tolerance is not None
        smallest = error.smallest * entry / (1 - LEAK_SHARE)
        raise ToleranceTooTight(
            f"{f.text} on residuals up to {domain.residual:.4g}", tolerance, smallest, error.advice
        ) from None
    chosen = approximation.grid
    strength = routing.strength(chosen)
    halves = {"x": domain.features, "y": 1, "bias": 1, "code": codes.width}
    slots = Slots(
        **{f"key_{name}": size for name, size in halves.items()},
        value=domain.features,
        **({"state": extra} if extra else {}),
        **{f"query_{name}": size for name, size in halves.items()},
    )
    return Template(approximation, domain, codes, strength, routing.leak(chosen), slots)


@dataclass(frozen=True)
class _Routing:
    """How strongly codes must count, and what that costs in rounding, for any grid."""

    domain: Domain
    codes: Codes
    way: Way
    allowed: float

    def _advantage(self, grid: Grid) -> float:
        """How much, in log weight, another sample's tokens can be ahead before routing.

        For the paper's grid its own M = 2·L*·(2dB² + 2B), corrected and with β folded in: max|slope|·2·residual. Ours is
        the range of the log-normaliser, which is far smaller.
        """
        if self.way == "paper":
            return float(grid.slopes.abs().max()) * 2 * self.domain.residual
        return grid.log_normaliser_range

    def leak(self, grid: Grid) -> float:
        """ε₀: leaking that much of the largest value, twice, stays within what is allowed and below a rounding."""
        largest = 2 * max(float(grid.values.abs().max()), 1e-300)
        return min(self.allowed / largest, rounding.unit(grid.dtype) / 2)

    def strength(self, grid: Grid) -> float:
        """C·gap ≥ M + ln((n − 1)/ε₀): then all other samples together weigh at most ε₀."""
        others = max(self.domain.samples - 1, 1)
        # The 0.1 outweighs the rounding of codes and scores many times over.
        return (self._advantage(grid) + math.log(others / self.leak(grid)) + 0.1) / self.codes.gap

    def score_error(self, grid: Grid) -> float:
        """Rounding of one score: a sum of d + 2 + width products, keys rounded once themselves."""
        slope, intercept = float(grid.slopes.abs().max()), float(grid.intercepts.abs().max())
        magnitude = slope * self.domain.absolute + intercept + self.strength(grid) * 1.001
        return rounding.dot(self.domain.features + 3 + self.codes.width, magnitude, grid.dtype)

    def rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        return grid.rounding_error(deviation, size, self.score_error(grid))
