"""A row of pieces of one shape, for functions that turn hundreds of times.

Scaled to [−1, 1], soft grids of one shape have the same weights wherever their pieces lie and however long these are:
one factorisation fits values to all pieces at once. So they are cut where the function has turned equally often, and
the number of keys is searched for the whole row; each piece is then fitted as any other is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from emulon.certify.interpolation import weights
from emulon.softmax.spectral import SEEN, Target, chebyshev, dense, least_squares

# How far beyond a junction both neighbours are fitted, as a part of the shorter one.
OVERLAP = 0.08
# What turns less often is cut in halves, with more search to a piece.
MANY_TURNS = 128
# Turns to a piece: with fewer it is margins that keys are spent on, with more the factorisations take longest.
TURNS = (16, 22, 28)
SHAPES = tuple((softness, part) for softness in (3 / 16, 1 / 4, 5 / 16) for part in (0.7, 0.8, 0.9))
# Of the tolerance: pieces store their keys rounded, and round as they are averaged.
SLACK = 0.9


@dataclass(frozen=True)
class Row:
    """Pieces (lo, hi), overlapping at their junctions, and a shape that does for all of them."""

    pieces: list[tuple[float, float]]
    keys: int
    softness: float
    half_width: float

    @property
    def total(self) -> int:
        return len(self.pieces) * self.keys


@dataclass(frozen=True)
class Rows:
    """The search for rows on one segment; `at` is where the function turns."""

    f: Target
    at: np.ndarray
    lo: float
    hi: float
    largest: float
    mirrored: bool
    """The segment continues to the left as its own mirror image."""

    def smallest(self, tolerance: float) -> Row | None:
        """The row with the fewest keys of those tried, or None."""
        found = [self._of(each, SLACK * tolerance) for each in TURNS]
        return min(filter(None, found), key=lambda row: row.total, default=None)

    def _of(self, turns_each: int, tolerance: float) -> Row | None:
        pieces = self._cut(turns_each)
        below, above = turns_each, 4 * turns_each + 24
        found = self._within(pieces, above, tolerance)
        while found is not None and above - below > 1:
            middle = (above + below) // 2
            trial = self._within(pieces, middle, tolerance)
            if trial is None:
                below = middle
            else:
                above, found = middle, trial
        return found

    def _cut(self, turns_each: float | int) -> list[tuple[float, float]]:
        """Pieces of equal width times how densely they turn where they do most: that is what keys are spent on."""
        count = len(self._cuts(turns_each)) - 1
        least, most = turns_each * (1 - 1 / count), float(turns_each)
        for _ in range(8):  # the last one, which is a rest, as long as the others
            middle = (least + most) / 2
            least, most = (least, middle) if len(self._cuts(middle)) - 1 == count else (middle, most)
        cuts = np.array(self._cuts(most))
        widths = np.diff(cuts)
        overlaps = OVERLAP / 2 * np.minimum(widths[1:], widths[:-1])
        beyond = [OVERLAP / 2 * float(widths[0]) if self.mirrored else 0.0, *overlaps.tolist(), 0.0]
        return [
            (left - before, right + after)
            for (left, right), (before, after) in zip(pairwise(cuts.tolist()), pairwise(beyond), strict=True)
        ]

    def _cuts(self, turns_each: float | int) -> list[float]:
        s, density = self._density
        cuts, start = [self.lo], 0
        while True:
            spent = (s[start:] - s[start]) * np.maximum.accumulate(density[start:])
            start += int(np.searchsorted(spent, turns_each))
            if start >= len(s) - 1:
                return [*cuts, self.hi]
            cuts.append(float(s[start]))

    @cached_property
    def _density(self) -> tuple[np.ndarray, np.ndarray]:
        """Turns per unit of s: five of them over the distance between the first and the last."""
        s, at = np.linspace(self.lo, self.hi, SEEN), self.at
        place = np.clip(np.searchsorted(at, s) - 3, 0, len(at) - 6)
        return s, 5 / (at[place + 5] - at[place])

    def _within(self, pieces: list[tuple[float, float]], keys: int, tolerance: float) -> Row | None:
        """The shape of so many keys that errs least on the worst of the pieces, if that is within the tolerance."""
        nodes, points = chebyshev(-1.0, 1.0, 3 * keys + 2), dense(-1.0, 1.0, keys)
        wanted, f = (np.stack([self._scaled(piece, x) for piece in pieces]) for x in (nodes, points))
        offsets = np.arange(keys) - (keys - 1) / 2
        best, row = tolerance, None
        for softness, part in SHAPES:
            half_width = part * keys / 2
            slopes, intercepts = 2 * softness * offsets * half_width, -softness * offsets**2
            values = least_squares(weights(slopes, intercepts, nodes), wanted)
            if (np.abs(values).max(axis=-1) <= self.largest * np.abs(wanted).max(axis=-1)).all():
                error = float(np.abs(values @ weights(slopes, intercepts, points).T - f).max())
                if error <= best:
                    best, row = error, Row(pieces, keys, softness, half_width)
        return row

    def _scaled(self, piece: tuple[float, float], x: np.ndarray) -> np.ndarray:
        lo, hi = piece
        return self.f((lo + hi) / 2 + (hi - lo) / 2 * x)
