"""Remark 4.5: a linear layer whose weights are tokens of the prompt; error against bound over the grid's points."""

from __future__ import annotations

from typing import Any

import torch

from emulon.constructions import LinearLayer
from reproduce import bounded
from reproduce.bounded import Row, largest, uniform
from reproduce.claim import Claim, Numbers, Scale, Setting


def run(setting: Setting) -> Numbers:
    tokens, features, width = (setting.sizes[key] for key in ("tokens", "features", "width"))
    draw = torch.Generator().manual_seed(setting.seed)
    x, theta = uniform(draw, setting.sizes["datasets"], tokens, features), uniform(draw, width, features)
    theta = theta.expand(setting.sizes["datasets"], width, features)
    reach = float(features)

    def measured(**options: Any) -> Row:
        layer = LinearLayer(tokens, features, width, reach, **options)
        return layer.f.keys, largest(layer(x, theta), x @ theta.mT), layer.certificate.bound

    points, tolerances = setting.sizes["points"], setting.sizes["tolerances"]
    return {
        "curves": [
            bounded.curve(setting, "paper's grid", "keys", points, lambda k: measured(points=k, grid="paper")),
            bounded.curve(setting, "ours", "keys", tolerances, lambda e: measured(tolerance=e)),
        ]
    }


CLAIM = Claim(
    name="emulation-remark-4.5",
    source="Hu et al. 2025, Remark 4.5",
    statement="A fixed softmax layer computes x ↦ Θx with Θ given in the prompt, to any precision.",
    theirs="“to arbitrary precision” (no number is given)",
    scales={
        "small": Scale(
            0.1,
            {"tokens": 12, "features": 6, "width": 4, "points": [33, 65, 129, 257], "tolerances": [1e-2, 1e-6, 1e-10]}
            | {"datasets": 50},
        ),
    },
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="One head for each row of Θ, where the remark speaks of one layer and does not count heads.",
)
