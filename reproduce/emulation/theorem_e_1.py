"""Theorem E.1: a Hopfield network gives f(a·z + b) for every token; error against bound over the grid's points."""

from __future__ import annotations

from typing import Any

import torch

from emulon.softmax import approximate
from reproduce import bounded
from reproduce.bounded import Row, largest, uniform
from reproduce.claim import Claim, Numbers, Scale, Setting
from reproduce.emulation.hopfield import retrieve

TOKENS, FEATURES, INTERCEPT = 20, 6, 0.3


def run(setting: Setting) -> Numbers:
    """Patterns (slope·a, slope·b + intercept) and state (z, 1): the proof's K and Q with β inside K."""
    draw = torch.Generator().manual_seed(setting.seed)
    z = uniform(draw, setting.sizes["datasets"], TOKENS, FEATURES)
    a = uniform(draw, FEATURES) / FEATURES
    state = torch.cat([z, torch.ones_like(z[..., :1])], dim=-1)
    reach = a.abs().sum().item() + INTERCEPT

    def measured(f: str, **options: Any) -> Row:
        approximation = approximate(f, (-reach, reach), **options)
        grid = approximation.grid
        patterns = torch.cat(
            [grid.slopes.unsqueeze(-1) * a, (grid.slopes * INTERCEPT + grid.intercepts).unsqueeze(-1)], dim=-1
        )
        exact = approximation.function(z @ a + INTERCEPT)
        retrieved = retrieve(state, patterns, grid.values.unsqueeze(-1), 1.0).squeeze(-1)
        return approximation.keys, largest(retrieved, exact), approximation.certificate.bound

    points, tolerances = setting.sizes["points"], setting.sizes["tolerances"]
    f = "sin(6*t)"
    return {
        "curves": [
            bounded.curve(setting, "paper's grid", "keys", points, lambda k: measured(f, points=k, grid="paper")),
            bounded.curve(setting, "ours", "keys", tolerances, lambda e: measured(f, tolerance=e)),
        ]
    }


CLAIM = Claim(
    name="emulation-theorem-e.1",
    source="Hu et al. 2025, Theorem E.1",
    statement="A Hopfield network gives f(a·z + b) for every token z, for any continuous f, to any precision.",
    theirs="error ≤ ε for any ε > 0",
    scales={
        "small": Scale(0.1, {"points": [17, 33, 65, 129, 257], "tolerances": [1e-2, 1e-5, 1e-8], "datasets": 50}),
    },
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="f = sin 6t has one output, where the theorem allows several.",
)
