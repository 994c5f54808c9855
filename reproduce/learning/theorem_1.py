"""Theorem 1: a transformer makes a step of gradient descent on an in-context example, from any w and with any λ."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.machine import RegisterProgram
from emulon.machine.programs import sgd
from reproduce.claim import Claim, Numbers, Scale, Setting
from reproduce.learning import machines

# With λ = 0 and w₀ = 0 a single step would only be α·y·x: both are asked for.
STEP, RIDGE = 0.05, 0.2


def initial(features: int) -> Tensor:
    """w₀ of norm 1, every entry different."""
    w = torch.tensor([(-1.0) ** k * (k + 1) for k in range(features)], dtype=torch.float64)
    return torch.nn.functional.normalize(w, dim=0)


def build(features: int, samples: int, domain: Domain | None) -> RegisterProgram:
    return sgd(features, samples, STEP, ridge=RIDGE, initial=initial(features), domain=domain)


def exact(xs: Tensor, ys: Tensor) -> Tensor:
    """w_i·x_i with w ← w − α(x(w·x − y) + 2λw) (Eq. 11), one example after the other."""
    w, predictions = initial(xs.shape[-1]).expand(len(xs), -1), []
    for x, y in zip(xs.unbind(1), ys.unbind(1), strict=True):
        predictions.append((w * x).sum(dim=-1))
        w = w - STEP * (x * (predictions[-1] - y).unsqueeze(-1) + 2 * RIDGE * w)
    return torch.stack(predictions, dim=1)


def run(setting: Setting) -> Numbers:
    return machines.measure(setting, build, exact)


CLAIM = Claim(
    name="learning-theorem-1",
    source="Akyürek et al. 2022, Theorem 1",
    statement="A transformer computes the prediction after one step of gradient descent on an in-context example.",
    theirs="O(1) layers and O(d) width; O(N) layers for N examples",
    scales={
        "small": Scale(
            0.1, {"features": [4, 8, 16, 32, 64], "fixed": 4, "examples": [1, 4, 8, 16, 32], "datasets": 64}
        ),
        "paper": Scale(
            0.2, {"features": [8, 16, 32, 64, 128], "fixed": 8, "examples": [1, 5, 10, 20, 40], "datasets": 64}
        ),
    },
    run=run,
    judge=partial(machines.judge, order=1),
    figure=machines.figure,
    differs="λ = 0.2 and w₀ of norm 1; the chain of instructions takes +2λ of its Eq. 11, where the appendix has −2λ, "
    "and GELU's quadratic coefficient is 1/√(2π). A bound needs a bounded domain: it is promised for ‖x‖ ≤ 1, |y| ≤ 1.",
)
