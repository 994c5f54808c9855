"""Remark 4.5: x ↦ Θx with Θ in the prompt; and more generally f(Θx). One frozen head per row of Θ."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.approximation import Approximation, Grid, approximate
from emulon.attention import Head, Slots
from emulon.certify import Certificate, rounding
from emulon.certify.domain import require_shape, require_within
from emulon.certify.perturbation import shifted_average
from emulon.constructions.template import Way
from emulon.errors import EmulonError
from emulon.expression import Function

# Σ|θ_k x_k| may exceed |θ·x| by cancellation; up to this factor the certificate covers it.
CANCELLATION = 4.0
# A key that must get no weight: its score is this far below any other, and exp underflows to zero.
SILENT = 800.0


class ScalarHeads(nn.Module):
    """(x, Θ) ↦ f(x Θᵀ), entry by entry, Θ (..., width, features) given as tokens: one frozen head per row of Θ.

    Claim: within `certificate.bound` of the exact values in every entry, when |θ·x| ≤ bound (and Σ|θ_k x_k| ≤ 4·bound)
    for every row θ of Θ and every token x; both are checked.
    How (the first layer of Theorem 4.2): head j sees T = max(tokens, keys) tokens; token r holds x_r, the row θ_j times
    the grid's slope_r, a one, the value_r and the intercept_r. Query r is (x_r, 1), key r is (slope_r·θ_j, intercept_r):
    the head averages values with the weights of the scalar grid at θ_j·x.
    Cost: T tokens of width 2·features + 3 for each head.
    """

    def __init__(
        self,
        f: str | Function,
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
        name: str = "scalar heads",
    ) -> None:
        super().__init__()
        if min(tokens, features, width) < 1 or not 0 < bound < math.inf:
            raise EmulonError("tokens, features and width must be at least 1, and bound positive and finite")
        self.tokens, self.features, self.width, self.bound = tokens, features, width, float(bound)
        self.f: Approximation = approximate(
            f,
            (-bound, bound),
            tolerance=tolerance,
            points=points,
            grid=grid,
            dtype=dtype,
            beta=beta,
            rounding=self._rounding_error,
        )
        self.slots = Slots(x=features, key=features, one=1, value=1, bias=1)
        self.length = max(tokens, self.f.keys)
        # Every head has the same three matrices; what differs is the row of Θ that its tokens carry.
        self.head = Head(
            self.slots.select("key", "bias", dtype=dtype),
            self.slots.select("x", "one", dtype=dtype),
            self.slots.select("value", dtype=dtype),
            name=name,
        )
        self.certificate = self.f.certificate

    def extra_repr(self) -> str:
        return f"heads={self.width}, tokens={self.length} ({self.f.keys} keys), width={self.slots.width}, error {self.certificate}"

    def _rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        slope, intercept = float(grid.slopes.abs().max()), float(grid.intercepts.abs().max())
        # features + 1 products, and the rounding of slope·θ in the key.
        error = rounding.dot(self.features + 2, slope * CANCELLATION * self.bound + intercept, grid.dtype)
        return grid.rounding_error(deviation, size, error)

    def prompt(
        self, x: Float[Tensor, "*b n d"], theta: Float[Tensor, "*b width d"]
    ) -> Float[Tensor, "*b width length w"]:
        """One token matrix per head: affine in (x, Θ), token-wise and sequence-wise."""
        slopes, intercepts, values = padded(self.f.grid, self.length)
        lead = (*theta.shape[:-1], self.length)
        out = x.new_zeros(*lead, self.slots.width)
        out[..., : self.tokens, self.slots["x"]] = x.unsqueeze(-3)
        out[..., : self.tokens, self.slots["one"]] = 1.0
        out[..., self.slots["key"]] = slopes.unsqueeze(-1) * theta.unsqueeze(-2)
        out[..., self.slots["value"]] = values.unsqueeze(-1)
        out[..., self.slots["bias"]] = intercepts.unsqueeze(-1)
        return out

    def check(self, x: Tensor, theta: Tensor, name: str = "Θ") -> None:
        require_shape(x, "x", self.tokens, self.features)
        require_shape(theta, name, self.width, self.features)
        require_within(self.bound, **{f"{name}x": x @ theta.mT})
        require_within(CANCELLATION * self.bound, **{f"{name}|·|x": x.abs() @ theta.abs().mT})

    def forward(self, x: Float[Tensor, "... n d"], theta: Float[Tensor, "... width d"]) -> Float[Tensor, "... n width"]:
        x, theta = x.to(self.head.w_k.dtype), theta.to(self.head.w_k.dtype)
        self.check(x, theta)
        lead = torch.broadcast_shapes(x.shape[:-2], theta.shape[:-2])
        prompt = self.prompt(x.expand(*lead, *x.shape[-2:]), theta.expand(*lead, *theta.shape[-2:]))
        return self.head(prompt, prompt[..., : self.tokens, :]).squeeze(-1).mT


class LinearLayer(ScalarHeads):
    """(x, Θ) ↦ x Θᵀ with Θ in the prompt (Remark 4.5): any linear layer, its weights not in the weights."""

    def __init__(
        self,
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
        super().__init__(
            "t",
            tokens,
            features,
            width,
            bound,
            tolerance,
            points=points,
            grid=grid,
            beta=beta,
            dtype=dtype,
            name="linear layer",
        )


def padded(grid: Grid, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes, intercepts and values of `length` tokens: the grid's, then tokens that get no weight."""
    spare = length - len(grid)
    silent = grid.intercepts.min() - SILENT - grid.slopes.abs().max() * grid.range
    slopes, values = (torch.nn.functional.pad(part, (0, spare)) for part in (grid.slopes, grid.values))
    return slopes, torch.cat([grid.intercepts, silent.expand(spare)]), values


def head_certificate(
    entries: Certificate, keys: float, queries: float, bound: float, width: int, tokens: int, beta: float
) -> Certificate:
    """Terms of V'·softmax(β·K'Q'ᵀ), given how far entries of K', Q', V' are off.

    `keys` and `queries` bound the 1-norms of the rows of K and Q (at most width·bound), `bound` the entries of V.
    Claim: with every entry off by ε a score is off by δ ≤ β·ε·(keys + queries + width·ε), the output by
    ε + tanh(δ/2)·2·bound (Theorem 4.2's last step, with the sharp constant). "interpolation" is that with ε the entries'
    interpolation error alone: exact arithmetic. "rounding" is all that the dtype adds, the assembling softmax included.
    """

    def output(entry: float, score: float) -> float:
        delta = beta * entry * (keys + queries + width * entry) + score
        return entry + shifted_average(delta, 2 * (bound + entry))

    dtype = entries.dtype
    exact = output(entries.terms["interpolation"], 0.0)
    # Of one score: width products and the folded β; |k·q| ≤ min of Hölder's two bounds.
    products = beta * min(keys, queries) * bound
    score = rounding.dot(width + 1, products, dtype)
    score = rounding.softmax_weights(score, min(2 * products, 64.0), dtype)
    total = output(entries.bound, score) + rounding.average(tokens, bound + entries.bound, dtype)
    return Certificate({"interpolation": exact, "rounding": total - exact}, dtype, entries.proved)
