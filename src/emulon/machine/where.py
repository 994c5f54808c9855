"""Timestep maps K of Eq. 26: which tokens a token reads. Token 0 is the start token, whose registers are all zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.machine.errors import BadProgram

START = 0


@dataclass(frozen=True)
class Lookup:
    """Token i (1, 2, …) reads token `table[i − 1]`; None is the paper's empty K(i): the start token, that is, zeros."""

    name: str
    table: tuple[int | None, ...]

    def __post_init__(self) -> None:
        for token, read in enumerate(self.table, start=1):
            if read is not None and not 0 < read <= token:
                raise BadProgram(f"map {self.name}: token {token} cannot read token {read} (causal: 1 to {token})")

    @property
    def reads_start(self) -> bool:
        return None in self.table

    def targets(self) -> list[int]:
        """The token that each token reads, the start token included."""
        return [START, *(START if read is None else read for read in self.table)]


@dataclass(frozen=True)
class Average:
    """Every token reads the mean over those `members` that are not after it; zeros where there is none yet."""

    name: str
    members: tuple[int, ...]
    reads_start: bool = True

    def marks(self, tokens: int) -> Tensor:
        """The key: 1 at members, 1/2 at the start token (which therefore wins only when no member is seen), else 0."""
        marks = torch.zeros(tokens, dtype=torch.float64)
        marks[START] = 0.5
        marks[list(self.members)] = 1.0
        return marks


Where = Lookup | Average


def here(tokens: int) -> Lookup:
    """Every token reads itself; `tokens` counts all but the start token."""
    return Lookup("here", tuple(range(1, tokens + 1)))


def codes(tokens: int) -> Tensor:
    """A point on the circle for every token, the start token included: (tokens, 2).

    Claim: a token's code has inner product 1 with itself and at most 1 − `gap(tokens)` with any other.
    The paper's one-hot codes need as many slots as tokens; these need two.
    """
    angle = 2 * math.pi * torch.arange(tokens, dtype=torch.float64) / tokens
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def gap(where: Where, tokens: int) -> float:
    """By how much the wanted keys beat all others, before sharpening."""
    if isinstance(where, Average):
        return 0.5
    return 1.0 - math.cos(2 * math.pi / max(tokens, 2))


def sharpness(where: Where, tokens: int, dtype: torch.dtype) -> float:
    """β with tokens·e^{−β·gap} ≤ u/16: the leak stays below what rounding costs anyway."""
    return math.log(16 * tokens / (torch.finfo(dtype).eps / 2)) / gap(where, tokens)
