"""Theorem 4.2: one frozen two-layer module emulates any attention head whose weights are given as tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.constructions.accuracy import Accuracy, Way, closest
from emulon.constructions.emulated_head import EmulatedHead, entry_tolerance, require_one
from emulon.constructions.linear_layer import LinearLayer
from emulon.softmax import Approximation


class BestLinearLayer(LinearLayer):
    """As exact as was asked for, or else as exact as the dtype allows."""

    def _made(self, build: Callable[[Accuracy], Approximation], accuracy: Accuracy, what: str) -> Approximation:
        return build(accuracy) if accuracy.tolerance is None else closest(build, accuracy)[1]


class HeadInTokens(EmulatedHead):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ, the three matrices being tokens of the prompt.

    Claim: within `certificate.bound` of the exact head in every entry, when |W_K x|, |W_Q x|, |W_V x| ≤ bound.
    How: 3·width frozen heads compute the rows of K, Q and V (`LinearLayer`); one frozen head assembles them.

    `tolerance` says how exact the output should be in exact arithmetic, for the worst head of the domain. There a
    softmax amplifies every entry's error by width·bound², its last place too, so for wide heads with large entries the
    dtype may not allow it: K, Q and V are then made as exact as it allows, and `certificate` has the bound.
    `audit` gives the bound for particular data, which is usually far smaller.

    Args:
        tokens: Number of tokens of x.
        features: Features of a token.
        width: Rows of each of the three matrices.
        bound: Bound on the entries of W_K x, W_Q x and W_V x.
        tolerance: Largest error of an entry in exact arithmetic. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        beta: Factor of the scores.
        grid_beta: Sharpness of the grid; None chooses it.
        dtype: Of everything.

    Example:
        >>> HeadInTokens(8, 4, 4, 3.0, 1e-6)(x, w_k, w_q, w_v)
    """

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
        beta: float = 1.0,
        grid_beta: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__((tokens, features, width), bound, beta, dtype)
        require_one(tolerance=tolerance, points=points)
        if tolerance is not None:
            tolerance = entry_tolerance(tolerance, bound, width, beta, dtype)
        self.linear = BestLinearLayer(
            tokens, features, 3 * width, bound, tolerance, points=points, grid=grid, beta=grid_beta, dtype=dtype
        )
        self.assembled(self.linear.certificate)

    def extra_repr(self) -> str:
        return f"heads={3 * self.width}+1, keys={self.linear.f.keys}, error {self.certificate}"

    def rows(self, x: Float[Tensor, "*b n d"], stacked: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b n rows"]:
        out: Tensor = self.linear(x, stacked)
        return out
