"""Theorem 4.1: one frozen two-layer module emulates any attention head whose weights are written into the embedding."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import rounding
from emulon.constructions.accuracy import Accuracy, Way, checked_to, closest
from emulon.constructions.emulated_head import EmulatedHead, entry_tolerance, require_one
from emulon.constructions.linear_layer import CANCELLATION
from emulon.constructions.row_heads import RowHeads, SharpGrid
from emulon.core.errors import EmulonError
from emulon.softmax import Approximation, Grid


class HeadInEmbedding(EmulatedHead):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ; token j of the prompt is (x_j, j·v, v, e_j).

    v is the vector of all three matrices, row by row.
    Claim: within `certificate.bound` of the exact head in every entry, when |W_K x|, |W_Q x|, |W_V x| ≤ bound.
    The default pads the prompt to as many tokens as the soft grid has keys: then one head for each of the 3·width rows
    suffices (`RowHeads`). With grid="paper" the prompt keeps its n tokens, and each row takes `heads` sharp heads of
    n − 2 points (Theorem D.1). `tolerance`, `certificate` and `audit` are as in `HeadInTokens`.
    `layer.matrices(row, head)` are the plain matrices of the first layer, `assemble` the second.
    Corrected: the offset (h − 1)(n − 2) − 1 is applied once; (D.34) shows Q in the K block; selectors are as in D.38.

    Args:
        tokens: Number of tokens of x.
        features: Features of a token.
        width: Rows of each of the three matrices.
        bound: Bound on the entries of W_K x, W_Q x and W_V x.
        tolerance: Largest error of an entry in exact arithmetic. Exactly one of tolerance, points, heads.
        heads: Sharp heads for each row, with grid="paper".
        points: Number of grid points.
        grid: Kind of grid.
        beta: Factor of the scores.
        dtype: Of everything.

    Example:
        >>> HeadInEmbedding(8, 4, 4, 3.0, 1e-6)(x, w_k, w_q, w_v)
    """

    def __init__(
        self,
        tokens: int,
        features: int,
        width: int,
        bound: float,
        tolerance: float | None = None,
        *,
        heads: int | None = None,
        points: int | None = None,
        grid: Way = "auto",
        beta: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__((tokens, features, width), bound, beta, dtype)
        require_one(tolerance=tolerance, points=points, heads=heads)
        if (grid == "paper") != (heads is not None):
            raise EmulonError(
                "heads=… is the number of sharp heads per row: grid='paper' needs it, no other grid has it"
            )
        sizes = (tokens, features, 3 * width)
        if heads is not None:
            sharp = SharpGrid(tokens, heads, -self.bound, self.bound)
            self.layer = RowHeads.sharp(sizes, sharp, dtype)
            self.assembled(sharp.certificate(features, dtype))
        else:
            if tolerance is not None:
                tolerance = entry_tolerance(tolerance, bound, width, beta, dtype)
            self.f = self._soft(Accuracy(tolerance, points, grid, dtype))
            self.layer = RowHeads.soft(sizes, self.f.grid)
            self.assembled(self.f.certificate)

    def extra_repr(self) -> str:
        layer = self.layer
        size = f"heads={layer.heads * layer.rows}+1, tokens={layer.length}, width={layer.slots.width}"
        return f"{size}, error {self.certificate}"

    def _soft(self, accuracy: Accuracy) -> Approximation:
        if accuracy.grid == "piecewise":
            raise EmulonError("j·row needs evenly spaced slopes, which a piecewise grid has not; use grid='spectral'")
        reach = self.bound + checked_to(self.features, CANCELLATION * self.bound)

        def build(asked: Accuracy) -> Approximation:
            return asked.approximate("t", reach, self._rounding_error)

        made = build(accuracy) if accuracy.tolerance is None else closest(build, accuracy)[1]
        if made.grid.way == "spectral":
            return made
        # Rarely a linear function is cut into pieces, too.
        return self._soft(Accuracy(accuracy.tolerance, accuracy.points, "spectral", accuracy.dtype))

    def _rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        slope, intercept = grid.steepest, grid.highest
        # γ + α·j is formed in the head: |γ| + |α|·j ≤ 3·max|slope|, and a few more roundings.
        error = rounding.dot(self.features + 7, 3 * slope * CANCELLATION * self.bound + intercept, grid.dtype)
        return grid.rounding_error(deviation, size, error)

    def rows(self, x: Float[Tensor, "*b n d"], stacked: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b n rows"]:
        out: Tensor = self.layer(x, stacked)
        return out
