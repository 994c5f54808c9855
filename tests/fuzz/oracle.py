"""Exact answers in Arb, over balls of as many digits as it takes, for random cases.

Nothing here calls emulon's own algorithms, losses or expressions. A function of t is a tree: ["t"], ["number", "0.3"],
or an operation and its branches; `text` writes it for emulon and `value_of` evaluates it in Arb.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from flint import arb, fmpq
from torch import Tensor

from emulon.certify import Certificate
from emulon.core.errors import EmulonError, NotCertified
from emulon.expressions.evaluation import ball_arithmetic

Row = list[Any]
Case = dict[str, Any]
PRECISIONS = (256, 1024, 4096)


class Violation(Exception):
    """A bound that does not hold, or a refusal that is not one line."""


class Undecided(Exception):
    """The exact path runs through a jump, or the error equals the bound to the last of many digits."""


def verdict(check: Callable[[Case], None], case: Case) -> str:
    """ "held", "refused" or "undecided"; raises `Violation` or what else went wrong. Warnings count as errors."""
    always = torch.is_warn_always_enabled()  # Torch gives some warnings once a process, but cases are tried again.
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # A program whose bound misses the tolerance warns; the bound that it states is tested all the same.
            warnings.filterwarnings("ignore", "the (interpolation|certificate) of .* (can promise|says)", UserWarning)
            check(case)
    except Undecided:
        return "undecided"
    except NotCertified as error:
        raise Violation(str(error)) from error
    except EmulonError as error:
        if not str(error).strip() or "\n" in str(error):
            raise Violation(f"a refusal that is not one line: {str(error)!r}") from error
        return "refused"
    except Exception as error:
        if (
            type(error).__name__ == "TypeCheckError" or "Beartype" in type(error).__name__
        ):  # under the test suite's type checker
            return "refused"
        raise
    finally:
        torch.set_warn_always(always)
    return "held"


def require_certified(what: str, outputs: Tensor, certificate: Certificate, exact: Callable[[], Sequence[Any]]) -> None:
    """Raises `Violation` where the certificate is proved and some |output − exact| exceeds its bound."""
    if not certificate.bound >= 0:
        raise Violation(f"{what}: the bound is {certificate.bound}")
    if certificate.proved:
        require_within(what, outputs, certificate.bound, exact)


def require_within(what: str, outputs: Tensor, bound: float, exact: Callable[[], Sequence[Any]]) -> None:
    """Raises `Violation` where some |output − exact| exceeds the bound for certain, `Undecided` where it may."""
    values = outputs.detach().double().flatten().tolist()
    for precision in PRECISIONS:
        with ball_arithmetic(precision):
            try:
                truth = list(exact())
            except Undecided:
                continue
            if len(truth) != len(values):
                raise Violation(f"{what}: {len(values)} numbers instead of {len(truth)}")
            errors = [abs(arb(value) - true) for value, true in zip(values, truth, strict=True)]
            for value, true, error in zip(values, truth, errors, strict=True):
                if true.is_finite() and (not arb(value).is_finite() or error > arb(bound)):
                    raise Violation(f"{what}: {value!r} is {float(error):.3e} off, bound {bound:.3e}")
            if all(true.is_finite() and error <= arb(bound) for true, error in zip(truth, errors, strict=True)):
                return
    raise Undecided(f"{what}: not with {PRECISIONS[-1]} bits")


def balls(numbers: Sequence[float]) -> Row:
    return [arb(number) for number in numbers]


def rational(digits: str) -> Any:
    """A decimal number, to whatever precision is at work."""
    value = Fraction(digits)
    return arb(fmpq(value.numerator, value.denominator))


def sign(value: Any) -> int:
    if value > 0 or value < 0 or value == 0:
        return int(value > 0) - int(value < 0)
    raise Undecided("at a jump")


SMOOTH = ("exp", "sin", "cos", "tanh", "atan", "erf", "sinh", "cosh", "log", "sqrt", "tan")
UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: (lambda value, name=name: getattr(value, name)()) for name in SMOOTH},
    "Abs": abs,
    "sign": lambda value: arb(sign(value)),
    "Heaviside": lambda value: (arb(1) + sign(value)) / 2,
}
BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "+": ("({} + {})", lambda a, b: a + b),
    "-": ("({} - {})", lambda a, b: a - b),
    "*": ("({})*({})", lambda a, b: a * b),
    "/": ("({})/({})", lambda a, b: a / b),
    "Max": ("Max({}, {})", lambda a, b: a.max(b)),
    "Min": ("Min({}, {})", lambda a, b: a.min(b)),
}


def text(tree: Any) -> str:
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
            return BINARY[name][0].format(text(left), text(right))
    raise ValueError(f"no tree: {tree!r}")


def value_of(tree: Any, t: Any) -> Any:
    """The value in Arb at a ball t; not finite where there is none. Raises `Undecided` at a jump."""
    match tree:
        case ["t"]:
            return t
        case ["number", digits]:
            return rational(digits)
        case ["power", base, exponent]:
            value = value_of(base, t)
            # 0⁰ = 1, as emulon and sympy read it.
            return arb(1) if exponent == 0 else value**exponent if exponent > 0 else 1 / value ** (-exponent)
        case ["piecewise", left, at, right]:
            return value_of(left if sign(value_of(at, t) - t) > 0 else right, t)
        case [name, only]:
            return UNARY[name](value_of(only, t))
        case [name, left, right]:
            return BINARY[name][1](value_of(left, t), value_of(right, t))
    raise ValueError(f"no tree: {tree!r}")


def dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    return sum((x * y for x, y in zip(a, b, strict=True)), arb(0))


def matvec(matrix: Sequence[Row], vector: Row) -> Row:
    return [dot(row, vector) for row in matrix]


def soft_threshold(value: Any, threshold: Any) -> Any:
    """sign(v)·max(|v| − θ, 0) = max(v − θ, 0) + min(v + θ, 0), which is continuous: no sign has to be known."""
    if threshold == 0:
        return value
    return (value - threshold).max(arb(0)) + (value + threshold).min(arb(0))


def descended(
    x: Sequence[Row],
    y: Row,
    slope: Callable[[Any], Any],
    numbers: Mapping[str, float],
    steps: int,
    *,
    fixed: Row | None = None,
    start: Row | None = None,
) -> Row:
    """The weights after steps w ← prox((1 − η·l2)w − η·(mean of slope(w·x − y)·x − fixed) + momentum·Δ, η·l1)."""
    eta, l2, l1, momentum = (arb(numbers.get(name, 0.0)) for name in ("step_size", "l2", "l1", "momentum"))
    size, width = int(numbers.get("batch", 0)) or len(x), len(x[0])
    whole, targets = x, y
    w = before = [arb(0)] * width if start is None else start
    for number in range(steps):
        # Batches in order and round again; the first samples fill up the last.
        first = number % -(-len(whole) // size) * size
        x, y = ([part[(first + k) % len(part)] for k in range(size)] for part in (whole, targets))
        last = w
        if numbers.get("accelerated"):
            w = [a + (a - b) * number / (number + 3) for a, b in zip(w, before, strict=True)]
        slopes = [slope(dot(row, w) - target) for row, target in zip(x, y, strict=True)]
        gradient = [dot(slopes, [row[k] for row in x]) / size for k in range(width)]
        if fixed is not None:
            gradient = [g - f for g, f in zip(gradient, fixed, strict=True)]
        moved = [(1 - eta * l2) * a - eta * g + momentum * (a - b) for a, g, b in zip(w, gradient, before, strict=True)]
        w, before = [soft_threshold(one, eta * l1) for one in moved], last
    return w


def normal_equations(x: Sequence[Row], y: Row, ridge: Any = 0) -> tuple[list[Row], Row]:
    """XᵀX + ridge·I and Xᵀy."""
    columns = [[row[k] for row in x] for k in range(len(x[0]))]
    gram = [[dot(a, b) + (ridge if i == j else 0) for j, b in enumerate(columns)] for i, a in enumerate(columns)]
    return gram, matvec(columns, y)


def newton_schulz(gram: list[Row], scale: float, loops: int) -> list[Row]:
    """M after the loops, M_0 = scale·S, M ← 2M − MSM."""

    def product(a: list[Row], b: list[Row]) -> list[Row]:
        return [[dot(row, [other[j] for other in b]) for j in width] for row in a]

    width = range(len(gram))
    inverse = [[arb(scale) * entry for entry in row] for row in gram]
    for _ in range(loops):
        correction = product(inverse, product(gram, inverse))
        inverse = [[2 * inverse[i][j] - correction[i][j] for j in width] for i in width]
    return inverse
