"""What the pairs of a rotary head say: the fast ones a token's place, one how recent it is, the slow ones its content.

Pair j turns by ω_j = 10^(−5j/8) a token, theta = 1e20 with 32 pairs. Keys of the fast pairs are (1, 0) at every token,
so that the query (cos ω_j·k, −sin ω_j·k) scores Σ_j cos ω_j(distance − k): highest k tokens back. One pair further down
turns by less than a right angle over the whole context: its score falls with every token of distance. The rest turn
so little that they compare contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from emulon.core.errors import BadProgram
from emulon.expressions.evaluation import ball_arithmetic

HEAD_WIDTH, PAIRS, THETA = 64, 32, 1e20
PLACE = 128.0  # nats of a fast pair
FARTHEST = 0.65  # radians that the recency pair turns over the context
STILL = 2.0**-13  # radians over the context below which cosines are 1 in float32, and products exact
LEAST_GAP = 40.0  # nats by which the wanted place beats every other
BITS = 128  # of the balls that cosines are computed in


@dataclass(frozen=True)
class Rotary:
    """Roles of the pairs for texts of up to `context` tokens."""

    context: int

    @staticmethod
    def frequency(pair: int) -> float:
        """ω of a pair, as a float for choices and checks; weights take it from `turned`."""
        return float(10.0 ** (-0.625 * pair))

    @cached_property
    def recency(self) -> int:
        """The first pair that turns less than a right angle, and a bit."""
        return next(pair for pair in range(PAIRS) if self.frequency(pair) * self.context <= FARTHEST)

    @property
    def slope(self) -> float:
        """Amplitude of recency in nats, a power of two: about −10 for every token of distance."""
        return float(2.0 ** round(np.log2(8 / self.frequency(self.recency))))

    @property
    def content(self) -> list[int]:
        """The pairs that are left, slowest first."""
        return list(range(PAIRS - 1, self.recency, -1))

    @property
    def still(self) -> int:
        """How many of them turn so little that a mean's weights are equal to the last bit."""
        return sum(self.frequency(pair) * self.context <= STILL for pair in self.content)


@cache
def require_gap(rotary: Rotary, places: int) -> float:
    """The nats by which a token so many places back beats every other; refused if there are too few."""
    distance = np.arange(rotary.context + 1) - places
    distance = distance[distance != 0]
    lost = sum(1 - np.cos(rotary.frequency(pair) * distance) for pair in range(rotary.recency))
    gap = PLACE * float(np.min(lost))
    if gap < LEAST_GAP:
        where = f"{places} tokens back in a text of {rotary.context}"
        raise BadProgram(f"{where} beats other places by {gap:.3g} nats only; take a shorter context")
    return gap


@cache
def turned(rotary: Rotary, places: int) -> list[tuple[float, float]]:
    """(cos ω·k, −sin ω·k) of the fast pairs: balls of 128 bits, whose middles are rounded to float64."""
    from flint import arb, fmpq

    with ball_arithmetic(BITS):
        angles: list[Any] = [places * arb(10) ** fmpq(-5 * pair, 8) for pair in range(rotary.recency)]
        return [(float(angle.cos().mid()), -float(angle.sin().mid())) for angle in angles]
