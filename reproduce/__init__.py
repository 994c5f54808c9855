"""Every claim of the sources, and our own: a small module each, run by `python -m reproduce`; numbers, never plots."""

from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from reproduce.registry import all_claims, claim_named

__all__ = [
    "CannotTest",
    "Claim",
    "Figure",
    "Numbers",
    "Panel",
    "Scale",
    "Series",
    "Setting",
    "Verdict",
    "all_claims",
    "claim_named",
]
