"""The interpreter's frozen grid: one softmax that reproduces the number it is asked about, at every magnitude.

A single soft grid on [−B, B] errs by a fixed part of B, so a wide range would spoil small numbers. This line is
piecewise instead: a soft grid around zero and soft grids for magnitudes eight times larger each, joined at junctions,
so that its error grows with the number, as a floating-point number's does. It is odd, and a longer grid is a shorter
one with more pieces at both ends.

Its numbers, and proofs of what they do, are shipped beside this file: the same on every machine, and no ball arithmetic
is needed to make an interpreter. `tests/interpreter/identity_grid_maker.py` makes them, the tests make and prove them
again, and `emulon check` believes none.

Of all its keys those are read that have non-negligible weight where the number is. Around a junction keys of two pieces
matter, and their softmax is computed directly. Between two junctions only those of one piece do. Their slopes are
equally spaced but for rounding, a_r = a_0 + r·θ, so that with z = e^{θ(s − c)} the average is a quotient of two
polynomials, Σ_r C_r v_r zʳ / Σ_r C_r zʳ, C_r = e^{(a_r − a_0)·c + b_r}: one exponential in place of a hundred, and no
large scores that would have to cancel.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulon.certify import rounding
from emulon.certify.interpolation import NEGLIGIBLE, Interpolation, Keys, deficits, prove
from emulon.certify.rounding import shifted_average
from emulon.core.arrays import at_a_time
from emulon.core.errors import OutOfDomain
from emulon.expressions import parse
from emulon.softmax.grid import Grid

INNER = 32.0
GROWTH = 8.0
# Beyond this, the error of a line in float64 is as large as the number: 32·8^OCTAVES is the first reach above.
LONGEST, OCTAVES = 2.0**40, 12
# How far beyond a seam both neighbours are fitted, as a part of the magnitude at which the shorter one begins.
OVERLAP = 0.08
# Non-zero entries of a row of W times a token, at most: −η·value + η·fixed, or three states.
TERMS = 3
# In log weight: keys that far below another throughout cannot matter, each weighing less than 1e-20.
MATTERS = 46.0625

# Powers of z that are multiplied out: all of a short polynomial; of a longer one coefficients are taken so many at a
# time.
SHORT, POWERS = 16, 8
# Numbers that are read at a time: their powers stay in cache, and in memory that the allocator keeps.
TOGETHER = 1 << 14
# Digits that coefficients are computed with; the part of a dtype's exponents that powers of z may take up.
DIGITS, EXPONENTS = 60, 0.85

SHIPPED = Path(__file__).with_suffix(".json")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class IdentityGrid:
    """The grid, and its certified error for numbers up to each magnitude."""

    grid: Grid
    reaches: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def reach(self) -> float:
        return self.reaches[-1]

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
        numbers, terms = self.grid.numbers, int(own.sum()) + 8
        values = np.abs(numbers.values)
        largest = float(values[own].max())
        lost = 1.01 * float(np.exp(-deficits(numbers, lo, hi)[~own]) @ (values[~own] + largest))
        for start, end in bands(len(self.reaches) - 2):
            if start < hi and lo < end:
                known = proved_between(numbers, start, end)
                if not averaging_error(known, min(hi, end), delta, terms, largest, lost, self.grid.dtype) <= self.error(
                    end
                ):
                    return False
        return True

    def read(self, s: Tensor) -> Tensor:
        """F(s), elementwise, by the keys that matter."""
        flat = s.reshape(-1)
        return self._read(flat.abs()).copysign_(flat).view(s.shape) if len(flat) else s.clone()

    def _read(self, s: Tensor) -> Tensor:
        ends = [one.lo for one in self.segments[1:]]
        first, last = (bisect_right(ends, end.item()) for end in s.aminmax())
        if first == last:
            return _in_parts(self.segments[first], s)
        out = torch.empty_like(s)
        for number in range(first, last + 1):
            own = s >= self.segments[number].lo
            if number < last:
                own &= s < ends[number]
            places = own.nonzero().squeeze(-1)
            out[places] = _in_parts(self.segments[number], s[places])
        return out

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """From zero to the reach: a piece, the junction after it, the next piece, and so on.

        In each of them reading is proved as good as the certificate; all keys are read where fewer are not.
        """
        return tuple(self._segments())

    def _segments(self) -> Iterator[Segment]:
        octaves = len(self.reaches) - 2
        sizes = [len(_piece(number, self.grid.dtype).slopes) for number in range(octaves + 1)]
        begin = sum(sizes[1:])
        for number, size in enumerate(sizes):
            own = slice(begin, begin + size)
            begin = own.stop
            lo = covered(number - 1)[1] if number else 0.0
            hi = covered(number + 1)[0] if number < octaves else self.reach
            yield PolynomialSegment.of(self, lo, hi, own) or Junction.of(self, lo, hi)
            if number < octaves:
                edges = hi, self.reaches[number + 1], covered(number)[1]
                yield from (Junction.of(self, *side) for side in pairwise(edges))

    def _error_of_sums(self, magnitude: float, terms: int, absolute: float) -> float:
        worst = 0.0
        for lo, hi in pairwise([0.0, *self.reaches]):
            worst = max(worst, _certified(self.grid, lo, hi, terms, absolute))
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
    """The keys of a piece: the one around zero, or the one for magnitudes up to 32·8^number."""
    name = next(name for name, each in DTYPES.items() if each == dtype)
    return Keys(*map(np.array, _shipped()["pieces"][name][number]))


def certified_line(grid: Grid, octaves: int) -> IdentityGrid:
    """The certified errors of a grid with these numbers."""
    errors: list[float] = []
    for lo, hi in bands(octaves):
        errors.append(max([_certified(grid, lo, hi), *errors[-1:]]))
    return IdentityGrid(grid, tuple(hi for _, hi in bands(octaves)), tuple(errors))


def bands(octaves: int) -> list[tuple[float, float]]:
    """The magnitudes that are certified one by one. The inner half meets no junction, and is one of them."""
    return list(pairwise([0.0, INNER / 2, *(INNER * GROWTH**k for k in range(octaves + 1))]))


def _certified(grid: Grid, lo: float, hi: float, terms: int = TERMS, absolute: float = 0.0) -> float:
    """The error for lo ≤ |s| ≤ hi: the proof, and rounding as the keys that matter there see.

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
    return averaging_error(proved_between(numbers, lo, hi), hi, delta, int(matter.sum()), largest, lost, dtype)


