"""Corollary 3.1.1: one head gives the gradient of a loss for every sample; error against bound over the grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.constructions import ResidualMap
from reproduce import bounded
from reproduce.bounded import Row, anywhere, largest
from reproduce.claim import Claim, Numbers, Scale, Setting

DOMAIN = Domain(samples=20, features=8, x=1.0, y=1.0, w=0.5)
# ℓ′, as the head is given it, and ℓ, as automatic differentiation is.
DERIVATIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh(t)": lambda t: t.cosh().log(),
    "t/sqrt(1 + t**2)": lambda t: (1 + t.square()).sqrt(),
}


def gradients(loss: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """∇_w ℓ(w·x_i − y_i) for every sample i, by automatic differentiation: a copy of w for each."""
    copies = w.unsqueeze(-2).expand_as(x).clone().requires_grad_()
    losses = loss((copies * x).sum(dim=-1) - y)
    (each,) = torch.autograd.grad(losses.sum(), copies)
    return each


def run(setting: Setting) -> Numbers:
    data = anywhere(DOMAIN, setting.sizes["datasets"], setting.seed)

    def measured(derivative: str, **options: Any) -> Row:
        head = ResidualMap(derivative, DOMAIN, **options)
        exact = gradients(DERIVATIVES[derivative], *data)
        return head.f.keys, largest(head(*data), exact), head.certificate.bound

    points, tolerances = setting.sizes["points"], setting.sizes["tolerances"]
    log_cosh, root = DERIVATIVES
    return {
        "curves": [
            bounded.curve(
                setting, "paper's grid, log-cosh", "keys", points, lambda k: measured(log_cosh, points=k, grid="paper")
            ),
            bounded.curve(
                setting, "paper's grid, √(1 + t²)", "keys", points, lambda k: measured(root, points=k, grid="paper")
            ),
            bounded.curve(setting, "ours, √(1 + t²)", "keys", tolerances, lambda e: measured(root, tolerance=e)),
        ]
    }


CLAIM = Claim(
    name="emulation-corollary-3.1.1",
    source="Hu et al. 2025, Corollary 3.1.1",
    statement="One softmax head with a linear layer gives the gradient of a loss for every sample, in parallel.",
    theirs="error ≤ ε for any ε > 0",
    scales={
        "small": Scale(0.2, {"points": [17, 33, 65, 129, 257], "tolerances": [1e-2, 1e-4, 1e-6, 1e-8], "datasets": 20}),
    },
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="Exact gradients are those of automatic differentiation. Data are uniform on a stated domain.",
)
