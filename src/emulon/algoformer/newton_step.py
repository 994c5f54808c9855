"""Lemma A.4: one Newton–Schulz step M ← 2M − MSM as one layer, and how its errors add up over the loops."""

from __future__ import annotations

import math

import torch

from emulon.algoformer.circuit import Circuit
from emulon.algoformer.layer import Layer
from emulon.algoformer.readout import constant, readout_heads
from emulon.algoformer.stencil import Stencil
from emulon.algoformer.tokens import KINDS, others
from emulon.algoformer.wiring import read
from emulon.attention import Slots
from emulon.certify import Domain
from emulon.certify.rounding import unit
from emulon.certify.spectrum import SLACK

# How far a computed leverage x_i·M x_j may exceed the exact one, which is at most 1.
ROOM = 2.0**-6


def newton_layer(slots: Slots, stencil: Stencil, domain: Domain) -> Layer:
    """Claim: m_i ← 2m_i − Σ_j m_j (x_j·m_i) on train tokens; with m_i = M x_i that is M ← 2M − M S M, S = XᵀX.

    Assumes: m is zero except on train tokens; the query's token is masked, its score being no leverage. A slot `step`
    keeps the attention's output apart from m, because the MLP has to double m: the paper's layout has no room for it.
    Bound: `newton_errors`. Cost: one layer, 2·pairs heads.
    """
    heads = readout_heads(
        slots,
        stencil,
        query=read(slots, m=1.0),
        key=read(slots, x=1.0),
        value=read(slots, m=1.0),
        into="step",
        one=constant(slots, *KINDS),
        sink=read(slots, sink=1.0),
        masked=read(slots, query=1.0),
    )
    circuit = Circuit(slots).move(
        read(slots, m=1.0, step=-1.0), "m", off=others(slots, "train"), bound=4 * inverse_norm(domain)
    )
    return Layer(heads, circuit.clear("step").matrices, dtype=stencil.dtype, name="newton step")


def start_layer(slots: Slots, stencil: Stencil, domain: Domain) -> Layer:
    """Claim: m_i = αS x_i on train tokens, α = 1/(N·largest)², hence αS² ≤ I.

    The query's token must not enter S; a linear W_V cannot zero it as the paper writes, so its score is masked.
    """
    heads = readout_heads(
        slots,
        stencil,
        query=read(slots, x=1.0),
        key=read(slots, x=1.0),
        value=read(slots, x=start_scale(domain)),
        into="step",
        one=constant(slots, *KINDS),
        sink=read(slots, sink=1.0),
        masked=read(slots, query=1.0),
    )
    bound = start_scale(domain) * domain.samples * domain.norm**2 * domain.x
    circuit = Circuit(slots).move(read(slots, step=1.0), "m", off=others(slots, "train"), bound=2 * bound)
    return Layer(heads, circuit.clear("step").matrices, dtype=stencil.dtype, name="newton start")


def start_scale(domain: Domain) -> float:
    """α of Eq. 5; the eigenvalues of S are N times those of XᵀX/N, and may exceed `largest` by the check's slack."""
    return 1 / (domain.samples * domain.largest * (1 + 2 * SLACK)) ** 2


def inverse_norm(domain: Domain) -> float:
    """‖M_k Xᵀ‖₂ ≤ 1/√(N·smallest), because its singular values are p_k/√λ with p_k ≤ 1, λ an eigenvalue of S."""
    return 1 / math.sqrt(domain.samples * domain.smallest)


def newton_stencils(domain: Domain, pairs: int, tokens: int, dtype: torch.dtype) -> tuple[Stencil, Stencil, Stencil]:
    """For the start (scores x·x), the step (leverages x·Mx ≤ 1) and the answer (scores x_query·m)."""
    width = domain.features + 1
    longest = domain.norm * inverse_norm(domain) * (1 + ROOM)

    def best(reach: float, cauchy: float) -> Stencil:
        return Stencil.best(
            pairs, reach=reach, tokens=tokens, summed=domain.samples, width=width, dtype=dtype, cauchy=cauchy
        )

    square = domain.norm**2 * (1 + 3 * SLACK)
    return best(square, 1.0), best(1 + ROOM, max(1.0, longest / (1 + ROOM))), best(longest, 1.0)


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
