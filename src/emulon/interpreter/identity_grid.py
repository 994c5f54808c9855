"""The interpreter's frozen grid: one softmax that reproduces the number it is asked about, at every magnitude.

A single soft grid on [−B, B] errs by a fixed part of B, so a wide range would spoil small numbers. This line is
piecewise instead: a soft grid around zero and soft grids for magnitudes eight times larger each, joined at junctions,
so that its error grows with the number, as a floating-point number's does. It is odd, and a longer grid is a shorter
one with more pieces at both ends.

Its numbers are the same on every machine: they are computed in ball arithmetic, in integers that is, far beyond the
last place that is kept. No BLAS, no vectorised exp has a part in them.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulon.certify import rounding
from emulon.certify.interpolation import NEGLIGIBLE, Interpolation, Keys, deficits, prove
from emulon.certify.rounding import shifted_average
from emulon.core.errors import OutOfDomain
from emulon.core.files import write_json
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.softmax.grid import Grid

if TYPE_CHECKING:
    from emulon.interpreter.segments import Segments

INNER = 32.0
GROWTH = 8.0
# Beyond this, the error of a line in float64 is as large as the number.
LONGEST = 2.0**40
# How far beyond a seam both neighbours are fitted, as a part of the magnitude at which the shorter one begins.
OVERLAP = 0.08
# (keys, softness βh², half the interval in units of h) of the piece around zero and of all others: the cheapest of
# `Spectral`'s search in its time, kept since, for a frozen module is not searched for anew.
SHAPES = {
    torch.float64: ((32, 0.25, 7.68), (32, 0.225, 7.68)),
    torch.float32: ((32, 0.225, 12.0), (24, 0.1375, 5.34)),
}
# Bits of the arithmetic that makes the line; the ridge, relative to the weights' own size, that keeps values modest.
PRECISION, RIDGE = 320, 1e-31
# Non-zero entries of a row of W times a token, at most: −η·value + η·fixed, or three states.
TERMS = 3
# In log weight: keys that far below another throughout cannot matter, each weighing less than 1e-20.
MATTERS = 46.0625

SHIPPED = Path(__file__).with_suffix(".json")
LONGEST_SHIPPED = 6


@dataclass(frozen=True)
class IdentityGrid:
    """The grid, and its certified error for numbers up to each magnitude."""

    grid: Grid
    reaches: tuple[float, ...]
    errors: tuple[float, ...]
    interpolation: tuple[float, ...]

    @property
    def reach(self) -> float:
        return self.reaches[-1]

    @cached_property
    def segments(self) -> Segments | None:
        """The line as it is read quickly, where it can be."""
        from emulon.interpreter.segments import Segments  # which are made of lines

        return Segments.of(self)

    def error(self, magnitude: float, terms: int = TERMS, absolute: float = 0.0) -> float:
        """A bound on |F(s) − s| for all |s| ≤ magnitude, in the line's dtype.

        A row of W with more than a few entries rounds more: `terms` of them, whose products with a token's add up to
        `absolute` in magnitude.
        """
        if terms > TERMS or absolute > magnitude:
            return self._error_of_sums(magnitude, terms, absolute)
        for reach, error in zip(self.reaches, self.errors, strict=True):
            if magnitude <= reach:
                return error
        return math.inf

    def certified(self, lo: float, hi: float, own: np.ndarray, delta: float) -> bool:
        """Whether numbers in [lo, hi], read by these keys alone with log weights off by delta, are certified.

        Claim: keys that are left out change an average by at most Σ e^{−deficit}·|v_r − F|: each has a share of at most
        e^{−deficit}.
        """
        numbers = self.grid.numbers
        largest = float(np.abs(numbers.values[own]).max())
        off = ErrorBound(delta, int(own.sum()) + 8, largest, left_out(numbers, lo, hi, own))
        return all(
            off.error(proved_between(numbers, *band), min(hi, band[1]), self.grid.dtype) <= self.error(band[1])
            for band in bands(len(self.reaches) - 2)
            if band[0] < hi and lo < band[1]
        )

    def _error_of_sums(self, magnitude: float, terms: int, absolute: float) -> float:
        worst = 0.0
        for lo, hi in pairwise([0.0, *self.reaches]):
            worst = max(worst, _certified(self.grid, lo, hi, terms, absolute)[0])
            if magnitude <= hi:
                return worst
        return math.inf


def identity_grid(reach: float, dtype: torch.dtype = torch.float64) -> IdentityGrid:
    """The line for |s| ≤ reach, rounded up to 32·8^k. The same reach gives the same bits, on any machine."""
    return _line(octaves_for(reach), dtype)


def octaves_for(reach: float) -> int:
    """How many times eight the inner piece must grow. Refuses what is so far out that no digit of it would be kept."""
    if not reach <= LONGEST:
        raise OutOfDomain(
            f"this needs numbers up to {reach:.3g}, and identity grids end at {LONGEST:.3g}; rescale the data, or take "
            "a narrower domain or fewer steps"
        )
    octaves = 0
    while INNER * GROWTH**octaves < reach:
        octaves += 1
    return octaves


@lru_cache(maxsize=16)
def _line(octaves: int, dtype: torch.dtype) -> IdentityGrid:
    return certified_line(_grid(octaves, dtype), octaves)


def _grid(octaves: int, dtype: torch.dtype) -> Grid:
    right = [_piece(k, dtype) for k in range(1, octaves + 1)]
    pieces = [*(_mirrored(piece) for piece in reversed(right)), _piece(0, dtype), *right]
    slopes, intercepts, values = (np.concatenate(parts) for parts in zip(*map(_parts, pieces), strict=True))
    reach = covered(octaves)[1]
    return Grid.stored(slopes, intercepts, values, dtype, -reach, reach, "piecewise")


def _parts(keys: Keys) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return keys.slopes, keys.intercepts, keys.values


def _mirrored(keys: Keys) -> Keys:
    """The same piece for −s: F(−s) = −F(s) exactly."""
    return Keys(-keys.slopes[::-1], keys.intercepts[::-1], -keys.values[::-1])


def covered(piece: int) -> tuple[float, float]:
    """The magnitudes that a piece is fitted on: its own, and a little beyond."""
    if not piece:
        return -INNER * (1 + OVERLAP), INNER * (1 + OVERLAP)
    low = INNER * GROWTH ** (piece - 1)
    return low * (1 - OVERLAP), low * (GROWTH + OVERLAP)


@lru_cache(maxsize=64)
def _piece(number: int, dtype: torch.dtype) -> Keys:
    """The keys of a piece as they are stored: the one around zero, or the one for magnitudes up to 32·8^number."""
    shipped = _shipped()["pieces"].get(_name(dtype), [])
    return Keys(*map(np.array, shipped[number])) if number < len(shipped) else made_piece(number, dtype)


def made_piece(number: int, dtype: torch.dtype) -> Keys:
    """A piece made here, whatever was shipped; the piece before it may have been.

    Score −βh²·(offset)² around the middle of the piece; then raised and tilted, where its neighbour hands over to it.
    """
    from flint import arb

    keys, softness, reach = SHAPES[dtype][number > 0]
    lo, hi = covered(number)
    before = _piece(number - 1, dtype) if number else None
    with ball_arithmetic(PRECISION):
        center, spacing = (arb(lo) + arb(hi)) / 2, (arb(hi) - arb(lo)) / (2 * arb(reach))
        offsets = [arb(2 * k + 1 - keys) / 2 for k in range(keys)]
        slopes = [2 * arb(softness) * offset / spacing for offset in offsets]
        intercepts = [-arb(softness) * offset**2 - a * center for offset, a in zip(offsets, slopes, strict=True)]
        if before is None:
            # Half-way between the largest and the smallest: what all keys share is of no effect.
            tilt, lift = arb(0), -(intercepts[0] + intercepts[keys // 2]) / 2
        else:
            tilt, lift = _handed_over(number, before, slopes, intercepts, dtype)
        slopes = _stored([a + tilt for a in slopes], dtype)
        intercepts = _stored([b + lift for b in intercepts], dtype)
        values = _stored(_fitted(slopes, intercepts, lo, hi), dtype)
    return Keys(*(np.array([float(x) for x in part]) for part in (slopes, intercepts, values)))


def _handed_over(number: int, before: Keys, slopes: list[Any], intercepts: list[Any], dtype: torch.dtype) -> Any:
    """(tilt, lift) of a piece's scores: level with the piece before in the middle of their overlap, and gone beyond it.

    Log-normalisers are convex: beyond the overlap a piece's slope exceeds the one at its middle by no more than its
    steepest key, so that much is added, and what makes the wrong piece vanish within half the overlap.
    """
    from flint import arb

    above, (below, end) = covered(number - 1)[1], covered(number)
    at, half = (arb(above) + arb(below)) / 2, (arb(above) - arb(below)) / 2
    a, b = ([arb(x) for x in part.tolist()] for part in (before.slopes, before.intercepts))
    (level, slope), (own_level, own_slope) = _log_normaliser(a, b, at), _log_normaliser(slopes, intercepts, at)
    sharpness = (arb(1e4) * 2 * arb(end) / arb(torch.finfo(dtype).eps)).log() / half
    tilt = (a[-1] - slope) + (own_slope - slopes[0]) + slope - own_slope + sharpness
    return tilt, level - own_level - tilt * at


def _log_normaliser(slopes: list[Any], intercepts: list[Any], s: Any) -> tuple[Any, Any]:
    """log Σ exp(score) and its derivative at s."""
    weights = [(a * s + b).exp() for a, b in zip(slopes, intercepts, strict=True)]
    total = sum(weights)
    return total.log(), sum(w * a for w, a in zip(weights, slopes, strict=True)) / total


def _fitted(slopes: list[Any], intercepts: list[Any], lo: float, hi: float) -> list[Any]:
    """Values whose averages are nearest to s at Chebyshev nodes of [lo, hi]: least squares with a small ridge."""
    from flint import arb, arb_mat, fmpq

    count = 2 * len(slopes) + 2
    center, half = (arb(lo) + arb(hi)) / 2, (arb(hi) - arb(lo)) / 2
    nodes = [center + half * arb.cos_pi_fmpq(fmpq(2 * k + 1, 2 * count)) for k in range(count)]
    rows = []
    for s in nodes:
        weights = [(a * s + b).exp() for a, b in zip(slopes, intercepts, strict=True)]
        total = sum(weights)
        rows.append([w / total for w in weights])
    across = arb_mat(rows).transpose()
    normal = across * arb_mat(rows)
    ridge = arb(RIDGE) * normal.trace()
    for k in range(len(slopes)):
        normal[k, k] += ridge
    solution = normal.solve(across * arb_mat([[s] for s in nodes]))
    return [solution[k, 0] for k in range(len(slopes))]


def _stored(numbers: list[Any], dtype: torch.dtype) -> list[Any]:
    """Each as the dtype holds it. A ball's middle is a whole number times a power of two, which Python rounds right."""
    from flint import arb

    floats = []
    for number in numbers:
        mantissa, exponent = number.mid().man_exp()
        floats.append(math.ldexp(int(mantissa), int(exponent)))
    return [arb(x) for x in torch.tensor(floats, dtype=dtype, device="cpu").tolist()]