def averaging_error(
    known: Interpolation, hi: float, delta: float, terms: int, largest: float, lost: float, dtype: torch.dtype
) -> float:
    """How far a computed average is from a number up to `hi`, where `known` is proved of the exact one.

    Weights are off by `delta` in log. `terms` keys count, with values up to `largest`; the others add up to `lost`.
    """
    rounded = shifted_average(delta, 2 * largest, known.deviation + lost)
    rounded += rounding.average(terms, known.size + known.deviation + lost, dtype) + lost
    return rounding.rounded_up(known.error + rounded + rounding.unit(dtype) * hi)


def proved_between(numbers: Keys, lo: float, hi: float) -> Interpolation:
    """What is proved of |F(s) − s| on one of the `bands`, or its mirror image."""
    return _proved(*_relevant(numbers, lo, hi))


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
    found: dict[str, dict[str, Any]] = json.loads(SHIPPED.read_text())
    return found


@lru_cache(maxsize=1)
def shipped_proofs() -> dict[str, Interpolation]:
    """Each by what it claims."""
    return {name: Interpolation(**row) for name, row in _shipped()["proofs"].items()}


def shipped_claims() -> dict[str, Relevant]:
    """What is claimed of the lines of every length, by name."""
    lines = [(_grid(octaves, dtype).numbers, octaves) for dtype in DTYPES.values() for octaves in range(OCTAVES + 1)]
    found = [_relevant(numbers, *band) for numbers, octaves in lines for band in bands(octaves)]
    return {claim(*relevant): relevant for relevant in found}


@dataclass(frozen=True)
class Junction:
    """lo ≤ |s| < hi by the keys with non-negligible weight, one exponential each; by all where fewer fail."""

    lo: float
    hi: float
    slopes: Tensor
    intercepts: Tensor
    sums: Tensor
    """Rows of values, and of ones."""

    @classmethod
    def of(cls, line: IdentityGrid, lo: float, hi: float) -> Junction:
        numbers, dtype = line.grid.numbers, line.grid.dtype
        own = deficits(numbers, lo, hi) < MATTERS
        size = float((np.abs(numbers.slopes[own]) * hi + np.abs(numbers.intercepts[own])).max())
        delta = rounding.softmax_weights(rounding.dot(TERMS + 1, size, dtype), min(2 * size, 64.0), dtype)
        own |= not line.certified(lo, hi, own, delta)
        slopes, intercepts, values = (_stored(part[own], dtype) for part in _parts(numbers))
        return cls(lo, hi, slopes, intercepts, torch.stack([values, torch.ones_like(values)]))

    def read(self, s: Tensor) -> Tensor:
        slopes, intercepts, sums = (part.to(s.device) for part in (self.slopes, self.intercepts, self.sums))
        scores = torch.outer(slopes, s).add_(intercepts[:, None])
        over, under = (sums @ scores.sub_(scores.amax(dim=0)).exp_()).unbind()
        return over / under


