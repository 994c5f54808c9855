"""Every claim there is: each module of a source's folder has one CLAIM, and being there is being registered."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache

from emulon.core.errors import EmulonError, unknown
from reproduce.claim import Claim

# Folders and kinds of statement in the order of the index.
SOURCES = ("emulation", "learning", "algoformer", "ours")
KINDS = ("theorem", "corollary", "corollaries", "lemmas", "remark", "example", "hopfield", "section", "table", "figure")


@cache
def all_claims() -> dict[str, Claim]:
    """By name. A module without a CLAIM is what several of its folder share."""
    modules = [importlib.import_module(name) for source in SOURCES for name in _modules(source)]
    claims = [module.CLAIM for module in modules if hasattr(module, "CLAIM")]
    return {claim.name: claim for claim in claims}


def claim_named(name: str) -> Claim:
    known = all_claims()
    if name not in known:
        raise EmulonError(f"{unknown('claim', name, known)} (python -m reproduce lists all {len(known)})")
    return known[name]


def _modules(source: str) -> list[str]:
    package = importlib.import_module(f"reproduce.{source}")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [f"{package.__name__}.{name}" for name in sorted(names, key=_place)]


def _place(name: str) -> tuple[int, bool, list[int], str]:
    """By kind of statement, then by number, an appendix's (D.1) after the others."""
    kind, _, number = name.partition("_")
    rank = KINDS.index(kind) if kind in KINDS else len(KINDS)
    return rank, not number[:1].isdecimal(), [int(part) for part in re.findall(r"\d+", number)], name
