"""Lemma A.2 of Gao et al. 2024: gradient descent in the loop, and its errors over the loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.certify.rounding import unit
from emulon.certify.spectrum import SLACK
from emulon.core.errors import OutOfDomain
from emulon.looped.heads import readout_heads
from emulon.looped.layer import Layer
from emulon.looped.stencil import Stencil
from emulon.looped.transformer import share
from emulon.looped.wiring import Circuit, constant, others, read


def gradient_layer(slots: Slots, stencil: Stencil, domain: Domain, step_size: float, kinds: tuple[str, ...]) -> Layer:
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


@cache
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
        magnitude = size + gains[step + 1] * domain.y + total
        shocks.append(step_size * domain.norm**2 * size / root * relative + 4 * unit(dtype) * magnitude)
        drift += root * shocks[-1]
        # Above the sum below, and needed only for what the additions round.
        total = (1 + gains[step + 1]) * drift / root
    total = gains[loops] * label_error + sum(shock * (1 + gains[loops - 1 - j]) for j, shock in enumerate(shocks))
    # The domain's check of norms and eigenvalues has a slack of 1e-9 per step.
    return total * (1 + 1e-6)


@dataclass(frozen=True)
class DescentLoop:
    """T steps of size η ≤ 2/largest on features off by `feature_error` in norm and labels off by `label_error`."""

    domain: Domain
    step_size: float
    tokens: int
    dtype: torch.dtype
    feature_error: float = 0.0
    label_error: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.step_size * self.domain.largest <= 2 * (1 + 1e-12):
            raise OutOfDomain(f"step size {self.step_size:.6g} is not in (0, {2 / self.domain.largest:.6g}] = (0, 2/L]")

    def stencil(self, pairs: int) -> Stencil:
        return gradient_stencil(self.domain, pairs, self.tokens, self.dtype, self.feature_error)

    def layer(self, slots: Slots, pairs: int, kinds: tuple[str, ...]) -> Layer:
        return gradient_layer(slots, self.stencil(pairs), self.domain, self.step_size, kinds)

    def certificate(self, pairs: int, loops: int) -> Certificate:
        """Features off by e make x_i·x_j off by at most 2·norm·e + e²: relative to norm², one more term of the step."""
        off = self.feature_error / self.domain.norm
        # The stencil's reach is (1 + off)²·norm².
        terms = {name: part * (1 + off) ** 2 for name, part in self.stencil(pairs).terms.items()}
        terms["representation"] = off * (2 + off)
        exact = (self.domain, self.step_size, sum(terms.values()), loops, self.dtype)
        loop = descent_error(*exact)
        labels = descent_error(*exact, label_error=self.label_error) - loop if self.label_error else 0.0
        return Certificate(share(loop, terms) | {"labels": labels}, self.dtype)

    def bound(self, pairs: int, loops: int) -> float:
        return self.certificate(pairs, loops).bound

    def largest_prediction(self, loops: int) -> float:
        """Above every |prediction| the loop can hold, exact or computed with one pair or more."""
        return largest_prediction(self.domain, self.step_size, loops) + self.bound(1, loops)
