"""Lemma A.2: one gradient step of multivariate regression as one layer, and how its errors add up over the loops."""

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


def gradient_layer(
    slots: Slots, stencil: Stencil, domain: Domain, step_size: float, kinds: tuple[str, ...] = KINDS
) -> Layer:
    """Claim: res_i ← res_i − (η/N)Σ_j (x_i·x_j)·res_j on train tokens, and the query's prediction in y likewise.

    With res_i = A_k x_i − y_i that is A_{k+1} = A_k − η∇L(A_k), L(A) = (1/2N)Σ‖A x_j − y_j‖².
    Assumes: res is zero except on train tokens, so that only they are summed (the paper's extra row x/N is not needed);
    among `kinds`, which hold exactly one 1 per token, are train, query and sink.
    Bound: `Stencil.error` per step, `descent_error` over loops. Cost: one layer, 2·pairs heads.
    """
    heads = readout_heads(
        slots,
        stencil,
        query=read(slots, x=1.0),
        key=read(slots, x=1.0),
        value=read(slots, res=-step_size / domain.samples),
        into="step",
        one=constant(slots, *kinds),
        sink=read(slots, sink=1.0),
    )
    bound = 2 * step_size * stencil.reach * math.sqrt(domain.samples) * domain.y * (1 + stencil.relative)
    circuit = Circuit(slots)
    for name, into in (("train", "res"), ("query", "y")):
        circuit.move(read(slots, step=1.0), into, off=others(slots, name, kinds=kinds), bound=bound)
    return Layer(heads, circuit.clear("step").matrices, dtype=stencil.dtype, name="gradient step")


def gradient_stencil(
    domain: Domain, pairs: int, tokens: int, dtype: torch.dtype, feature_error: float = 0.0
) -> Stencil:
    """Scores x_i·x_j ≤ norm²; at most N values are not zero."""
    return Stencil.best(
        pairs,
        reach=(domain.norm + feature_error) ** 2 * (1 + 3 * SLACK),
        tokens=tokens,
        summed=domain.samples,
        width=domain.features + 1,
        dtype=dtype,
    )


def gain(domain: Domain, step_size: float, steps: int) -> float:
    """Claim: max over σ² in the spectrum of |1 − (1 − ησ²)^M|/σ ≤ this, for ησ² ≤ 2.

    Proof. With t = ησ², |1 − (1−t)^M| = t·|Σ(1−t)^i| ≤ min(cap, Mt), cap = 1 if t ≤ 1, else 2. Divide by σ. QED
    It is how far M gradient steps carry a unit of residual into w.
    """
    cap = 1.0 if step_size * domain.largest <= 1 else 2.0
    choices = [math.sqrt(cap * step_size * steps), step_size * math.sqrt(domain.largest) * steps]
    if domain.smallest > 0:
        choices.append(cap / math.sqrt(domain.smallest))
    return min(choices)


def largest_prediction(domain: Domain, step_size: float, loops: int) -> float:
    """|A_k x| ≤ norm·gain·y for every k ≤ loops."""
    return domain.norm * gain(domain, step_size, loops) * domain.y


def descent_error(
    domain: Domain, step_size: float, relative: float, loops: int, dtype: torch.dtype, label_error: float = 0.0
) -> float:
    """Claim: |prediction − exact prediction after `loops` steps| ≤ this in every entry, when the sum Σ_j (x_i·x_j)res_j
    of each step is off by at most norm²·Σ|res_j|·relative and the labels by label_error.

    Assumes: η·largest ≤ 2, A_0 = 0. Proof. The exact residuals obey r ← (I − ηG)r, G = XXᵀ/N, which does not expand,
    so ‖r_k‖₂ ≤ √N·y. Let δ_k be the entrywise error made in step k, e_k the error of the residuals: e_{k+1} = (I−ηG)e_k
    + δ_k, so ‖e_k‖₂ ≤ √N·Σ|δ|. The query's prediction gets δ_k itself and −(η/N)x_qᵀXᵀe_k; the latter, summed over the
    M = T−1−j steps after j, gives (1/N)x_qᵀXᵀG⁺(I − (I−ηG)^M)δ_j ≤ ‖x_q‖·gain(M)·max|δ_j|. QED
    δ_k = (η/N)·norm²·Σ|res|·relative with Σ|res| ≤ √N·‖res‖₂, plus the rounding of res + step and y + step.
    """
    root = math.sqrt(domain.samples)
    gains = [domain.norm * gain(domain, step_size, steps) for steps in range(loops + 1)]
    drift, total = root * label_error, 0.0
    shocks: list[float] = []
    for step in range(loops):
        size = root * domain.y + drift
        held = size + gains[step + 1] * domain.y + total
        shocks.append(step_size * domain.norm**2 * size / root * relative + 4 * unit(dtype) * held)
        drift += root * shocks[-1]
        # Above the sum below, and needed only for what the additions round.
        total = (1 + gains[step + 1]) * drift / root
    total = gains[loops] * label_error + sum(shock * (1 + gains[loops - 1 - j]) for j, shock in enumerate(shocks))
    # The domain's check of norms and eigenvalues has a slack of 1e-9 per step.
    return total * (1 + 1e-6)
