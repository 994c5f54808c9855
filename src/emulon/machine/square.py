"""Products from GELU's even part: g(z) = GELU(z) + GELU(−z) = z·erf(z/√2), which is √(2/π)·(z² − z⁴/6 + z⁶/40 − …).

Combining g at scales s, 2s, 4s cancels z⁴ and z⁶ (Richardson), and xy = ((x+y)² − (x−y)²)/4. The odd part is exact for
every z, GELU(z) − GELU(−z) = z, so a pair of units passes a number through the MLP without a large offset
(Akyürek et al. 2022, Lemma 5). Their Lemma 4 prints √(2/π) for GELU's quadratic coefficient in Eq. 38; it is half of
that, 1/√(2π).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch

from emulon.certify.rounding import unit

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
