"""Decoders in which every position learns from the pairs before it; Gao et al. 2024, Theorem 4.2 and Lemma A.5."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Certificate, Domain
from emulon.certify.domain import SLACK
from emulon.certify.rounding import unit
from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import OutOfDomain
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.heads import (
    CAUSAL_KINDS,
    GAP,
    STRAY,
    Stencil,
    causal_tokens,
    code_length,
    exchange_layer,
    readout_heads,
)
from emulon.looped.layer import Circuit, Frame, Layer, TokenSlots, read
from emulon.looped.transformer import HORIZON, Inputs, Labels, LoopedRegression, Query, descent, share


class CausalLoopedGradientDescent(LoopedRegression):
    """Claim: position i predicts w^i_T·x_i, w^i_T after T exact gradient steps of size η from 0 on the mean of
    ½(w·x_j − y_j)² over j < i (Eq. 6), up to `certificate_after(T)`; the query is position N+1. A run's `prediction`
    holds all positions: the first predicts 0, the query's is the last.

    Assumes: data in `domain`; η ≤ 2/norm² (default 1/norm²), because a prefix of one sample has that curvature.
    Bound: `causal_error`.
    Cost: pre 1 layer of 1 head, loop 1 layer of 2·pairs, post 1 layer of 2·pairs, where the theorem has 1, 1 and 2
    layers of two heads; width 4d + 1 + log₂(N+2) + 4.

    Args:
        domain: Bounds on the data.
        step_size: η; by default 1/norm².
        tolerance, horizon, dtype: As in `LoopedGradientDescent`.
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
        super().__init__(domain, dtype=dtype, horizon=horizon)
        features, limit = self.domain.features, 2 / (self.domain.norm * (1 + SLACK)) ** 2
        self.step_size = limit / 2 if step_size is None else step_size
        if not 0 < self.step_size <= limit:
            raise OutOfDomain(f"step size {self.step_size:.6g} is not in (0, {limit:.6g}] = (0, 2/norm²]")
        self.pairs = self.fewest_pairs(tolerance)
        code = code_length(self.domain.samples + 2)
        sizes = {"x": features, "y": 1, "past": features, "w": features, "step": features}
        self.slots = TokenSlots(CAUSAL_KINDS, **sizes, log_count=1, code=code)
        step, answer = self._stencils(self.pairs)
        self.frame = Frame(
            [
                exchange_layer(
                    self.slots, "x", "past", on="label", bound=self.domain.x, dtype=dtype, causal=True, name="recall"
                )
            ],
            [self._step(step)],
            [self._answer(answer)],
        )

    def _step(self, stencil: Stencil) -> Layer:
        """Claim: w^j ← w^j − η/(j−1)·Σ_{h<j}(w^j·x_h − y_h)x_h at every point j.

        The paper prints w^h inside the sum; the attention it builds, and gradient descent, have w^j (a test shows that
        the printed formula descends nothing). It also lets point j see its own x_j through the causal mask: here the
        keys and values are read from the label tokens, where `past` holds x_h, and j's own label comes after j.
        One score w·x_h − y_h in place of two heads, so that the ± pair leaves O(c²); and log(j−1) on the sink's score
        makes the softmax divide by j−1, which the paper leaves to an MLP that can only approximate the product.
        Cost: one layer, 2·pairs heads.
        """
        slots, domain = self.slots, self.domain
        heads = readout_heads(
            slots,
            stencil,
            query=torch.cat([read(slots, w=1.0), -slots.one]),
            key=torch.cat([read(slots, past=1.0), read(slots, y=1.0)]),
            value=read(slots, past=-self.step_size),
            extra=(read(slots, log_count=1.0), read(slots, sink=1.0)),
        )
        # A label's token, shut out here, sums over its prefix without dividing.
        bound = 2 * self.step_size * domain.samples * domain.x * stencil.reach
        circuit = Circuit(slots).move(read(slots, step=1.0), "w", on=("point",), bound=bound).clear("step")
        return Layer(heads, circuit.matrices, dtype=self.dtype, causal=True, name="causal gradient step")

    def _answer(self, stencil: Stencil) -> Layer:
        """Claim: point j's y becomes w^j·x_j, a product within one token.

        Every token of another code scores GAP·sharpness lower than the token itself; the sink is lifted by what the
        code adds to a match, so that C stays the difference. Bound: `stencil`. Cost: 2·pairs heads.
        """
        slots, code = self.slots, read(self.slots, code=1.0)
        sharpness = _sharpness(stencil.tokens, self.dtype)
        match = sharpness * slots.size("code") * read(slots, sink=1.0)
        heads = readout_heads(
            slots,
            stencil,
            query=read(slots, w=1.0),
            key=read(slots, x=1.0),
            value=read(slots, point=1.0),
            into="y",
            extra=(torch.cat([code, slots.one]), torch.cat([sharpness * code, match])),
        )
        return Layer(heads, Circuit(slots).matrices, dtype=self.dtype, causal=True, name="answer")

    def promise(self, pairs: int, loops: int) -> Certificate:
        """The answer multiplies the error of w by ‖x‖ and adds its own readout, of one value 1."""
        step, answer = self._stencils(pairs)
        loop = causal_error(self.domain, self.step_size, step, loops) * self.domain.norm * (1 + SLACK)
        own = share(answer.error(1.0), answer.terms, "answer ")
        return Certificate(share(loop, step.terms, "loop ") | own, self.dtype)

    def _stencils(self, pairs: int) -> tuple[Stencil, Stencil]:
        return causal_stencils(self.domain, self.step_size, pairs, self.dtype, self.horizon)

    def exact(self, xs: Tensor, labels: Tensor, x_query: Tensor, *, loops: int) -> list[Any]:
        from flint import arb

        answers = [arb(0)]
        for i, point in enumerate([*xs[1:], x_query], 1):
            fitted = descent(arb_matrix(xs[:i]), arb_matrix(labels[:i]), self.step_size, loops)
            answers.append((arb_matrix(point.unsqueeze(0)) * fitted)[0, 0])
        return answers

    def require_problem(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> None:
        # Prefixes have spectra of their own: none is asked of the whole.
        self.domain.check_problem(xs, labels, x_query, spectrum=False)

    def prompt(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> Tensor:
        return causal_tokens(self.slots, xs, labels.squeeze(-1), x_query)

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., 1::2, self.slots["y"]]

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Labels, x_query: Query, *, loops: int) -> Tensor:
        """w_T·x_query, w_T from all the samples."""
        run = self.run(xs, ys, x_query, loops=loops)
        return run.prediction.select(-1 if run.scalar else -2, -1)