def certified_line(grid: Grid, octaves: int) -> IdentityGrid:
    """The certified errors of a grid with these numbers, wherever they were made."""
    errors: list[float] = []
    interpolation: list[float] = []
    segments = bands(octaves)
    for lo, hi in segments:
        error, exact = _certified(grid, lo, hi)
        errors.append(max([error, *errors[-1:]]))
        interpolation.append(exact)
    return IdentityGrid(grid, tuple(hi for _, hi in segments), tuple(errors), tuple(interpolation))


def bands(octaves: int) -> list[tuple[float, float]]:
    """The magnitudes that are certified one by one. The inner half meets no junction, and is one of them."""
    return list(pairwise([0.0, INNER / 2, *(INNER * GROWTH**k for k in range(octaves + 1))]))


def _certified(grid: Grid, lo: float, hi: float, terms: int = TERMS, absolute: float = 0.0) -> tuple[float, float]:
    """(error, its interpolation part) for lo ≤ |s| ≤ hi: the proof, and rounding as the keys that matter there see.

    s is a sum of `terms` products, which are `absolute` (or hi) in all.

    Keys that do not matter on a side are e^{−MATTERS} of another throughout, and what they add is so small: exact
    weights leave each a share of at most e^{−deficit}, computed ones that times e^{2δ}, δ bounding the error of any
    score, and leaving a share out of an average moves it by that share times |v_r − F|.
    """
    numbers, dtype = grid.numbers, grid.dtype
    below = [deficits(numbers, *side) for side in ((lo, hi), (-hi, -lo))]
    matter = (below[0] < MATTERS) | (below[1] < MATTERS)
    scores = np.abs(numbers.slopes) * max(hi, absolute) + np.abs(numbers.intercepts)
    values = np.abs(numbers.values)
    delta, any_delta = (
        rounding.softmax_weights(rounding.dot(terms + 1, size, dtype), min(2 * size, 64.0), dtype)
        for size in (float(scores[matter].max()), float(scores.max()))
    )
    largest = float(values[matter].max())
    shares = np.exp(-np.minimum(*below)[~matter]) * (1 + math.exp(min(2 * any_delta, 700.0)))
    # Weights below e⁻⁶⁴ may come out as anything smaller.
    lost = 1.01 * float(shares @ (values[~matter] + largest)) + len(grid) * 2 * math.exp(-64) * float(values.max())
    worst = []
    for side in ((lo, hi),) if is_odd(grid) else ((lo, hi), (-hi, -lo)):
        known = proved_between(numbers, *side)
        off = ErrorBound(delta, int(matter.sum()), largest, lost)
        worst.append((off.error(known, hi, dtype), known.error))
    return max(worst)


