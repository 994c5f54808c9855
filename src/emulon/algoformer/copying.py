"""Heads that copy a slot from the tokens whose code matches (Lemma A.3 and the neighbour exchange of Theorem 3.1)."""

from __future__ import annotations

from torch import Tensor

from emulon.algoformer.codes import GAP, UNDERFLOW
from emulon.algoformer.wiring import Heads, write
from emulon.attention import Slots

SHARPNESS = UNDERFLOW / GAP


def copy_head(slots: Slots, query: Tensor, key: Tensor, value: Tensor, into: str) -> Heads:
    """One head that averages `value` over the tokens whose key code equals the query code, and adds it to a slot.

    Claim: the copy is exact in floating point. Assumes: codes of ±1 or 0-1 whose products with the query are integers,
    largest at the matching tokens by at least GAP, and either one or a power of two of them match.
    Proof. Scores are 400·integer, exact below 2²⁴ in float32; every match has the same score, every other one is 800
    lower and its weight underflows to zero; the normaliser is the exact count of matches, and 1/count, weight·value
    and sums of zeros are exact. In exact arithmetic the leak is n·e⁻⁸⁰⁰. QED
    Cost: one head, as wide as the code.
    """
    rows = write(slots, into, value)
    return (SHARPNESS * key).unsqueeze(0), query.unsqueeze(0), rows.unsqueeze(0)
