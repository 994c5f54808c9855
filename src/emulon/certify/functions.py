"""Scalar functions on balls, and Arb where that is not enough; the distance of answers from exact values in Arb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from emulon.certify.balls import LIFT, UNDERFLOW, Ball, FloatBall
from emulon.certify.rounding import U, f64, unit
from emulon.core.errors import BadExpression
from emulon.expressions.evaluation import Operations, any_of, ball_arithmetic
from emulon.expressions.expression import Function, OpenSwitches

if TYPE_CHECKING:
    import sympy

AnyBall = TypeVar("AnyBall", Ball, FloatBall)
# A range is covered by more than half so many cells, and as many at most. Each is proved a little beyond its edges: by
# parts of its width, how far from its middle, and how far numbers may move from where they were looked up.
CELLS, REACH, MOVE = 256, 0.6875, 0.125
# Taylor coefficients that Arb computes in each, and with how many bits; the part of the largest value that what is left
# out of a series may be.
COEFFICIENTS, BITS, LEFT_OUT = 18, 80, 2.0**-56


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
        "tanh": lambda x: x.tanh(),
        "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
        "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
    }
    if single:
        functions["erf"] = lambda x: x.erf()
    return Operations("balls of one float" if single else "balls", constant, functions)


def enclosed(f: Function, s: AnyBall) -> AnyBall:
    """f on a ball, elementwise: the one branch where all switches are decided; Arb is asked where balls cannot tell."""
    kind, operations = type(s), ball_operations(isinstance(s, FloatBall))
    value = s
    try:
        if f.switches:
            open_ = torch.ones_like(s.high, dtype=torch.bool)
            for signs, here in f.decided(operations, s, s.high, kind.sides):
                branch = _like(f.over_branch(operations, s, signs), s)
                value = branch if value is s else kind(*(torch.where(here, *pair) for pair in _parts(branch, value)))
                open_ &= ~here
            if any_of(open_):
                left = s[open_]
                value = _with(value, open_, _like(f.over(operations, left, kind.sign), left))
        else:
            value = _like(f.over_branch(operations, s, ()), s)
    except BadExpression:
        return _by_arb(f, s)
    if not s.high.numel() or value.radius.amax() < math.inf:
        return value
    unknown = ~(value.radius < math.inf)  # or is not a number
    return _with(value, unknown, _by_arb(f, s[unknown]))


@dataclass(frozen=True)
class Cells:
    """A smooth function as a table: on each cell of a range its Taylor series around the middle, proved by Arb.

    Claim: what is read is right. Proof. With k a whole number, k·width is exact, as the width is a power of two, and
    so is high − k·width where k is nearest to high/width (Sterbenz); r, that and low, is rounded once. To within
    REACH·width of k·width, f differs from a series by its further terms, the last of them taken on all of that
    (Lagrange), and by what storing coefficients rounds. In the sum a term of order j is rounded 2j + 1 times at most.
    What r is off f is off by at most `steepest` times that, the largest |f′|.

    A change is `by` times the quotient (p(r + by) − p(r))/by, to which a coefficient of order j adds j terms, each
    rounded 6j times at most; f changes by that to within `by` times what p′ is off, and by what r is off at both ends.
    QED
    """

    width: float
    first: int
    coefficients: Tensor
    """(1 + terms, cells): f in the middle, in two parts, its slope there, and so on."""
    error: float
    steepest: float
    change_error: float

    @classmethod
    def of(cls, f: Function, lo: float, hi: float) -> Cells | None:
        """None where f switches, or so many cells and coefficients do not give it to the last bits."""
        if f.switches or not (lo < hi and math.isfinite(hi - lo) and max(-lo, hi) < 2.0**20 * (hi - lo)):
            return None
        width = 2.0 ** math.ceil(math.log2((hi - lo) / CELLS))
        first, last, reach = math.floor(lo / width), math.ceil(hi / width), REACH * width
        with ball_arithmetic(BITS, COEFFICIENTS + 1):
            try:
                cells = [_series(f, k * width, reach) for k in range(first, last + 1)]
            except (ValueError, ZeroDivisionError):  # a pole
                return None
        values, off = torch.tensor(cells, dtype=f64, device="cpu").permute(2, 1, 0)
        orders = torch.arange(-1, COEFFICIENTS + 1, dtype=f64, device="cpu").clamp(min=0).unsqueeze(-1)
        sizes, off = (values.abs() + off) * reach**orders, off * reach**orders
        dropped = sizes.flip(0).cumsum(dim=0).flip(0)
        enough = (dropped[3:-1].amax(dim=-1) <= LEFT_OUT * sizes[0].amax()).nonzero()
        if not len(enough):
            return None
        n = 3 + int(enough[0])
        off[n:] = sizes[n:]
        rounded = (2 * U * orders * sizes, (2 * orders[1:n] + 1) * U * sizes[1:n], 6 * U * orders**2 * sizes)
        late, once, often = (part.sum(dim=0) for part in rounded)
        steepest = (orders * sizes).sum(dim=0).amax().item() / reach * LIFT
        error = (off.sum(dim=0) + once + late).amax().item() * LIFT + UNDERFLOW
        change_error = (MOVE / REACH * ((orders * off).sum(dim=0) + often) + 2 * late).amax().item() * LIFT
        return cls(width, first, values[:n].contiguous(), error, steepest, change_error)

    @property
    def move(self) -> float:
        """How far from where they were looked up numbers may be."""
        return MOVE * self.width

    def read(self, high: Tensor, low: Tensor, off: float) -> tuple[Tensor, Tensor, float]:
        """f at high + low ± off, as a sum of two, and how far that may be off; infinite where some is out of reach."""
        r, place = self._placed(high, low)
        if not r.abs().amax().item() + off <= (REACH - MOVE) * self.width:  # or is not a number
            return high, low, math.inf
        first, *others, rest = (row.index_select(0, place) for row in self.coefficients)
        for row in reversed(others):
            rest = torch.addcmul(row, rest, r)
        return first.view_as(high), rest.view_as(high), (self.error + self.steepest * off) * LIFT

    def change(self, high: Tensor, low: Tensor, by: Tensor, off: float) -> tuple[Tensor, float]:
        """What f changes from high + low ± off, (..., n), to `by` more, (..., m, n), and how far that may be off.

        Where `read` knows it, and |by| ≤ move.
        """
        r, place = self._placed(high, low)
        *others, part = (row.index_select(0, place) for row in self.coefficients[2:])
        moved = by + r.view_as(high).unsqueeze(-2)
        value = part.view_as(high).unsqueeze(-2).expand_as(by).clone()
        for row in reversed(others):
            part = torch.addcmul(row, part, r)
            torch.addcmul(part.view_as(high).unsqueeze(-2), value, moved, out=value)
        return value.mul_(by), (self.change_error + 2 * self.steepest * off) * LIFT

    def _placed(self, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        """How far from the middles of which cells numbers are, one after the other."""
        k = (high * (1 / self.width)).round_().clamp_(self.first, self.first + self.coefficients.shape[-1] - 1)
        r = torch.sub(high, k, alpha=self.width).add_(low).flatten()
        return r, k.sub_(self.first).to(torch.int32).flatten()


def _series(f: Function, at: float, reach: float) -> list[tuple[float, float]]:
    """Taylor coefficients of f at a point, and how far they may be off: the first in two parts, the last at ± reach."""
    from flint import arb, arb_series

    series, whole = (arb_series([0]) + f.arb_series(arb_series([ball, 1]), ()) for ball in (arb(at), arb(at, reach)))
    high = float(series[0].mid())
    found = [(high, 0.0)]
    for exact in (series[0] - arb(high), *(series[order] for order in range(1, COEFFICIENTS))):
        value = float(exact.mid())
        found.append((value, float((exact - arb(value)).abs_upper()) * LIFT))
    return [*found, (0.0, float(whole[COEFFICIENTS].abs_upper()) * LIFT)]


def _like(value: Any, s: AnyBall) -> AnyBall:
    """What an expression came to, for every entry; a number where it is constant."""
    ball = value if isinstance(value, type(s)) else type(s).of(torch.tensor(float(value), dtype=f64, device="cpu"))
    return ball.apply(lambda part: part.expand_as(s.high))


def _parts(a: AnyBall, b: AnyBall) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(vars(a).values(), vars(b).values(), strict=True)


def _with(value: AnyBall, where: Tensor, own: AnyBall) -> AnyBall:
    """With other entries in some places."""
    value = value.apply(torch.clone)
    for part, new in _parts(value, own):
        part[where] = new
    return value


def undecided(f: Function, s: AnyBall, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(..., steps): whether some sample may be on either side of a break, and how far f·x may differ there, in sum."""
    open_ = torch.ones_like(s.high, dtype=torch.bool)
    with suppress(BadExpression):
        for _, here in f.decided(ball_operations(isinstance(s, FloatBall)), s, s.high, type(s).sides):
            open_ &= ~here
    if not any_of(open_):
        return torch.zeros_like(s.high[..., 0], dtype=torch.bool), torch.zeros_like(s.high[..., 0])
    spread = torch.zeros_like(s.high)
    spread[open_] = 2 * enclosed(f, s[open_]).radius
    return open_.any(dim=-1), (spread * lengths).sum(dim=-1)


