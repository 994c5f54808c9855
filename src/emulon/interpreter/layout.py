"""The tokens of Theorem 3.1 and its corollaries (Hu et al. 2025): n samples × K grid points, and n of them ask.

Token (i, j) is the key (slope_j·x_i, slope_j·y_i, intercept_j, C·code_i) with value_j·x_i beside it; query c is
(w, −1, 1, code_c). Their product is score_j(w·x_i − y_i) + C·code_i·code_c: the grid's score, raised for one's own
sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Slots
from emulon.attention.codes import Codes
from emulon.certify import Domain, rounding
from emulon.softmax import Grid

HALF = ("x", "y", "bias", "code")
# Of what f may err, the part that may leak to other samples' tokens; the rest is for interpolation and rounding.
LEAK_SHARE = 0.02
# What the codes' strength has to spare, in log weight: it outweighs the rounding of codes and scores many times over.
SPARE = 0.1


@dataclass(frozen=True)
class Scales:
    """What key rows are multiplied by, and query rows divided by: powers of two, so that nothing is rounded."""

    x: float = 1.0
    y: float = 1.0
    bias: float = 1.0

    @classmethod
    def balancing(cls, grid: Grid, domain: Domain) -> Scales:
        """Both factors of every product about equally large."""
        slope, bias = grid.steepest, grid.highest
        return cls(
            balancing_power(domain.w, slope * domain.x),
            balancing_power(1.0, slope * domain.y),
            balancing_power(1.0, bias),
        )


def balancing_power(query: float, key: float) -> float:
    """The power of two nearest to √(query/key): then key·p and query/p are about equal."""
    return 2.0 ** round(math.log2(query / key) / 2) if query > 0 and key > 0 else 1.0


@dataclass(frozen=True)
class TokenLayout:
    """The token matrix of Theorem 3.1 for a grid and a domain.

    Attributes:
        grid: Softmax for the scalar function on the domain's residuals.
        domain: Bounds on data and weights.
        codes: A code for every sample, by which a query asks its own sample's tokens.
        strength: The routing constant C.
        carried: Names of further rows of d numbers in every token: "fixed" is the data's, others are states.
        balanced: Whether every factor, C among them, is shared between key and query, as suits a module that is best
            at small numbers.
    """

    grid: Grid
    domain: Domain
    codes: Codes
    strength: float
    carried: tuple[str, ...] = ()
    balanced: bool = False

    @cached_property
    def scales(self) -> Scales:
        return Scales.balancing(self.grid, self.domain) if self.balanced else Scales()

    @cached_property
    def code_factors(self) -> tuple[float, float]:
        """What multiplies the codes of keys, and of queries."""
        root = math.sqrt(self.strength)
        return (root, root) if self.balanced else (self.strength, 1.0)

    @cached_property
    def slots(self) -> Slots:
        d = self.domain.features
        half = {"x": d, "y": 1, "bias": 1, "code": self.codes.width}
        return Slots(
            **{f"key_{name}": half[name] for name in HALF},
            value=d,
            **dict.fromkeys(self.carried, d),
            **{f"query_{name}": half[name] for name in HALF},
        )

    @property
    def tokens(self) -> int:
        return self.domain.samples * len(self.grid)

    def selectors(
        self, device: torch.device | str = "cpu"
    ) -> tuple[Float[Tensor, "half width"], Float[Tensor, "half width"]]:
        """W_K and W_Q: they select the key half, and the query half."""
        key, query = (
            self.slots.select(*(f"{side}_{name}" for name in HALF), dtype=self.grid.dtype, device=device)
            for side in ("key", "query")
        )
        return key, query

    def data_rows(
        self,
        x: Float[Tensor, "*batch n d"],
        y: Float[Tensor, "*batch n"],
        fixed: Float[Tensor, "*batch n d"] | None = None,
    ) -> dict[str, Tensor]:
        """The rows that the data decide, (..., samples, keys, ·): they do not change from step to step."""
        grid, scales = self.grid, self.scales
        slopes, values, intercepts = (part.to(x.device) for part in (grid.slopes, grid.values, grid.intercepts))
        slopes, values = slopes[:, None], values[:, None]
        spread = (*x.shape[:-1], len(grid))
        code = (self.code_factors[0] * self.codes.vectors.to(x.device)).unsqueeze(-2)
        rows = {
            "key_x": slopes * (scales.x * x).unsqueeze(-2),
            "key_y": slopes * (scales.y * y)[..., None, None],
            "key_bias": (scales.bias * intercepts)[:, None].expand(*spread, 1),
            "key_code": code.expand(*spread, self.codes.width),
            "value": values * x.unsqueeze(-2),
        }
        if "fixed" in self.carried:
            part = torch.zeros_like(x) if fixed is None else fixed
            rows["fixed"] = part.unsqueeze(-2).expand(*spread, x.shape[-1])
        return rows

    def query_rows(self, w: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """The query half of the first n tokens, (..., samples, ·)."""
        scales, spread = self.scales, (*w.shape[:-1], self.domain.samples)
        ones = w.new_ones(*spread, 1)
        code = self.code_factors[1] * self.codes.vectors.to(w.device)
        return {
            "query_x": (w / scales.x).unsqueeze(-2).expand(*spread, w.shape[-1]),
            "query_y": -ones / scales.y,
            "query_bias": ones / scales.bias,
            "query_code": code.expand(*spread, -1),
        }

    def prompt(
        self, rows: dict[str, Tensor], w: Float[Tensor, "*batch d"], **states: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch tokens width"]:
        """The token matrix: the data's rows and the states in every token, the query half in the first n."""
        flat = {name: part.flatten(-3, -2) for name, part in rows.items()}
        wide = (*flat["value"].shape[:-1], w.shape[-1])
        tokens = self.slots.pack(**flat, **{name: part.unsqueeze(-2).expand(wide) for name, part in states.items()})
        for name, part in self.query_rows(w).items():
            tokens[..., : self.domain.samples, self.slots[name]] = part
        return tokens