@dataclass(frozen=True)
class ErrorBound:
    """How a computed average is off the exact one: weights by `delta` in log, `lost` for keys that do not count.

    `terms` keys do, with values up to `largest`.
    """

    delta: float
    terms: int
    largest: float
    lost: float

    def error(self, known: Interpolation, hi: float, dtype: torch.dtype) -> float:
        """Of a number up to `hi` where `known` is proved."""
        rounded = shifted_average(self.delta, 2 * self.largest, known.deviation + self.lost)
        rounded += rounding.average(self.terms, known.size + known.deviation + self.lost, dtype) + self.lost
        return rounding.rounded_up(known.error + rounded + rounding.unit(dtype) * hi)


def left_out(numbers: Keys, lo: float, hi: float, own: np.ndarray) -> float:
    """Σ e^{−deficit}·|v_r − F| for the keys that are not `own`: what leaving them out changes, at most."""
    below, values = deficits(numbers, lo, hi)[~own], np.abs(numbers.values)
    return 1.01 * float(np.exp(-below) @ (values[~own] + float(values[own].max())))


def proved_between(numbers: Keys, lo: float, hi: float) -> Interpolation:
    """What is proved of |F(s) − s| on one of the `bands`, or its mirror image."""
    return _proved(*_relevant(numbers, lo, hi))


