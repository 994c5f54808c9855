"""Theorem 4.2: one frozen two-layer module emulates any attention head whose weights are given as tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Head
from emulon.certify import Certificate
from emulon.certify.domain import require_shape
from emulon.certify.rounding import unit
from emulon.constructions.linear_layer import LinearLayer, head_certificate
from emulon.constructions.template import Way
from emulon.errors import EmulonError, ToleranceTooTight


def entry_tolerance(tolerance: float, bound: float, width: int, beta: float, dtype: torch.dtype) -> float:
    """How exact K, Q and V must be so that the output is within the tolerance, in exact arithmetic.

    A score moves by up to β·2·width·bound·ε and the output by ε + bound·δ. A tolerance that asks for entries finer than
    the spacing of numbers near `bound` is refused: not even the head itself, evaluated in this dtype, is that exact.
    """
    amplification = 1 + 2 * beta * width * bound**2
    finest = unit(dtype) * bound
    if tolerance < amplification * finest:
        what = f"a head of width {width} with entries up to {bound:g} in {str(dtype).removeprefix('torch.')}"
        raise ToleranceTooTight(
            what, tolerance, amplification * finest, "" if dtype == torch.float64 else ", or use float64"
        )
    return tolerance / amplification / 1.05


class HeadInTokens(nn.Module):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ, the three matrices being part of the prompt.

    Claim: within `certificate.bound` of the exact head in every entry, when |W_K x|, |W_Q x|, |W_V x| ≤ bound.
    How: 3·width frozen heads compute the rows of K, Q and V (`LinearLayer`); one frozen head assembles them, with
    W_K = β·[I 0 0], W_Q = [0 I 0], W_V = [0 0 I] (as in D.38; the sketch in A.1 permutes the selectors).

    `tolerance` bounds the output's error in exact arithmetic, for the worst head of the domain ("interpolation"). The
    certificate adds "rounding", which for wide heads with large entries can be the larger part: there a softmax
    amplifies the last places of its scores by width·bound², and so it does when the head itself is evaluated.
    `certificate_for` gives the bound for particular data, which is usually far smaller.
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
        super().__init__()
        if (tolerance is None) == (points is None):
            raise EmulonError("give either tolerance=… or points=…, not both or neither")
        self.width, self.beta = width, float(beta)
        self.linear = best_linear(
            tokens, features, 3 * width, bound, tolerance, points, grid, grid_beta, dtype, width, beta
        )
        identity = torch.eye(3 * width, dtype=dtype)
        self.assemble = Head(
            beta * identity[:width], identity[width : 2 * width], identity[2 * width :], name="assemble"
        )
        whole = width * self.linear.bound
        self.certificate = self._certificate(whole, whole, self.linear.bound)

    def extra_repr(self) -> str:
        return f"heads={3 * self.width}+1, keys={self.linear.f.keys}, error {self.certificate}"

    def _certificate(self, keys: float, queries: float, bound: float) -> Certificate:
        entries = self.linear.certificate
        return head_certificate(entries, keys, queries, bound, self.width, self.linear.tokens, self.beta)

    def certificate_for(self, x: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor) -> Certificate:
        """The bound for this head on this data: with the norms of its own K and Q, and its own largest |V|."""
        k, q, v = (x.double() @ w.double().mT for w in (w_k, w_q, w_v))
        norms = [part.abs().sum(dim=-1).max().item() for part in (k, q)]
        return self._certificate(*norms, v.abs().max().item())

    def forward(
        self,
        x: Float[Tensor, "... n d"],
        w_k: Float[Tensor, "... width d"],
        w_q: Float[Tensor, "... width d"],
        w_v: Float[Tensor, "... width d"],
    ) -> Float[Tensor, "... n width"]:
        for name, w in (("W_K", w_k), ("W_Q", w_q), ("W_V", w_v)):
            require_shape(w, name, self.width, self.linear.features)
        lead = torch.broadcast_shapes(*(w.shape[:-2] for w in (w_k, w_q, w_v)))
        stacked = torch.cat([w.expand(*lead, *w.shape[-2:]) for w in (w_k, w_q, w_v)], dim=-2)
        return self.assemble(self.linear(x, stacked))


def best_linear(
    tokens: int,
    features: int,
    rows: int,
    bound: float,
    tolerance: float | None,
    points: int | None,
    grid: Way,
    grid_beta: float | None,
    dtype: torch.dtype,
    width: int,
    beta: float,
) -> LinearLayer:
    """The first layer: within what the output tolerance asks of its entries, or as exact as the dtype allows."""
    if tolerance is None:
        return LinearLayer(tokens, features, rows, bound, points=points, grid=grid, beta=grid_beta, dtype=dtype)
    wanted = entry_tolerance(tolerance, bound, width, beta, dtype)
    try:
        return LinearLayer(tokens, features, rows, bound, wanted, grid=grid, dtype=dtype)
    except ToleranceTooTight as error:
        # Rounding is above it: take the smallest that can be promised.
        return LinearLayer(tokens, features, rows, bound, error.smallest, grid=grid, dtype=dtype)
