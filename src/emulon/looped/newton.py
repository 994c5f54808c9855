"""Gao et al. 2024, Theorem 4.1 and Lemma A.4: least squares by Newton–Schulz steps M ← 2M − MSM in the loop."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Certificate, Domain
from emulon.certify.domain import SLACK, require_scale
from emulon.certify.rounding import unit
from emulon.core.errors import OutOfDomain
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.heads import KINDS, Stencil, code_length, copy_head, pair_tokens, readout_heads
from emulon.looped.layer import Circuit, Frame, Layer, TokenSlots, read
from emulon.looped.transformer import HORIZON, LoopedRegression, newton, share


class LoopedNewton(LoopedRegression):
    """Claim: `predict` returns x_query·M_T Xᵀy with M_0 = αS, M ← 2M − MSM (Eq. 5), S = XᵀX,
    up to `certificate_after(T)`.

    Assumes: data in `domain`, whose `smallest` must be positive: with a direction in which S is singular every rounding
    error doubles at each loop, and there is no bound. α = 1/(N·largest)², half of Eq. 5's upper end, whose
    closed interval α ∈ (0, 2/‖SSᵀ‖] is a slip: at 2/‖SSᵀ‖ the largest eigenvalue of M₀S is 2, M₁'s is 0, and stays 0.
    Bound: `newton_errors` into the prediction, and the answer's own readout.
    Cost: pre 1 layer, loop 1, post 2, as in the theorem; 2·pairs heads, where the theorem's two are one pair;
    width 3d + 1 + log₂(N+1) + 4, the paper's 2d + … and d for `step`.

    Args:
        domain: Bounds on the data, with a positive `smallest` eigenvalue.
        tolerance, horizon, dtype: As in `LoopedGradientDescent`.

    Example:
        >>> LoopedNewton(Domain.covering(xs, ys, x_query)).predict(xs, ys, x_query, loops=12)
    """

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(domain, dtype=dtype, horizon=horizon)
        if self.domain.smallest <= 0:
            raise OutOfDomain(
                "Newton–Schulz needs a domain that says how badly the data may be conditioned: give its spectrum a "
                "positive `smallest` eigenvalue of XᵀX/samples (and so at least as many samples as features)"
            )
        self.pairs = self.fewest_pairs(tolerance)
        features, samples, largest = self.domain.features, self.domain.samples, inverse_norm(self.domain)
        self.slots = slots = TokenSlots(
            KINDS, x=features, y=1, m=features, step=features, code=code_length(samples + 1)
        )
        start, step, answer = newton_stencils(self.domain, self.pairs, dtype)
        scale, x, m, code = start_scale(self.domain), *(read(slots, **{name: 1.0}) for name in ("x", "m", "code"))
        # y_i goes to its sample; the label's own token, which now holds 2y, is emptied: it would only add rounding.
        spread = Circuit(slots).clear("y", on=("label",), bound=2 * self.domain.y)
        labels = copy_head(slots, code, code, read(slots, y=2.0), "y")
        answers = readout_heads(slots, answer, query=x, key=m, value=read(slots, y=1.0), into="y")
        most = 2 * scale * samples * self.domain.norm**2 * self.domain.x
        self.frame = Frame(
            [self._layer("newton start", start, x, scale * x, read(slots, step=1.0), most)],
            [self._layer("newton step", step, m, m, read(slots, m=1.0, step=-1.0), 4 * largest)],
            [
                Layer(labels, spread.matrices, dtype=dtype, name="label exchange"),
                Layer(answers, Circuit(slots).matrices, dtype=dtype, name="answer"),
            ],
        )

    def _layer(self, name: str, stencil: Stencil, query: Tensor, value: Tensor, moved: Tensor, bound: float) -> Layer:
        """Claim: on train tokens m grows by `moved`, in which `step` is Σ_j value_j(query·x_j) over the samples.

        The start: m_i = αS x_i, α = 1/(N·largest)², hence αS² ≤ I. A step: m_i ← 2m_i − Σ_j m_j (x_j·m_i); with
        m_i = M x_i that is M ← 2M − M S M, S = XᵀX. The query's token must not enter S; a linear W_V cannot zero it as
        the paper writes, so its score is masked. A slot `step` holds the attention's output beside m, because the MLP
        has to double m: the paper's layout has no such slot.
        Assumes: m is zero except on train tokens. Bound: `newton_errors`. Cost: one layer, 2·pairs heads.
        """
        key, masked = read(self.slots, x=1.0), read(self.slots, query=1.0)
        heads = readout_heads(self.slots, stencil, query=query, key=key, value=value, masked=masked)
        circuit = Circuit(self.slots).move(moved, "m", on=("train",), bound=bound).clear("step")
        return Layer(heads, circuit.matrices, dtype=self.dtype, name=name)

    def promise(self, pairs: int, loops: int) -> Certificate:
        """From ‖P̂ − P‖_F to the prediction: |x_query·(P̂ − P)y| ≤ norm·error·√N·y, and the answer's own readout.

        Its scores x_query·m̂ reach norm·(inverse_norm + error), and it was made for 1/64 beyond the exact ones.
        """
        domain, stencils = self.domain, newton_stencils(self.domain, pairs, self.dtype)
        (_, step, answer), error = stencils, newton_errors(domain, stencils, loops)[-1]
        inverse = error * domain.norm * domain.samples**0.5 * domain.y
        if error > ROOM * inverse_norm(domain):
            inverse = math.inf
        own = answer.error(domain.samples * domain.y)
        return Certificate(share(inverse, step.terms, "loop ") | share(own, answer.terms, "answer "), self.dtype)

    def worst_promise(self, pairs: int) -> Certificate:
        """Errors shrink as Newton converges: the last loop need not be the worst."""
        errors = newton_errors(self.domain, newton_stencils(self.domain, pairs, self.dtype), self.horizon)
        return self.promise(pairs, errors.index(max(errors)))

    def prompt(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> Tensor:
        return pair_tokens(self.slots, xs, labels, x_query)

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., -2, self.slots["y"]]

    def exact(self, xs: Tensor, labels: Tensor, x_query: Tensor, *, loops: int) -> list[Any]:
        fitted = newton(arb_matrix(xs), arb_matrix(labels), start_scale(self.domain), loops)
        return list((arb_matrix(x_query.unsqueeze(0)) * fitted).entries())


# How far a computed leverage x_i·M x_j may exceed the exact one, which is at most 1.
ROOM = 2.0**-6


def start_scale(domain: Domain) -> float:
    """α of Eq. 5; the eigenvalues of S are N times those of XᵀX/N, and may exceed `largest` by the check's slack."""
    require_scale(**{"λmax(XᵀX/n)": domain.largest})
    return 1 / (domain.samples * domain.largest * (1 + 2 * SLACK)) ** 2


