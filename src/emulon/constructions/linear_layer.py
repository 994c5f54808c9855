"""Remark 4.5: x ↦ Θx with Θ in the prompt; and more generally f(Θx). One frozen head per row of Θ."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Head, Slots
from emulon.certify import rounding
from emulon.certify.certificate import CertifiedModule
from emulon.certify.domain import require_scale, require_within
from emulon.constructions.accuracy import Accuracy, Inputs, Rows, Way, aligned, checked_to, promised
from emulon.core.errors import EmulonError
from emulon.expressions import parse
from emulon.softmax import Grid

# Σ|θ_k x_k| may exceed |θ·x| by cancellation; up to this factor the certificate covers it.
CANCELLATION = 4.0
# A key that must get no weight: its score is this far below any other, and exp underflows to zero.
SILENT = 800.0


class ScalarHeads(CertifiedModule):
    """(x, Θ) ↦ f(x Θᵀ), entry by entry, Θ (..., width, features) given as tokens: one frozen head per row of Θ.

    Claim: within `certificate.bound` of the exact values in every entry, when |θ·x| ≤ bound (and Σ|θ_k x_k| ≤ 4·bound)
    for every row θ of Θ and every token x, as the dtype stores them; both are checked.
    How (the first layer of Theorem 4.2): head j sees T = max(tokens, keys) tokens; token r holds x_r, the row θ_j times
    the grid's slope_r, a one, the value_r and the intercept_r. Query r is (x_r, 1), key r is (slope_r·θ_j,
    intercept_r): the head averages values with the weights of the scalar grid at θ_j·x.
    Cost: T tokens of width 2·features + 3 for each head.

    Args:
        f: The function, an expression in t.
        tokens: Number of tokens of x.
        features: Features of a token.
        width: Rows of Θ.
        bound: Bound on |θ·x| for every row and token.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        beta: Sharpness of the grid; None chooses it.
        dtype: Of everything.

    Example:
        >>> ScalarHeads("tanh(t)", 16, 4, 8, 3.0, 1e-6)(x, theta)
    """

    slopes: Tensor
    intercepts: Tensor
    values: Tensor
    name = "scalar heads"
    # What refusals call the rows.
    symbol = "Θ"

    def __init__(
        self,
        f: str,
        tokens: int,
        features: int,
        width: int,
        bound: float,
        tolerance: float | None = None,
        *,
        points: int | None = None,
        grid: Way = "auto",
        beta: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        require_sizes(tokens, features, width, bound)
        self.tokens, self.features, self.width = tokens, features, width
        self.bound = with_room(bound, features, dtype)
        reach = self.bound + checked_to(features, CANCELLATION * self.bound)
        self.f = promised(
            lambda asked: asked.approximate(parse(f), reach, self._rounding_error, beta),
            Accuracy(tolerance, points, grid, dtype),
            f"{f} on entries up to {bound:g}",
        )
        self.slots = Slots(x=features, key=features, one=1, value=1, bias=1)
        self.length = max(tokens, self.f.keys)
        for name, part in zip(("slopes", "intercepts", "values"), padded(self.f.grid, self.length), strict=True):
            self.register_buffer(name, part)
        # Every head has the same three matrices; what differs is the row of Θ that its tokens carry.
        self.head = Head(
            self.slots.select("key", "bias", dtype=dtype),
            self.slots.select("x", "one", dtype=dtype),
            self.slots.select("value", dtype=dtype),
            name=self.name,
        )
        self.certificate = self.f.certificate

    def extra_repr(self) -> str:
        size = f"tokens={self.length} ({self.f.keys} keys), width={self.slots.width}"
        return f"heads={self.width}, {size}, error {self.certificate}"

    def _rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        slope, intercept = grid.steepest, grid.highest
        # features + 1 products, and the rounding of slope·θ in the key.
        error = rounding.dot(self.features + 2, slope * CANCELLATION * self.bound + intercept, grid.dtype)
        return grid.rounding_error(deviation, size, error)

    def prompt(
        self, x: Float[Tensor, "*b n d"], theta: Float[Tensor, "*b width d"]
    ) -> Float[Tensor, "*b width length w"]:
        """One token matrix per head: affine in (x, Θ), token-wise and sequence-wise."""
        out = x.new_zeros(*theta.shape[:-1], self.length, self.slots.width)
        out[..., : self.tokens, self.slots["x"]] = x.unsqueeze(-3)
        out[..., : self.tokens, self.slots["one"]] = 1.0
        out[..., self.slots["key"]] = self.slopes.unsqueeze(-1) * theta.unsqueeze(-2)
        out[..., self.slots["value"]] = self.values.unsqueeze(-1)
        out[..., self.slots["bias"]] = self.intercepts.unsqueeze(-1)
        return out

    def forward(self, x: Inputs, theta: Rows) -> Float[Tensor, "... n width"]:
        sizes = {"x": (x, (self.tokens, self.features)), self.symbol: (theta, (self.width, self.features))}
        x, theta = aligned(self.slopes.dtype, **sizes)
        require_products(self.bound, x, **{self.symbol: theta})
        prompt = self.prompt(x, theta)
        out: Tensor = self.head(prompt, prompt[..., : self.tokens, :])
        return out.squeeze(-1).mT


class LinearLayer(ScalarHeads):
    """(x, Θ) ↦ x Θᵀ with Θ in the prompt (Remark 4.5): any linear layer, its weights not in the weights.

    Args:
        tokens: Number of tokens of x.
        features: Features of a token.
        width: Rows of Θ.
        bound: Bound on |θ·x| for every row and token.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        **options: `points`, `grid`, `beta` and `dtype` of `ScalarHeads`.

    Example:
        >>> LinearLayer(16, 4, 8, 3.0, 1e-6)(x, theta)
    """

    name = "linear layer"

    def __init__(
        self, tokens: int, features: int, width: int, bound: float, tolerance: float | None = None, **options: Any
    ) -> None:
        super().__init__("t", tokens, features, width, bound, tolerance, **options)


def with_room(bound: float, features: int, dtype: torch.dtype) -> float:
    """A bound on products, a little wider: at its very edge they may be rounded outwards when cast or checked."""
    last = 4 * rounding.unit(dtype) * CANCELLATION * bound
    return bound + last + checked_to(features, CANCELLATION * bound)


def require_sizes(tokens: int, features: int, width: int, bound: float) -> None:
    if min(tokens, features, width) < 1 or not 0 < bound < math.inf:
        raise EmulonError("tokens, features and width must be at least 1, and bound positive and finite")
    require_scale(products=bound)


def require_products(bound: float, x: Float[Tensor, "*b n d"], **rows: Float[Tensor, "*b width d"]) -> None:
    """Refuse rows with |row·x| above the bound, or with more cancellation than the certificate covers."""
    for name, theta in rows.items():
        exact_x, exact_theta = x.double(), theta.double()
        require_within(bound, **{f"{name} x": exact_x @ exact_theta.mT})
        require_within(CANCELLATION * bound, **{f"{name}|·|x": exact_x.abs() @ exact_theta.abs().mT})


def padded(grid: Grid, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes, intercepts and values of `length` tokens: the grid's, then tokens that get no weight."""
    spare = length - len(grid)
    silent = grid.intercepts.min() - SILENT - grid.slopes.abs().max() * grid.range
    slopes, values = (torch.nn.functional.pad(part, (0, spare)) for part in (grid.slopes, grid.values))
    return slopes, torch.cat([grid.intercepts, silent.expand(spare)]), values