@dataclass(frozen=True)
class PolynomialSegment:
    """lo ≤ |s| < hi by the keys of one piece, two polynomials in z: θ, the centre c, (2·blocks, powers) coefficients.

    Claim: log weights are off by at most (keys/2)·ε + (2·powers + 9·(blocks − 1))·u + max|a_r − a_0 − r·θ|·(hi − lo)/2,
    up to what is common to all, with ε = 2uθ(hi − lo)/2 + 4u. Proof. θ(s − c) is rounded twice, and exp is within 4u:
    that is ε, and zʳ has r times it, of which half the number of keys is common. Of products, zʳ is one of r − 1, so
    that a term is rounded at most powers − 2 times for its power of z, `powers` times in the sum over these, once for
    its coefficient or, with its value, twice; and for each further block 7 times for z⁸ and twice for a product and a
    sum. QED

    The key in the middle has coefficient 1, and zʳ is within half of EXPONENTS of the middle one: so a coefficient too
    small for the dtype is that of a share below e⁻⁴⁹ even in float32.
    """

    lo: float
    hi: float
    theta: float
    center: float
    coefficients: Tensor

    @classmethod
    def of(cls, line: IdentityGrid, lo: float, hi: float, own: slice) -> PolynomialSegment | None:
        numbers, dtype = line.grid.numbers, line.grid.dtype
        slopes, intercepts, values = (part[own] for part in _parts(numbers))
        keys, u = len(slopes), rounding.unit(dtype)
        theta, center = (_stored(x, dtype).item() for x in ((slopes[-1] - slopes[0]) / (keys - 1), (lo + hi) / 2))
        exact = [Fraction(a) - Fraction(slopes[0]) for a in slopes.tolist()]
        bent = max(abs(a - r * Fraction(theta)) for r, a in enumerate(exact))
        reach = max(hi - center, center - lo)
        count = keys if keys <= SHORT else POWERS
        blocks = -(-keys // count)
        delta = keys / 2 * (2 * u * theta * reach + rounding.EXP_ROUNDINGS * u) + float(bent) * reach
        delta += (2 * count + 9 * (blocks - 1)) * u
        chosen = np.zeros(len(numbers.slopes), dtype=bool)
        chosen[own] = True
        room = EXPONENTS * math.log(torch.finfo(dtype).max)
        if not 0 < theta * reach * keys < room or not line.certified(lo, hi, chosen, delta):
            return None
        logs = [a * Fraction(center) + Fraction(b) for a, b in zip(exact, intercepts.tolist(), strict=True)]
        weights = [_exp(log - logs[keys // 2]) for log in logs]
        terms = [[w * Fraction(v) for w, v in zip(weights, values.tolist(), strict=True)], weights]
        empty = [0.0] * (-keys % count)
        rows = np.array([[float(x) for x in row] + empty for row in terms]).reshape(-1, count)
        return cls(lo, hi, theta, center, _stored(rows, dtype))

    def read(self, s: Tensor) -> Tensor:
        blocks, count, n = len(self.coefficients) // 2, self.coefficients.shape[1], len(s)
        powers = s.new_empty(count, n)
        powers[0] = 1.0
        torch.sub(s, self.center, out=powers[1]).mul_(self.theta).exp_()
        half = 1
        while half + 1 < count:  # z², then z³ and z⁴, then z⁵ to z⁸, and so on
            last = min(2 * half + 1, count)
            torch.mul(powers[1 : last - half], powers[half], out=powers[half + 1 : last])
            half *= 2
        parts = (self.coefficients.to(s.device) @ powers).view(2, blocks, n)
        if blocks == 1:
            return parts[0, 0] / parts[1, 0]
        far = powers[4] * powers[4]
        sums = parts[:, -1]
        for block in range(blocks - 2, -1, -1):
            sums = torch.addcmul(parts[:, block], sums, far)
        return sums[0] / sums[1]


Segment = Junction | PolynomialSegment


def _in_parts(one: Segment, s: Tensor) -> Tensor:
    together = at_a_time(TOGETHER, s.device)
    return one.read(s) if len(s) <= together else torch.cat([one.read(part) for part in s.split(together)])


def _stored(numbers: np.ndarray | float, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64, device="cpu").to(dtype)


def _exp(exponent: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = DIGITS
        return Fraction((Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())
