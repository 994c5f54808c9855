"""Float64 operations whose rounding is known: nothing is assumed but that + − × ÷ √ round to nearest.

Error-free transformations of Knuth, Dekker and Veltkamp, the fixed-point splitting of Ozaki et al. 2012, and the
exponential.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from emulon.certify.rounding import unit
from emulon.expressions.evaluation import ball_arithmetic

f64 = torch.float64
U = unit(f64)
SPLITTER = 2.0**27 + 1
# Powers of two between 1 and 2 that the exponential has at hand, and how large its arguments may be.
EXP_STEPS, EXP_MOST = 1024, 692.0
# Points in a unit around which erf is expanded, and coefficients of each series.
ERF_STEPS, ERF_TERMS = 64, 8
# To within 1e-59.
LOG_2 = "0.69314718055994530941723212145817656807550013436025525412068"


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to an integer between −1000 and 1000, to the last bit; others are taken to be the nearest of these."""
    bits = (exponent.to(f64).nan_to_num().clamp(-1000, 1000).to(torch.int64) + 1023) << 52
    return bits.view(f64)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b = sum + off exactly (Knuth)."""
    total = a + b
    back = total - a
    off = a - (total - back)
    return total, off.add_(b - back)


def quick_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same where |a| ≥ |b| or a = 0 (Dekker)."""
    total = a + b
    return total, b - (total - a)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a·b = product + off exactly, if nothing underflows (Veltkamp and Dekker)."""
    total = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return total, a2 * b2 - (((total - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    lifted = SPLITTER * a
    high = lifted - (lifted - a)
    return high, a - high


def fixed_point(a: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    most = a.abs().amax(dim=dim, keepdim=True) if a.shape[dim] else a.new_zeros(())
    exponent = torch.frexp(most).exponent
    top = torch.where(most > 0, torch.where(exponent < 960, power_of_two(exponent.clamp(min=-960)), math.inf), 0.0)
    lift = 1.5 * 2.0 ** (52 - bits) * top
    first = (a + lift).sub_(lift)
    return first, a - first, top


def power_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """k, with x nearest to k·log 2/1024, and 2^(k/1024): two parts of what is between 1 and 2, and a power of two."""
    step, _, high, low = exp_table()
    k = (x * (1 / step)).round_()
    whole = k.clamp(-1000 * EXP_STEPS, 1000 * EXP_STEPS).nan_to_num_().to(torch.int64)
    place = (whole & (EXP_STEPS - 1)).flatten()
    scale = (whole >> (EXP_STEPS.bit_length() - 1)).add_(1023).bitwise_left_shift_(52).view(f64)
    return k, high.index_select(0, place).view_as(x), low.index_select(0, place).view_as(x), scale


def exp_of_floats(x: Tensor) -> Tensor:
    """As `FloatBall.exp` claims."""
    step, rest, _, _ = exp_table()
    k, t, t_low, scale = power_parts(x)
    r = (x - k * step).sub_(k.mul_(rest))
    more = (r / 24).add_(1 / 6).mul_(r).add_(0.5).mul_(r).mul_(r).add_(r)
    return more.mul_(t).add_(t_low).add_(t).mul_(scale)


@cache
def exp_table() -> tuple[float, float, Tensor, Tensor]:
    """log 2/1024 in two parts, the first of 32 bits, and 2^(j/1024) in two parts, j = 0, …, 1023.

    The powers are integers over 2^200: square roots of 2 rounded down, then products rounded down, so that none is off
    by more than 2^−188, and both parts together by no more than 2^−106.
    """
    exact = Fraction(LOG_2) / EXP_STEPS
    step = float(round(exact * 2**42)) / 2**42
    root, bits = 2 << 200, 200
    for _ in range(EXP_STEPS.bit_length() - 1):
        root = math.isqrt(root << bits)
    powers = [1 << bits]
    for _ in range(EXP_STEPS - 1):
        powers.append(powers[-1] * root >> bits)
    # Quotients of integers are rounded once.
    high = [power / (1 << bits) for power in powers]
    low = [(power - int(math.ldexp(one, bits))) / (1 << bits) for power, one in zip(powers, high, strict=True)]
    return (
        step,
        float(exact - Fraction(step)),
        torch.tensor(high, dtype=f64, device="cpu"),
        torch.tensor(low, dtype=f64, device="cpu"),
    )


@cache
def erf_table() -> Tensor:
    """(ERF_TERMS, 6·ERF_STEPS + 1) Taylor coefficients of erf at 0, 1/64, …, 6, each rounded once."""
    from flint import arb, arb_series

    with ball_arithmetic(128, ERF_TERMS):
        series = [arb_series([arb(k) / ERF_STEPS, 1]).erf() for k in range(6 * ERF_STEPS + 1)]
        return torch.tensor([[float(one[n]) for one in series] for n in range(ERF_TERMS)], dtype=f64, device="cpu")
