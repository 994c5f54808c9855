"""Theorem E.2: the residual map as a modern Hopfield layer, asked by Definition E.1; as printed, and mended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.constructions import HopfieldResidualMap
from reproduce import bounded
from reproduce.bounded import Row, anywhere, largest
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.emulation.theorem_3_1 import exact_map

DOMAIN = Domain(samples=12, features=8, x=1.0, y=1.0, w=0.5)


def retrieve(state: Tensor, patterns: Tensor, values: Tensor, beta: float) -> Tensor:
    """Definition E.1: V·Softmax(β·Kᵀ·Q), tokens as rows, W_Q and W_K the identity."""
    return torch.softmax(beta * state @ patterns.mT, dim=-1) @ values


def asked(layer: HopfieldResidualMap, x: Tensor, y: Tensor, w: Tensor, sign: float = 1.0) -> Tensor:
    """The layer's stored patterns and its state through Definition E.1; `sign` stands in front of −L² in Linear_w."""
    patterns, values = layer.patterns(x, y)
    state = layer.state(w)
    row = x.shape[-1] + 1  # after x and y
    state = torch.cat([state[..., :row], sign * state[..., row : row + 1], state[..., row + 1 :]], dim=-1)
    return retrieve(state, patterns, values @ layer.w_v.mT, layer.beta)


def run(
    setting: Setting, functions: tuple[str, str] = ("tanh(t)", "sin(t)"), exact: Callable[..., Any] = exact_map
) -> Numbers:
    """The paper's grid over its points and ours over the keys of a tolerance; and the layer with the printed sign."""
    data = anywhere(DOMAIN, setting.sizes["datasets"], setting.seed)
    printed: list[float] = []

    def measured(f: str, **options: Any) -> Row:
        layer = HopfieldResidualMap(f, DOMAIN, **options)
        target = exact(f, *data)
        if options.get("grid") == "paper":
            printed.append(largest(asked(layer, *data, sign=-1.0), target))
        return layer.f.keys, largest(asked(layer, *data), target), layer.certificate.bound

    def measured_at(f: str, key: str, option: dict[str, Any], size: float | int) -> Row:
        return measured(f, **{key: size}, **option)

    curves = []
    for f in functions:
        for name, sizes, option in (("paper's grid", "points", {"grid": "paper"}), ("ours", "tolerances", {})):
            key = {"points": "points", "tolerances": "tolerance"}[sizes]
            curves.append(
                bounded.curve(
                    setting,
                    f"{name}, {f}",
                    "keys",
                    setting.sizes[sizes],
                    partial(measured_at, f, key, option),
                )
            )
    return {"curves": curves, "printed": printed}


def judge(numbers: Numbers) -> Verdict:
    """The mended layer by its bounds and its fall; the printed one is shown."""
    verdict = bounded.judge(numbers)
    return Verdict(
        verdict.state,
        verdict.ours,
        f"{verdict.reason}; with the printed −1 the error is {min(numbers['printed']):.1g} or more",
    )


TOLERANCES = [1e-2, 1e-4, 1e-6, 1e-8]
CLAIM = Claim(
    name="emulation-hopfield",
    source="Hu et al. 2025, Theorem E.2",
    statement="A modern Hopfield layer retrieves f(w·x − y)·x from stored data, to any precision.",
    theirs="error ≤ ε for any ε > 0",
    scales={
        "small": Scale(0.2, {"points": [33, 65, 129, 257, 513], "tolerances": TOLERANCES, "datasets": 20}),
        "paper": Scale(0.6, {"points": [65, 257, 1025], "tolerances": TOLERANCES, "datasets": 100}),
    },
    run=run,
    judge=judge,
    figure=bounded.figure,
    differs="The layer is asked by Definition E.1 itself: softmax of β times patterns times state.",
    correction="Linear_w needs +1, not −1, in front of −L²: with −1 the layer retrieves from the wrong end of its "
    "grid. The routing constant needs 1/β.",
)
