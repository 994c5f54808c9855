"""Theorem D.1: a truncated linear function of every token, its coefficients in the prompt."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Head, Slots
from emulon.certify import Certificate, rounding
from emulon.certify.domain import require_shape, require_within
from emulon.certify.perturbation import shifted_average
from emulon.constructions.linear_layer import CANCELLATION, ScalarHeads
from emulon.constructions.template import Way
from emulon.errors import EmulonError


class TruncatedLinear(nn.Module):
    """(x, w) ↦ [clip(w·x_i, lo, hi)]_i, for |w·x_i| ≤ reach.

    The default is one head on the piecewise grid of the clipping function, the prompt padded to as many tokens as it
    has keys. With grid="paper" it is the paper's construction: the prompt keeps its n tokens, so each head has only
    n − 2 grid points, and H heads share the range; a head whose interval does not contain w·x_i is silenced by its two
    end values, which are zero. That needs the sharp regime, and covers [lo, hi] alone: outside it every head falls
    silent and the sum is 0, not lo or hi as Definition D.1 says. So there `reach` is max(|lo|, |hi|) and data must lie
    in [lo, hi].
    """

    def __init__(
        self,
        tokens: int,
        features: int,
        lo: float,
        hi: float,
        tolerance: float | None = None,
        *,
        reach: float | None = None,
        points: int | None = None,
        heads: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if not -math.inf < lo < hi < math.inf:
            raise EmulonError(f"the range ({lo}, {hi}) is empty or not finite; give lo < hi")
        self.lo, self.hi = float(lo), float(hi)
        self.paper = grid == "paper"
        if self.paper:
            if heads is None:
                if tolerance is None:
                    raise EmulonError("the paper's construction needs heads=… or a tolerance")
                heads = paper_heads_needed(tokens, lo, hi, tolerance)
            self.inner: nn.Module = PaperTruncatedLinear(tokens, features, lo, hi, heads, dtype)
        else:
            reach = max(abs(lo), abs(hi)) * 1.5 if reach is None else float(reach)
            f = f"Max({float(lo)!r}, Min({float(hi)!r}, t))"
            self.inner = ScalarHeads(f, tokens, features, 1, reach, tolerance, points=points, grid=grid, dtype=dtype)
        self.certificate: Certificate = self.inner.certificate  # type: ignore[assignment]

    def forward(self, x: Float[Tensor, "... n d"], w: Float[Tensor, "... d"]) -> Float[Tensor, "... n"]:
        require_shape(w, "w", x.shape[-1])
        return self.inner(x, w) if self.paper else self.inner(x, w.unsqueeze(-2)).squeeze(-1)


class PaperTruncatedLinear(nn.Module):
    """The H heads of Theorem D.1 on the prompt (x_j, j·w, w, e_j), j = 0..n−1.

    Head h's token j stands for grid point k = h·(n−2) − 1 + j (h = 0..H−1), with key β·(2k·w, −k(L_k + L_0)) and value
    L_k, but 0 for its first and last token; query i is (x_i, 1). So its weights are ∝ exp(−(β/ΔL)(w·x_i − L_k)²).
    Claim: |output − w·x_i| ≤ ΔL/2 + 12·q·max|L| for w·x_i ∈ [lo, hi], q = e^{−βΔL} ≤ 1/10.
    Proof. A point m steps farther than the nearest has its weight multiplied by at most q^{m²}. A head with both points
    around w·x_i in its interior gives them all but 2.2q; their average is off by at most ΔL/2, since the nearer one has
    the larger weight. In the cell where two heads meet each holds one of the two points, the other as its zero end: the
    sum is the same average, up to 4.4q. A head that lies elsewhere puts all but 1.1q on its zero end, and the next ones
    q^{2(n−2)} times less again. QED
    Corrected: t in the proof is never introduced (t = 0); ΔL is (hi − lo)/(p − 1), so that hi is an interior point of
    the last head: as printed L_p = hi has value zero, and the output falls off towards it.
    """

    def __init__(self, tokens: int, features: int, lo: float, hi: float, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        if tokens < 3:
            raise EmulonError(f"a head has tokens − 2 grid points, so at least 3 tokens are needed, got {tokens}")
        self.tokens, self.features, self.lo, self.hi = tokens, features, float(lo), float(hi)
        self.slots = Slots(x=features, indexed=features, w=features, position=tokens)
        self.spacing, self.beta = paper_scale(tokens, heads, lo, hi)
        offsets = paper_offsets(tokens, heads)
        levels, biases, values = paper_levels(offsets, tokens, lo, self.spacing, dtype)
        select = {name: self.slots.select(name, dtype=dtype) for name in self.slots}
        w_k = [
            torch.cat(
                [2 * self.beta * (select["indexed"] + offset * select["w"]), -self.beta * bias @ select["position"]]
            )
            for offset, bias in zip(offsets, biases, strict=True)
        ]
        w_q = torch.cat([select["x"], select["position"].sum(dim=0, keepdim=True)])
        self.head = Head(
            torch.stack(w_k), w_q.expand(heads, *w_q.shape), values @ select["position"], name="truncated linear"
        )
        self.certificate = paper_certificate(levels, self.spacing, self.beta, tokens, features, dtype)

    def prompt(self, x: Tensor, w: Tensor) -> Float[Tensor, "... n width"]:
        index = torch.arange(self.tokens, dtype=x.dtype, device=x.device).unsqueeze(-1)
        w = w.unsqueeze(-2)
        return self.slots.pack(
            x=x, indexed=index * w, w=w, position=torch.eye(self.tokens, dtype=x.dtype, device=x.device)
        )

    def forward(self, x: Float[Tensor, "... n d"], w: Float[Tensor, "... d"]) -> Float[Tensor, "... n"]:
        x, w = x.to(self.head.w_k.dtype), w.to(self.head.w_k.dtype)
        require_shape(x, "x", self.tokens, self.features)
        middle, half = (self.lo + self.hi) / 2, (self.hi - self.lo) / 2
        require_within(half, **{"w·x − (lo + hi)/2": (x @ w.unsqueeze(-1)).squeeze(-1) - middle})
        require_within(CANCELLATION * max(abs(self.lo), abs(self.hi)), **{"w|·|x": x.abs() @ w.abs().unsqueeze(-1)})
        return self.head(self.prompt(x, w).unsqueeze(-3)).squeeze(-1)


def paper_scale(tokens: int, heads: int, lo: float, hi: float) -> tuple[float, float]:
    """(ΔL, β): p = heads·(tokens − 2) points over [lo, hi], and q = e^{−βΔL} a hundredth of the spacing's share."""
    points = heads * (tokens - 2)
    spacing = (hi - lo) / max(points - 1, 1)
    q = min(0.05, 0.01 * spacing / (12 * max(abs(lo), abs(hi))))
    return spacing, -math.log(q) / spacing


