"""Reading a softmax by segments: of all its keys, those with non-negligible weight where the number is.

Around a junction keys of two pieces matter, and their softmax is computed directly. Between two junctions only those of
one piece do. Their slopes are equally spaced but for rounding, a_r = a_0 + r·θ, so that with z = e^{θ(s − c)} the
average is a quotient of two polynomials, Σ_r C_r v_r zʳ / Σ_r C_r zʳ, C_r = e^{(a_r − a_0)·c + b_r}: one exponential in
place of a hundred, and no large scores that would have to cancel. The identity grid is read so, and a phase's own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from emulon.certify import rounding
from emulon.certify.interpolation import Keys, deficits
from emulon.core.arrays import at_a_time
from emulon.interpreter.identity_grid import MATTERS, SHAPES, TERMS, IdentityGrid, covered, is_odd
from emulon.softmax import Grid

# Powers of z that are multiplied out: all of a short polynomial; of a longer one coefficients are taken so many at a
# time.
SHORT, POWERS = 16, 8
# Numbers that are read at a time: their powers stay in cache, and in memory that the allocator keeps.
TOGETHER = 1 << 14
# Digits that coefficients are computed with; the part of a dtype's exponents that powers of z may take up.
DIGITS, EXPONENTS = 60, 0.85
# Gaps between slopes are equal to within this part; runs of equal gaps, at most; how often one is halved.
EVEN, MOST_RUNS, MOST_HALVINGS = 1e-6, 8, 4


@runtime_checkable
class Certified(Protocol):
    """A softmax that is read, and how well it must be."""

    @property
    def grid(self) -> Grid: ...

    def certified(self, lo: float, hi: float, own: np.ndarray, delta: float) -> bool:
        """Whether numbers in [lo, hi], read by these keys alone with log weights off by delta, are certified."""


@dataclass(frozen=True)
class Segment(ABC):
    """lo ≤ |s| < hi, and how its numbers are read."""

    lo: float
    hi: float

    @abstractmethod
    def read(self, s: Tensor) -> Tensor:
        """F(s) of numbers in the segment, none below zero."""


@dataclass(frozen=True)
class Junction(Segment):
    """The keys with non-negligible weight, one exponential each; all keys where fewer are not proved enough."""

    slopes: Tensor
    intercepts: Tensor
    sums: Tensor
    """Rows of values, and of ones."""

    @classmethod
    def of(cls, softmax: Certified, lo: float, hi: float) -> Junction:
        numbers, dtype = softmax.grid.numbers, softmax.grid.dtype
        own = deficits(numbers, lo, hi) < MATTERS
        own |= not softmax.certified(lo, hi, own, direct_error(softmax.grid, own, max(-lo, hi)))
        slopes, intercepts, values = (_stored(part[own], dtype) for part in _parts(numbers))
        return cls(lo, hi, slopes, intercepts, torch.stack([values, torch.ones_like(values)]))

    def read(self, s: Tensor) -> Tensor:
        slopes, intercepts, sums = (part.to(s.device) for part in (self.slopes, self.intercepts, self.sums))
        scores = torch.outer(slopes, s).add_(intercepts[:, None])
        over, under = (sums @ scores.sub_(scores.amax(dim=0)).exp_()).unbind()
        return over / under


@dataclass(frozen=True)
class PolynomialSegment(Segment):
    """The keys of one piece as two polynomials in z: θ, the centre c, and (2·blocks, powers) coefficients.

    Claim: log weights are off by at most (keys/2)·ε + (2·powers + 9·(blocks − 1))·u + max|a_r − a_0 − r·θ|·(hi − lo)/2,
    up to what is common to all, with ε = 2uθ(hi − lo)/2 + 4u. Proof. θ(s − c) is rounded twice, and exp is within 4u:
    that is ε, and zʳ has r times it, of which half the number of keys is common. Of products, zʳ is one of r − 1, so
    that a term is rounded at most powers − 2 times for its power of z, `powers` times in the sum over these, once for
    its coefficient or, with its value, twice; and for each further block 7 times for z⁸ and twice for a product and a
    sum. QED

    The key in the middle has coefficient 1, and zʳ is within half of EXPONENTS of the middle one: so a coefficient too
    small for the dtype is that of a share below e⁻⁴⁹ even in float32.
    """

    theta: float
    center: float
    coefficients: Tensor

    @classmethod
    def of(cls, softmax: Certified, lo: float, hi: float, own: slice) -> PolynomialSegment | None:
        numbers, dtype = softmax.grid.numbers, softmax.grid.dtype
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
        if not 0 < theta * reach * keys < room or not softmax.certified(lo, hi, chosen, delta):
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


@dataclass(frozen=True)
class OneKey(Segment):
    """Where one key has all the weight that matters: its value."""

    value: float

    def read(self, s: Tensor) -> Tensor:
        return torch.full_like(s, self.value)


@dataclass(frozen=True)
class Segments:
    """Of a softmax, one after the other: of an odd one from zero to its reach, else from one end to the other."""

    known: tuple[Segment, ...]
    odd: bool = True

    @classmethod
    def of(cls, line: IdentityGrid) -> Segments | None:
        """In each of them reading is proved as good as the grid's certificate; None for a grid that is not odd."""
        return cls(tuple(_found(line))) if line.grid.dtype in SHAPES and is_odd(line.grid) else None

    @classmethod
    def between(cls, softmax: Certified, lo: float, hi: float) -> Segments | None:
        """In each of them reading is certified; None where that is not so everywhere."""
        numbers = softmax.grid.numbers
        runs = _runs(numbers, lo, hi, EXPONENTS * math.log(torch.finfo(softmax.grid.dtype).max))
        if len(runs) > MOST_RUNS:
            return None
        if odd := len(runs) > 1 and lo == -hi and is_odd(softmax.grid):
            lo = 0.0
        gates = [_handover(numbers, after.start, lo, hi) for after in runs[1:]]
        ends = [lo, *(edge for gate in gates for edge in gate), hi]
        if ends != sorted(ends):
            return None
        known: list[Segment] = []
        for number, (left, right) in enumerate(pairwise(ends)):
            part = _inside(softmax, left, right, runs[number // 2] if number % 2 == 0 else None, MOST_HALVINGS)
            if part is None:
                return None
            known += part
        return cls(tuple(known), odd)

    def read(self, s: Tensor) -> Tensor:
        """F(s), elementwise."""
        flat = s.reshape(-1)
        return (self._read(flat.abs()).copysign_(flat) if self.odd else self._read(flat)).view(s.shape)

    def _read(self, s: Tensor) -> Tensor:
        if not len(s):
            return s.clone()
        if len(self.known) == 1:
            return _in_parts(self.known[0], s)
        ends = [one.hi for one in self.known[:-1]]
        first, last = (bisect_right(ends, end.item()) for end in s.aminmax())
        if first == last:
            return _in_parts(self.known[first], s)
        out, after = torch.empty_like(s), torch.ones_like(s, dtype=torch.bool)
        left = len(s)
        for one in self.known[first : last + 1]:
            # Numbers that are not before this segment, less those behind it.
            behind = s >= one.hi if one is not self.known[last] else torch.zeros_like(after)
            beyond = int(torch.count_nonzero(behind))
            here, count, after, left = after ^ behind, left - beyond, behind, beyond
            if isinstance(one, OneKey):
                out.masked_fill_(here, one.value)
            elif 2 * count > len(s):  # to read all takes less than to pick some
                out = torch.where(here, _in_parts(one, s.clamp(one.lo, one.hi)), out)
            elif count:
                own = here.nonzero().squeeze(-1)
                out[own] = _in_parts(one, s[own])
        return out


def _in_parts(one: Segment, s: Tensor) -> Tensor:
    together = at_a_time(TOGETHER, s.device)
    return one.read(s) if len(s) <= together else torch.cat([one.read(part) for part in s.split(together)])


def _found(line: IdentityGrid) -> Iterator[Segment]:
    """A piece, the junction after it, the next piece, and so on; all keys where one is not certified."""
    octaves = len(line.reaches) - 2
    (inner, *_), (outer, *_) = SHAPES[line.grid.dtype]
    begin = octaves * outer
    for number in range(octaves + 1):
        own = slice(begin, begin + (outer if number else inner))
        begin = own.stop
        lo = covered(number - 1)[1] if number else 0.0
        hi = covered(number + 1)[0] if number < octaves else line.reach
        yield PolynomialSegment.of(line, lo, hi, own) or Junction.of(line, lo, hi)
        if number < octaves:
            edges = hi, line.reaches[number + 1], covered(number)[1]
            yield from (Junction.of(line, *side) for side in pairwise(edges))


def direct_error(grid: Grid, own: np.ndarray, reach: float) -> float:
    """How far, in log, weights of these keys are off for numbers up to `reach` where scores are formed one by one."""
    numbers = grid.numbers
    size = float((np.abs(numbers.slopes[own]) * reach + np.abs(numbers.intercepts[own])).max())
    return rounding.softmax_weights(rounding.dot(TERMS + 1, size, grid.dtype), min(2 * size, 64.0), grid.dtype)


def _runs(numbers: Keys, lo: float, hi: float, room: float) -> list[slice]:
    """Neighbouring keys whose slopes are equally spaced, so that powers of one number give their weights."""
    gaps = np.diff(numbers.slopes)
    even = np.abs(np.diff(gaps)) <= EVEN * np.abs(gaps[1:])
    same = np.concatenate([even, [False]]) | np.concatenate([[False], even]) if len(gaps) > 1 else gaps > 0
    same &= gaps * (hi - lo) < room
    edges = [0, *(np.flatnonzero(~same) + 1).tolist(), len(numbers.slopes)]
    return [slice(*pair) for pair in pairwise(edges)]


def _handover(numbers: Keys, key: int, lo: float, hi: float) -> tuple[float, float]:
    """Between which numbers keys before this one and keys from it on both matter: elsewhere one side is negligible."""

    def ahead(s: float) -> bool:
        scores = numbers.slopes * s + numbers.intercepts
        top = scores.max()
        return float(np.exp(scores[key:] - top).sum()) > float(np.exp(scores[:key] - top).sum())

    def gone(half: float) -> bool:
        left, right = at - half, at + half
        return bool(
            (left <= lo or (deficits(numbers, lo, left)[key:] >= MATTERS).all())
            and (right >= hi or (deficits(numbers, right, hi)[:key] >= MATTERS).all())
        )

    at = _bisected(ahead, lo, hi)
    half = _bisected(gone, 0.0, hi - lo)
    return max(lo, at - half), min(hi, at + half)


def _bisected(holds: Callable[[float], bool], lo: float, hi: float) -> float:
    """lo, or a number up to hi from which on something holds that does not hold below, but for a rounding."""
    if holds(lo):
        return lo
    for _ in range(64):
        middle = (lo + hi) / 2
        lo, hi = (lo, middle) if holds(middle) else (middle, hi)
    return hi


def _inside(softmax: Certified, lo: float, hi: float, run: slice | None, halvings: int) -> list[Segment] | None:
    """Segments from lo to hi, where one run of keys matters, or several; None where no reading is certified."""
    numbers = softmax.grid.numbers
    if lo >= hi:
        return []
    if run is not None:
        if run.stop - run.start == 1:
            alone = np.arange(len(numbers.slopes)) == run.start
            if softmax.certified(lo, hi, alone, 0.0):
                return [OneKey(lo, hi, float(numbers.values[run.start]))]
        else:
            near = np.flatnonzero(deficits(numbers, lo, hi)[run] < MATTERS) + run.start
            for keys in (run, slice(near[0], near[-1] + 1)) if len(near) > 1 else ():
                if (piece := PolynomialSegment.of(softmax, lo, hi, keys)) is not None:
                    return [piece]
            middle = (lo + hi) / 2
            if halvings:
                left, right = (_inside(softmax, *side, run, halvings - 1) for side in ((lo, middle), (middle, hi)))
                if left is not None and right is not None:
                    return [*left, *right]
    own = deficits(numbers, lo, hi) < MATTERS
    enough = softmax.certified(lo, hi, own, direct_error(softmax.grid, own, max(-lo, hi)))
    return [Junction.of(softmax, lo, hi)] if enough else None


def _parts(numbers: Keys) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return numbers.slopes, numbers.intercepts, numbers.values


def _stored(numbers: np.ndarray | float, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64, device="cpu").to(dtype)


def _exp(exponent: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = DIGITS
        return Fraction((Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())
