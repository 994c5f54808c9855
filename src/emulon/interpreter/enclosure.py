"""The exact algorithm on given data, enclosed: all of its steps in balls of several hundred bits.

Balls grow from step to step, by far more than errors do, and Lipschitz constants of acceleration are no better. With
enough bits that does not matter: what is left at the end is still narrower than a float.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from emulon.algorithms.losses import TemplateData
from emulon.core.errors import BadExpression
from emulon.expressions import Function, parse
from emulon.expressions.evaluation import arb_matrix, ball_arithmetic
from emulon.interpreter.plan import Plan

# Bits: so many in all, and for every step, and how often they are doubled. Constants of a loss are kept to 1,024.
BITS, BITS_A_STEP, TRIES = 128, 2, 3
NARROW = 2.0**-80


def distance_to_exact(
    plan: Plan,
    x: Float64[Tensor, "samples features"],
    y: Float64[Tensor, " samples"],
    weights: Float64[Tensor, " features"],
) -> tuple[float, float]:
    """How far these weights are from the middle of the exact ones' enclosure, and its radius, both from above.

    Infinite where the steps cannot be followed.
    """
    from flint import arb

    size = max(1.0, weights.abs().max().item())
    away = radius = math.inf
    for attempt in range(TRIES):
        with ball_arithmetic((BITS + BITS_A_STEP * plan.steps) << attempt):
            try:
                exact = _weights(plan, x, y)
            except BadExpression:
                continue
            if not all(one.is_finite() for one in exact):
                continue
            off = [abs(arb(own) - one.mid()) for own, one in zip(weights.tolist(), exact, strict=True)]
            away, radius = (max(map(_above, part)) for part in (off, [one.rad() for one in exact]))
        if radius <= NARROW * size:
            break
    return away, radius


def _above(number: Any) -> float:
    """A float that is not below its magnitude."""
    value = float(number.abs_upper())
    return math.nextafter(value, math.inf) if value else 0.0


def _weights(plan: Plan, x: Tensor, y: Tensor) -> list[Any]:
    """After all steps, as balls. None has momentum: that goes with neither acceleration nor batches."""
    from flint import arb, arb_mat

    f, eta = parse(plan.loss.derivative), arb(plan.step_size)
    seen = plan.batches(plan.loss.template_data(x, y)), plan.batches(TemplateData(x, y, None))
    linear = f.smooth == parse("t").smooth
    used = zip(*(part[: plan.steps] for part in seen), strict=True)
    batches = [_Batch(inner, given.y, linear) for inner, given in used]
    w = before = arb_mat(x.shape[-1], 1)
    for number in range(plan.steps):
        start = w + (w - before) * (arb(number) / (number + 3)) if plan.descent.accelerated else w
        gradient = batches[number % len(batches)].gradient(f, start)
        w, before = plan.descent.step(eta, start, gradient, w - before, _soft_thresholded), w
    entries: list[Any] = w.entries()
    return entries


class _Batch:
    """Data as a loss sees them; for the squared loss only XᵀX and Xᵀy are needed."""

    def __init__(self, data: TemplateData, targets: Tensor, linear: bool) -> None:
        self.samples, self.linear, self.fixed = len(data.x), linear, None
        if linear:
            self.gram, self.target = _gram(data.x, data.y)
            return
        self.x, self.y = arb_matrix(data.x), arb_matrix(data.y.unsqueeze(-1))
        self.across = self.x.transpose()
        if data.fixed is not None:
            # What is fixed is y·x, which float64 has rounded: here it is formed again.
            self.fixed = self.across * arb_matrix(targets.unsqueeze(-1))

    def gradient(self, f: Function, w: Any) -> Any:
        from flint import arb, arb_mat

        if self.linear:
            total = self.gram * w - self.target
        else:
            residuals = (self.x * w - self.y).entries()
            total = self.across * arb_mat(self.samples, 1, [f.arb_value(s) for s in residuals])
        return (total if self.fixed is None else total - self.fixed) * (1 / arb(self.samples))


def _gram(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """XᵀX and Xᵀy, exactly but for the bits of Arb: floats are whole numbers times a power of two, here one for all."""
    from flint import arb, arb_mat, fmpz_mat

    mantissas, exponents = np.frexp(torch.cat([x, y.unsqueeze(-1)], dim=-1).mT.numpy())
    least = int(exponents.min())
    columns = zip((mantissas * 2.0**53).astype(np.int64).tolist(), (exponents - least).tolist(), strict=True)
    whole = fmpz_mat([[number << up for number, up in zip(*column, strict=True)] for column in columns])
    products = arb_mat(whole * whole.transpose()) * arb(2) ** (2 * least - 106)
    entries = products.tolist()
    return arb_mat([row[:-1] for row in entries[:-1]]), arb_mat([row[-1:] for row in entries[:-1]])


def _soft_thresholded(v: Any, threshold: Any) -> Any:
    """max(v − θ, 0) + min(v + θ, 0), entry by entry: continuous, so that no sign has to be known."""
    from flint import arb, arb_mat

    zero = arb(0)
    entries = [(each - threshold).max(zero) + (each + threshold).min(zero) for each in v.entries()]
    return arb_mat(v.nrows(), v.ncols(), entries)
