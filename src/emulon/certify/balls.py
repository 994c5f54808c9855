"""Balls around numbers of twice float64's precision: checks that enclose the truth, at the cost of array operations.

A ball is high + low ± radius, elementwise, with |low| ≤ u·|high|. Nothing is assumed but what
`rounding` does. The bounds of double-word arithmetic are those of Joldes, Muller and Popescu 2017 (Algorithms 4, 6
and 10: 2u², 3u² + 13u³ and 5u²), each rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from emulon.certify.rounding import (
    ERF_STEPS,
    EXP_MOST,
    U,
    erf_table,
    exp_of_floats,
    exp_table,
    f64,
    fixed_point,
    gamma,
    power_parts,
    quick_sum,
    two_product,
    two_sum,
)
from emulon.expressions.evaluation import any_of

# Of a sum or product of double words. Radii are computed in float64, and lifted by this part each time. Products may
# lose this much to underflow; it is above e^(1 − EXP_MOST).
ROUNDED, LIFT, UNDERFLOW = 16 * U**2, 1 + 2.0**-40, 1e-300


@dataclass(frozen=True)
class Ball:
    """Every true entry lies within `radius` of high + low; a NaN or infinite radius means that nothing is known."""

    high: Tensor
    low: Tensor
    radius: Tensor

    @classmethod
    def of(cls, value: Tensor | Fraction | float | int) -> Ball:
        """A float64 tensor or number as it stands; a fraction to twice the precision."""
        if isinstance(value, Tensor):
            return cls(value, torch.zeros_like(value), torch.zeros_like(value))
        exact = Fraction(value)
        high = float(exact)
        low = float(exact - Fraction(high))
        off = abs(float(exact - Fraction(high) - Fraction(low))) * LIFT
        return cls(*(torch.tensor(part, dtype=f64, device="cpu") for part in (high, low, off)))

    @property
    def size(self) -> Tensor:
        """Above every |entry|."""
        return (self.high.abs() + self.low.abs() + self.radius) * LIFT

    def __getitem__(self, index: Any) -> Ball:
        return Ball(self.high[index], self.low[index], self.radius[index])

    def apply(self, change: Callable[[Tensor], Tensor]) -> Ball:
        """Another view of the same entries."""
        return Ball(change(self.high), change(self.low), change(self.radius))

    def widened(self, by: Tensor) -> Ball:
        return Ball(self.high, self.low, (self.radius + by) * LIFT)

    def __neg__(self) -> Ball:
        return Ball(-self.high, -self.low, self.radius)

    def __add__(self, other: Ball | Tensor | float | int) -> Ball:
        if isinstance(other, Tensor):
            s, s_off = two_sum(self.high, other)
            high, low = quick_sum(s, s_off + self.low)
            return Ball(high, low, (self.radius + ROUNDED * high.abs()) * LIFT)
        other = _ball(other)
        (s, s_off), (t, t_off) = two_sum(self.high, other.high), two_sum(self.low, other.low)
        v, v_off = quick_sum(s, s_off + t)
        high, low = quick_sum(v, t_off + v_off)
        return Ball(high, low, (self.radius + other.radius + ROUNDED * high.abs()) * LIFT)

    __radd__ = __add__

    def __sub__(self, other: Ball | Tensor | float | int) -> Ball:
        return self + (-other)

    def __rsub__(self, other: Tensor | float | int) -> Ball:
        return -self + other

    def __mul__(self, other: Ball | Tensor | float | int) -> Ball:
        if isinstance(other, float | int) and math.frexp(abs(other))[0] == 0.5:  # a power of two
            return Ball(self.high * other, self.low * other, self.radius * abs(other) + UNDERFLOW)
        other = _ball(other)
        product, off = two_product(self.high, other.high)
        high, low = quick_sum(product, off + (self.high * other.low + self.low * other.high))
        # The low parts, below u of the high ones, are in the lift.
        mine, theirs = self.high.abs(), other.high.abs()
        spread = (mine + self.radius) * other.radius + theirs * self.radius
        # Nothing is lost where a factor is exactly zero; below 1e-300 no more than a few of the smallest numbers.
        lost = (torch.minimum(mine + self.radius, theirs + other.radius) * 64).clamp(max=UNDERFLOW)
        return Ball(high, low, (spread + ROUNDED * high.abs() + lost) * LIFT)

    __rmul__ = __mul__

    def __truediv__(self, other: Ball | Tensor | float | int) -> Ball:
        """The quotient is guessed, and what it leaves over says how good the guess was.

        Claim: |n − q·d| ≤ left.radius + 8u·|left.high|, with n and d the middles, q the guess and left = n − first·d.
        Proof. The second part of q is left.high/d.high, rounded, and d.high is d to within u, so that it makes up for
        left.high to within 3u; left.low is below u·|left.high|. QED
        """
        other = _ball(other)
        divisor = Ball(other.high, other.low, torch.zeros_like(other.radius))
        own = Ball(self.high, self.low, torch.zeros_like(self.radius))
        first = self.high / other.high
        left = own - divisor * first
        high, low = quick_sum(first, left.high / other.high)
        rest = left.radius + 8 * U * left.high.abs()
        least = other.high.abs() - (other.low.abs() + other.radius) * LIFT
        spread = rest + self.radius + high.abs() * other.radius
        return Ball(high, low, _above_zero(least, (spread / least + UNDERFLOW) * LIFT))

    def __rtruediv__(self, other: Tensor | float | int) -> Ball:
        return _ball(other) / self

    def matmul(self, matrix: Tensor) -> Ball:
        """This times a float64 matrix as it stands."""
        main, size = product(self.high, matrix), matrix.abs()
        most = self.low.abs() @ size
        off = gamma(matrix.shape[-2] + 1, f64) * most + self.radius @ size
        # `product` counts what high parts lose to underflow, this what low parts and radii do.
        rest = (self.low.abs() + self.radius).amax(dim=-1, keepdim=True)
        off = off * (1 + gamma(matrix.shape[-2], f64)) + _lost(rest, size.amax(dim=-2, keepdim=True))
        # The little that is left to round is in the lift.
        return (main + self.low @ matrix).widened(off)

    def signed(self, by: Tensor) -> Ball:
        """Times factors of 1 and −1."""
        return Ball(self.high * by, self.low * by, self.radius)

    def sum(self) -> Ball:
        """Over the last dimension: the first bits of all terms without rounding, and what is left of them."""
        terms = self.high.shape[-1]
        if terms == 1:
            return self[..., 0]
        first, left, _ = fixed_point(self.high, 52 - math.ceil(math.log2(terms)), -1)
        others = left + self.low
        high, low = two_sum(first.sum(dim=-1), others.sum(dim=-1))
        off = self.radius + gamma(terms, f64) * others.abs()
        return Ball(high, low, off.sum(dim=-1) * (1 + gamma(terms + 4, f64)))

    def distance_from(self, value: Tensor) -> Tensor:
        """Above |entry − value|."""
        return (self - value).size

    def sqrt(self) -> Ball:
        """Of balls above zero: |√x − z| = |x − z²|/(√x + z), and z alone is divided by.

        Rounding keeps the order, so that x is above zero where that is seen, and then above 2^−54·z²: √x is more than
        all that is rounded here, and than z's second part.
        """
        root = self.high.clamp(min=0).sqrt()
        guess = Ball.of(root)
        left = Ball(self.high, self.low, torch.zeros_like(self.radius)) - guess * guess
        high, low = quick_sum(root, left.high / (2 * root))
        z = Ball(high, low, torch.zeros_like(high))
        rest = (self - z * z).size
        return Ball(high, low, _above_zero(self.high - (self.low.abs() + self.radius), rest / high))

    def exp(self) -> Ball:
        """2^(k/1024)·e^r: the first from a table, and |r| < 3.5e-4.

        Claim: what is rounded below is less than 1e-21 of the result. Proof. k·(the table's step) has 52 bits, and `a`,
        x less that, is below 4e-4 and a multiple of the last place of x or of 2^−42, whichever is smaller: neither is
        rounded. The step's second part is 2^−43 of it at most, which times k < 2^20 is below 2e-7, rounded once, and
        what the two parts leave open below 2e-23. Terms from r² on are below 7e-8 and rounded a dozen times, the sum of
        all that is small below 3e-7 and rounded thrice; T·a has no rounding at all. QED
        """
        step, rest, _, _ = exp_table()
        k, t, t_low, scale = power_parts(self.high)
        a = self.high - k * step
        small = self.low - k * rest
        r = a + small
        small = small + r * r * (0.5 + r * (1 / 6 + r * (1 / 24 + r / 120)))
        moved, moved_off = two_product(t, a)
        first, first_off = quick_sum(t, moved)
        first, second = quick_sum(first, first_off + (moved_off + (t * small + t_low * (1 + r))))
        out = Ball(first * scale, second * scale, torch.zeros_like(first))
        # e^radius − 1, and the rounding.
        out = out.widened(out.size * (self.radius * (1 + self.radius) + 1e-21))
        masks = _exp_range(self.high, self.radius)
        if masks is None:
            return out
        known, empty = masks
        high, low = (torch.where(empty, 0.0, part) for part in (out.high, out.low))
        return Ball(high, low, torch.where(empty, UNDERFLOW, torch.where(known, out.radius, math.inf)))

    def tanh(self) -> Ball:
        return 1 - 2 / (1 + (2 * self).exp())

    def clamped(self, limit: float) -> Ball:
        """Cut at ±limit, which is 1-Lipschitz; near a cut the low part decides, and joins the radius."""
        inside = self.high.abs() < limit
        near = (self.high.abs() - limit).abs() <= self.low.abs()
        low = torch.where(inside, self.low, 0.0)
        off = torch.where(near, self.low.abs(), 0.0)
        return Ball(self.high.clamp(-limit, limit), low, (self.radius + off) * LIFT)

    def sign(self, tie: float) -> Ball:
        """±1 where it is decided, `tie` at an exact zero, and all of [−1, 1] where it is not known."""
        # Rounding keeps the order: what is above this sum as computed is above it.
        value, radius = _signs(self.high, self.low.abs() + self.radius, tie)
        return Ball(value, torch.zeros_like(value), radius)

    def sides(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where every number of the ball is below zero, above it, and zero."""
        return self.shortened().sides()

    def shortened(self) -> FloatBall:
        """The same to one float."""
        return FloatBall(self.high, self.low.abs().add_(self.radius).mul_(LIFT))

    def lengthened(self) -> Ball:
        return self


@dataclass(frozen=True)
class FloatBall:
    """high ± radius, high a float64: a quarter of the operations, where 1e-16 is near enough."""

    high: Tensor
    radius: Tensor

    @classmethod
    def of(cls, value: Tensor) -> FloatBall:
        return cls(value, torch.zeros_like(value))

    def shortened(self) -> FloatBall:
        return self

    def lengthened(self) -> Ball:
        """The same with a low part, which is zero."""
        return Ball(self.high, torch.zeros_like(self.high), self.radius)

    def distance_from(self, value: Tensor) -> Tensor:
        """Above |entry − value|."""
        return ((self.high - value).abs() + self.radius) * LIFT

    def __getitem__(self, index: Any) -> FloatBall:
        return FloatBall(self.high[index], self.radius[index])

    def apply(self, change: Callable[[Tensor], Tensor]) -> FloatBall:
        return FloatBall(change(self.high), change(self.radius))

    def signed(self, by: Tensor) -> FloatBall:
        return FloatBall(self.high * by, self.radius)

    def widened(self, by: Tensor) -> FloatBall:
        return FloatBall(self.high, (self.radius + by) * LIFT)

    def __neg__(self) -> FloatBall:
        return FloatBall(-self.high, self.radius)

    def __add__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        if not isinstance(other, FloatBall):
            high = self.high + other
            return FloatBall(high, high.abs().mul_(U).add_(self.radius).mul_(LIFT))
        high = self.high + other.high
        return FloatBall(high, high.abs().mul_(U).add_(self.radius).add_(other.radius).mul_(LIFT))

    __radd__ = __add__

    def __sub__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        return self + (-other)

    def __rsub__(self, other: Tensor | float | int) -> FloatBall:
        return -self + other

    def __mul__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        if self.high.ndim == 0 and isinstance(other, FloatBall) and other.high.ndim:
            self, other = other, self
        if isinstance(other, FloatBall) and other.high.ndim == 0 and not other.radius:
            other = other.high.item()
        if isinstance(other, float | int):
            high, rounded = self.high * other, math.frexp(abs(other))[0] != 0.5  # but for powers of two
            off = (self.radius * abs(other)).add_(UNDERFLOW)
            return FloatBall(high, off.add_(high.abs().mul_(U)).mul_(LIFT) if rounded else off)
        other = _float_ball(other)
        high = self.high * other.high
        spread = (self.high.abs().add_(self.radius)) * other.radius + other.high.abs() * self.radius
        return FloatBall(high, spread.add_(high.abs().mul_(U)).add_(UNDERFLOW).mul_(LIFT))

    __rmul__ = __mul__

    def __truediv__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        other = _float_ball(other)
        high = self.high / other.high
        least, size = other.high.abs() - other.radius, high.abs()
        spread = (size * other.radius).add_(self.radius).div_(least)
        return FloatBall(high, _above_zero(least, spread.add_(size.mul_(U)).add_(UNDERFLOW).mul_(LIFT)))

    def __rtruediv__(self, other: Tensor | float | int) -> FloatBall:
        return _float_ball(other) / self

    def sqrt(self) -> FloatBall:
        """Of balls above zero, where √ is within radius/√(its least)."""
        least, root = self.high - self.radius, self.high.clamp(min=0).sqrt()
        spread = self.radius / least.clamp(min=0).sqrt() + U * root
        return FloatBall(root, _above_zero(least, spread * LIFT))

    def exp(self) -> FloatBall:
        """As `Ball.exp`, to one float.

        Claim: of the middle it is within 1.01u of itself. Proof. |r| < 3.5e-4 is off by 2u·|r| at most, the sum that
        follows by r⁵/120 < 1e-19 and 4u·|r|, and what is added to the table's first part, below 4e-4 of it, by 4u of
        itself; the last sum rounds once. QED
        """
        value = exp_of_floats(self.high)
        spread = self.radius * (1 + self.radius)
        spread = spread.add_(1.01 * U).mul_(value).mul_(LIFT)
        masks = _exp_range(self.high, self.radius)
        if masks is None:
            return FloatBall(value, spread)
        known, empty = masks
        radius = torch.where(empty, UNDERFLOW, torch.where(known, spread, math.inf))
        return FloatBall(torch.where(empty, 0.0, value), radius)

    def tanh(self) -> FloatBall:
        """1 − 2/(1 + e^{2|x|}), with the sign of x.

        Claim: with q the quotient it is within u·(1.52 + q), and tanh is 1-Lipschitz.
        Proof. e^{2|x|} is within 1.01u of itself, which moves q by q·(1 − q/2) ≤ 1/2 as much; the sum and the quotient
        round once each, which is 2u·q; the difference, 1 − q, once more. Beyond 30 it is 1 to within 2e-26. QED
        """
        quotient = 2 / exp_of_floats(self.high.abs().clamp_(max=30).mul_(2)).add_(1)
        value = (1 - quotient).mul_(self.high.sign())
        return FloatBall(value, quotient.add_(1.52).mul_(U).add_(self.radius).mul_(LIFT))

    def erf(self) -> FloatBall:
        """By Taylor series around multiples of 1/64; |erf′| ≤ 2/√π < 1.13.

        Claim: of the middle it is within 2.2u. Proof. |r| ≤ 1/128 is exact, and what the series leaves out is below
        1e-18. Its terms from r on are below 0.009, and off by 16u of themselves; the first coefficient, at most 1, and
        the last sum round once each. Beyond 6 it is 1 to within 3e-17. QED
        """
        size = self.high.abs().clamp_(max=6)
        k = (size * ERF_STEPS).round_()
        r = size.sub_(k / ERF_STEPS)
        first, *others = erf_table().index_select(1, k.nan_to_num_().to(torch.int64).flatten()).view(-1, *r.shape)
        value = others.pop()
        for row in reversed(others):
            value = value.mul_(r).add_(row)
        value = value.mul_(r).add_(first).mul_(self.high.sign())
        return FloatBall(value, (1.13 * self.radius).add_(2.5 * U).mul_(LIFT))

    def sign(self, tie: float) -> FloatBall:
        """±1 where it is decided, `tie` at an exact zero, and all of [−1, 1] where it is not known."""
        return FloatBall(*_signs(self.high, self.radius, tie))

    def sides(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where every number of the ball is below zero, above it, and zero."""
        below, above = self.high < -self.radius, self.high > self.radius
        left = ~(below | above)
        return below, above, left & (self.high == 0) & (self.radius == 0) if any_of(left) else left

    def clamped(self, limit: float) -> FloatBall:
        """Cut at ±limit, which is 1-Lipschitz."""
        return FloatBall(self.high.clamp(-limit, limit), self.radius)

    def matmul(self, matrix: Tensor) -> FloatBall:
        """This times a float64 matrix as it stands."""
        size = matrix.abs()
        off = (gamma(matrix.shape[-2], f64) * self.high.abs() + self.radius) @ size
        # Nothing is lost where all of a row or column is zero: what is exactly zero stays so.
        lost = _lost((self.high.abs() + self.radius).amax(dim=-1, keepdim=True), size.amax(dim=-2, keepdim=True))
        return FloatBall(self.high @ matrix, (off + lost) * (1 + gamma(matrix.shape[-2] + 4, f64)))

    def sum(self) -> FloatBall:
        """Over the last dimension."""
        terms = self.high.shape[-1]
        off = gamma(terms, f64) * self.high.abs() + self.radius
        return FloatBall(self.high.sum(dim=-1), off.sum(dim=-1) * (1 + gamma(terms + 4, f64)))


def _above_zero(least: Tensor, radius: Tensor) -> Tensor:
    """The radius where the least that an operand may be is above zero; elsewhere nothing is known."""
    if least.numel() and least.amin() > 0:
        return radius
    return torch.where(least > 0, radius, math.inf)


def _signs(middle: Tensor, doubt: Tensor, tie: float) -> tuple[Tensor, Tensor]:
    decided, zero = middle.abs() > doubt, (middle == 0) & (doubt == 0)
    return torch.where(decided, middle.sign(), tie * zero.to(f64)), (~(decided | zero)).to(f64)


def _ball(value: Ball | Tensor | float | int) -> Ball:
    return value if isinstance(value, Ball) else Ball.of(value)


def _float_ball(value: FloatBall | Tensor | float | int) -> FloatBall:
    return value if isinstance(value, FloatBall) else FloatBall.of(torch.as_tensor(value, dtype=f64, device="cpu"))


@dataclass(frozen=True)
class Factor:
    """A float64 matrix that products have on their right, split once for all of them as `product` says."""

    whole: Tensor
    first: Tensor
    rest: Tensor
    top: Tensor
    bits: int
    unsplit: Tensor

    @cached_property
    def parts(self) -> Tensor:
        """The rest above the whole: what the two parts of a left factor are multiplied by, beside the first."""
        return torch.cat([self.rest, self.whole], dim=-2)

    @cached_property
    def beside(self) -> Tensor:
        """The first beside the rest: what the first part of a left factor is multiplied by."""
        return torch.cat([self.first, self.rest], dim=-1)

    @classmethod
    def of(cls, matrix: Tensor) -> Factor:
        bits = (53 - max(1, math.ceil(math.log2(max(matrix.shape[-2], 1))))) // 2
        first, rest, top = fixed_point(matrix, bits, -2)
        # What a left factor below 1 makes of the rest, and its own rest of the whole: sums of magnitudes.
        unsplit = rest.abs().sum(dim=-2, keepdim=True) + 2.0**-bits * matrix.abs().sum(dim=-2, keepdim=True)
        return cls(matrix, first, rest, top, bits, unsplit)


def product(a: Tensor, b: Tensor | Factor) -> Ball:
    """The matrix product of two float64 tensors, nearly to twice the precision.

    Claim: it lies in the ball. Proof. Each factor is split into a fixed-point part of `bits` bits below its row's (its
    column's) power of two and the rest, both exact. All partial sums of the first parts' product are integers below
    2⁵³ in one unit, so that it has no rounding in any order, fused or not. The others are smaller by 2^−bits in all,
    and so is what they round: by γ times their products' magnitudes, in which a's parts are at most its row's power of
    two and 2^−bits of that. QED (Ozaki et al. 2012.)
    """
    b = b if isinstance(b, Factor) else Factor.of(b)
    terms = a.shape[-1]
    a1, a2, a_top = fixed_point(a, b.bits, -1)
    first, rest = (a1 @ b.beside).chunk(2, dim=-1)
    high, low = two_sum(first, rest + a2 @ b.whole)
    # What sums of magnitudes round, and in the lift what else is rounded.
    part = gamma(terms + 3, f64) * (1 + gamma(terms, f64)) * LIFT
    return Ball(high, low, (part * a_top * b.unsplit).add_(_lost(a_top, b.top)))


def split_product(a: Tensor, b: Factor) -> tuple[Tensor, Tensor, Tensor]:
    """As `product`, as the sum of an exact matrix and one that is smaller by 2^−bits, and how far this one is off.

    Claim: by no more. Proof. As above. What γ says of sums of magnitudes is taken, row by row, for the largest column.
    QED
    """
    terms = a.shape[-1]
    a1, a2, a_top = fixed_point(a, b.bits, -1)
    part = gamma(2 * terms + 3, f64) * (1 + gamma(2 * terms, f64)) * LIFT
    off = part * a_top * b.unsplit.amax(dim=-1, keepdim=True) + _lost(a_top, b.top.amax(dim=-1, keepdim=True))
    return a1 @ b.first, torch.cat([a1, a2], dim=-1) @ b.parts, off


def rounded_product(a: Tensor, b: Factor) -> FloatBall:
    """As `product`, to one float: each entry is rounded once, by u of itself, and little else is lost."""
    first, rest, off = split_product(a, b)
    high = first.add_(rest)
    return FloatBall(high, high.abs().mul_(U).add_(off).mul_(LIFT))


def _exp_range(x: Tensor, radius: Tensor) -> tuple[Tensor, Tensor] | None:
    """Masks: where e^x has a bound, and where it underflows; None if it has a bound everywhere."""
    if x.numel() and x.abs().amax() <= EXP_MOST and radius.amax() < 1:
        return None
    narrow = radius < 1
    return (x.abs() <= EXP_MOST) & narrow, (x < -EXP_MOST) & narrow


def _lost(rows: Tensor, columns: Tensor) -> Tensor:
    """What products may lose to underflow, by the largest factors of every row and column: nothing where one is 0."""
    return (UNDERFLOW * rows.gt(0).to(f64)) * columns.gt(0).to(f64)
