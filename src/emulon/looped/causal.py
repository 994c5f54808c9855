"""Decoders in which every position learns from the pairs before it; Gao et al. 2024, Theorem 4.2 and Lemma A.5."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from emulon.attention import Slots
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
    elsewhere,
    readout_heads,
    recall_layer,
)
from emulon.looped.layer import Circuit, Frame, Layer, constant, read
from emulon.looped.transformer import (
    HORIZON,
    Inputs,
    Labels,
    LoopedRegression,
    Query,
    descent,
    fewest_pairs,
    share,
)


def product_layer(slots: Slots, stencil: Stencil) -> Layer:
    """Claim: point j's y becomes w^j·x_j, a product within one token.

    Every token of another code scores GAP·sharpness lower than the token itself; the sink is lifted by what the code
    adds to a match, so that C stays the difference. Bound: `stencil`, the second of `causal_stencils`.
    Cost: 2·pairs heads.
    """
    code, one = read(slots, code=1.0), constant(slots, *CAUSAL_KINDS)
    sharpness = _sharpness(stencil.tokens, stencil.dtype)
    heads = readout_heads(
        slots,
        stencil,
        query=read(slots, w=1.0),
        key=read(slots, x=1.0),
        value=read(slots, point=1.0),
        into="y",
        one=one,
        sink=read(slots, sink=1.0),
        extra=(
            torch.cat([code, one]),
            torch.cat([sharpness * code, sharpness * slots.size("code") * read(slots, sink=1.0)]),
        ),
    )
    return Layer(heads, Circuit(slots).matrices, dtype=stencil.dtype, causal=True, name="answer")


def _sharpness(tokens: int, dtype: torch.dtype) -> float:
    """The integer at which all tokens of other codes, whose scores have the same reach, weigh less than a rounding."""
    return float(math.ceil((math.log(tokens) - math.log(unit(dtype)) + STRAY) / GAP))


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
        tolerance: Largest error of a prediction for up to `horizon` loops; the fewest heads that keep it are used. None
            takes the most exact.
        step_size: η; by default 1/norm².
        horizon: Most loops.
        dtype: float64 or float32.
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
            code=code_length(self.domain.samples + 2),
            **dict.fromkeys(CAUSAL_KINDS, 1),
        )
        step, answer = self._stencils(self.pairs)
        self.frame = Frame(
            [recall_layer(self.slots, self.domain.x, dtype)],
            [causal_layer(self.slots, step, self.domain, self.step_size)],
            [product_layer(self.slots, answer)],
        )

    def promise_after(self, loops: int) -> Certificate:
        stencils = self._stencils(self.pairs)
        drift, total = causal_error(self.domain, self.step_size, stencils, loops)
        terms = {f"loop {name}": part for name, part in share(drift * self.domain.norm, stencils[0].terms).items()}
        answer = total - drift * self.domain.norm if total < float("inf") else 0.0
        terms |= {f"answer {name}": part for name, part in share(answer, stencils[1].terms).items()}
        return Certificate(terms, self.dtype)

    def _bound(self, pairs: int, loops: int) -> float:
        return causal_error(self.domain, self.step_size, self._stencils(pairs), loops)[1]

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


def causal_layer(slots: Slots, stencil: Stencil, domain: Domain, step_size: float) -> Layer:
    """Claim: w^j ← w^j − η/(j−1)·Σ_{h<j}(w^j·x_h − y_h)x_h at every point j.

    The paper prints w^h inside the sum; the attention it builds, and gradient descent, have w^j (a test shows that the
    printed formula descends nothing). It also lets point j see its own x_j through the causal mask: here the keys and
    values are read from the label tokens, where `past` holds x_h, and j's own label comes after j.
    One score w·x_h − y_h in place of two heads, so that the ± pair leaves O(c²); and log(j−1) on the sink's score makes
    the softmax divide by j−1, which the paper leaves to an MLP that can only approximate the product.
    Cost: one layer, 2·pairs heads.
    """
    minus_one = -constant(slots, *CAUSAL_KINDS)
    heads = readout_heads(
        slots,
        stencil,
        query=torch.cat([read(slots, w=1.0), minus_one]),
        key=torch.cat([read(slots, past=1.0), read(slots, y=1.0)]),
        value=read(slots, past=-step_size),
        into="step",
        one=constant(slots, *CAUSAL_KINDS),
        sink=read(slots, sink=1.0),
        extra=(read(slots, log_count=1.0), read(slots, sink=1.0)),
    )
    # A label's token, shut out here, sums over its prefix without dividing.
    bound = 2 * step_size * domain.samples * domain.x * stencil.reach
    circuit = Circuit(slots).move(read(slots, step=1.0), "w", off=elsewhere(slots, "point"), bound=bound)
    return Layer(heads, circuit.clear("step").matrices, dtype=stencil.dtype, causal=True, name="causal gradient step")


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


def causal_error(
    domain: Domain, step_size: float, stencils: tuple[Stencil, Stencil], loops: int
) -> tuple[float, float]:
    """Claim: ‖ŵ^j − w^j‖₂ after `loops` loops, and the error of ŵ^j·x_j, are at most these.

    Assumes: η ≤ 2/norm², hence no prefix's step expands. Proof. (1/n)Σ_h|x_h[l]| ≤ x, so one step is off by at most
    η·x·reach·relative in each entry, √features times that in norm, and the rounding of w + step; errors of the steps
    add. The answer multiplies by ‖x‖ and adds its own readout, of one value 1. QED
    """
    step, answer = stencils
    weight = weight_norm(domain, step_size, loops)
    each = step_size * domain.x * step.reach * step.relative + 4 * unit(step.dtype) * weight
    drift = loops * math.sqrt(domain.features) * each * (1 + 1e-6)
    if drift > weight / 2 or drift * domain.norm > 0.009 * step.reach:
        return math.inf, math.inf
    return drift, drift * domain.norm * (1 + SLACK) + answer.error(1.0)
