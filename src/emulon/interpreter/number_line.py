"""The interpreter's frozen grid: one softmax that reproduces the number it is asked about, at every magnitude.

A single soft grid on [−B, B] errs by a fixed part of B, so a wide range would spoil small numbers. This line is
piecewise instead: a soft grid around zero and soft grids for magnitudes eight times larger each, joined by seams, so
that its error grows with the number, as a floating-point number's does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

from emulon.approximation.grid import Grid
from emulon.approximation.piecewise import OVERLAP, Gate, assemble
from emulon.approximation.spectral import Fit, Spectral
from emulon.certify import rounding
from emulon.certify.interpolation import prove
from emulon.certify.perturbation import shifted_average
from emulon.errors import OutOfDomain
from emulon.expression import parse

INNER = 32.0
GROWTH = 8.0
LONGEST = 2.0**40
PIECE_KEYS = (16, 24, 32)
# Non-zero entries of a row of W times a token, at most: −η·value + η·fixed, or three states.
TERMS = 3


@dataclass(frozen=True)
class NumberLine:
    """The grid, and its certified error for numbers up to each magnitude."""

    grid: Grid
    reaches: tuple[float, ...]
    errors: tuple[float, ...]
    interpolation: tuple[float, ...]

    @property
    def reach(self) -> float:
        return self.reaches[-1]

    def error(self, magnitude: float) -> float:
        """A bound on |F(s) − s| for all |s| ≤ magnitude, in the line's dtype."""
        for reach, error in zip(self.reaches, self.errors, strict=True):
            if magnitude <= reach:
                return error
        return math.inf


def number_line(reach: float, dtype: torch.dtype = torch.float64) -> NumberLine:
    """The line for |s| ≤ reach, rounded up to 32·8^k. On one machine the same reach gives the same bits."""
    return _line(octaves_for(reach), dtype)


def octaves_for(reach: float) -> int:
    """How many times eight the inner piece must grow. Refuses what is so far out that no digit of it would be kept."""
    if not reach <= LONGEST:
        raise OutOfDomain(
            f"this needs numbers up to {reach:.3g}, and number lines end at {LONGEST:.3g}; rescale the data, or take a "
            "narrower domain or fewer steps"
        )
    octaves = 0
    while INNER * GROWTH**octaves < reach:
        octaves += 1
    return octaves


@lru_cache(maxsize=16)
def _line(octaves: int, dtype: torch.dtype) -> NumberLine:
    edges = [INNER * GROWTH**k for k in range(octaves + 1)]
    right = [_piece(lo, hi, dtype) for lo, hi in pairwise(edges)]
    inner = _piece(-INNER, INNER, dtype)
    left = [_mirror(piece) for piece in reversed(right)]
    pieces = [*left, inner, *right]
    gates = [_gate(a, b) for a, b in pairwise(pieces)]
    grid = assemble(pieces, gates, pivot=len(left)) if gates else inner
    return certified_line(grid, octaves)


def certified_line(grid: Grid, octaves: int) -> NumberLine:
    """What can be promised about these very numbers, wherever they were made."""
    # The inner half sees no seam at all: it is certified by itself.
    edges = [INNER / 2, *(INNER * GROWTH**k for k in range(octaves + 1))]
    bands = [(0.0, edges[0]), *pairwise(edges)]
    errors: list[float] = []
    interpolation: list[float] = []
    for lo, hi in bands:
        error, exact = _certified(grid, lo, hi)
        errors.append(max([error, *errors[-1:]]))
        interpolation.append(exact)
    return NumberLine(grid, tuple(edges), tuple(errors), tuple(interpolation))


def _piece(lo: float, hi: float, dtype: torch.dtype) -> Grid:
    """A soft grid for s itself, a little beyond [lo, hi], with the smallest certified error."""
    extra = OVERLAP * (INNER if lo < 0 else lo)
    lo, hi = lo - extra, hi + extra
    # What the gates add to every score of this piece, roughly.
    tilt = 60 / (2 * OVERLAP * INNER)

    def gated(grid: Grid, deviation: float, size: float) -> float:
        score = rounding.dot(TERMS + 1, grid.score_size + tilt * max(abs(lo), abs(hi)), dtype)
        return grid.rounding_error(deviation, size, score)

    spectral = Spectral(lambda s: s, lo, hi, dtype, gated, typical=True)
    fits: list[Fit] = [fit for fit in map(spectral.best, PIECE_KEYS) if fit is not None]
    return min(fits, key=lambda fit: fit.cost).grid


def _mirror(piece: Grid) -> Grid:
    """The same piece for −s: F(−s) = −F(s) exactly."""
    slopes, intercepts, values = -piece.slopes.flip(0), piece.intercepts.flip(0), -piece.values.flip(0)
    return Grid(slopes=slopes, intercepts=intercepts, values=values, lo=-piece.hi, hi=-piece.lo, way=piece.way)


def _gate(left: Grid, right: Grid) -> Gate:
    half = (left.hi - right.lo) / 2
    largest = max(float(left.values.abs().max()), float(right.values.abs().max()))
    return Gate((left.hi + right.lo) / 2, math.log(1e4 * largest / torch.finfo(left.dtype).eps) / half)


def _certified(grid: Grid, lo: float, hi: float) -> tuple[float, float]:
    """(error, its interpolation part) for lo ≤ |s| ≤ hi: the proof, and rounding as the keys that matter there see."""
    numbers, dtype = grid.numbers, grid.dtype
    s = np.linspace(lo, hi, 801)
    matter = (numbers.weights(np.concatenate([-s, s])) > 1e-20).any(axis=0)
    score = float((np.abs(numbers.slopes) * hi + np.abs(numbers.intercepts))[matter].max())
    largest = float(np.abs(numbers.values)[matter].max())
    delta = rounding.softmax_weights(rounding.dot(TERMS + 1, score, dtype), min(2 * score, 64.0), dtype)
    target = rounding.unit(dtype) * hi
    known = [prove(numbers, parse("t"), *side, target=target) for side in ((lo, hi), (-hi, -lo))]
    worst = []
    for proof in known:
        rounded = shifted_average(delta, 2 * largest, proof.deviation)
        rounded += rounding.average(int(matter.sum()), proof.size + proof.deviation, dtype)
        # Keys that do not matter weigh less than 1e-20 each: even times the largest value that is below a rounding.
        rounded += len(grid) * 1e-20 * float(np.abs(numbers.values).max())
        worst.append((proof.error + rounded + rounding.unit(dtype) * hi, proof.error))
    return max(worst)
