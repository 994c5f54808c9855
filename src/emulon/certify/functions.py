"""Scalar functions on balls, and Arb where that is not enough; the distance of answers from exact values in Arb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from emulon.certify.balls import Ball, FloatBall
from emulon.certify.error_free import U, f64
from emulon.certify.rounding import unit
from emulon.core.errors import BadExpression
from emulon.expressions.evaluation import Operations, any_of, ball_arithmetic
from emulon.expressions.expression import Function, OpenSwitches

if TYPE_CHECKING:
    import sympy

AnyBall = TypeVar("AnyBall", Ball, FloatBall)


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
                value = _with(value, open_, _like(f.over(operations, f.switched(operations, left, kind.sign)), left))
        else:
            value = _like(f.over_branch(operations, s, ()), s)
    except BadExpression:
        return _by_arb(f, s)
    if not s.high.numel() or value.radius.amax() < math.inf:
        return value
    unknown = ~(value.radius < math.inf)  # or is not a number
    return _with(value, unknown, _by_arb(f, s[unknown]))


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