def is_odd(grid: Grid) -> bool:
    """F(−s) = −F(s) exactly: what is proved of one side is proved of both."""
    numbers = grid.numbers
    return all(np.array_equal(*pair) for pair in zip(_parts(numbers), _parts(_mirrored(numbers)), strict=True))


# The bytes of slopes, intercepts and values; how many more keys there may be, and how large their values; an interval.
Relevant = tuple[tuple[bytes, ...], int, float, float, float]


def _relevant(numbers: Keys, lo: float, hi: float) -> Relevant:
    """What decides F on [lo, hi]: the keys with non-negligible weight there, the same in longer grids."""
    relevant = deficits(numbers, lo, hi) < NEGLIGIBLE
    near = tuple(part[relevant].tobytes() for part in _parts(numbers))
    # Of the others more is said than is so, and the same of lines of any length.
    return near, max(1024, int((~relevant).sum())), max(2.0**64, float(np.abs(numbers.values).max())), lo, hi


@lru_cache(maxsize=256)
def _proved(near: tuple[bytes, ...], others: int, spread: float, lo: float, hi: float) -> Interpolation:
    """Bound on |F(s) − s| on [lo, hi]: from the shipped table, or proved here for a grid that is not shipped."""
    known = shipped_proofs().get(claim(near, others, spread, lo, hi))
    if known is not None:
        return known
    slopes, intercepts, values = map(np.frombuffer, near)
    keys = Keys(slopes, intercepts, values, others=others, spread=spread)
    return prove(keys, parse("t"), lo, hi, target=2.0**-53 * max(abs(lo), abs(hi)))


def claim(near: tuple[bytes, ...], *numbers: float | int) -> str:
    """sha256 of all that a proof is about."""
    return hashlib.sha256(b"".join(near) + repr(numbers).encode()).hexdigest()


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, Any]]:
    """The line is the same on every machine, and so are its proofs: both are beside this file, each proof by its claim.

    So an interpreter is made where there is no ball arithmetic. The tests make and prove them again, and `emulon check`
    believes none. `python -m emulon.interpreter.identity_grid` writes them.
    """
    found: dict[str, dict[str, Any]] = json.loads(SHIPPED.read_text()) if SHIPPED.exists() else {}
    return {"pieces": {}, "proofs": {}} | found


@lru_cache(maxsize=1)
def shipped_proofs() -> dict[str, Interpolation]:
    return {name: Interpolation(**row) for name, row in _shipped()["proofs"].items()}


def shipped_claims() -> dict[str, Relevant]:
    """What is claimed of the lines up to 32·8^LONGEST_SHIPPED, by name."""
    lines = [(_grid(octaves, dtype).numbers, octaves) for dtype in SHAPES for octaves in range(LONGEST_SHIPPED + 1)]
    found = [_relevant(numbers, *band) for numbers, octaves in lines for band in bands(octaves)]
    return {claim(*relevant): relevant for relevant in found}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    SHIPPED.unlink(missing_ok=True)
    pieces = {
        _name(dtype): [[part.tolist() for part in _parts(_piece(k, dtype))] for k in range(LONGEST_SHIPPED + 1)]
        for dtype in SHAPES
    }
    proofs = {name: asdict(_proved(*relevant)) for name, relevant in shipped_claims().items()}
    write_json(SHIPPED, {"pieces": pieces, "proofs": proofs})
