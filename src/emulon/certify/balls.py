"""Balls around numbers of twice float64's precision: checks that enclose the truth, at the cost of array operations.

A ball is high + low ± radius, elementwise, with |low| ≤ u·|high|. Nothing is assumed but that + − × ÷ √ of float64
round to nearest: other functions are made of these. Error-free transformations and the bounds of double-word arithmetic
are those of Joldes, Muller and Popescu 2017 (Algorithms 4, 6 and 10: 2u², 3u² + 13u³ and 5u²), with room to spare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulon.certify.rounding import gamma, unit
from emulon.evaluation import Operations

if TYPE_CHECKING:
    import sympy

f64 = torch.float64
U = unit(f64)
ROUNDED = 16 * U**2
# Radii are computed in float64, and lifted by this part each time. Products may lose this much to underflow.
LIFT, UNDERFLOW = 1 + 2.0**-40, 1e-300
SPLITTER = 2.0**27 + 1
# Powers of two between 1 and 2 that the exponential has at hand.
EXP_STEPS = 1024
# To within 1e-59.
LOG_2 = "0.69314718055994530941723212145817656807550013436025525412068"


@dataclass(frozen=True)
class Ball:
    """Every true entry lies within `radius` of high + low; a NaN or infinite radius says that nothing is known."""

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
        return cls(*(torch.tensor(part, dtype=f64) for part in (high, low, off)))

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
            high, low = _quick_sum(s, s_off + self.low)
            return Ball(high, low, (self.radius + ROUNDED * high.abs()) * LIFT)
        other = _ball(other)
        (s, s_off), (t, t_off) = two_sum(self.high, other.high), two_sum(self.low, other.low)
        v, v_off = _quick_sum(s, s_off + t)
        high, low = _quick_sum(v, t_off + v_off)
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
        high, low = _quick_sum(product, off + (self.high * other.low + self.low * other.high))
        # The low parts, below u of the high ones, are in the lift.
        mine, theirs = self.high.abs(), other.high.abs()
        spread = (mine + self.radius) * other.radius + theirs * self.radius
        # Nothing is lost where a factor is zero; below 1e-300 no more than a few of the smallest numbers.
        lost = (torch.minimum(mine, theirs) * 64).clamp(max=UNDERFLOW)
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
        high, low = _quick_sum(first, left.high / other.high)
        rest = left.radius + 8 * U * left.high.abs()
        least = other.high.abs() - (other.low.abs() + other.radius) * LIFT
        spread = rest + self.radius + high.abs() * other.radius
        return Ball(high, low, torch.where(least > 0, (spread / least + UNDERFLOW) * LIFT, math.inf))

    def __rtruediv__(self, other: Tensor | float | int) -> Ball:
        return _ball(other) / self

    def matmul(self, matrix: Tensor) -> Ball:
        """This times a float64 matrix as it stands."""
        main, size = product(self.high, matrix), matrix.abs()
        most = self.low.abs() @ size
        off = gamma(matrix.shape[-2] + 1, f64) * most + self.radius @ size
        return (main + self.low @ matrix).widened(off * (1 + gamma(matrix.shape[-2] + 4, f64)))

    def signed(self, by: Tensor) -> Ball:
        """Times factors of 1 and −1."""
        return Ball(self.high * by, self.low * by, self.radius)

    def sum(self) -> Ball:
        """Over the last dimension: the first bits of all terms without rounding, and what is left of them."""
        terms = self.high.shape[-1]
        if terms == 1:
            return self[..., 0]
        first, left, _ = _fixed_point(self.high, 52 - math.ceil(math.log2(terms)), -1)
        others = left + self.low
        high, low = two_sum(first.sum(dim=-1), others.sum(dim=-1))
        off = self.radius + gamma(terms, f64) * others.abs()
        return Ball(high, low, off.sum(dim=-1) * (1 + gamma(terms + 4, f64)))

    def away(self, value: Tensor) -> Tensor:
        """Above |entry − value|."""
        return (self - value).size

    def sqrt(self) -> Ball:
        """Of balls above zero: |√x − z| ≤ |x − z²|/z."""
        root = self.high.clamp(min=0).sqrt()
        guess = Ball.of(root)
        left = Ball(self.high, self.low, torch.zeros_like(self.radius)) - guess * guess
        high, low = _quick_sum(root, left.high / (2 * root))
        z = Ball(high, low, torch.zeros_like(high))
        rest = (self - z * z).size
        least = self.high - (self.low.abs() + self.radius) * LIFT
        return Ball(high, low, torch.where(least > 0, rest / (high - low.abs()) * LIFT, math.inf))

    def exp(self) -> Ball:
        """2^(k/1024)·e^r: the first from a table, and |r| < 3.5e-4.

        Claim: what is rounded below is less than 1e-21 of the result. Proof. k·(the table's step) has 52 bits, and `a`,
        x less that, is below 4e-4 and a multiple of the last place of x or of 2^−42, whichever is smaller: neither is
        rounded. The step's second part is 2^−43 of it at most, which times k < 2^20 is below 2e-7, rounded once, and
        what the two parts leave open below 2e-23. Terms from r² on are below 7e-8 and rounded a dozen times, the sum of
        all that is small below 3e-7 and rounded thrice; T·a has no rounding at all. QED
        """
        step, rest, high, low = _exp_table()
        k = (self.high / step).round()
        a = self.high - k * step
        small = self.low - k * rest
        r = a + small
        small = small + r * r * (0.5 + r * (1 / 6 + r * (1 / 24 + r / 120)))
        whole = (k / EXP_STEPS).floor()
        place = (k - EXP_STEPS * whole).nan_to_num().to(torch.int64)
        t, t_low = high[place], low[place]
        moved, moved_off = two_product(t, a)
        first, first_off = _quick_sum(t, moved)
        first, second = _quick_sum(first, first_off + (moved_off + (t * small + t_low * (1 + r))))
        scale, sure = power_of_two(whole), (whole.abs() < 1000) & (r.abs() < 3.5e-4)
        # e^radius − 1, and the rounding.
        spread = torch.where(sure & (self.radius < 1), self.radius * (1 + self.radius) + 1e-21, math.inf)
        out = Ball(first * scale, second * scale, torch.zeros_like(first))
        out = out.widened(out.size * spread)
        # Below e^{−690} nothing is told apart from zero.
        nothing = (whole <= -1000) & (self.radius < 1)
        parts = ((out.high, 0.0), (out.low, 0.0), (out.radius, UNDERFLOW))
        return Ball(*(torch.where(nothing, empty, part) for part, empty in parts))

    def clamped(self, limit: float) -> Ball:
        """Cut at ±limit, which moves no two numbers apart; near a cut the low part decides, and is given up."""
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

    def shortened(self) -> FloatBall:
        """The same to one float."""
        return FloatBall(self.high, (self.low.abs() + self.radius) * LIFT)

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
        """The same with room for another float."""
        return Ball(self.high, torch.zeros_like(self.high), self.radius)

    def away(self, value: Tensor) -> Tensor:
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
        other = _float_ball(other)
        high = self.high + other.high
        return FloatBall(high, (self.radius + other.radius + U * high.abs()) * LIFT)

    __radd__ = __add__

    def __sub__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        return self + (-_float_ball(other))

    def __rsub__(self, other: Tensor | float | int) -> FloatBall:
        return -self + other

    def __mul__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        if self.high.ndim == 0 and isinstance(other, FloatBall) and other.high.ndim:
            self, other = other, self
        if isinstance(other, FloatBall) and other.high.ndim == 0 and not other.radius:
            other = other.high.item()
        if isinstance(other, float | int):
            high, rounded = self.high * other, math.frexp(abs(other))[0] != 0.5  # but for powers of two
            off = self.radius * abs(other) + UNDERFLOW
            return FloatBall(high, (off + U * high.abs()) * LIFT if rounded else off)
        other = _float_ball(other)
        high = self.high * other.high
        spread = (self.high.abs() + self.radius) * other.radius + other.high.abs() * self.radius
        return FloatBall(high, (spread + U * high.abs() + UNDERFLOW) * LIFT)

    __rmul__ = __mul__

    def __truediv__(self, other: FloatBall | Tensor | float | int) -> FloatBall:
        other = _float_ball(other)
        high = self.high / other.high
        least = other.high.abs() - other.radius * LIFT
        spread = (self.radius + high.abs() * other.radius) / least + U * high.abs() + UNDERFLOW
        return FloatBall(high, torch.where(least > 0, spread * LIFT, math.inf))

    def __rtruediv__(self, other: Tensor | float | int) -> FloatBall:
        return _float_ball(other) / self

    def sqrt(self) -> FloatBall:
        """Of balls above zero, where √ is within radius/√(its least)."""
        least, root = self.high - self.radius * LIFT, self.high.clamp(min=0).sqrt()
        spread = self.radius / least.clamp(min=0).sqrt() + U * root
        return FloatBall(root, torch.where(least > 0, spread * LIFT, math.inf))

    def exp(self) -> FloatBall:
        """As `Ball.exp`, to one float.

        Claim: of the middle it is within 1.01u of itself. Proof. |r| < 3.5e-4 is off by 2u·|r| at most, the sum that
        follows by r⁵/120 < 1e-19 and 4u·|r|, and what is added to the table's first part, below 4e-4 of it, by 4u of
        itself; the last sum rounds once. QED
        """
        step, rest, high, low = _exp_table()
        k = (self.high / step).round()
        r = (self.high - k * step) - k * rest
        more = r + r * r * (0.5 + r * (1 / 6 + r / 24))
        whole = (k / EXP_STEPS).floor()
        place = (k - EXP_STEPS * whole).nan_to_num().to(torch.int64)
        t = high[place]
        value = (t + (t * more + low[place])) * power_of_two(whole)
        sure = (whole.abs() < 1000) & (r.abs() < 3.5e-4) & (self.radius < 1)
        spread = torch.where(sure, value * (self.radius * (1 + self.radius) + 1.01 * U) * LIFT, math.inf)
        # Below e^{−690} nothing is told apart from zero.
        nothing = (whole <= -1000) & (self.radius < 1)
        return FloatBall(torch.where(nothing, 0.0, value), torch.where(nothing, UNDERFLOW, spread))

    def sign(self, tie: float) -> FloatBall:
        """±1 where it is decided, `tie` at an exact zero, and all of [−1, 1] where it is not known."""
        return FloatBall(*_signs(self.high, self.radius, tie))

    def clamped(self, limit: float) -> FloatBall:
        """Cut at ±limit, which moves no two numbers apart."""
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


def _signs(middle: Tensor, doubt: Tensor, tie: float) -> tuple[Tensor, Tensor]:
    decided, zero = middle.abs() > doubt, (middle == 0) & (doubt == 0)
    return torch.where(decided, middle.sign(), tie * zero.to(f64)), (~(decided | zero)).to(f64)


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to an integer between −1000 and 1000, to the last bit; others are taken to be the nearest of these."""
    bits = (exponent.to(f64).nan_to_num().clamp(-1000, 1000).to(torch.int64) + 1023) << 52
    return bits.view(f64)


def _ball(value: Ball | Tensor | float | int) -> Ball:
    return value if isinstance(value, Ball) else Ball.of(value)


def _float_ball(value: FloatBall | Tensor | float | int) -> FloatBall:
    return value if isinstance(value, FloatBall) else FloatBall.of(torch.as_tensor(value, dtype=f64))


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b = sum + off exactly (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _quick_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same where |a| ≥ |b| or a = 0 (Dekker)."""
    total = a + b
    return total, b - (total - a)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a·b = product + off exactly, underflow apart (Veltkamp and Dekker)."""
    total = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return total, a2 * b2 - (((total - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    lifted = SPLITTER * a
    high = lifted - (lifted - a)
    return high, a - high


def product(a: Tensor, b: Tensor) -> Ball:
    """The matrix product of two float64 tensors, nearly to twice the precision.

    Claim: it lies in the ball. Proof. Each factor is split into a fixed-point part of `bits` bits below its row's (its
    column's) power of two and the rest, both exact. All partial sums of the first parts' product are integers below
    2⁵³ in one unit, so that it has no rounding in any order, fused or not. The others are smaller by 2^−bits in all,
    and so is what they round. QED (Ozaki et al. 2012.)
    """
    terms = a.shape[-1]
    bits = (53 - max(1, math.ceil(math.log2(max(terms, 1))))) // 2
    (a1, a2, a_top), (b1, b2, b_top) = _fixed_point(a, bits, -1), _fixed_point(b, bits, -2)
    rest = a1 @ b2 + a2 @ b
    high, low = two_sum(a1 @ b1, rest)
    smaller = a1.abs() @ b2.abs() + a2.abs() @ b.abs()
    part = gamma(terms + 3, f64) * (1 + gamma(terms + 3, f64)) * LIFT
    return Ball(high, low, part * smaller + _lost(a_top, b_top))


def _lost(rows: Tensor, columns: Tensor) -> Tensor:
    """What products may lose to underflow, by the largest factors of every row and column: nothing where one is 0."""
    return (UNDERFLOW * rows.gt(0).to(f64)) * columns.gt(0).to(f64)


def _fixed_point(a: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    most = a.abs().amax(dim=dim, keepdim=True) if a.shape[dim] else a.new_zeros(())
    exponent = torch.frexp(most).exponent
    top = torch.where(most > 0, torch.where(exponent < 960, power_of_two(exponent.clamp(min=-960)), math.inf), 0.0)
    lift = 1.5 * 2.0 ** (52 - bits) * top
    first = (a + lift) - lift
    return first, a - first, top


@cache
def _exp_table() -> tuple[float, float, Tensor, Tensor]:
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
    return step, float(exact - Fraction(step)), torch.tensor(high, dtype=f64), torch.tensor(low, dtype=f64)


@cache
def ball_operations(single: bool = False) -> Operations:
    """What expressions may use over balls, those of one float or others; what else they have is left to Arb."""

    def exact(node: sympy.Expr) -> Ball:
        if node.is_Rational:
            return Ball.of(Fraction(int(node.p), int(node.q)))
        value = Ball.of(Fraction(str(node.evalf(60))))
        return value.widened(value.size * 1e-50)

    def constant(node: sympy.Expr) -> Ball | FloatBall:
        return exact(node).shortened() if single else exact(node)

    functions: dict[str, Callable[..., Any]] = {
        "exp": lambda x: x.exp(),
        "sqrt": lambda x: x.sqrt(),
        "tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()),
        "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
        "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
    }
    return Operations("balls of one float" if single else "balls", constant, functions)
