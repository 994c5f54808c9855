"""Every claim there is, module by module."""

from __future__ import annotations

import difflib
import importlib
from functools import cache

from emulon.claims.claim import Claim
from emulon.errors import EmulonError

# In the order of the index. Each module has one CLAIM.
MODULES = (
    "emulation.theorem_3_1",
    "emulation.corollary_3_1_2",
    "emulation.corollaries_3_1_3_and_4",
    "emulation.theorem_d_1",
    "emulation.theorem_4_1",
    "emulation.theorem_4_2",
    "emulation.corollary_4_2_1",
    "emulation.hopfield",
    "emulation.section_5_1",
    "emulation.table_1",
    "emulation.table_2",
    "emulation.table_3",
    "emulation.table_4",
    "learning.theorem_1",
    "learning.theorem_2",
    "learning.figure_1",
    "learning.figure_2",
    "learning.figure_3",
    "learning.figure_4",
    "algoformer.theorem_3_1",
    "algoformer.theorem_3_2",
    "algoformer.theorem_3_3",
    "algoformer.theorem_4_1",
    "algoformer.theorem_4_2",
    "algoformer.figure_2",
    "algoformer.figure_3",
    "algoformer.figure_4",
    "algoformer.figure_5",
    "ours.keys",
    "ours.library",
    "ours.real_data",
    "ours.codes",
    "ours.tightness",
)


@cache
def all_claims() -> dict[str, Claim]:
    """By name."""
    found = [importlib.import_module(f"emulon.claims.{module}").CLAIM for module in MODULES]
    return {claim.name: claim for claim in found}


def claim_named(name: str) -> Claim:
    known = all_claims()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, 1, 0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    raise EmulonError(f"there is no claim {name!r}; {hint}emulon reproduce lists all {len(known)}")