def _sharpness(tokens: int, dtype: torch.dtype) -> float:
    """The integer at which all tokens of other codes, whose scores have the same reach, weigh less than a rounding."""
    return float(math.ceil((math.log(tokens) - math.log(unit(dtype)) + STRAY) / GAP))


@cache
def causal_stencils(
    domain: Domain, step_size: float, pairs: int, dtype: torch.dtype, loops: int
) -> tuple[Stencil, Stencil]:
    """For the step (scores w·x_h − y_h) and the answer (score w·x)."""
    tokens, width = 2 * domain.samples + 2, domain.features + 3
    reach = residual_reach(domain, step_size, loops)
    weight = weight_norm(domain, step_size, loops)
    step = Stencil(
        pairs,
        reach=reach,
        tokens=tokens,
        summed=domain.samples,
        width=width,
        dtype=dtype,
        cauchy=max(1.0, (weight * domain.norm * (1 + SLACK) + domain.y) / reach),
        lift=math.log(domain.samples),
    ).balanced()
    code = code_length(domain.samples + 2)
    answer = Stencil(
        pairs,
        reach=weight * domain.norm * (1 + SLACK),
        tokens=tokens,
        summed=1,
        width=domain.features + code + 1,
        dtype=dtype,
        # The score carries an integer, of the code's product, which rounds what is added to it.
        offset=2 * _sharpness(tokens, dtype) * code,
    ).balanced()
    return step, answer


def weight_norm(domain: Domain, step_size: float, loops: int) -> float:
    """‖w_k‖₂ ≤ √(cap·η·loops)·y for every prefix and k ≤ loops (`gain` without a spectrum), doubled for errors."""
    cap = 1.0 if step_size * domain.norm**2 <= 1 else 2.0
    return 2 * math.sqrt(cap * step_size * max(loops, 1)) * domain.y


def residual_reach(domain: Domain, step_size: float, loops: int) -> float:
    """|w_k·x_h − y_h| ≤ √n·y, as no step expands the n residuals of a prefix, or ≤ ‖w‖‖x‖ + y; 1% for errors."""
    return 1.01 * min(
        math.sqrt(domain.samples) * domain.y, weight_norm(domain, step_size, loops) / 2 * domain.norm + domain.y
    )


def causal_error(domain: Domain, step_size: float, step: Stencil, loops: int) -> float:
    """Claim: ‖ŵ^j − w^j‖₂ after `loops` loops is at most this.

    Assumes: η ≤ 2/norm², hence no prefix's step expands. Proof. (1/n)Σ_h|x_h[l]| ≤ x, so one step is off by at most
    η·x·reach·relative in each entry, √features times that in norm, and the rounding of w + step; errors of the steps
    add. QED
    """
    weight = weight_norm(domain, step_size, loops)
    each = step_size * domain.x * step.reach * step.relative + 4 * unit(step.dtype) * weight
    drift = loops * math.sqrt(domain.features) * each * (1 + 1e-6)
    return math.inf if drift > weight / 2 or drift * domain.norm > 0.009 * step.reach else drift
