"""Evaluating a smooth sympy expression over a number system: tensors, or Arb balls and power series."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from operator import add, mul
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulon.core.errors import BadExpression

if TYPE_CHECKING:
    import sympy

SMOOTH = ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf", "sqrt")

_BALLS = threading.RLock()


@contextmanager
def ball_arithmetic(precision: int = 53, order: int = 2) -> Iterator[None]:
    """Arb with so many bits, and so many coefficients of a power series, for this thread alone.

    flint keeps both in one place for the whole process: a second thread that changed them halfway through a proof would
    make it prove something else. So every use of Arb in emulon is inside here, one thread at a time.
    """
    from flint import ctx

    with _BALLS:
        before = ctx.prec, ctx.cap
        ctx.prec, ctx.cap = precision, order
        try:
            yield
        finally:
            ctx.prec, ctx.cap = before


def arb_matrix(numbers: Tensor) -> Any:
    """(rows, columns) of float64 numbers, exactly."""
    from flint import arb_mat

    return arb_mat(numbers.tolist())


@dataclass(frozen=True)
class Operations:
    """What a number system can do: constants, and functions by sympy name."""

    name: str
    constant: Callable[[Any], Any]
    functions: dict[str, Callable[..., Any]]


def compile_expression(expression: sympy.Expr, operations: Operations) -> Callable[[dict[str, Any]], Any]:
    """A closure that evaluates a smooth sympy expression over tensors or Arb series, given {symbol name: value}."""
    import sympy

    def build(node: sympy.Expr) -> Callable[[dict[str, Any]], Any]:
        if operations.name != "arb" or node.free_symbols:
            return build_any(node)
        with ball_arithmetic(1024):  # a constant is kept for whatever precision it will be used with
            known = build_any(node)({})
        return lambda values: known

    def build_any(node: sympy.Expr) -> Callable[[dict[str, Any]], Any]:
        if node.is_Symbol:
            return lambda values: values[node.name]
        if (node.is_Rational or node.is_Float or node.is_NumberSymbol) and node.is_finite:
            constant = operations.constant(node)
            return lambda values: constant
        if node.is_Add or node.is_Mul:
            join, parts = (add if node.is_Add else mul), [build(arg) for arg in node.args]
            if len(parts) == 2:
                left, right = parts
                return lambda values: join(left(values), right(values))
            return lambda values: reduce(join, [part(values) for part in parts])
        if node.is_Pow:
            return power(node.base, node.exp)
        name = type(node).__name__
        if name in operations.functions and len(node.args) == 1:
            argument, function = build(node.args[0]), operations.functions[name]
            return lambda values: function(argument(values))
        raise BadExpression(f"no exact evaluation of {node}; write it with functions that emulon knows")

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
        if "log" not in operations.functions:
            if not (2 * exponent).is_Integer:
                raise BadExpression(f"no {operations.name} for a power of {exponent}; give an integer or half of one")
            halves, half = int(2 * exponent), operations.functions["sqrt"]
            return lambda values: _integer_power(half(root(values)), halves)
        exp, log = operations.functions["exp"], operations.functions["log"]
        upper = build(exponent)
        return lambda values: exp(upper(values) * log(root(values)))

    return build(expression)


def any_of(mask: Tensor) -> bool:
    """Whether some entry is true; over bytes, which takes a tenth of the time of `any`."""
    return mask.numel() > 0 and bool(mask.view(torch.uint8).amax())


def _integer_power(base: Any, count: int) -> Any:
    if count < 0:
        return 1 / _integer_power(base, -count)
    if count < 4:
        return reduce(lambda a, b: a * b, [base] * count) if count else 1
    half = _integer_power(base, count // 2)
    return half * half * base if count % 2 else half * half


def _tensor(value: Any) -> Tensor:
    """A constant keeps double precision; as a 0-dimensional tensor it does not promote what it meets."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")


def _torch_function(name: str) -> Callable[[Any], Tensor]:
    function = getattr(torch, name)
    return lambda value: function(_tensor(value))


TORCH = Operations("torch", float, {name: _torch_function(name) for name in SMOOTH})


def _arb_tanh(x: Any) -> Any:
    """1 − 2/(1 + e^{2x}); on a ball so wide that this may divide by zero, by y′ = (1 − y²)x′ from its first term on."""
    from flint import arb, arb_series, ctx

    if isinstance(x, arb):
        return x.tanh()
    try:
        value = 1 - 2 / (1 + (2 * x).exp())
    except (ValueError, ZeroDivisionError):
        value = arb.nan()
    if isinstance(value, arb_series) and all(value[k].is_finite() for k in range(ctx.cap)):
        return value
    y, left = [x[0].tanh()], list[Any]()
    for k in range(ctx.cap - 1):
        left.append(int(k == 0) - sum((y[j] * y[k - j] for j in range(k + 1)), arb(0)))
        y.append(sum((left[j] * (k - j + 1) * x[k - j + 1] for j in range(k + 1)), arb(0)) / (k + 1))
    return arb_series(y)


@cache
def arb_operations() -> Operations:
    """Arb balls and power series: every result encloses the true one."""
    import sympy
    from flint import arb, fmpq

    def constant(node: sympy.Expr) -> Any:
        if node.is_Float:
            node = sympy.Rational(float(node))
        if node.is_Rational:
            return arb(fmpq(int(node.p), int(node.q)))
        if node in (sympy.pi, sympy.E):
            return arb.pi() if node == sympy.pi else arb.const_e()
        raise BadExpression(f"no exact evaluation of {node}; write it as a number, or in terms of pi and E")

    def method(name: str) -> Callable[..., Any]:
        return lambda value: getattr(value, name)()

    hyperbolic = {  # which Arb has for balls but not for series
        "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
        "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
        "tanh": _arb_tanh,
    }
    return Operations("arb", constant, {name: hyperbolic.get(name) or method(name) for name in SMOOTH})
