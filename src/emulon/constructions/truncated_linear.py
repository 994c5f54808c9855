"""Theorem D.1: a truncated linear function of every token, its coefficients in the prompt."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify.certificate import CertifiedModule
from emulon.certify.domain import require_within
from emulon.constructions.accuracy import Inputs, Targets, Way, Weights, aligned
from emulon.constructions.linear_layer import ScalarHeads, require_products, require_sizes, with_room
from emulon.constructions.row_heads import RowHeads, SharpGrid
from emulon.core.errors import EmulonError, ToleranceTooTight


class ClippingHeads(ScalarHeads):
    """One row of Θ, which is w here."""

    name = "truncated linear map"
    symbol = "w"


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
            self.heads = ClippingHeads(f, tokens, features, 1, reach, tolerance, points=points, grid=grid, dtype=dtype)
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
