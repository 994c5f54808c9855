"""Gao et al. 2024, Theorem 3.1: regression, with or without a representation, by gradient descent in the loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.descent import DescentLoop
from emulon.looped.exact import descent, product
from emulon.looped.heads import code_length
from emulon.looped.layer import Frame, Layer, Size
from emulon.looped.representation import RepresentationNetwork
from emulon.looped.tokens import KINDS, exchange_layer, pair_tokens
from emulon.looped.transformer import HORIZON, LoopedRegression, fewest_pairs
from emulon.looped.wiring import others


class LoopedGradientDescent(LoopedRegression):
    """Claim: `predict` returns A_T·Φ(x_query), A_T after T exact gradient steps of size η from A_0 = 0 on
    (1/2N)Σ‖A·Φ(x_i) − y_i‖², up to `certificate_after(T)`; Φ is the identity unless a representation is given.

    Assumes: the data (Φ(x) where there is a representation) in `domain`; η ≤ 2/largest (default 1/largest).
    Bound: `descent_error`.
    Cost: pre L+1 layers, loop 1, post 1 as in the theorem; 2·pairs heads in the loop, where the theorem's two are one
    pair, whose error is O(c²); width d + 3·outputs + ⌈log₂(N+1)⌉ + 4, and two buffers for a representation.

    Args:
        domain: Bounds on the data, or on Φ(x).
        tolerance: Largest error of a prediction for up to `horizon` loops; the fewest heads that keep it are used. None
            takes the most exact.
        step_size: η; by default 1/largest.
        outputs: Numbers in a label.
        representation: Φ, run by the pre-transformer.
        horizon: Most loops.
        dtype: float64 or float32.
    """

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        step_size: float | None = None,
        outputs: int = 1,
        representation: RepresentationNetwork | None = None,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(domain, dtype=dtype, horizon=horizon)
        self.outputs, self.representation = outputs, representation
        self.step_size = 1 / self.domain.largest if step_size is None else step_size
        feature_error, buffers = 0.0, dict[str, int]()
        if representation is not None:
            representation.require(self.domain.features)
            feature_error, buffers = representation.error(dtype), representation.slots
        tokens = 2 * self.domain.samples + 2
        self.descent = DescentLoop(self.domain, self.step_size, tokens, dtype, feature_error)
        self.pairs = fewest_pairs(self.descent.bound, tolerance, horizon)
        sizes = {"x": self.domain.features, "y": outputs, "res": outputs, "step": outputs}
        self.slots = Slots(**sizes, code=code_length(self.domain.samples + 1), **dict.fromkeys(KINDS, 1), **buffers)
        self.frame = self._frame()

    def _frame(self) -> Frame:
        slots, dtype, depth, lift = self.slots, self.dtype, 0, list[Layer]()
        if self.representation is not None:
            depth = self.representation.depth
            lift = self.representation.layers(slots, "x", others(slots, "train", "query", kinds=KINDS), dtype)
        most = self.domain.y + self.descent.largest_prediction(self.horizon)
        labels = exchange_layer(
            slots, "train", "res", sign=-1.0, bound=self.domain.y, dtype=dtype, name="label exchange"
        )
        answer = exchange_layer(slots, "sink", "y", sign=1.0, bound=most, dtype=dtype, name="answer")
        return Frame(
            [*lift, labels],
            [self.descent.layer(slots, self.pairs, KINDS)],
            [answer],
            {"pre": Size(depth + 1, 2), "loop": Size(1, 2), "post": Size(1, 1)},
        )

    def promise_after(self, loops: int) -> Certificate:
        return self.descent.certificate(self.pairs, loops)

    def prompt(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> Tensor:
        return pair_tokens(self.slots, xs, labels, x_query, "x" if self.representation is None else "ping")

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., -1, self.slots["y"]]

    def require_problem(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> None:
        if self.representation is not None:
            self.representation.require(self.domain.features, xs=xs, x_query=x_query)
            xs, x_query = self.representation(xs.double()), self.representation(x_query.double())
        super().require_problem(xs, labels, x_query)

    def exact(self, xs: Tensor, labels: Tensor, x_query: Tensor, *, loops: int) -> list[Any]:
        rows, query = arb_matrix(xs), arb_matrix(x_query.unsqueeze(0))
        if self.representation is not None:
            rows, query = self.representation.exact(rows), self.representation.exact(query)
        return product(query, descent(rows, arb_matrix(labels), self.step_size, loops))
