"""Theorem 4.1: least squares by Newton–Schulz iterations in the loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algoformer.circuit import Circuit
from emulon.algoformer.codes import code_length
from emulon.algoformer.copying import copy_head
from emulon.algoformer.former import HORIZON, Former, fewest_pairs, share
from emulon.algoformer.frame import Frame, Size
from emulon.algoformer.layer import Layer
from emulon.algoformer.newton_audit import NewtonAudit
from emulon.algoformer.newton_step import newton_errors, newton_layer, newton_stencils, start_layer, start_scale
from emulon.algoformer.readout import constant, readout_heads
from emulon.algoformer.tokens import KINDS, others, pair_tokens
from emulon.algoformer.wiring import read
from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.errors import OutOfDomain


class NewtonFormer(Former):
    """Claim: `predict` returns x_query·M_T Xᵀy with M_0 = αS, M ← 2M − MSM (Eq. 5), S = XᵀX, up to `certificate(T)`.

    Assumes: data in `domain`, whose `smallest` must be positive: with a direction in which S is singular every rounding
    error doubles at each loop, and nothing could be promised. α = 1/(N·largest)².
    Bound: `newton_errors` into the prediction, and the answer's own readout; the heads are the fewest that keep
    `tolerance` for every T ≤ horizon (None: the most exact).
    Cost: pre 1 layer, loop 1, post 2, as in the theorem; 2·pairs heads, where the theorem's two are one pair;
    width 3d + 1 + log₂(N+1) + 4, the paper's 2d + … and d for `step`.
    """

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dtype=dtype, horizon=horizon)
        self.domain = domain
        if self.domain.smallest <= 0:
            raise OutOfDomain(
                "Newton–Schulz needs a domain that says how badly the data may be conditioned: give its spectrum a "
                "positive `smallest` eigenvalue of XᵀX/samples (and so at least as many samples as features)"
            )
        self.tokens = 2 * self.domain.samples + 2
        self.pairs = fewest_pairs(self._bound, tolerance, horizon)
        features = self.domain.features
        kinds = {kind: 1 for kind in KINDS}
        self.slots = Slots(
            x=features, y=1, m=features, step=features, code=code_length(self.domain.samples + 1), **kinds
        )
        self.frame = self._frame()

    def certificate(self, loops: int | None = None) -> Certificate:
        domain, loops = self.domain, self.horizon if loops is None else loops
        stencils = newton_stencils(domain, self.pairs, self.tokens, self.dtype)
        inverse = newton_errors(domain, stencils, loops)[-1] * domain.norm * domain.samples**0.5 * domain.y
        answer = stencils[2].error(domain.samples * domain.y)
        terms = {f"loop {name}": part for name, part in share(inverse, stencils[1].terms).items()}
        terms |= {f"answer {name}": part for name, part in share(answer, stencils[2].terms).items()}
        return Certificate(terms, self.dtype)

    def _bound(self, pairs: int, horizon: int) -> float:
        """The largest bound of any loop count up to the horizon: Newton forgets, so the last need not be the worst."""
        domain = self.domain
        stencils = newton_stencils(domain, pairs, self.tokens, self.dtype)
        inverse = max(newton_errors(domain, stencils, horizon)) * domain.norm * domain.samples**0.5 * domain.y
        return inverse + stencils[2].error(domain.samples * domain.y)

    def _frame(self) -> Frame:
        start, step, answer = newton_stencils(self.domain, self.pairs, self.tokens, self.dtype)
        code = read(self.slots, code=1.0)
        # y_i goes to its sample; the label's own token, which now holds 2y, is emptied: it would only add rounding.
        spread = Circuit(self.slots).clear("y", off=others(self.slots, "label"), bound=2 * self.domain.y)
        labels = copy_head(self.slots, code, code, read(self.slots, y=2.0), "y")
        heads = readout_heads(
            self.slots,
            answer,
            query=read(self.slots, x=1.0),
            key=read(self.slots, m=1.0),
            value=read(self.slots, y=1.0),
            into="y",
            one=constant(self.slots, *KINDS),
            sink=read(self.slots, sink=1.0),
        )
        return Frame(
            [start_layer(self.slots, start, self.domain)],
            [newton_layer(self.slots, step, self.domain)],
            [
                Layer(labels, spread.matrices, dtype=self.dtype, name="label exchange"),
                Layer(heads, Circuit(self.slots).matrices, dtype=self.dtype, name="answer"),
            ],
            {"pre": Size(1, 2), "loop": Size(1, 2), "post": Size(2, 2)},
        )

    def predict(
        self,
        xs: Float[Tensor, "... samples features"],
        ys: Float[Tensor, "... samples"],
        x_query: Float[Tensor, "... features"],
        *,
        loops: int,
    ) -> Float[Tensor, "*batch"]:
        """x_query·w_T after `loops` Newton–Schulz steps."""
        return self.predictions(xs, ys, x_query, loops=loops)[-1]

    def predictions(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Tensor:
        """The predictions after 0, 1, …, loops steps, along a new first dimension."""
        return torch.stack([self._answer(state) for state in self._states(xs, ys, x_query, loops)])

    def audit(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Certificate:
        """The certificate of this one run, the worst of the batch: far tighter than `certificate`."""
        audit = NewtonAudit(xs, start_scale(self.domain))
        for step, state in enumerate(self._states(xs, ys, x_query, loops)):
            audit.watch(state[..., 0:-2:2, self.slots["m"]].mT, start=step == 0)
        carried, answer = audit.carried(ys, x_query), audit.answer(ys, x_query, self._answer(state))
        worst = (carried + answer).argmax()
        terms = {"loop": carried.flatten()[worst].item(), "answer": answer.flatten()[worst].item()}
        return Certificate(terms, self.dtype, scope="run")

    def _answer(self, state: Tensor) -> Tensor:
        return self.frame.finish(state)[..., -2, self.slots["y"]].squeeze(-1)

    def _states(self, xs: Tensor, ys: Tensor, x_query: Tensor, loops: int) -> Iterator[Tensor]:
        labels = ys.unsqueeze(-1)
        self.require_loops(loops)
        self.require_dtype(xs=xs, ys=ys, x_query=x_query)
        self.domain.check_problem(xs, labels, x_query)
        return self.frame.iterates(pair_tokens(self.slots, xs, labels, x_query), loops)