def paper_offsets(tokens: int, heads: int) -> list[int]:
    """The grid index of each head's first token. It enters the keys once: the proof of Theorem 4.1 applies it twice."""
    return [h * (tokens - 2) - 1 for h in range(heads)]


def paper_levels(
    offsets: list[int], tokens: int, lo: float, spacing: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """For every head and token: L_k, ℓ_k = k(L_k + L_0) as a row over positions, and the value with zero ends."""
    index = torch.tensor(offsets, dtype=torch.float64).unsqueeze(-1) + torch.arange(tokens, dtype=torch.float64)
    levels = lo + index * spacing
    values = levels.clone()
    values[:, 0] = values[:, -1] = 0.0
    biases = index * (levels + lo)
    return levels.to(dtype), biases.to(dtype).unsqueeze(-2), values.to(dtype).unsqueeze(-2)


def paper_certificate(
    levels: Tensor, spacing: float, beta: float, tokens: int, features: int, dtype: torch.dtype
) -> Certificate:
    largest = float(levels.abs().max())
    heads = levels.shape[0]
    q = math.exp(-beta * spacing)
    index = heads * (tokens - 2)
    # Scores are β·k·(2w·x − L_k − L_0): large sums that cancel.
    magnitude = beta * index * (2 * CANCELLATION * largest + 2 * largest)
    delta = rounding.softmax_weights(rounding.dot(features + 4, magnitude, dtype), 64.0, dtype)
    each = shifted_average(delta, 2 * largest) + rounding.average(tokens, largest, dtype)
    terms = {
        "interpolation": spacing / 2,
        "sharpness": 12 * q * largest,
        "rounding": heads * each + rounding.gamma(heads, dtype) * largest,
    }
    return Certificate(terms, dtype)


def paper_heads_needed(tokens: int, lo: float, hi: float, tolerance: float) -> int:
    """H = ⌈(hi − lo)/((n − 2)·tolerance)⌉ up to a constant: first order, as the theorem says."""
    return max(1, math.ceil((0.6 * (hi - lo) / tolerance + 1) / max(tokens - 2, 1)))
