"""Theorem 3.1: regression, with or without a representation, by gradient descent in the loop."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algoformer.codes import code_length
from emulon.algoformer.former import HORIZON, Former, fewest_pairs, share
from emulon.algoformer.frame import Frame, Size
from emulon.algoformer.gradient_step import (
    descent_error,
    gradient_layer,
    gradient_stencil,
    largest_prediction,
)
from emulon.algoformer.representation import Representation
from emulon.algoformer.spectral_domain import SpectralDomain
from emulon.algoformer.stencil import Stencil
from emulon.algoformer.tokens import KINDS, exchange_layer, others, pair_tokens
from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.errors import BadShape, OutOfDomain


class GradientDescentFormer(Former):
    """Claim: `predict` returns A_T·Φ(x_query), A_T after T exact gradient steps of size η from A_0 = 0 on
    (1/2N)Σ‖A·Φ(x_i) − y_i‖², up to `certificate(T)`.

    Assumes: the data (Φ(x) where there is a representation) in `domain`; η ≤ 2/largest (default 1/largest).
    Bound: `descent_error`; the heads are the fewest that keep `tolerance` for every T ≤ horizon (None: the most exact).
    Cost: pre L+1 layers, loop 1, post 1 as in the theorem; 2·pairs heads in the loop, where the theorem's two are one
    pair, whose error is O(c²); width d + 3·outputs + log₂(N+1) + 4, and 2h for a representation of width h.
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
        self.domain, self.outputs, self.representation = SpectralDomain.lift(domain), outputs, representation
        self.step_size = 1 / self.domain.largest if step_size is None else step_size
        if not 0 < self.step_size * self.domain.largest <= 2 * (1 + 1e-12):
            raise OutOfDomain(f"step size {self.step_size:.6g} is not in (0, {2 / self.domain.largest:.6g}] = (0, 2/L]")
        if representation is not None:
            representation.require(self.domain.features)
        self.tokens = 2 * self.domain.samples + 2
        self.pairs = fewest_pairs(lambda *size: self._certificate(*size).bound, tolerance, horizon)
        self.slots = Slots(
            x=self.domain.features,
            y=outputs,
            res=outputs,
            step=outputs,
            code=code_length(self.domain.samples + 1),
            **{kind: 1 for kind in KINDS},
            **({} if representation is None else representation.slots),
        )
        self.frame = self._frame()

    def certificate(self, loops: int | None = None) -> Certificate:
        return self._certificate(self.pairs, self.horizon if loops is None else loops)

    def _certificate(self, pairs: int, loops: int) -> Certificate:
        terms = dict(self._stencil(pairs).terms)
        off = self._feature_error
        # x̂_i·x̂_j differs from x_i·x_j by at most 2·norm·off + off², counted relative to the norm² of a score.
        terms["representation"] = off * (2 + off / self.domain.norm) / self.domain.norm
        # The stencil's reach is a little above norm².
        relative = sum(terms.values()) * (1 + off / self.domain.norm) ** 2
        total = descent_error(self.domain, self.step_size, relative, loops, self.dtype)
        # The query's own features are off too: ‖Â x̂ − Â x‖ is already in each step's score.
        return Certificate(share(total, terms), self.dtype)

    @property
    def _feature_error(self) -> float:
        return 0.0 if self.representation is None else self.representation.error(self.dtype)

    def _stencil(self, pairs: int) -> Stencil:
        return gradient_stencil(self.domain, pairs, self.tokens, self.dtype, self._feature_error)

    def _frame(self) -> Frame:
        depth, lift = 0, []
        if self.representation is not None:
            depth = self.representation.depth
            lift = self.representation.layers(self.slots, "x", others(self.slots, "train", "query"), self.dtype)
        most = largest_prediction(self.domain, self.step_size, self.horizon) + self.certificate().bound
        labels = exchange_layer(
            self.slots, "train", "res", sign=-1.0, bound=self.domain.y, dtype=self.dtype, name="label exchange"
        )
        answer = exchange_layer(
            self.slots, "sink", "y", sign=1.0, bound=self.domain.y + most, dtype=self.dtype, name="answer"
        )
        stated = {"pre": Size(depth + 1, 2), "loop": Size(1, 2), "post": Size(1, 1)}
        step = gradient_layer(self.slots, self._stencil(self.pairs), self.domain, self.step_size)
        return Frame([*lift, labels], [step], [answer], stated)

    def predict(
        self,
        xs: Float[Tensor, "... samples inputs"],
        ys: Float[Tensor, "... samples"] | Float[Tensor, "... samples outputs"],
        x_query: Float[Tensor, "... inputs"],
        *,
        loops: int,
    ) -> Tensor:
        """A_T·Φ(x_query) after `loops` steps: (...,) for scalar labels, (..., outputs) for labels (..., samples, outputs)."""
        return self.predictions(xs, ys, x_query, loops=loops)[-1]

    def predictions(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Tensor:
        """The predictions after 0, 1, …, loops steps, along a new first dimension."""
        scalar = ys.ndim == xs.ndim - 1
        labels = ys.unsqueeze(-1) if scalar else ys
        self._require(xs, labels, x_query, loops)
        tokens = pair_tokens(self.slots, xs, labels, x_query, "x" if self.representation is None else "ping")
        answers = [self.frame.finish(state)[..., -1, self.slots["y"]] for state in self.frame.iterates(tokens, loops)]
        out = torch.stack(answers)
        return out.squeeze(-1) if scalar else out

    def _require(self, xs: Tensor, labels: Tensor, x_query: Tensor, loops: int) -> None:
        self.require_loops(loops)
        self.require_dtype(xs=xs, ys=labels, x_query=x_query)
        if labels.shape[-1] != self.outputs:
            raise BadShape(f"ys has {labels.shape[-1]} outputs, the former was built for {self.outputs}")
        if self.representation is not None:
            self.representation.require(self.domain.features, xs=xs, x_query=x_query)
            xs, x_query = self.representation(xs.double()), self.representation(x_query.double())
        self.domain.require(xs, labels, x_query)
