"""Lemma A.5: causal attention, every position taking a gradient step on its own prefix."""

from __future__ import annotations

import math

import torch

from emulon.algoformer.causal_tokens import CAUSAL_KINDS, causal_code_length, elsewhere
from emulon.algoformer.circuit import Circuit
from emulon.algoformer.layer import Layer
from emulon.algoformer.readout import constant, readout_heads
from emulon.algoformer.self_product import self_product_heads, self_stencil
from emulon.algoformer.stencil import Stencil
from emulon.algoformer.wiring import read
from emulon.attention import Slots
from emulon.certify import Domain
from emulon.certify.rounding import unit
from emulon.certify.spectrum import SLACK


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


def product_layer(slots: Slots, stencil: Stencil) -> Layer:
    """Claim: point j's y becomes w^j·x_j."""
    heads = self_product_heads(slots, stencil, read(slots, w=1.0), read(slots, x=1.0), "y")
    return Layer(heads, Circuit(slots).matrices, dtype=stencil.dtype, causal=True, name="answer")


def causal_stencils(
    domain: Domain, step_size: float, pairs: int, dtype: torch.dtype, loops: int
) -> tuple[Stencil, Stencil]:
    """For the step (scores w·x_h − y_h) and the answer (score w·x)."""
    tokens, width = 2 * domain.samples + 2, domain.features + 3
    reach = residual_reach(domain, step_size, loops)
    weight = weight_norm(domain, step_size, loops)
    step = Stencil.best(
        pairs,
        reach=reach,
        tokens=tokens,
        summed=domain.samples,
        width=width,
        dtype=dtype,
        cauchy=max(1.0, (weight * domain.norm * (1 + SLACK) + domain.y) / reach),
        lift=math.log(domain.samples),
    )
    answer = self_stencil(
        pairs,
        reach=weight * domain.norm * (1 + SLACK),
        tokens=tokens,
        width=domain.features,
        code=causal_code_length(domain.samples),
        dtype=dtype,
    )
    return step, answer


def weight_norm(domain: Domain, step_size: float, loops: int) -> float:
    """‖w_k‖₂ ≤ √(cap·η·loops)·y for every prefix and k ≤ loops (`gain` without a spectrum), doubled for errors."""
    cap = 1.0 if step_size * domain.norm**2 <= 1 else 2.0
    return 2 * math.sqrt(cap * step_size * max(loops, 1)) * domain.y


def residual_reach(domain: Domain, step_size: float, loops: int) -> float:
    """|w_k·x_h − y_h| ≤ √n·y, as no step expands the n residuals of a prefix, or ≤ ‖w‖‖x‖ + y; with room for errors."""
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
