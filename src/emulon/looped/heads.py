"""Heads that copy and heads that multiply: Lemmas A.1 to A.3 of Gao et al. 2024."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.looped.stencil import Stencil, pair_weights
from emulon.looped.wiring import Heads, write

# A score this far below the largest underflows to a weight of exactly zero in float64 (exp(−745.2) = 0) and float32.
UNDERFLOW = 800.0

# p·p exceeds p·q by at least this for two different codes.
GAP = 2


def code_length(count: int) -> int:
    """⌈log₂ count⌉ dimensions, at least one: Lemma A.1's O(log N)."""
    return max(1, (count - 1).bit_length())


def position_codes(count: int) -> Tensor:
    """`count` codes (count, ⌈log₂ count⌉): the binary digits of the position, as ±1.

    Claim: p_i·p_i − p_i·p_j = 2·(digits in which i and j differ) ≥ 2 for i ≠ j; scaling by √(ε/2) makes the gap of
    Lemma A.1 any ε asked for, so the scale is left to the head that uses the codes.
    """
    positions = torch.arange(count, device="cpu").unsqueeze(-1)
    digits = (positions >> torch.arange(code_length(count), device="cpu")) & 1
    return 2.0 * digits.double() - 1.0


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


def readout_heads(
    slots: Slots,
    stencil: Stencil,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    into: str,
    one: Tensor,
    sink: Tensor,
    extra: tuple[Tensor, Tensor] | None = None,
    masked: Tensor | None = None,
) -> Heads:
    """Heads that add Σ_j (value_j)(query·key_j) to slot `into` of the asking token.

    Claim and Bound: `Stencil`. Assumes: |query·key_j| ≤ stencil.reach; exactly one token has sink = 1, with value 0.
    `masked` tokens get a score 800 lower, so that their weight underflows to zero. `extra` rows (query, key) are added
    to the score unscaled: a code that routes, or log n on the sink, which divides the sum by n without any MLP.
    Cost: 2·pairs heads of width + 1 rows.
    """
    fixed = stencil.sink * sink - (0.0 if masked is None else UNDERFLOW * masked)
    extra_query, extra_key = (query[:0], query[:0]) if extra is None else extra
    keys, queries, values = [], [], []
    for g, weight in enumerate(pair_weights(stencil.pairs), 1):
        for sign in (1.0, -1.0):
            scale = sign * g * stencil.tau / stencil.reach
            lift = sign * float(weight) * stencil.reach / (2 * g * stencil.tau) * math.exp(stencil.sink)
            keys.append(torch.cat([scale * key, fixed, extra_key]))
            queries.append(torch.cat([query, one, extra_query]))
            values.append(write(slots, into, lift * value))
    return torch.stack(keys), torch.stack(queries), torch.stack(values)
