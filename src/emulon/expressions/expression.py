"""Scalar functions of one variable: read from a name, a sympy expression, or its string.

An expression is kept in *switch form*: Abs, Max, Min, sign, Heaviside and Piecewise become smooth expressions in t and
in switches σ ∈ {−1, 1}, each the sign of an expression that is itself in switch form. So |t| is σ·t with σ = sign(t).
Given the switches, everything left is smooth; that is what the piecewise grids and the interpolation proof need.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulon.core.errors import BadExpression
from emulon.expressions.evaluation import TORCH, Operations, any_of, arb_operations, ball_arithmetic, compile_expression
from emulon.expressions.parser import Condition, Switch, read, t_symbol

if TYPE_CHECKING:
    import sympy

NAMED = {
    "identity": "t",
    "relu": "Max(t, 0)",
    "sigmoid": "1/(1 + exp(-t))",
    "softplus": "log(1 + exp(t))",
    "tanh": "tanh(t)",
    "gelu": "t*(1 + erf(t/sqrt(2)))/2",
    "abs": "Abs(t)",
    "sign": "sign(t)",
    "square": "t**2",
}
# Where so many switches are open that more branches than these are possible, a narrower interval is asked for.
MOST_BRANCHES = 81
# Cells of an interval that are asked what a function is there, before it is refused: a few seconds.
MOST_LOOKED_AT = 20_000
# Operations of an expression that is compared with a sigmoid.
MOST_MATCHED = 30
# How exactly a break is located: a few last places of its size.
LAST_PLACES = 4e-16


@dataclass(frozen=True)
class Break:
    """A point where a function is not smooth.

    Args:
        at: Where.
        left: The limit from the left.
        right: The limit from the right.
        value: The value there.
        slope_change: Right slope minus left slope, as a magnitude.
        jump: Whether the function is discontinuous there.
        exact: Whether the break is at the float `at` itself.
        nearby: Distance within which it is elsewhere, a few last places.
    """

    at: float
    left: float
    right: float
    value: float
    slope_change: float
    jump: bool
    exact: bool
    nearby: float


Signs = tuple[float, ...]
"""What each switch is, in order; a beginning of it where only the first few are known."""


@dataclass(frozen=True)
class Function:
    """A scalar function of t, in switch form; `parse` makes one.

    Args:
        text: The function as it was written.
        smooth: sympy expression in t and the switches.
        switches: Signs of expressions, in the order of their dependence.
        conditions: The function is defined where all of them hold.
    """

    text: str
    smooth: Any
    switches: tuple[Switch, ...] = ()
    conditions: tuple[Condition, ...] = ()
    # Intervals that were looked at, breaks, and expressions that were compiled, by what was asked.
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def continuous(self) -> bool:
        """Whether it has no jumps: it is written with smooth functions, Abs, Max and Min alone."""
        return not (self.switches and re.search("d/dt|sign|Heaviside|Piecewise", self.text))

    @cached_property
    def sigmoid(self) -> tuple[float, float, float, float] | None:
        """p, q, a and b of p + q·σ(a·t + b) where it is written so, by tanh or by 1/(1 + exp)."""
        import sympy

        t, of = t_symbol(), _tamed(self.smooth)
        if self.switches or not of.has(sympy.exp, sympy.tanh) or of.count_ops() > MOST_MATCHED:
            return None
        at, height, c, d = (sympy.Wild(name, exclude=[t]) for name in "abcd")
        for form, turn in ((at + height * sympy.tanh(c * t + d), 2), (at + height / (1 + sympy.exp(c * t + d)), -1)):
            found = sympy.expand(of).match(form)
            if found and found[height] != 0 and found[c] != 0:
                low, rise = (found[at] - found[height], 2 * found[height]) if turn == 2 else (found[at], found[height])
                return float(low), float(rise), float(turn * found[c]), float(turn * found[d])
        return None

    def __call__(self, s: Tensor) -> Tensor:
        """f(s), elementwise, in s's dtype; NaN where it does not exist."""
        if not self.switches and not self.conditions:
            return self._evaluate(self.smooth, (), s)
        result = torch.full_like(s, torch.nan)
        for signs, here in self._groups(s):
            for condition in self.conditions:
                of = self._evaluate(condition.of, signs, s).sign()
                here = here & torch.stack([of == sign for sign in condition.signs]).any(dim=0)
            result = torch.where(here, self._evaluate(self.smooth, signs, s), result)
        return result

    def derivative(self) -> Function:
        """f′, with the switches held fixed: right everywhere but on the switching points themselves."""
        return self._derivative

    @cached_property
    def _derivative(self) -> Function:
        slope = _tamed(self.smooth.diff(t_symbol()))
        return Function(f"d/dt {self.text}", slope, self.switches, self.conditions)

    def branch(self, signs: Signs) -> sympy.Expr:
        """The smooth expression in t that these switches select."""
        return self._with(self.smooth, signs)

    def arb_branches(self, left: float, right: float) -> list[Signs]:
        """Every assignment of the switches that some s in [left, right] has, and perhaps more.

        Raises `OpenSwitches` where there may be more than `MOST_BRANCHES`: so many that none could be looked at.
        """
        branches: list[Signs] = [()]
        for switch in self.switches:
            branches = [
                (*signs, sign)
                for signs in branches
                for sign in _possible(self._arb(switch.of, signs), switch.tie, left, right)
            ]
            if len(branches) > MOST_BRANCHES:
                raise OpenSwitches
        return branches

    def require_defined(self, lo: float, hi: float) -> None:
        """Refuse an interval on which a part of what was written does not exist, or cannot be seen to."""
        if not self.conditions or (lo, hi) in self._known:
            return
        with ball_arithmetic():
            edges = [lo, *self._flips(lo, hi), hi] if self.switches else [lo, hi]
            halve_until_certain(
                pairwise(edges),
                self._missing,
                f"{self.text} is not seen to exist on ({lo:g}, {hi:g}) with {{}} cells, by {{}}; "
                "choose a shorter interval, or rescale",
                f"{self.text} is not finite and smooth at t = {{:.6g}}, where {{}} does not exist; "
                "choose an interval without it",
            )
        self._known[lo, hi] = True

    def _missing(self, left: float, right: float) -> str | None:
        """A part that may not exist somewhere in [left, right]."""
        guarded = any(condition.of.free_symbols - {t_symbol()} for condition in self.conditions)
        try:
            branches = self.arb_branches(left, right) if guarded else [()]
        except OpenSwitches:
            return "one of its switches"
        for condition in self.conditions:
            for signs in branches:
                if not condition.signs.issuperset(_possible(self._arb(condition.of, signs), 0.0, left, right)):
                    return condition.part
        return None

    def arb_series(self, at: Any, signs: Signs) -> Any:
        """The Taylor series around `at` (an `arb_series` in t) of the branch that these switches select."""
        return self._arb(self.smooth, signs)({"t": at})

    def over(self, operations: Operations, t: Any, sign: Callable[[Any, float], Any]) -> Any:
        """f(t), over any number system that can tell signs, `sign(value, tie)`, or not.

        Refuses (BadExpression) what the number system has no function for.
        """
        values = {"t": t}
        for switch in self.switches:
            value = self._compile(switch.of, (), operations)(values)
            values[switch.symbol.name] = sign(value, switch.tie)
        return self._compile(self.smooth, (), operations)(values)

    def decided(
        self, operations: Operations, t: Any, entries: Tensor, sides: Callable[[Any], tuple[Tensor, Tensor, Tensor]]
    ) -> list[tuple[Signs, Tensor]]:
        """Which entries have which switches for certain, by where `sides` says that a value is below, above and at 0.

        What none of them has is open; where nothing switches, all of `entries` have the signs ().
        """
        groups: list[tuple[Signs, Tensor]] = [((), torch.ones_like(entries, dtype=torch.bool))]
        for switch in self.switches:
            split = []
            for signs, here in groups:
                value = self._compile(switch.of, signs, operations)({"t": t})
                for sign, there in zip((-1.0, 1.0, switch.tie), sides(value), strict=True):
                    constant = there.ndim < here.ndim  # and then the same for all entries
                    both = here if constant else here & there
                    if any_of(there if constant else both):
                        split.append(((*signs, sign), both))
            groups = split
        return groups

    def over_branch(self, operations: Operations, t: Any, signs: Signs) -> Any:
        """The branch that these switches select; a constant where it is one."""
        return self._compile(self.smooth, signs, operations)({"t": t})

    def arb_value(self, t: Any) -> Any:
        """f on an Arb ball, with every value that an open switch allows; NaN around a pole."""
        from flint import arb

        try:
            return arb(self.over(arb_operations(), t, _arb_sign))
        except (ValueError, ZeroDivisionError):
            return arb.nan()

    def breaks(self, lo: float, hi: float) -> list[Break]:
        """Where the switches flip to some effect inside (lo, hi), located to the last bit."""
        if not self.switches:
            return []
        key = ("breaks", lo, hi)
        if key not in self._known:
            found = [self._break(at, _size(lo, hi)) for at in self._flips(lo, hi)]
            self._known[key] = [one for one in found if one is not None]
        breaks: list[Break] = self._known[key]
        return breaks

    def _with(self, expression: sympy.Expr, signs: Signs) -> sympy.Expr:
        """With these switches for good: what another branch multiplies by zero is gone, even where it is infinite."""
        import sympy

        known = zip(self._open_in(expression), signs, strict=False)
        values = {symbol: sympy.Rational(sign) for symbol, sign in known if symbol is not None}
        return expression.xreplace(values) if values else expression

    def _open_in(self, expression: sympy.Expr) -> tuple[sympy.Symbol | None, ...]:
        """The symbols of the switches that an expression has, each in its place."""
        if expression not in self._known:
            free = expression.free_symbols
            symbols = (switch.symbol if switch.symbol in free else None for switch in self.switches)
            self._known[expression] = tuple(symbols)
        known: tuple[sympy.Symbol | None, ...] = self._known[expression]
        return known

    def _compile(self, expression: sympy.Expr, signs: Signs, operations: Operations) -> Callable[..., Any]:
        # By the switches that it has alone: others do not make it another expression.
        own = tuple(symbol and sign for symbol, sign in zip(self._open_in(expression), signs, strict=False))
        key = (operations.name, expression, own)
        if key not in self._known:
            self._known[key] = compile_expression(self._with(expression, signs), operations)
        compiled: Callable[..., Any] = self._known[key]
        return compiled

    def _arb(self, expression: sympy.Expr, signs: Signs) -> Callable[..., Any]:
        return self._compile(expression, signs, arb_operations())

    def _evaluate(self, expression: sympy.Expr, signs: Signs, s: Tensor) -> Tensor:
        value = self._compile(expression, signs, TORCH)({"t": s})
        return torch.as_tensor(value, dtype=s.dtype, device=s.device).expand_as(s)

    def _groups(self, s: Tensor, *, ties: bool = True) -> list[tuple[Signs, Tensor]]:
        """Which elements of s have which signs; where nothing is known (NaN), none. Without `ties` zero counts as 1."""

        def sides(value: Any) -> tuple[Tensor, Tensor, Tensor]:
            of = torch.as_tensor(value, dtype=s.dtype, device=s.device).expand_as(s)
            zero = of == 0
            return (of < 0, of > 0, zero) if ties else (of < 0, (of > 0) | zero, torch.zeros_like(zero))

        return self.decided(TORCH, s, s, sides)

    def _signs(self, s: Tensor) -> Tensor:
        """(switches, len(s)). A tie counts as 1, so that a flip is between two neighbours only; 0 for NaN."""
        rows = torch.zeros((len(self.switches), len(s)), dtype=s.dtype, device="cpu")
        for signs, here in self._groups(s, ties=False):
            rows[:, here] = rows.new_tensor(signs).unsqueeze(-1)
        return rows

    def _flips(self, lo: float, hi: float, samples: int = 4001) -> list[float]:
        """Where the signs change between neighbouring samples."""
        grid = torch.linspace(lo, hi, samples, dtype=torch.float64, device="cpu")
        signs = self._signs(grid)
        points: set[float] = set()
        for i in (signs[:, 1:] != signs[:, :-1]).any(dim=0).nonzero().flatten().tolist():
            at, right = grid[i].item(), grid[i + 1].item()
            # One interval may hold several flips: go on from each to the next.
            while at < right and not torch.equal(*self._sides(at, right)):
                at = self._bisect(at, right)
                points.add(self._tidy(at, _size(lo, hi)))
        return sorted(at for at in points if lo < at < hi)

    def _sides(self, left: float, right: float) -> tuple[Tensor, Tensor]:
        left_signs, right_signs = self._signs(torch.tensor([left, right], dtype=torch.float64, device="cpu")).T
        return left_signs, right_signs

    def _bisect(self, lo: float, hi: float) -> float:
        """The first float beyond lo whose signs are not those at lo (near zero: to within 2⁻⁸⁰ of the bracket).

        In 64 parts at a time: what an evaluation costs hardly depends on the number of points.
        """
        signs = self._signs(torch.tensor([lo], dtype=torch.float64, device="cpu"))
        for _ in range(14):
            inner = lo + (hi - lo) * torch.arange(1, 64, dtype=torch.float64, device="cpu") / 64
            inner = inner[(inner > lo) & (inner < hi)]
            points = [lo, *inner.tolist(), hi]
            if len(points) == 2:
                break
            changed = (self._signs(inner) != signs).any(dim=0).tolist()
            first = changed.index(True) if True in changed else len(changed)
            lo, hi = points[first], points[first + 1]
        return hi

    def _tidy(self, at: float, size: float) -> float:
        """0.3 rather than 0.30000000000000004, when the switch flips across it either way."""
        tidy = round(at, 12 - math.floor(math.log10(size))) + 0.0
        near = LAST_PLACES * (size + abs(at))
        return at if torch.equal(*self._sides(tidy - near, tidy + near)) else tidy

    def _break(self, at: float, size: float) -> Break | None:
        """None where switches flip without effect, as in the flat middle of a soft threshold."""
        from flint import arb

        near = 1e-9 * (size + abs(at))
        before, after = (tuple(side.tolist()) for side in self._sides(at - near, at + near))
        value = self(torch.tensor([at], dtype=torch.float64, device="cpu")).item()
        with ball_arithmetic(160):
            (left, rise), (right, turned) = (
                _value_and_slope(self._arb(self.smooth, side), at) for side in (before, after)
            )
            flipping = [k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
            exact = all(self._arb(self.switches[k].of, before[:k])({"t": arb(at)}) == 0 for k in flipping)
        left, rise, right, turned = map(float, (left, rise, right, turned))
        # The limits are taken at `at`, which may be a little off: a steep function is not a jump.
        noise = 1e-13 * (abs(left) + abs(right) + (size + abs(at)) * (abs(rise) + abs(turned)))
        isolated = exact and abs(value - left) > noise and abs(value - right) > noise
        if not isolated and self._same(before, after, at):
            return None
        jump = isolated or not abs(left - right) <= noise
        return Break(at, left, right, value, abs(rise - turned), jump, exact, LAST_PLACES * (size + abs(at)))

    def _same(self, one: Signs, other: Signs, near: float) -> bool:
        """Whether two branches are one function, as far as some points can tell. No proof rests on it."""
        from flint import arb

        difference = self._arb(self.smooth, one), self._arb(self.smooth, other)
        with ball_arithmetic(160):
            for offset in (-0.3, -0.01, 1e-4, 0.02, 0.7):
                point = {"t": arb(near) + arb(offset) * (1 + abs(arb(near)))}
                try:
                    if not (difference[0](point) - difference[1](point)).contains(0):
                        return False
                except (ValueError, ZeroDivisionError):
                    return False
        return True


def _size(lo: float, hi: float) -> float:
    """Of numbers in an interval: what is near is a part of 1, or of an interval that is shorter."""
    return min(1.0, max(abs(lo), abs(hi)))


def halve_until_certain(
    cells: Iterable[tuple[float, float]], wrong: Callable[[float, float], str | None], slow: str, bad: str
) -> None:
    """Halve cells while `wrong` names something; a cell that resists down to a billionth of all is refused as `bad`.

    Raises:
        BadExpression: `bad` with where and what, or `slow` with how many cells and what after `MOST_LOOKED_AT`.
    """
    queue = list(cells)
    width, looked_at = queue[-1][1] - queue[0][0], 0
    while queue:
        left, right = queue.pop()
        looked_at += 1
        what = wrong(left, right)
        if not what:
            continue
        if looked_at > MOST_LOOKED_AT:
            raise BadExpression(slow.format(looked_at, what))
        if right - left < 1e-9 * width:
            raise BadExpression(bad.format(left, what))
        middle = (left + right) / 2
        queue += [(left, middle), (middle, right)]


class OpenSwitches(ValueError):
    """Too many switches that may be either way."""


def _tamed(slope: sympy.Expr) -> sympy.Expr:
    """sinh(u)/cosh(u) and exp(u)/(1 + exp(u)) by tanh, which overflows nowhere, and encloses well in wide balls."""
    import sympy

    def quotient(*factors: sympy.Expr) -> sympy.Expr:
        left = list(factors)
        for factor in factors:
            for below in [each for each in left if each.is_Pow and each.exp == -1]:
                if isinstance(factor, sympy.sinh) and below.base == sympy.cosh(*factor.args):
                    whole = sympy.tanh(*factor.args)
                elif isinstance(factor, sympy.exp) and below.base == 1 + factor:
                    whole = (1 + sympy.tanh(factor.args[0] / 2)) / 2
                elif isinstance(factor, sympy.exp) and below.base.is_Add and below.base.has(factor):
                    whole = 1 / sympy.Add(*(term / factor for term in below.base.args))
                else:
                    continue
                left.remove(below)
                left[left.index(factor)] = whole
                break
        return sympy.Mul(*left)

    return slope.replace(sympy.Mul, quotient)


def _value_and_slope(of: Callable[..., Any], at: Any) -> tuple[Any, Any]:
    """Enclosures at a point or on a ball; not a number where there are none (a pole)."""
    from flint import arb, arb_series

    try:
        series = of({"t": arb_series([at, 1], prec=2)})
    except (ValueError, ZeroDivisionError):
        return arb.nan(), arb.nan()
    # A constant does not stay a series.
    return (series[0], series[1]) if isinstance(series, arb_series) else (arb(series), arb(0))


def _possible(of: Callable[..., Any], tie: float, left: float, right: float) -> list[float]:
    """The signs, `tie` for zero, that an expression can have in [left, right].

    Where it rises or falls throughout, its ends decide: an end that is exactly zero leaves one sign and the tie.
    """
    from flint import arb

    value, slope = _value_and_slope(of, arb(left).union(arb(right)))
    if value > 0 or value < 0 or value == 0:
        return [1.0 if value > 0 else -1.0 if value < 0 else tie]
    if slope > 0 or slope < 0:
        low, high = (_value_and_slope(of, arb(end))[0] for end in ((left, right) if slope > 0 else (right, left)))
        if low >= 0:
            return [1.0] if low > 0 else sorted({1.0, tie})
        if high <= 0:
            return [-1.0] if high < 0 else sorted({-1.0, tie})
    return sorted({-1.0, tie, 1.0})


def parse(f: str | sympy.Expr | Function) -> Function:
    """Read a scalar function.

    Args:
        f: A name in `NAMED`, a sympy expression in one symbol, or its string.
    Returns:
        The function in switch form.
    Raises:
        BadExpression: It has syntax that is not read, another symbol than t, or another type.

    Example:
        >>> parse("Max(t, 0)")(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if isinstance(f, Function):
        return f
    if isinstance(f, str):
        return _from_text(NAMED.get(f, f), f)
    import sympy

    if isinstance(f, sympy.Basic):
        return _from_text(_written(f), str(f))
    raise BadExpression(f"cannot read a function from {type(f).__name__}; give a name or an expression in t")


@lru_cache(maxsize=256)
def _from_text(text: str, name: str) -> Function:
    written = read(text, tuple(NAMED))
    return Function(name, written.smooth, written.switches, written.conditions)


def _written(expression: sympy.Basic) -> str:
    """As text in t, its floats exactly."""
    import sympy

    free = expression.free_symbols
    if len(free) > 1:
        names = ", ".join(sorted(map(str, free)))
        raise BadExpression(f"{expression} has several variables ({names}); a scalar function has one, t")
    exact = {number: sympy.Rational(number) for number in expression.atoms(sympy.Float)}
    try:
        return str(expression.xreplace({symbol: t_symbol() for symbol in free} | exact))
    except ValueError:  # Python writes no number of thousands of digits
        raise BadExpression("a number of this expression has thousands of digits; write it shorter") from None


def _arb_sign(value: Any, tie: float) -> Any:
    from flint import arb

    if value > 0 or value < 0:
        return arb(1 if value > 0 else -1)
    return arb(tie) if value == 0 else arb(0, 1)
