"""Theorem 3.1: regression, with or without a representation, by gradient descent in the loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algoformer.codes import code_length
from emulon.algoformer.descent import Descent
from emulon.algoformer.former import HORIZON, Former, fewest_pairs
from emulon.algoformer.frame import Frame, Size
from emulon.algoformer.representation import Representation
from emulon.algoformer.tokens import KINDS, exchange_layer, others, pair_tokens
from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.errors import BadShape


class GradientDescentFormer(Former):
    """Claim: `predict` returns A_T·Φ(x_query), A_T after T exact gradient steps of size η from A_0 = 0 on
    (1/2N)Σ‖A·Φ(x_i) − y_i‖², up to `certificate(T)`; Φ is the identity unless a representation is given.

    Assumes: the data (Φ(x) where there is a representation) in `domain`; η ≤ 2/largest (default 1/largest).
    Bound: `descent_error`; the heads are the fewest that keep `tolerance` for every T ≤ horizon (None: the most exact).
    Cost: pre L+1 layers, loop 1, post 1 as in the theorem; 2·pairs heads in the loop, where the theorem's two are one
    pair, whose error is O(c²); width d + 3·outputs + ⌈log₂(N+1)⌉ + 4, and two buffers for a representation.
    """

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        step_size: float | None = None,
        outputs: int = 1,
        representation: Representation | None = None,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dtype=dtype, horizon=horizon)
        self.domain, self.outputs, self.representation = domain, outputs, representation
        self.step_size = 1 / self.domain.largest if step_size is None else step_size
        feature_error, buffers = 0.0, {}
        if representation is not None:
            representation.require(self.domain.features)
            feature_error, buffers = representation.error(dtype), representation.slots
        tokens = 2 * self.domain.samples + 2
        self.descent = Descent(self.domain, self.step_size, tokens, dtype, feature_error)
        self.pairs = fewest_pairs(self.descent.bound, tolerance, horizon)
        sizes = {"x": self.domain.features, "y": outputs, "res": outputs, "step": outputs}
        self.slots = Slots(**sizes, code=code_length(self.domain.samples + 1), **dict.fromkeys(KINDS, 1), **buffers)
        self.frame = self._frame()

    def _frame(self) -> Frame:
        slots, dtype, depth, lift = self.slots, self.dtype, 0, []
        if self.representation is not None:
            depth = self.representation.depth
            lift = self.representation.layers(slots, "x", others(slots, "train", "query"), dtype)
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

    def certificate(self, loops: int | None = None) -> Certificate:
        return self.descent.certificate(self.pairs, self.horizon if loops is None else loops)

    def predict(
        self,
        xs: Float[Tensor, "... samples inputs"],
        ys: Float[Tensor, "... samples"] | Float[Tensor, "... samples outputs"],
        x_query: Float[Tensor, "... inputs"],
        *,
        loops: int,
    ) -> Tensor:
        """A_T·Φ(x_query) after `loops` steps, with a last dimension of outputs where ys has one."""
        return self.predictions(xs, ys, x_query, loops=loops)[-1]

    def predictions(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Tensor:
        """The predictions after 0, 1, …, loops steps, along a new first dimension."""
        scalar = ys.ndim == xs.ndim - 1
        states = self._states(xs, ys.unsqueeze(-1) if scalar else ys, x_query, loops)
        answers = torch.stack([self.frame.finish(state)[..., -1, self.slots["y"]] for state in states])
        return answers.squeeze(-1) if scalar else answers

    def audit(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Certificate:
        """The certificate of this one run, the worst of the batch: far tighter than `certificate`."""
        labels = ys.unsqueeze(-1) if ys.ndim == xs.ndim - 1 else ys
        readings = (
            (state[..., 0:-2:2, self.slots["res"]], state[..., -2, self.slots["y"]])
            for state in self._states(xs, labels, x_query, loops)
        )
        features, query, error = xs.double(), x_query.double(), 0.0
        if self.representation is not None:
            features, query = self.representation(features), self.representation(query)
            error = self.representation.error(torch.float64, xs, x_query)
        return self.descent.audit(features, labels, query, readings, error)

    def _states(self, xs: Tensor, labels: Tensor, x_query: Tensor, loops: int) -> Iterator[Tensor]:
        self.require_loops(loops)
        self.require_dtype(xs=xs, ys=labels, x_query=x_query)
        if labels.shape[-1] != self.outputs:
            raise BadShape(f"ys has {labels.shape[-1]} outputs, the former was built for {self.outputs}")
        features, query = xs, x_query
        if self.representation is not None:
            self.representation.require(self.domain.features, xs=xs, x_query=x_query)
            features, query = self.representation(xs.double()), self.representation(x_query.double())
        self.domain.check_problem(features, labels, query)
        tokens = pair_tokens(self.slots, xs, labels, x_query, "x" if self.representation is None else "ping")
        return self.frame.iterates(tokens, loops)
