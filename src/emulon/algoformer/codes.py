"""Quasi-orthogonal position codes (Lemma A.1), made of ±1 so that their products are exact integers."""

from __future__ import annotations

import torch
from torch import Tensor

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
    positions = torch.arange(count).unsqueeze(-1)
    digits = (positions >> torch.arange(code_length(count))) & 1
    return 2.0 * digits.double() - 1.0
