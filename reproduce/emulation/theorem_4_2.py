"""Theorem 4.2: a head emulated with its weights as tokens; error against bound over the interpolation points."""

from __future__ import annotations

from emulon.constructions import HeadInTokens
from reproduce import bounded
from reproduce.claim import Claim, Numbers, Scale, Setting
from reproduce.emulation.theorem_4_1 import curves


def run(setting: Setting) -> Numbers:
    return curves(HeadInTokens, "points", setting, lambda built: built.linear.f.keys)


CLAIM = Claim(
    name="emulation-theorem-4.2",
    source="Hu et al. 2025, Theorem 4.2",
    statement="One frozen two-layer module emulates any attention head whose weights are tokens of the prompt.",
    theirs="error ≤ ε for any ε > 0, with more interpolation points",
    scales={
        "small": Scale(
            0.2,
            {"tokens": 12, "features": 4, "width": 4, "points": [65, 129, 257, 513], "soft": [5, 9, 13, 17, 25]},
        ),
        "paper": Scale(
            0.2,
            {"tokens": 20, "features": 24, "width": 24, "points": [65, 257, 1025], "soft": [5, 9, 13, 17, 25]},
        ),
    },
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="The selectors of the assembling head are those of D.38 (the sketch in A.1 permutes them). The bound is "
    "the certificate for this head and data.",
)
