"""Appendix E: the residual map as a modern Hopfield layer, error against bound."""

from __future__ import annotations

from emulon.claims import bounded
from emulon.claims.claim import Claim, Numbers, Setting
from emulon.claims.emulation.theorem_3_1 import SCALES, curves
from emulon.constructions import HopfieldResidualMap


def run(setting: Setting) -> Numbers:
    return curves(HopfieldResidualMap, setting)


CLAIM = Claim(
    name="emulation-hopfield",
    source="Hu et al. 2025, Theorem E.2",
    statement="A modern Hopfield layer retrieves f(w·x − y)·x from stored data, to any precision.",
    theirs="error ≤ ε with P = O(1/ε) grid points",
    scales=SCALES,
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="Theorem E.2 as printed fails: Linear_w needs +1 in front of −L², and the routing constant needs 1/β. Both "
    "are corrected here.",
)