def inverse_norm(domain: Domain) -> float:
    """‖M_k Xᵀ‖₂ ≤ 1/√(N·smallest), because its singular values are p_k/√λ with p_k ≤ 1, λ an eigenvalue of S."""
    return 1 / math.sqrt(domain.samples * domain.smallest)


@cache
def newton_stencils(domain: Domain, pairs: int, dtype: torch.dtype) -> tuple[Stencil, Stencil, Stencil]:
    """For the start (scores x·x), the step (leverages x·Mx ≤ 1) and the answer (scores x_query·m)."""
    tokens, width, longest = (
        2 * domain.samples + 2,
        domain.features + 1,
        domain.norm * inverse_norm(domain) * (1 + ROOM),
    )

    def best(reach: float, cauchy: float = 1.0) -> Stencil:
        sizes = {"tokens": tokens, "summed": domain.samples, "width": width}
        return Stencil(pairs, reach=reach, **sizes, dtype=dtype, cauchy=cauchy).balanced()

    square = domain.norm**2 * (1 + 3 * SLACK)
    return best(square), best(1 + ROOM, max(1.0, longest / (1 + ROOM))), best(longest)


def newton_errors(domain: Domain, stencils: tuple[Stencil, Stencil, Stencil], loops: int) -> list[float]:
    """Claim: ‖P̂_T − P_T‖_F ≤ the T-th of these, P = MXᵀ the d × N matrix of the m_i; infinite where nothing holds.

    Assumes: smallest ≤ eigenvalues of XᵀX/N ≤ largest. Proof. Each computed step is F(P) = 2P − PXP plus Δ. With
    P̂ = P + E, F(P̂) − F(P) = 2E − E(XP) − (PX)E − EXE. XP and PX are symmetric; PX has eigenvalues p ∈ [p_min, 1], XP
    the same on the columns of X (projection Π) and 0 elsewhere. So, with r = ‖EΠ‖_F, o = ‖E(I−Π)‖_F, σ = √(N·largest):
    r ← (2 − 2p_min)r + σr² + ‖Δ‖_F,  o ← (2 − p_min)o + σro + ‖Δ‖_F,  because EX = EΠX.
    Exactly, p ← p(2 − p): relative to p_min errors never grow, and once p_min ≈ 1, r is forgotten and o only adds up.
    ‖Δ‖_F: entry (l, i) is off by reach·relative·Σ_j|P̂_lj| ≤ …·√N‖P̂_l‖₂, so ‖Δ‖_F ≤ reach·relative·N·‖P̂‖_F, plus the
    rounding of 2m − step. ‖P_k‖_F ≤ √d·max p_k/√λ. QED
    """
    start, step, _ = stencils
    n, d, small = domain.samples, domain.features, unit(step.dtype)
    top, low = n * domain.largest * (1 + 2 * SLACK), n * (domain.smallest - SLACK * domain.largest)
    if low <= 0:
        return [math.inf] * (loops + 1)
    # Σ_j |x_j[l]| ≤ √N·‖X e_l‖₂.
    columns = math.sqrt(n * top)
    inside = start_scale(domain) * math.sqrt(n * d) * (start.error(columns) + 4 * small * domain.norm**2 * columns)
    outside, least, norm = inside, start_scale(domain) * low**2, math.sqrt(d / top)
    errors = [inside + outside]
    for step_count in range(loops):
        if domain.norm * errors[-1] > ROOM:
            return errors + [math.inf] * (loops - step_count)
        size = norm + inside + outside
        shock = n * size * step.reach * step.relative + 8 * small * (1 + math.sqrt(n)) * size
        curve = math.sqrt(top) * inside
        inside, outside = (2 - 2 * least + curve) * inside + shock, (2 - least + curve) * outside + shock
        least, norm = least * (2 - least), min(2 * norm, math.sqrt(d / low))
        errors.append(inside + outside)
    return errors
