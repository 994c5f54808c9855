"""Theorem D.1: a truncated linear function of every token, its coefficients in the prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Slots, attend
from emulon.certify import Certificate, rounding
from emulon.certify.certificate import CertifiedModule
from emulon.certify.domain import require_within
from emulon.certify.rounding import shifted_average
from emulon.constructions.accuracy import Inputs, Targets, Way, Weights, aligned
from emulon.constructions.linear_layer import (
    CANCELLATION,
    ScalarHeads,
    padded,
    require_products,
    require_sizes,
    with_room,
)
from emulon.core.errors import EmulonError, ToleranceTooTight
from emulon.softmax import Grid


class TruncatedLinear(CertifiedModule):
    """(x, w) ↦ [clip(w·x_i, lo, hi)]_i, for |w·x_i| ≤ reach (by default half as much again as lo and hi).

    The default is one head on the piecewise grid of the clipping function, the prompt padded to as many tokens as it
    has keys. With grid="paper" it is the paper's construction (`SharpGrid`): the prompt keeps its n tokens, so each
    head has only n − 2 grid points, and `heads` of them share the range; a head whose interval does not contain w·x_i
    is silenced by its two end values, which are zero. That needs the sharp regime, and covers [lo, hi] alone: outside
    it every head falls silent and the sum is 0, not lo or hi as Definition D.1 says. There data must lie in [lo, hi].

    Args:
        tokens: Number of tokens of x.
        features: Features of a token.
        lo: Lower end of the clipping.
        hi: Upper end.
        tolerance: Largest error of an entry. Exactly one of tolerance, points; or heads.
        reach: Bound on |w·x_i|; None is half as much again as the larger end.
        points: Number of grid points.
        heads: Sharp heads, with grid="paper".
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> TruncatedLinear(16, 4, -1.0, 1.0, 1e-3)(x, w)
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
        self.lo, self.hi, self.dtype = float(lo), float(hi), dtype
        self.sizes = {"x": (tokens, features), "w": (features,)}
        self.heads: ScalarHeads | RowHeads
        if grid == "paper":
            require_sizes(tokens, features, 1, max(abs(lo), abs(hi)))
            sharp = self._sharp(tokens, heads, tolerance)
            self.heads = RowHeads.sharp((tokens, features, 1), sharp, dtype)
            self.certificate = sharp.certificate(features, dtype)
            if tolerance is not None and self.certificate.bound > tolerance:
                what = f"a truncated linear map with {sharp.heads} heads"
                raise ToleranceTooTight(
                    what, tolerance, self.certificate.bound, ", or give more heads, or a wider dtype"
                )
        else:
            reach = max(abs(lo), abs(hi)) * 1.5 if reach is None else float(reach)
            f = f"Max({self.lo!r}, Min({self.hi!r}, t))"
            self.heads = ScalarHeads(f, tokens, features, 1, reach, tolerance, points=points, grid=grid, dtype=dtype)
            self.heads.symbol = "w"
            self.certificate = self.heads.certificate

    def _sharp(self, tokens: int, heads: int | None, tolerance: float | None) -> SharpGrid:
        if (heads is None) == (tolerance is None):
            raise EmulonError("the paper's construction needs either heads=… or a tolerance")
        if heads is not None:
            return SharpGrid(tokens, heads, self.lo, self.hi)
        assert tolerance is not None
        return SharpGrid.within(tolerance, tokens, self.lo, self.hi)

    def extra_repr(self) -> str:
        return f"clip to ({self.lo:g}, {self.hi:g}), error {self.certificate}"

    def forward(self, x: Inputs, w: Weights) -> Targets:
        x, w = aligned(self.dtype, x=(x, self.sizes["x"]), w=(w, self.sizes["w"]))
        row = w.unsqueeze(-2)
        if isinstance(self.heads, RowHeads):
            largest = max(abs(self.lo), abs(self.hi))
            edge = with_room(largest, x.shape[-1], self.dtype)
            require_products(edge, x, w=row)
            middle, half = (self.lo + self.hi) / 2, (self.hi - self.lo) / 2
            require_within(half + edge - largest, **{"w·x − (lo + hi)/2": x.double() @ row.double().mT - middle})
        out: Tensor = self.heads(x, row)
        return out.squeeze(-1)