@dataclass(frozen=True)
class Routing:
    """How strongly a query must ask for its own sample: the constant C of Theorem 3.1, for any grid.

    `allowed` is how much of F may leak to other samples.
    """

    domain: Domain
    codes: Codes
    paper: bool
    allowed: float

    def advantage(self, grid: Grid) -> float:
        """How much, in log weight, another sample's tokens can be ahead before routing.

        For the paper's grid its own M = 2·L*·(2dB² + 2B), corrected and with β folded in: max|slope|·2·residual. Ours
        is the range of the log-normaliser, which is far smaller.
        """
        return grid.steepest * 2 * grid.range if self.paper else grid.log_normaliser_range

    def leak(self, grid: Grid) -> float:
        """ε₀: leaking that much of the largest value, twice, stays within what is allowed and below a rounding."""
        largest = 2 * max(grid.largest, 1e-300)
        return max(min(self.allowed / largest, rounding.unit(grid.dtype) / 2), 1e-300)

    def strength(self, grid: Grid) -> float:
        """C·gap ≥ M + ln((n − 1)/ε₀): then all other samples together weigh at most ε₀."""
        others = max(self.domain.samples - 1, 1)
        return (self.advantage(grid) + math.log(others / self.leak(grid)) + SPARE) / self.codes.gap

    def score_error(self, grid: Grid) -> float:
        """Rounding of one score: a sum of d + 2 + width products, keys rounded once themselves."""
        slope, intercept = grid.steepest, grid.highest
        magnitude = slope * self.domain.absolute + intercept + self.strength(grid) * 1.001
        return rounding.dot(self.domain.features + 3 + self.codes.width, magnitude, grid.dtype)

    def rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        return grid.rounding_error(deviation, size, self.score_error(grid))


def stored(domain: Domain, dtype: torch.dtype) -> Domain:
    """The domain of its data once a dtype holds them: what lies on an edge may be rounded over it.

    float64 takes data as they come. Rounding of the checks needs no slack here: `checks.require_in_domain` is exact.
    """
    if dtype == torch.float64:
        return domain
    last = 4 * rounding.unit(dtype)
    edges = {name: getattr(domain, name) * (1 + last) for name in ("x", "y", "w")}
    # A residual moves with the sum of what it is made of, not with itself; what only follows is left to follow again.
    residual, absolute = (
        bound + last * domain.absolute if bound < domain.widest else 0.0 for bound in (domain.residual, domain.absolute)
    )
    return replace(
        domain, **edges, residual=residual, absolute=absolute, spectrum=domain.spectrum.widened(1 + 2 * last)
    )
