"""What a LayerNorm does to the stream, and products of two numbers by squares: what blocks compute beside attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import torch

from emulon.certify.rounding import unit

EPSILON = 1e-5  # GPT-2's


@dataclass(frozen=True)
class Normalisation:
    """The pads and what they cost. `content` bounds the 2-norm of a token's registers and codes, `mean` its |mean|.

    `noise` bounds, in 2-norm, what a stream written in another basis holds beside what it should, the reading of it
    included, and `skew` how far the reading of a functional and of its negative may differ there (`planted.noise`);
    both are relative to the functional's coefficients, and zero where registers stand in slots of their own.
    """

    width: int
    pad: float
    content: float
    mean: float
    dtype: torch.dtype
    divide_content: float = 0.0  # the largest D·c
    noise: float = 0.0
    skew: float = 0.0

    def holding(self, more: float) -> Normalisation:
        """The same for tokens that may hold so much more, in 2-norm, in slots that nothing reads."""
        content, mean = math.hypot(self.content, more), self.mean + more / math.sqrt(self.width)
        return replace(self, content=content, mean=mean)

    @property
    def gain(self) -> float:
        return math.sqrt(2 * self.pad**2 / self.width + EPSILON)

    @property
    def scaling(self) -> float:
        """|factor − 1| of the bypass: δ, and the rounding of mean, variance, square root and gain."""
        inside = (self.content**2 + 2 * self.divide_content**2) / (2 * self.pad**2)
        return inside + self.roundings * unit(self.dtype)

    @property
    def roundings(self) -> float:
        return roundings(self.width)

    def divide_gain(self, factor: float) -> float:
        return factor * math.sqrt(2 / self.width)

    def divide_scaling(self, factor: float, least: float) -> float:
        """The same for a division by c ≥ least through pads ±factor·c; ε counts as content here."""
        inside = (self.content**2 + self.width * EPSILON) / (2 * (factor * least) ** 2)
        return inside + self.roundings * unit(self.dtype)

    def divide_mean(self, divisor: float) -> float:
        """|mean| while ±D·c ≤ divisor stands in for the pads."""
        return self.mean + self.roundings * unit(self.dtype) * divisor

    def read_error(self, terms: int, magnitude: float, coefficients: float, *, divided: float = 0.0) -> float:
        """Rounding of a functional Σ a_i·x_i read through the bypass: Σ|a_i x_i| ≤ magnitude, Σ|a_i| ≤ coefficients.

        Each normalised slot errs by 4u·(|x| + |mean|), the zero slot counts as much again, and the sum has terms +
        1 terms.
        """
        mean = divided if divided else self.mean
        return (terms + 10) * unit(self.dtype) * (magnitude + 2 * coefficients * mean) + 2 * coefficients * self.noise


def roundings(width: int) -> float:
    """Roundings of size u·N in LayerNorm's mean, and of relative size u in its variance.

    Only the two pads are large. torch gathers moments in chunks and merges them in a binary tree: every merge that
    touches a pad rounds a number of the pad's size a few times; all other terms are below u·N² and add at most
    themselves, which the content's share counts (it is counted twice).
    """
    return 32 + 4 * math.log2(width)


def up_to_power_of_two(value: float) -> float:
    return 2.0 ** math.ceil(math.log2(value))


def plan(
    width: int, content: float, total: float, spans: list[tuple[float, float]], dtype: torch.dtype
) -> tuple[Normalisation, list[float]]:
    """N, and D for each division by c in (low, high), from the domain and the dtype alone.

    `total` bounds Σ|x| over a token. The computed mean is off by at most roundings·u·N; N stops where that reaches
    `content`, or earlier where truncation, falling as N⁻², is already below it.
    """
    u = unit(dtype)
    content = max(content, 1.0)
    if not spans:
        pad = up_to_power_of_two(content * (1 / (roundings(width) * u * u)) ** (1 / 3))
        factors: list[float] = []
        divide_content = 0.0
    else:
        ratio = max(high / low for low, high in spans)
        step = math.sqrt(1 / (roundings(width) * u * ratio))
        factors = [up_to_power_of_two(content * step / low) for low, _ in spans]
        divide_content = max(f * high for f, (_, high) in zip(factors, spans, strict=True))
        pad = up_to_power_of_two(divide_content * step)
    mean = total / width + roundings(width) * u * pad  # ±D·c and ±N add up to nothing
    return Normalisation(width, pad, content, mean, dtype, divide_content), factors


# |GELU(t) + GELU(−t) − |t|| = |t|·erfc(|t|/√2) ≤ this.
KINK = 0.341
REACH = 2  # |x/X ± y/Y| ≤ 2


@dataclass(frozen=True)
class Square:
    """z² ≈ Σ_q weights[q]·g(scales[q]·z) for |z| ≤ 2, off by at most `truncation` before rounding."""

    scales: tuple[float, ...]
    weights: tuple[float, ...]
    truncation: float

    @property
    def cost(self) -> float:
        """Σ_q weight·scale: how strongly an error u in a unit's relative accuracy shows in z²."""
        return sum(abs(weight) * scale for weight, scale in zip(self.weights, self.scales, strict=True))


def _series(n: int) -> Fraction:
    """g(z)·√(π/2) = Σ_n (−1)ⁿ z^{2n+2} / (n!·2ⁿ·(2n+1)); this is the n-th coefficient without its sign."""
    return Fraction(1, math.factorial(n) * 2**n * (2 * n + 1))


def _square(exponent: int, count: int) -> Square:
    """Claim: with nodes t_q = s²·4^q and L_q = Π_{r≠q} t_r/(t_r − t_q), Σ_q L_q t_q^n = 0 for 0 < n < count, so
    Σ_q √(π/2)·(L_q/t_q)·g(s·2^q·z) = z² + Σ_{n ≥ count} ±series(n)·z^{2n+2}·Σ_q L_q t_q^n; the sum of its absolute
    values at |z| = 2, in exact fractions, is the truncation (terms past n = count+12 fall by more than 4 each while
    s·4 ≤ 1).
    """
    nodes = [Fraction(4) ** (exponent + q) for q in range(count)]
    basis = [math.prod((t / (t - node) for t in nodes if t != node), start=Fraction(1)) for node in nodes]
    terms = [
        _series(n) * REACH ** (2 * n + 2) * abs(sum(b * t**n for b, t in zip(basis, nodes, strict=True)))
        for n in range(count, count + 13)
    ]
    truncation = float(sum(terms) + terms[-1]) * (1 + 1e-12)
    weights = tuple(math.sqrt(math.pi / 2) * float(b / t) for b, t in zip(basis, nodes, strict=True))
    return Square(tuple(2.0 ** (exponent + q) for q in range(count)), weights, truncation)


@cache
def square(dtype: torch.dtype) -> Square:
    """The two or three scales (exact powers of two) with the least sum of truncation and rounding in this dtype."""
    candidates = [_square(exponent, count) for count in (2, 3) for exponent in range(-30, -1 - count)]
    return min(candidates, key=lambda way: way.truncation + 256 * unit(dtype) * way.cost)


def steepness(limit: float, dtype: torch.dtype) -> float:
    """s, a power of two, with KINK/s ≤ u·limit: the kinks' roundness stays below what rounding costs anyway."""
    return 2.0 ** math.ceil(math.log2(KINK / (unit(dtype) * limit)))