def _by_arb(f: Function, s: AnyBall) -> AnyBall:
    from flint import arb, arb_series

    radius, ends = s.shortened().radius, []
    with ball_arithmetic(order=1):
        for at, off in zip(s.high.flatten().tolist(), radius.flatten().tolist(), strict=True):
            # One float further each way: a ball may be narrower than the distance to the next.
            left, right = (math.nextafter(at + side * off, side * math.inf) if off else at for side in (-1, 1))
            try:
                branches = f.arb_branches(left, right)
                values = [(arb_series([0]) + f.arb_series(arb_series([arb(at, off)]), signs))[0] for signs in branches]
            except (OpenSwitches, ValueError, ZeroDivisionError):  # or a ball around a pole
                ends.append((-math.inf, math.inf))
                continue
            ends.append((min(float(v.lower()) for v in values), max(float(v.upper()) for v in values)))
    lower, upper = torch.tensor(ends, dtype=f64, device="cpu").reshape(*s.high.shape, 2).unbind(dim=-1)
    middle = (lower + upper) / 2
    # The ends are floats next to Arb's; one more last place each way covers the conversion and the middle.
    most = torch.maximum(lower.abs(), upper.abs())
    return type(s).of(middle).widened((upper - lower) / 2 + 4 * U * most)


# Bits to begin with, and where doubling them ends: a ball that is still too wide then counts with its radius.
FIRST_BITS, MOST_BITS = 192, 6144


