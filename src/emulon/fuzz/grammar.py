"""Random functions of t as trees: written as text for emulon, and evaluated in Arb for the judge.

A tree is ["t"], ["number", "0.3"], or an operation and its branches. The text is what emulon reads; the judge never
sees it, and no code of `emulon.expressions.expression` takes part in the exact value.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

from emulon.fuzz.kind import Undecided

Tree = list[Any]
SMOOTH = ("exp", "sin", "cos", "tanh", "atan", "erf", "sinh", "cosh", "log", "sqrt", "tan")
KINKED = ("Abs", "sign", "Heaviside")
BINARY = {
    "+": "({} + {})",
    "-": "({} - {})",
    "*": "({})*({})",
    "/": "({})/({})",
    "Max": "Max({}, {})",
    "Min": "Min({}, {})",
}


def drawn(random: Random, depth: int) -> Tree:
    if depth <= 0 or random.random() < 0.15:
        return ["t"] if random.random() < 0.7 else number(random)
    choice = random.random()
    if choice < 0.35:
        return [random.choice(SMOOTH[:6] * 2 + SMOOTH), drawn(random, depth - 1)]
    if choice < 0.42:
        return [random.choice(KINKED), drawn(random, depth - 1)]
    if choice < 0.52:
        return ["power", drawn(random, depth - 1), random.choice((2, 2, 3, 4, -1, -2, 0, 7))]
    if choice < 0.58:
        return ["piecewise", drawn(random, depth - 1), number(random), drawn(random, depth - 1)]
    operation = random.choice(("+", "+", "-", "*", "*", "/", "Max", "Min"))
    return [operation, drawn(random, depth - 1), drawn(random, depth - 1)]


def number(random: Random) -> Tree:
    style = random.random()
    if style < 0.5:
        text = f"{random.uniform(-3, 3):.{random.randint(0, 3)}f}"
    elif style < 0.8:
        text = str(random.choice((0, 1, -1, 2, 5, 10, 100)))
    else:
        text = f"{random.uniform(-9, 9):.2e}".split("e")[0] + f"e{random.choice((-12, -5, 3, 9))}"
    return ["number", text]


def text(tree: Tree) -> str:
    match tree:
        case ["t"]:
            return "t"
        case ["number", digits]:
            return f"({digits})"
        case ["power", base, exponent]:
            return f"({text(base)})**({exponent})"
        case ["piecewise", left, at, right]:
            return f"Piecewise(({text(left)}, t < {text(at)}), ({text(right)}, True))"
        case [name, only]:
            return f"{name}({text(only)})"
        case [name, left, right]:
            return BINARY[name].format(text(left), text(right))
    raise ValueError(f"no tree: {tree!r}")


def exact(tree: Tree, t: Any) -> Any:
    """The value in Arb at a ball t; not finite where there is none. Raises `Undecided` at a jump."""
    from flint import arb

    match tree:
        case ["t"]:
            return t
        case ["number", digits]:
            return rational(digits)
        case ["power", base, exponent]:
            value = exact(base, t)
            # As everybody reads it: 0⁰ = 1.
            return arb(1) if exponent == 0 else value**exponent if exponent > 0 else 1 / value ** (-exponent)
        case ["piecewise", left, at, right]:
            return exact(left if side(exact(at, t) - t) > 0 else right, t)
        case [name, only]:
            return UNARY[name](exact(only, t))
        case [name, left, right]:
            return JOINED[name](exact(left, t), exact(right, t))
    raise ValueError(f"no tree: {tree!r}")


def rational(digits: str) -> Any:
    """A decimal number, to whatever precision is at work."""
    from flint import arb, fmpq

    value = Fraction(digits)
    return arb(fmpq(value.numerator, value.denominator))


def side(value: Any) -> int:
    """The sign of a ball, where it has one."""
    if value > 0 or value < 0 or value == 0:
        return int(value > 0) - int(value < 0)
    raise Undecided("at a jump")


def _step(value: Any) -> Any:
    from flint import arb

    return (arb(1) + side(value)) / 2


def _sign(value: Any) -> Any:
    from flint import arb

    return arb(side(value))


def _method(name: str) -> Callable[[Any], Any]:
    return lambda value: getattr(value, name)()


UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: _method(name) for name in SMOOTH},
    "Abs": abs,
    "sign": _sign,
    "Heaviside": _step,
}
JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "Max": lambda a, b: a.max(b),
    "Min": lambda a, b: a.min(b),
}