@dataclass(frozen=True)
class SharpGrid:
    """Theorem D.1's grid: p = heads·(tokens − 2) points L_k over [lo, hi]; sharp heads of n tokens share it.

    Token j of head h stands for k = h·(n−2) − 1 + j, h = 0..H−1.

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


class RowHeads(nn.Module):
    """(x, rows) ↦ x rowsᵀ. Token j of the prompt is (x_j, j·v, v, e_j), v = vec of all rows, j = 0..length−1.

    Head h for a row has keys (α·(j·row) + γ_h·row, intercept_hj), queries (x_i, 1) and values value_hj: its scores are
    (γ_h + α·j)·(row·x_i) + intercept_hj. The heads of a row are added. (What γ_h adds is the same for all tokens, and a
    softmax ignores it: it is there because the theorems have it.)
    """

    starts: Tensor
    step: Tensor
    intercepts: Tensor
    values: Tensor

    def __init__(
        self,
        sizes: tuple[int, int, int],
        starts: Float[Tensor, " heads"],
        step: Float[Tensor, ""],
        intercepts: Float[Tensor, "heads length"],
        values: Float[Tensor, "heads length"],
    ) -> None:
        super().__init__()
        self.tokens, self.features, self.rows = sizes
        self.heads, self.length = intercepts.shape
        parts = {"starts": starts, "step": step, "intercepts": intercepts, "values": values}
        for name, part in parts.items():
            self.register_buffer(name, part.clone())
        vector = self.rows * self.features
        self.slots = Slots(x=self.features, indexed=vector, vector=vector, position=self.length)

    @classmethod
    def soft(cls, sizes: tuple[int, int, int], grid: Grid) -> RowHeads:
        """One head a row, the prompt padded to as many tokens as the grid has keys. Its slopes are evenly spaced."""
        slopes, intercepts, values = padded(grid, max(sizes[0], len(grid)))
        start, step = slopes[0], (slopes[len(grid) - 1] - slopes[0]) / max(len(grid) - 1, 1)
        # j·row goes on growing in the tokens that only pad: they must stay silent all the same.
        index = torch.arange(len(slopes), dtype=grid.dtype, device="cpu")
        beyond = (start + step * index).abs() * grid.range * (index >= len(grid))
        return cls(sizes, start.unsqueeze(0), step, (intercepts - beyond).unsqueeze(0), values.unsqueeze(0))

    @classmethod
    def sharp(cls, sizes: tuple[int, int, int], grid: SharpGrid, dtype: torch.dtype) -> RowHeads:
        """The paper's: the prompt keeps its n tokens, and each row takes several heads."""
        step = torch.tensor(2 * grid.beta, dtype=torch.float64, device="cpu")
        parts = (step * grid.offsets, step, grid.intercepts, grid.values)
        return cls(sizes, *(part.to(dtype) for part in parts))

    def prompt(self, x: Float[Tensor, "*b n d"], rows: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b length width"]:
        """Token j: x_j (zero past the data), j·v, v, e_j."""
        index = torch.arange(self.length, dtype=x.dtype, device=x.device).unsqueeze(-1)
        vector = rows.flatten(-2).unsqueeze(-2)
        x = torch.nn.functional.pad(x, (0, 0, 0, self.length - self.tokens))
        position = torch.eye(self.length, dtype=x.dtype, device=x.device)
        return self.slots.pack(x=x, indexed=index * vector, vector=vector.expand(*x.shape[:-1], -1), position=position)

    def matrices(
        self, row: int, head: int = 0
    ) -> tuple[Float[Tensor, "key width"], Float[Tensor, "key width"], Float[Tensor, "1 width"]]:
        """W_K, W_Q, W_V of one head of one row. `forward` does not build these: together they are large, and sparse."""
        pick = {name: self.slots.select(name, dtype=self.step.dtype) for name in self.slots}
        own = slice(row * self.features, (row + 1) * self.features)
        slopes = self.step * pick["indexed"][own] + self.starts[head] * pick["vector"][own]
        w_k = torch.cat([slopes, self.intercepts[head, None] @ pick["position"]])
        w_q = torch.cat([pick["x"], pick["position"].sum(dim=0, keepdim=True)])
        return w_k, w_q, self.values[head, None] @ pick["position"]

    def forward(self, x: Float[Tensor, "*b n d"], rows: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b n rows"]:
        """For every row and head the attention that `matrices` describes, all at once."""
        prompt = self.prompt(x, rows)
        shape = (*prompt.shape[:-1], self.rows, self.features)
        indexed, vector = (
            prompt[..., self.slots[name]].reshape(shape).transpose(-3, -2).unsqueeze(-3)
            for name in ("indexed", "vector")
        )
        keys = self.step * indexed + self.starts[:, None, None] * vector  # (..., rows, heads, length, d)
        bias = self.intercepts.unsqueeze(-1).expand(*keys.shape[:-1], 1)
        asking = prompt[..., : self.tokens, self.slots["x"]]
        queries = torch.cat([asking, torch.ones_like(asking[..., :1])], dim=-1)[..., None, None, :, :]
        out = attend(queries, torch.cat([keys, bias], dim=-1), self.values.unsqueeze(-1), name="rows")
        return out.squeeze(-1).sum(dim=-2).mT
