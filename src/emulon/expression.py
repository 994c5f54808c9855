"""Scalar functions of one variable: read from a name, a sympy expression, its string, or a plain callable.

An expression is kept in *switch form*: Abs, Max, Min, sign, Heaviside and Piecewise become smooth expressions in t and
in switches σ ∈ {−1, 1}, each the sign of an expression that is itself in switch form. So |t| is σ·t with σ = sign(t).
Given the switches, everything left is smooth; that is what the piecewise grids and the interpolation proof need.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulon.errors import BadExpression

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
SMOOTH = ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf", "sqrt")
KINKED = ("Abs", "Max", "Min", "sign", "Heaviside", "Piecewise")
FUNCTIONS = (*SMOOTH, *KINKED)
CONSTANTS = ("pi", "E", "True", "False")


@dataclass(frozen=True)
class Break:
    """A point where a function is not smooth; `jump` where it is not even continuous. `value` is f there."""

    at: float
    left: float
    right: float
    value: float

    @property
    def jump(self) -> bool:
        return abs(self.left - self.right) > 1e-9 * (1 + abs(self.left) + abs(self.right))


@dataclass(frozen=True)
class Switch:
    """σ = sign(of), and `tie` where `of` is zero."""

    symbol: sympy.Symbol
    of: sympy.Expr
    tie: float


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
        values = {"t": s}
        for switch, of in zip(self.switches, self._torch_switches, strict=True):
            sign = torch.sign(torch.as_tensor(of(values), dtype=s.dtype).expand_as(s))
            values[switch.symbol.name] = torch.where(sign == 0, switch.tie, sign)
        return torch.as_tensor(self._torch_smooth(values), dtype=s.dtype).expand_as(s)

    def derivative(self) -> Function:
        """f′, with the switches held fixed: right everywhere but on the switching points themselves."""
        if not self.provable:
            raise BadExpression(f"{self.text} is a plain callable; give the derivative, or an expression, instead")
        return Function(f"d/dt {self.text}", self.smooth.diff(_t()), self.switches)

    @cached_property
    def _torch_smooth(self) -> Callable:
        return compile_expression(self.smooth, TORCH)

    @cached_property
    def _torch_switches(self) -> list[Callable]:
        return [compile_expression(switch.of, TORCH) for switch in self.switches]

    @cached_property
    def _arb_smooth(self) -> Callable:
        return compile_expression(self.smooth, _arb_operations())

    @cached_property
    def _arb_switches(self) -> list[Callable]:
        return [compile_expression(switch.of, _arb_operations()) for switch in self.switches]

    def arb_branches(self, ball: Any) -> list[dict[str, Any]]:
        """Every assignment of the switches that is possible somewhere in the ball (an `arb`)."""
        assignments: list[dict[str, Any]] = [{}]
        for switch, of in zip(self.switches, self._arb_switches, strict=True):
            extended = []
            for signs in assignments:
                value = of({"t": ball, **signs})
                possible = [1] if value > 0 else [-1] if value < 0 else [-1, 1]
                extended += [{**signs, switch.symbol.name: sign} for sign in possible]
            assignments = extended
        return assignments

    def arb_series(self, at: Any, signs: dict[str, Any]) -> Any:
        """The Taylor series around `at` (an `arb_series` in t) of the branch that these switches select."""
        return self._arb_smooth({"t": at, **signs})

    def breaks(self, lo: float, hi: float, samples: int = 4001) -> list[Break]:
        """Where the switches flip inside (lo, hi), located to the last bit."""
        if not self.switches:
            return []
        grid = torch.linspace(lo, hi, samples, dtype=torch.float64)
        signs = self._signs(grid)
        flips = (signs[:, 1:] != signs[:, :-1]).any(dim=0).nonzero().flatten().tolist()
        points = {_tidy(self._bisect(grid[i].item(), grid[i + 1].item()), self) for i in flips}
        return [self._break(at) for at in sorted(points) if lo < at < hi and self._differs_across(at)]

    def _signs(self, s: Tensor) -> Tensor:
        values = {"t": s}
        rows = []
        for switch, of in zip(self.switches, self._torch_switches, strict=True):
            sign = torch.sign(torch.as_tensor(of(values), dtype=s.dtype).expand_as(s))
            values[switch.symbol.name] = torch.where(sign == 0, torch.ones_like(s), sign)
            rows.append(values[switch.symbol.name])
        return torch.stack(rows)

    def _bisect(self, lo: float, hi: float) -> float:
        left = self._signs(torch.tensor([lo], dtype=torch.float64))
        for _ in range(200):
            middle = (lo + hi) / 2
            if middle in (lo, hi):
                break
            same = torch.equal(self._signs(torch.tensor([middle], dtype=torch.float64)), left)
            lo, hi = (middle, hi) if same else (lo, middle)
        return hi

    def _differs_across(self, at: float) -> bool:
        """False where switches flip without effect, as in the flat middle of a soft threshold."""
        near = 1e-9 * (1 + abs(at))
        left, right = self._signs(torch.tensor([at - near, at + near], dtype=torch.float64)).T.tolist()
        symbols = [switch.symbol for switch in self.switches]
        one, other = (self.smooth.subs(dict(zip(symbols, map(int, signs), strict=True))) for signs in (left, right))
        return bool((one - other).expand() != 0)

    def _break(self, at: float) -> Break:
        near = 1e-12 * (1 + abs(at))
        left, value, right = self(torch.tensor([at - near, at, at + near], dtype=torch.float64)).tolist()
        return Break(at, left, right, value)


def _tidy(at: float, function: Function) -> float:
    """0.3 rather than 0.30000000000000004, when the switch flips across it either way."""
    tidy = round(at, 12)
    near = 4e-16 * (1 + abs(at))
    left, right = function._signs(torch.tensor([tidy - near, tidy + near], dtype=torch.float64)).T
    return at if torch.equal(left, right) else tidy


def parse(f: str | sympy.Expr | Callable | Function) -> Function:
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
    """Only known names get through to sympy's parser, which evaluates what it is given."""
    import sympy
    from sympy.parsing import sympy_parser

    words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"\d+\.?\d*[eE][+-]?\d+", "0", text)))
    unknown = sorted(words - set(FUNCTIONS) - set(CONSTANTS) - {"t", "x"})
    if (
        unknown
        or not re.fullmatch(r"[\w\s+\-*/().,<>=&|~]*", text)
        or not text.strip()
        or re.search(r"\.\s*[A-Za-z_]", text)
    ):
        what = f"unknown name {unknown[0]!r}" if unknown else "it is not an expression"
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
            f"cannot read {text!r}: it is a condition, not a number; use Piecewise((a, condition), (b, True))"
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


