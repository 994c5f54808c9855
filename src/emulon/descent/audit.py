"""What a run really erred by, bounded afterwards: its own steps compared with exact ones.

Claim: ‖ŵ_T − w_T‖₂ ≤ e_T with e_0 = 0 and e_{t+1} = ρ·e_t + δ_t, where δ_t ≥ ‖ŵ_{t+1} − Step(ŵ_t)‖₂.
Proof: ‖ŵ_{t+1} − w_{t+1}‖ ≤ ‖ŵ_{t+1} − Step(ŵ_t)‖ + ‖Step(ŵ_t) − Step(w_t)‖, and the exact step is ρ-Lipschitz. QED
Step is evaluated in float64 with its own rounding bounded; ℓ′ in ball arithmetic, on a ball around every residual.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.algorithms import soft_threshold
from emulon.certify import Certificate, rounding
from emulon.certify.composition import step_lipschitz
from emulon.certify.spectrum import SLACK
from emulon.descent.plan import Plan
from emulon.errors import EmulonError
from emulon.evaluation import ball_arithmetic
from emulon.expression import Function, parse

f64 = torch.float64


def audited(plan: Plan, x: Tensor, y: Tensor, iterates: Tensor, promised: Certificate) -> Certificate:
    """Of the last of the iterates (..., steps + 1, features), for the worst dataset of a batch."""
    if plan.momentum:
        raise EmulonError("a run with momentum has no audit: its step depends on two states; use its certificate")
    x, y, path = x.double(), y.double(), iterates.double()
    exact, evaluation = _steps(plan, x, y, path[..., :-1, :])
    found = (path[..., 1:, :] - exact).norm(dim=-1) * (1 + 1e-12)
    terms = {
        "steps as they were": _grown(plan, found),
        "exact steps' own rounding": _grown(plan, evaluation.norm(dim=-1) * (1 + 1e-12)),
    }
    proved = plan.proves(math.fsum(terms.values()))
    return Certificate(terms, iterates.dtype, proved, promised.bands, scope="run")


def _grown(plan: Plan, errors: Tensor) -> float:
    """e_T for errors (..., steps) made at each step, the largest of the batch."""
    top = plan.max_step_times_smoothness * (1 + 3 * SLACK)
    ratio = step_lipschitz(plan.step_size, top / plan.step_size, plan.flattest(SLACK))
    total = torch.zeros_like(errors[..., 0])
    for error in errors.unbind(dim=-1):
        total = (ratio * total + error) * (1 + 1e-15)
    return total.max().item() if total.numel() else 0.0


def _steps(plan: Plan, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The exact steps from all states w (..., steps, features), and how far each entry may be off them."""
    n, d = x.shape[-2:]
    inner_x, inner_y, fixed = plan.loss.effective(x, y)
    rows, eta = inner_x.unsqueeze(-3), plan.step_size
    s = w @ inner_x.mT - inner_y.unsqueeze(-2)
    off = rounding.gamma(d + 3, f64) * (w.abs() @ inner_x.abs().mT + inner_y.abs().unsqueeze(-2))
    middle, radius = _enclosed(parse(plan.loss.derivative), s, off)
    carried = torch.zeros_like(x) if fixed is None else fixed
    gradient = (middle.unsqueeze(-2) @ rows).squeeze(-2) / n - carried.mean(dim=-2).unsqueeze(-2)
    size = (middle.abs().unsqueeze(-2) @ rows.abs()).squeeze(-2) / n + carried.abs().mean(dim=-2).unsqueeze(-2)
    doubt = (radius.unsqueeze(-2) @ rows.abs()).squeeze(-2) / n * (1 + 1e-9) + rounding.gamma(n + 4, f64) * size
    moved = plan.shrink * w - eta * gradient
    largest = (1 + eta * plan.l2) * w.abs() + eta * size + eta * plan.l1
    return (
        soft_threshold(moved, moved.new_full((*moved.shape[:-1], 1), eta * plan.l1)),
        eta * doubt * (1 + 1e-9) + rounding.gamma(8, f64) * largest,
    )


def _enclosed(f: Function, s: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    """(middle, radius) of f on s ± off, elementwise: |f(t) − middle| ≤ radius for every t in the ball."""
    from flint import arb, arb_series

    with ball_arithmetic(order=1):
        ends = []
        for at, room in zip(s.flatten().tolist(), off.flatten().tolist(), strict=True):
            ball = arb(at, room)
            values = [
                (arb_series([0]) + f.arb_series(arb_series([ball]), signs))[0]
                for signs in f.arb_branches(at - 2 * room, at + 2 * room)
            ]
            ends.append((min(float(v.lower()) for v in values), max(float(v.upper()) for v in values)))
    lower, upper = torch.tensor(ends, dtype=f64).reshape(*s.shape, 2).unbind(dim=-1)
    middle = (lower + upper) / 2
    # The ends are floats next to Arb's; one more last place each way covers the conversion and the middle.
    return middle, (upper - lower) / 2 + 4 * rounding.unit(f64) * torch.maximum(lower.abs(), upper.abs())
