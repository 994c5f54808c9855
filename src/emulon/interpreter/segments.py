"""Reading the identity grid by segments: of all its keys, those with non-negligible weight where the number is.

Around a junction keys of two pieces matter, and their softmax is computed directly. Between two junctions only those of
one piece do. Their slopes are equally spaced but for rounding, a_r = a_0 + r·θ, so that with z = e^{θ(s − c)} the
average is a quotient of two polynomials, Σ_r C_r v_r zʳ / Σ_r C_r zʳ, C_r = e^{(a_r − a_0)·c + b_r}: one exponential in
place of a hundred, and no large scores that would have to cancel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from emulon.certify import rounding
from emulon.certify.interpolation import Keys, deficits
from emulon.core.memory import at_a_time
from emulon.interpreter.identity_grid import (
    MATTERS,
    SHAPES,
    TERMS,
    ErrorBound,
    IdentityGrid,
    bands,
    covered,
    is_odd,
    proved_between,
)

# Powers of z that are multiplied out; coefficients of a polynomial are taken so many at a time.
POWERS = 8
# Numbers that are read at a time: their powers stay in cache, and in memory that the allocator keeps. (Of four times as
# many each takes 60 ns in place of 14, for pages that are handed back and asked for again.)
TOGETHER = 1 << 13
# Digits that coefficients are computed with; the part of a dtype's exponents that powers of z may take up.
DIGITS, EXPONENTS = 60, 0.85


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
    def of(cls, line: IdentityGrid, lo: float, hi: float) -> Junction:
        numbers, dtype = line.grid.numbers, line.grid.dtype
        own = deficits(numbers, lo, hi) < MATTERS
        size = float((np.abs(numbers.slopes[own]) * hi + np.abs(numbers.intercepts[own])).max())
        delta = rounding.softmax_weights(rounding.dot(TERMS + 1, size, dtype), min(2 * size, 64.0), dtype)
        own |= not _certified(line, lo, hi, own, delta)
        slopes, intercepts, values = (_stored(part[own], dtype) for part in _parts(numbers))
        return cls(lo, hi, slopes, intercepts, torch.stack([values, torch.ones_like(values)]))

    def read(self, s: Tensor) -> Tensor:
        slopes, intercepts, sums = (part.to(s.device) for part in (self.slopes, self.intercepts, self.sums))
        scores = torch.outer(slopes, s).add_(intercepts[:, None])
        over, under = (sums @ scores.sub_(scores.amax(dim=0)).exp_()).unbind()
        return over / under


@dataclass(frozen=True)
class PolynomialSegment(Segment):
    """The keys of one piece as two polynomials in z: θ, the centre c, and (2·blocks, POWERS) coefficients.

    Claim: log weights are off by at most (keys/2)·ε + 40u + max|a_r − a_0 − r·θ|·(hi − lo)/2, up to what is common to
    all, with ε = 2uθ(hi − lo)/2 + 4u. Proof. θ(s − c) is rounded twice, and exp is within 4u: that is ε, and zʳ has r
    times it, of which half the number of keys is common. A term is rounded at most 3 times for its power of z below 8,
    8 times in the sum over these, 7 times for each further 8, its coefficient once or, with its value, twice. QED

    The key in the middle has coefficient 1, and zʳ is within half of EXPONENTS of the middle one: so a coefficient too
    small for the dtype is that of a share below e⁻⁴⁹ even in float32.
    """

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
        delta = keys / 2 * (2 * u * theta * reach + rounding.EXP_ROUNDINGS * u) + 40 * u + float(bent) * reach
        chosen = np.zeros(len(numbers.slopes), dtype=bool)
        chosen[own] = True
        room = EXPONENTS * math.log(torch.finfo(dtype).max)
        if not 0 < theta * reach * keys < room or not _certified(line, lo, hi, chosen, delta):
            return None
        logs = [a * Fraction(center) + Fraction(b) for a, b in zip(exact, intercepts.tolist(), strict=True)]
        weights = [_exp(log - logs[keys // 2]) for log in logs]
        terms = [[w * Fraction(v) for w, v in zip(weights, values.tolist(), strict=True)], weights]
        empty = [0.0] * (-keys % POWERS)
        rows = np.array([[float(x) for x in row] + empty for row in terms]).reshape(-1, POWERS)
        return cls(lo, hi, theta, center, _stored(rows, dtype))

    def read(self, s: Tensor) -> Tensor:
        blocks, n = len(self.coefficients) // 2, len(s)
        powers = s.new_empty(POWERS, n)
        powers[0] = 1.0
        torch.sub(s, self.center, out=powers[1]).mul_(self.theta).exp_()
        torch.mul(powers[1], powers[1], out=powers[2])
        torch.mul(powers[1:3], powers[2], out=powers[3:5])
        torch.mul(powers[1:4], powers[4], out=powers[5:8])
        parts = (self.coefficients.to(s.device) @ powers).view(2, blocks, n)
        far = powers[4] * powers[4]
        sums = parts[:, -1]
        for block in range(blocks - 2, -1, -1):
            sums = torch.addcmul(parts[:, block], sums, far)
        return sums[0] / sums[1]


@dataclass(frozen=True)
class Segments:
    """Of a line, one after the other from zero to its reach."""

    known: tuple[Segment, ...]

    @classmethod
    def of(cls, line: IdentityGrid) -> Segments | None:
        """In each of them reading is proved as good as the grid's certificate; None for a grid that is not odd."""
        return cls(tuple(_found(line))) if line.grid.dtype in SHAPES and is_odd(line.grid) else None

    def read(self, s: Tensor) -> Tensor:
        """F(s), elementwise."""
        out = torch.empty_like(s, memory_format=torch.contiguous_format)
        together = at_a_time(TOGETHER, s.device)
        for part, answer in zip(s.reshape(-1).split(together), out.view(-1).split(together), strict=True):
            torch.copysign(self._read(part.abs()), part, out=answer)
        return out

    def _read(self, size: Tensor) -> Tensor:
        if not len(size) or size.amax() < self.known[0].hi:
            return self.known[0].read(size)
        ends = size.new_tensor([one.hi for one in self.known[:-1]])
        places, out = torch.bucketize(size, ends, right=True), torch.empty_like(size)
        for number, one in enumerate(self.known):
            own = (places == number).nonzero().squeeze(-1)
            if len(own):
                out[own] = one.read(size[own])
        return out


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


def _certified(line: IdentityGrid, lo: float, hi: float, own: np.ndarray, delta: float) -> bool:
    """Whether numbers in [lo, hi], read by these keys alone with log weights off by delta, are certified.

    Claim: keys that are left out change an average by at most Σ e^{−deficit}·|v_r − F|: each has a share of at most
    e^{−deficit}.
    """
    numbers = line.grid.numbers
    below, values = deficits(numbers, lo, hi)[~own], np.abs(numbers.values)
    largest = float(values[own].max())
    lost = 1.01 * float(np.exp(-below) @ (values[~own] + largest))
    off = ErrorBound(delta, int(own.sum()) + 8, largest, lost)
    return all(
        off.error(proved_between(numbers, *band), min(hi, band[1]), line.grid.dtype) <= line.error(band[1])
        for band in bands(len(line.reaches) - 2)
        if band[0] < hi and lo < band[1]
    )


def _parts(numbers: Keys) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return numbers.slopes, numbers.intercepts, numbers.values


def _stored(numbers: np.ndarray | float, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64, device="cpu").to(dtype)


def _exp(exponent: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = DIGITS
        return Fraction((Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())
