"""Theorem 4.2: a decoder in which every position predicts its label by gradient descent on the pairs before it."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.algoformer.causal_audit import CausalAudit
from emulon.algoformer.causal_former import CausalFormer
from emulon.algoformer.causal_step import causal_error, causal_layer, causal_stencils, product_layer
from emulon.algoformer.causal_tokens import CAUSAL_KINDS, causal_code_length, recall_layer
from emulon.algoformer.former import HORIZON, fewest_pairs, share
from emulon.algoformer.frame import Frame, Size
from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.certify.spectrum import SLACK
from emulon.errors import OutOfDomain


class CausalGradientDescentFormer(CausalFormer):
    """Claim: position i predicts w^i_T·x_i, w^i_T after T exact gradient steps of size η from 0 on the mean of
    ½(w·x_j − y_j)² over j < i (Eq. 6), up to `certificate(T)`; the query is position N+1.

    Assumes: data in `domain`; η ≤ 2/norm² (default 1/norm²), because a prefix of one sample has that curvature.
    Bound: `causal_error`; the heads are the fewest that keep `tolerance` for T ≤ horizon (None: the most exact).
    Cost: pre 1 layer of 1 head, loop 1 layer of 2·pairs, post 1 layer of 2·pairs, where the theorem has 1, 1 and 2
    layers of two heads; width 4d + 1 + log₂(N+2) + 4.
    """

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        step_size: float | None = None,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dtype=dtype, horizon=horizon)
        self.domain = domain
        limit = 2 / (self.domain.norm * (1 + SLACK)) ** 2
        self.step_size = limit / 2 if step_size is None else step_size
        if not 0 < self.step_size <= limit:
            raise OutOfDomain(f"step size {self.step_size:.6g} is not in (0, {limit:.6g}] = (0, 2/norm²]")
        self.pairs = fewest_pairs(self._bound, tolerance, horizon)
        features = self.domain.features
        self.slots = Slots(
            x=features,
            y=1,
            past=features,
            w=features,
            step=features,
            log_count=1,
            code=causal_code_length(self.domain.samples),
            **dict.fromkeys(CAUSAL_KINDS, 1),
        )
        step, answer = causal_stencils(self.domain, self.step_size, self.pairs, dtype, horizon)
        self.frame = Frame(
            [recall_layer(self.slots, "step", self.domain.x, dtype)],
            [causal_layer(self.slots, step, self.domain, self.step_size)],
            [product_layer(self.slots, answer)],
            {"pre": Size(1, 2), "loop": Size(1, 2), "post": Size(2, 2)},
        )

    def certificate(self, loops: int | None = None) -> Certificate:
        loops = self.horizon if loops is None else loops
        stencils = causal_stencils(self.domain, self.step_size, self.pairs, self.dtype, self.horizon)
        drift, total = causal_error(self.domain, self.step_size, stencils, loops)
        terms = {f"loop {name}": part for name, part in share(drift * self.domain.norm, stencils[0].terms).items()}
        answer = total - drift * self.domain.norm if total < float("inf") else 0.0
        terms |= {f"answer {name}": part for name, part in share(answer, stencils[1].terms).items()}
        return Certificate(terms, self.dtype)

    def _bound(self, pairs: int, loops: int) -> float:
        stencils = causal_stencils(self.domain, self.step_size, pairs, self.dtype, self.horizon)
        return causal_error(self.domain, self.step_size, stencils, loops)[1]

    def audit(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Certificate:
        """The certificate of this one run, for the worst position of the batch: tighter than `certificate`."""
        audit = CausalAudit(xs, ys, x_query, self.step_size)
        for step, state in enumerate(self._states(xs, ys, x_query, loops)):
            if step:
                audit.watch(state[..., 1::2, self.slots["w"]])
        carried, answer = audit.carried(), audit.answer(self._answers(state))
        worst = (carried + answer).argmax()
        terms = {"loop": carried.flatten()[worst].item(), "answer": answer.flatten()[worst].item()}
        return Certificate(terms, self.dtype, scope="run")