def distance(exact: Callable[[], Sequence[Any]], observed: Tensor, bits: int = FIRST_BITS) -> float:
    """Bound on max |observed − exact|, at most a millionth of it, or of a float64 rounding, above the true distance.

    Args:
        exact: Returns the exact values as Arb balls, at the precision of the context it is called in.
        observed: As many numbers.
        bits: Precision to begin with.
    Returns:
        The bound; infinite where Arb cannot enclose the values.
    """
    bound, numbers = math.inf, observed.double().flatten().tolist()
    rounding = [unit(observed.dtype) * abs(number) for number in numbers]
    while bits <= MOST_BITS:
        with ball_arithmetic(bits):
            off = [abs(value - number) for value, number in zip(exact(), numbers, strict=True)]
            farthest = [_above(each) for each in off]
            radii = [_above(each.rad()) for each in off]
        if (most := _most(farthest)) < math.inf:
            bound = min(bound, most)
            rooms = (1e-6 * max(parts) for parts in zip(farthest, rounding, strict=True))
            if all(radius <= room for radius, room in zip(radii, rooms, strict=True)):
                break
        bits *= 2
    return bound


def largest(balls: Iterable[Any]) -> float:
    """A float64 number that nothing in any of these Arb balls exceeds; infinite where there is none."""
    return _most([_above(ball) for ball in balls])


def _most(numbers: Sequence[float]) -> float:
    # NaN compares as smaller than anything: it must not be lost in a maximum.
    return max(numbers, default=0.0) if all(each < math.inf for each in numbers) else math.inf


def _above(ball: Any) -> float:
    return 0.0 if ball.is_zero() else math.nextafter(float(ball.upper()), math.inf)
