"""Every claim of the sources, and our own: one small module each, run by `emulon reproduce`. Numbers, never plots."""

from emulon.claims.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from emulon.claims.figure import Figure, Panel, Series
from emulon.claims.registry import all_claims, claim_named

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
