"""Scalar functions of one variable: read from a name, a sympy expression, its string, or a plain callable.

An expression is kept in *switch form*: Abs, Max, Min, sign, Heaviside and Piecewise become smooth expressions in t and
in switches σ ∈ {−1, 1}, each the sign of an expression that is itself in switch form. So |t| is σ·t with σ = sign(t).
Given the switches, everything left is smooth; that is what the piecewise grids and the interpolation proof need.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulon.errors import BadExpression, nearest
from emulon.evaluation import SMOOTH, TORCH, Operations, arb_operations, ball_arithmetic, compile_expression

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
KINKED = ("Abs", "Max", "Min", "sign", "Heaviside", "Piecewise")
FUNCTIONS = (*SMOOTH, *KINKED)
CONSTANTS = ("pi", "E", "True", "False")


@dataclass(frozen=True)
class Break:
    """A point where a function is not smooth: its limits from both sides, its value there, its change of slope.

    `jump` where it is not even continuous. `exact` where the switch flips at the very float `at`, not merely near it.
    """

    at: float
    left: float
    right: float
    value: float
    slope_change: float
    jump: bool
    exact: bool

    @property
    def nearby(self) -> float:
        """How far from `at` the switch may flip: a few last places."""
        return 4e-16 * (1 + abs(self.at))


@dataclass(frozen=True)
class Switch:
    """σ = sign(of), and `tie` where `of` is zero."""

    symbol: sympy.Symbol
    of: sympy.Expr
    tie: float


Signs = tuple[float, ...]
"""What each switch is, in order; a beginning of it where only the first few are known."""


@dataclass(frozen=True)
class Function:
    """A scalar function. `smooth` is None for a plain callable, about which nothing can be proved."""

    text: str
    smooth: Any = None
    switches: tuple[Switch, ...] = ()
    callable: Callable[[Tensor], Tensor] | None = None

    @property
    def provable(self) -> bool:
        return self.smooth is not None

    def __call__(self, s: Tensor) -> Tensor:
        """f(s), elementwise, in s's dtype."""
        if self.callable is not None:
            return torch.as_tensor(self.callable(s), dtype=s.dtype).expand_as(s)
        if not self.switches:
            return self._evaluate(self.smooth, (), s)
        result = torch.full_like(s, torch.nan)
        for signs, here in self._groups(s):
            result = torch.where(here, self._evaluate(self.smooth, signs, s), result)
        return result

    def derivative(self) -> Function:
        """f′, with the switches held fixed: right everywhere but on the switching points themselves."""
        if not self.provable:
            raise BadExpression(f"{self.text} is a plain callable; give the derivative, or an expression, instead")
        return Function(f"d/dt {self.text}", self.smooth.diff(_t()), self.switches)

    def branch(self, signs: Signs) -> sympy.Expr:
        """The smooth expression in t that these switches select."""
        return self._with(self.smooth, signs)

    def arb_branches(self, left: float, right: float) -> list[Signs]:
        """Every assignment of the switches that some s in [left, right] has, and perhaps more."""
        branches: list[Signs] = [()]
        for switch in self.switches:
            branches = [
                (*signs, sign)
                for signs in branches
                for sign in _possible(self._arb(switch.of, signs), switch.tie, left, right)
            ]
        return branches

    def arb_series(self, at: Any, signs: Signs) -> Any:
        """The Taylor series around `at` (an `arb_series` in t) of the branch that these switches select."""
        return self._arb(self.smooth, signs)({"t": at})

    def switched(self, operations: Operations, t: Any, sign: Callable[[Any, float], Any]) -> dict[str, Any]:
        """t and every switch by name, over any number system that can tell signs, `sign(value, tie)`, or not.

        Refuses (BadExpression) what the number system has no function for.
        """
        values = {"t": t}
        for switch in self.switches:
            value = self._compile(switch.of, (), operations)(values)
            values[switch.symbol.name] = sign(value, switch.tie)
        return values

    def over(self, operations: Operations, values: dict[str, Any]) -> Any:
        """f(t), given what `switched` returned."""
        return self._compile(self.smooth, (), operations)(values)

    def breaks(self, lo: float, hi: float) -> list[Break]:
        """Where the switches flip to some effect inside (lo, hi), located to the last bit."""
        if not self.switches:
            return []
        if (lo, hi) not in self._known_breaks:
            found = map(self._break, self._flips(lo, hi))
            self._known_breaks[lo, hi] = [one for one in found if one is not None]
        return self._known_breaks[lo, hi]

    @cached_property
    def _known_breaks(self) -> dict[tuple[float, float], list[Break]]:
        return {}

    @cached_property
    def _compiled(self) -> dict[tuple[Any, ...], Callable[..., Any]]:
        return {}

    def _with(self, expression: sympy.Expr, signs: Signs) -> sympy.Expr:
        """With these switches for good: what another branch multiplies by zero is gone, even where it is infinite."""
        import sympy

        symbols = (switch.symbol for switch in self.switches)
        return expression.subs({symbol: sympy.Rational(sign) for symbol, sign in zip(symbols, signs, strict=False)})

    def _compile(self, expression: sympy.Expr, signs: Signs, operations: Operations) -> Callable[..., Any]:
        key = (operations.name, expression, signs)
        if key not in self._compiled:
            self._compiled[key] = compile_expression(self._with(expression, signs), operations)
        return self._compiled[key]

    def _arb(self, expression: sympy.Expr, signs: Signs) -> Callable[..., Any]:
        return self._compile(expression, signs, arb_operations())

    def _evaluate(self, expression: sympy.Expr, signs: Signs, s: Tensor) -> Tensor:
        value = self._compile(expression, signs, TORCH)({"t": s})
        return torch.as_tensor(value, dtype=s.dtype).expand_as(s)

    def _groups(self, s: Tensor, *, ties: bool = True) -> list[tuple[Signs, Tensor]]:
        """Which elements of s have which signs; where nothing is known (NaN), none. Without `ties` zero counts as 1."""
        groups: list[tuple[Signs, Tensor]] = [((), torch.ones_like(s, dtype=torch.bool))]
        for switch in self.switches:
            split = []
            for signs, here in groups:
                of = self._evaluate(switch.of, signs, s)
                for sign, there in ((-1.0, of < 0), (1.0, of > 0), (switch.tie if ties else 1.0, of == 0)):
                    if (both := here & there).any():
                        split.append(((*signs, sign), both))
            groups = split
        return groups

    def _signs(self, s: Tensor) -> Tensor:
        """(switches, len(s)). A tie counts as 1, so that a flip is between two neighbours only."""
        rows = torch.full((len(self.switches), len(s)), torch.nan, dtype=s.dtype)
        for signs, here in self._groups(s, ties=False):
            rows[:, here] = rows.new_tensor(signs).unsqueeze(-1)
        return rows

    def _flips(self, lo: float, hi: float, samples: int = 4001) -> list[float]:
        """Where the signs change between neighbouring samples."""
        grid = torch.linspace(lo, hi, samples, dtype=torch.float64)
        signs = self._signs(grid)
        points: set[float] = set()
        for i in (signs[:, 1:] != signs[:, :-1]).any(dim=0).nonzero().flatten().tolist():
            at, right = grid[i].item(), grid[i + 1].item()
            # One interval may hold several flips: go on from each to the next.
            while at < right and not torch.equal(*self._sides(at, right)):
                at = self._bisect(at, right)
                points.add(self._tidy(at))
        return sorted(at for at in points if lo < at < hi)

    def _sides(self, left: float, right: float) -> tuple[Tensor, Tensor]:
        left_signs, right_signs = self._signs(torch.tensor([left, right], dtype=torch.float64)).T
        return left_signs, right_signs

    def _bisect(self, lo: float, hi: float) -> float:
        """The first float beyond lo whose signs are not those at lo (near zero: to within 2⁻⁸⁰ of the bracket)."""
        start = lo
        for _ in range(80):
            middle = (lo + hi) / 2
            if middle in (lo, hi):
                break
            lo, hi = (middle, hi) if torch.equal(*self._sides(start, middle)) else (lo, middle)
        return hi

    def _tidy(self, at: float) -> float:
        """0.3 rather than 0.30000000000000004, when the switch flips across it either way."""
        tidy = round(at, 12) + 0.0
        near = 4e-16 * (1 + abs(at))
        return at if torch.equal(*self._sides(tidy - near, tidy + near)) else tidy

    def _break(self, at: float) -> Break | None:
        """None where switches flip without effect, as in the flat middle of a soft threshold."""
        from flint import arb

        near = 1e-9 * (1 + abs(at))
        before, after = (tuple(side.tolist()) for side in self._sides(at - near, at + near))
        value = self(torch.tensor([at], dtype=torch.float64)).item()
        with ball_arithmetic(160):
            (left, rise), (right, turned) = (
                _value_and_slope(self._arb(self.smooth, side), at) for side in (before, after)
            )
            flipping = [k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
            exact = all(self._arb(self.switches[k].of, before[:k])({"t": arb(at)}) == 0 for k in flipping)
        left, rise, right, turned = map(float, (left, rise, right, turned))
        # The limits are taken at `at`, which may be a little off: a steep function is not a jump.
        noise = 1e-13 * (abs(left) + abs(right) + (1 + abs(at)) * (abs(rise) + abs(turned)))
        isolated = exact and abs(value - left) > noise and abs(value - right) > noise
        if not isolated and (self.branch(before) - self.branch(after)).expand() == 0:
            return None
        jump = isolated or not abs(left - right) <= noise
        return Break(at, left, right, value, abs(rise - turned), jump, exact)


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


def parse(f: str | sympy.Expr | Callable[..., Any] | Function) -> Function:
    """A `Function` from a name in `NAMED`, a sympy expression in one symbol, its string, or a callable on tensors."""
    if isinstance(f, Function):
        return f
    import sympy

    if isinstance(f, str):
        return _from_expression(_read(NAMED.get(f, f)), f)
    if isinstance(f, sympy.Basic):
        return _from_expression(f, str(f))
    if callable(f):
        return Function(getattr(f, "__name__", "callable"), callable=f)
    raise BadExpression(f"cannot read a function from {type(f).__name__}; give a name, an expression or a callable")


def _t() -> sympy.Symbol:
    import sympy

    return sympy.Symbol("t", real=True)


def _read(text: str) -> sympy.Expr:
    """Only known names, and no attributes of them, get through to sympy's parser, which evaluates what it is given."""
    import sympy
    from sympy.parsing import sympy_parser

    bare = re.sub(r"\b\d+\.?\d*[eE][+-]?\d+", "0", text)
    unknown = sorted(set(re.findall(r"[A-Za-z_]\w*", bare)) - {*FUNCTIONS, *CONSTANTS, "t", "x"})
    strange = not text.strip() or not re.fullmatch(r"[\w\s+\-*/().,<>=&|~]*", text, flags=re.ASCII)
    if unknown or strange or re.search(r"\.\s*[A-Za-z_]", bare):
        near = nearest(unknown[0], (*FUNCTIONS, *NAMED)) if unknown else ""
        what = f"unknown name {unknown[0]!r}{near}" if unknown else "it is not an expression"
        allowed, named = ", ".join(FUNCTIONS), ", ".join(NAMED)
        raise BadExpression(f"cannot read {text!r}: {what}; write it in t with {allowed}, or name one of {named}")
    names = {name: getattr(sympy, name) for name in (*FUNCTIONS, "pi", "E")} | {"t": _t(), "x": _t()}
    try:
        expression = sympy_parser.parse_expr(
            text, names, transformations=(*sympy_parser.standard_transformations, sympy_parser.rationalize)
        )
    except Exception as error:
        raise BadExpression(f"cannot read {text!r}: {type(error).__name__}; check brackets and operators") from None
    if not isinstance(expression, sympy.Expr):
        raise BadExpression(
            f"cannot read {text!r}: it is not one number; for a condition use Piecewise((a, condition), (b, True))"
        )
    return expression


def _from_expression(expression: sympy.Expr, text: str) -> Function:
    free = expression.free_symbols
    if len(free) > 1:
        names = ", ".join(sorted(map(str, free)))
        raise BadExpression(f"{text!r} has several variables ({names}); a scalar function has one, t")
    expression = expression.xreplace({symbol: _t() for symbol in free})
    switches: list[Switch] = []
    smooth = _switch_form(expression, switches)
    function = Function(text, smooth, tuple(switches))
    for part in (smooth, *(switch.of for switch in switches)):
        compile_expression(part, TORCH)
    return function


def _switch_form(node: sympy.Expr, switches: list[Switch]) -> sympy.Expr:
    """Bottom-up: kinked functions become smooth expressions in t and new switches."""
    import sympy

    def switch(of: sympy.Expr, tie: float) -> sympy.Expr:
        for known in switches:
            if known.of == of and known.tie == tie:
                return known.symbol
        symbol = sympy.Symbol(f"sigma_{len(switches)}", real=True)
        switches.append(Switch(symbol, of, tie))
        return symbol

    if isinstance(node, sympy.Piecewise):
        return _piecewise_form(node, switches, switch)
    args = [_switch_form(arg, switches) for arg in node.args]
    if isinstance(node, sympy.Abs):
        return switch(args[0], 0.0) * args[0]
    if isinstance(node, sympy.sign):
        return switch(args[0], 0.0)
    if isinstance(node, sympy.Heaviside):
        return (1 + switch(args[0], float(2 * args[1] - 1))) / 2
    if isinstance(node, sympy.Max | sympy.Min):
        turn = 1 if isinstance(node, sympy.Max) else -1
        # Numbers last, so that Max(t, 0) switches on t and not on −t.
        ordered = sorted(args, key=lambda arg: (arg.is_number, str(arg)))
        return reduce(lambda a, b: (a + b + turn * switch(a - b, 0.0) * (a - b)) / 2, ordered)
    return node.func(*args) if args else node


def _piecewise_form(node: sympy.Piecewise, switches: list[Switch], switch: Callable[..., Any]) -> sympy.Expr:
    import sympy

    result: sympy.Expr | None = None
    for value, condition in reversed(node.args):
        value = _switch_form(value, switches)
        if condition == sympy.true:
            result = value
        elif isinstance(condition, sympy.core.relational.Relational) and not isinstance(condition, sympy.Eq | sympy.Ne):
            of = _switch_form(condition.lhs - condition.rhs, switches)
            above = isinstance(condition, sympy.Gt | sympy.Ge)
            strict = isinstance(condition, sympy.Gt | sympy.Lt)
            sign = switch(of, float(1 if above != strict else -1))
            holds = (1 + sign) / 2 if above else (1 - sign) / 2
            result = value if result is None else value * holds + result * (1 - holds)
        else:
            raise BadExpression(f"cannot split on the condition {condition}; use single comparisons of t")
    if result is None:
        raise BadExpression("an empty Piecewise; give it (value, condition) pairs that end in (value, True)")
    return result