def _piecewise_form(node: sympy.Piecewise, switches: list[Switch], switch: Callable) -> sympy.Expr:
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


@dataclass(frozen=True)
class Operations:
    """What a number system can do: constants, and functions by sympy name."""

    constant: Callable[[Any], Any]
    functions: dict[str, Callable]


def compile_expression(expression: sympy.Expr, operations: Operations) -> Callable[[dict[str, Any]], Any]:
    """A closure that evaluates a smooth sympy expression over tensors or Arb series, given {symbol name: value}."""
    import sympy

    def build(node: sympy.Expr) -> Callable[[dict[str, Any]], Any]:
        if node.is_Symbol:
            return lambda values: values[node.name]
        if (node.is_Rational or node.is_Float or node.is_NumberSymbol) and node.is_finite:
            constant = operations.constant(node)
            return lambda values: constant
        if node.is_Add or node.is_Mul:
            parts = [build(arg) for arg in node.args]
            join = (lambda a, b: a + b) if node.is_Add else (lambda a, b: a * b)
            return lambda values: reduce(join, (part(values) for part in parts))
        if node.is_Pow:
            return power(node.base, node.exp)
        name = type(node).__name__
        if name in operations.functions and len(node.args) == 1:
            argument, function = build(node.args[0]), operations.functions[name]
            return lambda values: function(argument(values))
        raise BadExpression(
            f"no exact evaluation of {node}; pass the function as a Python callable to sample it instead"
        )

    def power(base: sympy.Expr, exponent: sympy.Expr) -> Callable[[dict[str, Any]], Any]:
        if base == sympy.E:
            argument = build(exponent)
            return lambda values: operations.functions["exp"](argument(values))
        root = build(base)
        if exponent.is_Integer:
            count = int(exponent)
            return lambda values: _integer_power(root(values), count)
        if exponent == sympy.Rational(1, 2):
            return lambda values: operations.functions["sqrt"](root(values))
        exp, log = operations.functions["exp"], operations.functions["log"]
        upper = build(exponent)
        return lambda values: exp(upper(values) * log(root(values)))

    return build(expression)


def _integer_power(base: Any, count: int) -> Any:
    if count < 0:
        return 1 / _integer_power(base, -count)
    factors: Iterable[Any] = itertools.repeat(base, count)
    return reduce(lambda a, b: a * b, factors) if count else 1


def _tensor(value: Any) -> Tensor:
    """A constant keeps double precision; as a 0-dimensional tensor it does not promote what it meets."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _torch_function(name: str) -> Callable[[Any], Tensor]:
    function = getattr(torch, name)
    return lambda value: function(_tensor(value))


TORCH = Operations(constant=float, functions={name: _torch_function(name) for name in SMOOTH})


def _arb_operations() -> Operations:
    """Arb balls and power series: every result encloses the true one."""
    import sympy
    from flint import arb, fmpq

    def constant(node: sympy.Expr) -> Any:
        if node.is_Float:
            node = sympy.Rational(float(node))
        if node.is_Rational:
            return arb(fmpq(int(node.p), int(node.q)))
        return arb.pi() if node == sympy.pi else arb(1).exp()

    def method(name: str) -> Callable:
        return lambda value: getattr(value, name)()

    hyperbolic = {  # which Arb has for balls but not for series
        "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
        "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
        "tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()),
    }
    return Operations(constant, {name: hyperbolic.get(name) or method(name) for name in SMOOTH})
