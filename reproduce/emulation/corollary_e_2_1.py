"""Corollary E.2.1: a modern Hopfield layer retrieves the gradients of a loss, one for each sample."""

from __future__ import annotations

from torch import Tensor

from reproduce import bounded
from reproduce.claim import Claim, Numbers, Setting
from reproduce.emulation import hopfield
from reproduce.emulation.corollary_3_1_1 import DERIVATIVES, gradients


def run(setting: Setting) -> Numbers:
    def exact(derivative: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return gradients(DERIVATIVES[derivative], x, y, w)

    return hopfield.run(setting, ("tanh(t)", "t/sqrt(1 + t**2)"), exact)


CLAIM = Claim(
    name="emulation-corollary-e.2.1",
    source="Hu et al. 2025, Corollary E.2.1",
    statement="A modern Hopfield layer retrieves the gradient of a loss for every sample, to any precision.",
    theirs="error ≤ ε for any ε > 0",
    scales=hopfield.CLAIM.scales,
    run=run,
    judge=hopfield.judge,
    figure=bounded.figure,
    differs="Exact gradients are those of automatic differentiation, of log-cosh and of √(1 + t²).",
    correction="As Theorem E.2, on which it stands.",
)
