"""Reading an expression in t: what is written, in switch form, and where all of it exists.

sympy simplifies as it builds: exp(log(t)) becomes t, t/t becomes 1, 0*log(t) becomes 0, and where they do not exist is
forgotten. So the text is read here, node by node, and every part that exists only for some arguments (a logarithm, a
root, a quotient) leaves a `Condition` behind. Limits are checked on the text and before each power is formed, for sympy
computes 9**9**9 as soon as it sees it.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from emulon.core.errors import BadExpression, nearest
from emulon.expressions.evaluation import SMOOTH, TORCH, arb_operations, ball_arithmetic, compile_expression

if TYPE_CHECKING:
    import sympy

KINKED = ("Abs", "Max", "Min", "sign", "Heaviside", "Piecewise")
FUNCTIONS = (*SMOOTH, *KINKED)
CONSTANTS = ("pi", "E")
LONGEST = 10_000
MOST_PARTS = 5_000
DEEPEST = 60
MOST_DIGITS = 1_000
LARGEST_EXPONENT = 1_000
LARGEST = sys.float_info.max
MOST_SWITCHES = 64
# What Max and Min are written out as: each repeats its arguments, and proofs look at all of it again and again.
MOST_WRITTEN_OUT = 8_000
NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+))?")
POSITIVE, NOT_NEGATIVE, NOT_ZERO = {1.0}, {0.0, 1.0}, {-1.0, 1.0}
COMPARED = {ast.Lt: (False, True), ast.LtE: (False, False), ast.Gt: (True, True), ast.GtE: (True, False)}


@dataclass(frozen=True)
class Switch:
    """σ = sign(of), and `tie` where `of` is zero."""

    symbol: sympy.Symbol
    of: sympy.Expr
    tie: float


@dataclass(frozen=True)
class Condition:
    """`part`, as it was written, exists where the sign of `of` is one of `signs`; `of` is 1 in a branch without it."""

    of: sympy.Expr
    signs: frozenset[float]
    part: str


@dataclass(frozen=True)
class Written:
    """An expression in switch form, and what must hold for all of its parts to exist."""

    smooth: sympy.Expr
    switches: tuple[Switch, ...]
    conditions: tuple[Condition, ...]


def t_symbol() -> sympy.Symbol:
    import sympy

    return sympy.Symbol("t", real=True)


def read(text: str, named: Iterable[str] = ()) -> Written:
    """What the text says; `named` are other words that a refusal may suggest."""
    line = " ".join(text.split())
    _require_size(line)
    _require_names(line, named)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = ast.parse(line, mode="eval").body
    except (RecursionError, MemoryError):
        raise _unreadable(line, f"it is nested too deep, or has more than {MOST_PARTS} parts; shorten it") from None
    except (SyntaxError, ValueError, Warning) as error:
        raise _unreadable(line, f"{type(error).__name__}; check brackets and operators") from None
    if sum(1 for _ in ast.walk(tree)) > MOST_PARTS:
        raise _unreadable(line, f"it has more than {MOST_PARTS} parts; shorten it")
    reader = _Reader(line)
    smooth = reader.expression(tree)
    for part in (smooth, *(switch.of for switch in reader.switches), *(c.of for c in reader.conditions)):
        _require_numbers(line, part)
        compile_expression(part, TORCH)
    return Written(smooth, tuple(reader.switches), tuple(reader.conditions))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _unreadable(text: str, why: str) -> BadExpression:
    return BadExpression(f"cannot read {_shown(text)}: {why}")


def _require_size(text: str) -> None:
    if len(text) > LONGEST:
        raise _unreadable(text, f"it has {len(text)} characters; at most {LONGEST}")
    for digits in re.findall(r"\d+", text):
        if len(digits) > MOST_DIGITS:
            raise _unreadable(text, f"a number has {len(digits)} digits; at most {MOST_DIGITS}")


def _require_names(text: str, named: Iterable[str]) -> None:
    """Only known names, and no attributes of them: nothing else is looked up anywhere."""
    if "^" in text:
        raise _unreadable(text, "a power is written t**2, not t^2")
    bare = NUMBER.sub("0", text)
    strange = not text or not re.fullmatch(r"[\w\s+\-*/().,<>=&|~]*", text, flags=re.ASCII)
    if strange or re.search(r"\.\s*[A-Za-z_]", bare):
        raise _unreadable(text, f"it is not an expression; write it in t with {', '.join(FUNCTIONS)}")
    unknown = sorted(set(re.findall(r"[A-Za-z_]\w*", bare)) - {*FUNCTIONS, *CONSTANTS, "True", "False", "t", "x"})
    if not unknown:
        return
    near, allowed, words = nearest(unknown[0], (*FUNCTIONS, *named)), ", ".join(FUNCTIONS), ", ".join(named)
    raise _unreadable(text, f"unknown name {unknown[0]!r}{near}; write it in t with {allowed}, or name one of {words}")


def _require_numbers(text: str, part: sympy.Expr) -> None:
    """What sympy made of it has no exponent and no number that nothing could compute with."""
    import sympy

    for power in part.atoms(sympy.Pow):
        if power.exp.is_number and abs(power.exp) > LARGEST_EXPONENT:
            raise _unreadable(text, f"an exponent comes to {power.exp}; at most {LARGEST_EXPONENT}")
    for number in part.atoms(sympy.Rational):
        if abs(number.p) >= number.q << 1024:
            raise _unreadable(text, "a number is above 1.8e308, the largest that float64 holds; scale it")


def _flat(name: str, args: list[ast.expr]) -> list[ast.expr]:
    """Max(Max(a, b), c) has the arguments a, b and c."""
    flat: list[ast.expr] = []
    for arg in args:
        match arg:
            case ast.Call(func=ast.Name(id=inner), args=[_, *_] as more, keywords=[]) if inner == name:
                flat += _flat(name, more)
            case _:
                flat.append(arg)
    return flat


class _Reader:
    """Collects switches and conditions, innermost first. A guard is 1 in the branch that is being read, 0 elsewhere."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.switches: list[Switch] = []
        self.conditions: list[Condition] = []
        self.guard: Any = 1
        self.not_negative: set[sympy.Expr] = set()
        self.sizes: dict[sympy.Basic, int] = {}
        self.depth = 0

    @cached_property
    def names(self) -> dict[str, sympy.Expr]:
        import sympy

        return {"t": t_symbol(), "x": t_symbol(), "pi": sympy.pi, "E": sympy.E}

    def expression(self, node: ast.expr) -> sympy.Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _unreadable(self.text, f"it is nested more than {DEEPEST} deep")
        match node:
            case ast.Constant():
                result = self._number(node)
            case ast.Name(id=name) if name in self.names:
                result = self.names[name]
            case ast.UnaryOp(op=ast.USub(), operand=of):
                result = -self.expression(of)
            case ast.UnaryOp(op=ast.UAdd(), operand=of):
                result = self.expression(of)
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                result = self._sum(node)
            case ast.BinOp(op=ast.Mult() | ast.Div()):
                result = self._product(node)
            case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
                result = self._power(self.expression(base), self.expression(exponent), node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                result = self._call(name, args, node)
            case ast.Name() | ast.Compare() | ast.Tuple() | ast.BoolOp():
                raise _unreadable(
                    self.text, "it is not one number; for a condition use Piecewise((a, condition), (b, True))"
                )
            case _:
                raise _unreadable(self.text, f"{self._segment(node)} is none of ours; check brackets and operators")
        self.depth -= 1
        return result

    def _segment(self, node: ast.expr) -> str:
        return self.text[node.col_offset : node.end_col_offset]

    def _number(self, node: ast.Constant) -> sympy.Expr:
        """Decimals are exact: 0.1 is a tenth."""
        import sympy

        written = NUMBER.fullmatch(self._segment(node))
        if written is None:
            raise _unreadable(self.text, f"{self._segment(node)} is not a number")
        if written[1] and abs(int(written[1])) > MOST_DIGITS:
            raise _unreadable(self.text, f"the exponent of {written[0]} is above {MOST_DIGITS}")
        return sympy.Rational(written[0])

    def _sum(self, node: ast.expr) -> sympy.Expr:
        import sympy

        terms: list[ast.expr] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            terms.append(ast.UnaryOp(ast.USub(), node.right) if isinstance(node.op, ast.Sub) else node.right)
            node = node.left
        return sympy.Add(*map(self.expression, reversed([*terms, node])))

    def _product(self, node: ast.expr) -> sympy.Expr:
        import sympy

        factors: list[tuple[ast.expr, bool]] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            factors.append((node.right, isinstance(node.op, ast.Div)))
            node = node.left
        result = [self.expression(node)]
        for factor, below in reversed(factors):
            value = self.expression(factor)
            if below:
                self._require(value, NOT_ZERO, f"a division by {self._segment(factor)}")
            result.append(1 / value if below else value)
        return sympy.Mul(*result)

    def _power(self, base: sympy.Expr, exponent: sympy.Expr, node: ast.expr) -> sympy.Expr:
        part = self._segment(node)
        if not exponent.is_number:
            self._require(base, POSITIVE, part)
        else:
            self._require_power(base, exponent)
            if not exponent.is_Integer:
                self._require(base, NOT_NEGATIVE if exponent.is_positive else POSITIVE, part)
            elif exponent.is_negative:
                self._require(base, NOT_ZERO, part)
        return self._made(base**exponent)

    def _require_power(self, base: sympy.Expr, exponent: sympy.Expr) -> None:
        """Before it is computed."""
        import sympy

        if exponent.is_Rational and base.is_Rational:
            size, times = max(abs(int(base.p)), int(base.q)), abs(exponent)
            if size > 1 and times * (size.bit_length() - 1) * 0.30103 > MOST_DIGITS:
                raise _unreadable(self.text, f"a power of {base} has more than {MOST_DIGITS} digits")
        elif not exponent.is_Rational and exponent.has(sympy.zoo, sympy.nan, sympy.oo):
            raise _unreadable(self.text, "an exponent is not a number")
        if not base.is_Rational and abs(exponent) > LARGEST_EXPONENT:
            raise _unreadable(self.text, f"an exponent is above {LARGEST_EXPONENT}")

    def _call(self, name: str, args: list[ast.expr], node: ast.expr) -> sympy.Expr:
        import sympy

        if name == "Piecewise":
            return self._piecewise(args)
        if name in ("Max", "Min"):
            args = _flat(name, args)
        values = list(map(self.expression, args))
        counts = {"Heaviside": {1, 2}}.get(name, {1})
        if not values or (name not in ("Max", "Min") and len(values) not in counts):
            raise _unreadable(self.text, f"{name} takes another number of arguments; check brackets and operators")
        if name in SMOOTH:
            self._require_argument(name, values[0], self._segment(node))
            return self._made(getattr(sympy, name)(values[0]))
        if name == "Heaviside":
            at_zero = values[1] if len(values) > 1 else sympy.Rational(1, 2)
            if not at_zero.is_Rational:
                raise _unreadable(self.text, "the second argument of Heaviside is a number, its value at zero")
            return (1 + self._switch(values[0], float(2 * at_zero - 1))) / 2
        if name in ("Abs", "sign"):
            return self._switch(values[0], 0.0) if name == "sign" else self._modulus(values[0])
        # Numbers last, so that Max(t, 0) switches on t and not on −t.
        left = sorted(values, key=lambda value: (value.is_number, str(value)))
        join = self._larger if name == "Max" else self._smaller
        # In pairs: every comparison writes both of its sides twice, so that one after the other they double each time.
        while len(left) > 1:
            left = [reduce(join, left[i : i + 2]) for i in range(0, len(left), 2)]
        return left[0]

    def _require_argument(self, name: str, of: sympy.Expr, part: str) -> None:
        import sympy

        if name == "log":
            self._require(of, POSITIVE, part)
        elif name == "sqrt":
            self._require(of, NOT_NEGATIVE, part)
        elif name == "tan":
            self._require(sympy.cos(of), NOT_ZERO, part)
        elif name in ("asin", "acos"):
            self._require(1 - of, NOT_NEGATIVE, part)
            self._require(1 + of, NOT_NEGATIVE, part)
        elif name == "exp":
            # sympy writes exp(n·log(a)) as aⁿ.
            for term in sympy.Add.make_args(of):
                number, rest = term.as_coeff_Mul()
                if rest.has(sympy.log) and abs(number) > LARGEST_EXPONENT:
                    raise _unreadable(self.text, f"an exponent is above {LARGEST_EXPONENT}")

    def _require(self, of: sympy.Expr, signs: set[float], part: str) -> None:
        """Remember that a part exists only there, unless it is plain that it does."""
        if (of.is_positive and 1.0 in signs) or (of.is_nonzero and signs == NOT_ZERO):
            return
        if signs == NOT_NEGATIVE and (of.is_nonnegative or of in self.not_negative):
            return
        if of.is_number:
            raise _unreadable(self.text, f"{part} does not exist")
        condition = Condition(self.guard * of + (1 - self.guard), frozenset(signs), part)
        if condition not in self.conditions:
            self.conditions.append(condition)

    def _switch(self, of: sympy.Expr, tie: float) -> sympy.Expr:
        import sympy

        if of.is_positive or of.is_negative or of.is_zero:
            return sympy.Rational(tie if of.is_zero else 1 if of.is_positive else -1)
        for known in self.switches:
            if known.of == of and known.tie == tie:
                return known.symbol
        if len(self.switches) == MOST_SWITCHES:
            raise _unreadable(self.text, f"it has more than {MOST_SWITCHES} places to switch at")
        symbol = sympy.Symbol(f"sigma_{len(self.switches)}", real=True)
        self.switches.append(Switch(symbol, of, tie))
        return symbol

    def _modulus(self, of: sympy.Expr) -> sympy.Expr:
        result = self._switch(of, 0.0) * of
        self.not_negative.add(result)
        return result

    def _made(self, made: sympy.Expr) -> sympy.Expr:
        """In switch form, for sympy writes sqrt(t**2) as Abs(t); a constant only if it is one that floats can hold.

        To tell the sign of sin(exp(exp(20))) sympy would compute exp(exp(20)) to the last digit before the point.
        """
        import sympy

        if made.has(sympy.Abs):
            return made.replace(sympy.Abs, self._modulus)
        if made.is_number and not made.is_Rational:
            with ball_arithmetic():
                size = abs(compile_expression(made, arb_operations())({}))
                if not size < LARGEST:
                    raise _unreadable(self.text, f"{made} is above 1.8e308, the largest that float64 holds")
        return made

    def _larger(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        self._require_short(a, b)
        if (a - b).is_nonnegative or (b - a).is_nonnegative:
            return a if (a - b).is_nonnegative else b
        return (a + b + self._switch(a - b, 0.0) * (a - b)) / 2

    def _smaller(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        self._require_short(a, b)
        if (a - b).is_nonnegative or (b - a).is_nonnegative:
            return b if (a - b).is_nonnegative else a
        return (a + b - self._switch(a - b, 0.0) * (a - b)) / 2

    def _require_short(self, a: sympy.Expr, b: sympy.Expr) -> None:
        """Refuse a Max or Min before it is written out, with both of its arguments twice."""
        if 2 * (self._size(a) + self._size(b)) > MOST_WRITTEN_OUT:
            raise _unreadable(
                self.text, f"written out, its Max and Min have more than {MOST_WRITTEN_OUT} parts; take fewer of them"
            )

    def _size(self, node: sympy.Basic) -> int:
        if node not in self.sizes:
            self.sizes[node] = 1 + sum(map(self._size, node.args))
        return self.sizes[node]

    def _piecewise(self, pairs: list[ast.expr]) -> sympy.Expr:
        """Each value is read, and each later condition, where the conditions before it do not hold."""
        outside, pieces, last = self.guard, list[tuple[Any, Any]](), None
        for pair in pairs:
            if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
                raise _unreadable(self.text, "Piecewise takes pairs (value, condition)")
            if isinstance(pair.elts[1], ast.Constant) and pair.elts[1].value is True:
                last = self.expression(pair.elts[0])
                break
            holds = self._holds(pair.elts[1])
            rest = self.guard
            self.guard = rest * holds
            pieces.append((self.expression(pair.elts[0]), holds))
            self.guard = rest * (1 - holds)
        self.guard = outside
        if last is None:
            raise _unreadable(
                self.text, "a Piecewise has no value where none of its conditions holds; end it with (value, True)"
            )
        return reduce(lambda rest, piece: piece[0] * piece[1] + rest * (1 - piece[1]), reversed(pieces), last)

    def _holds(self, condition: ast.expr) -> sympy.Expr:
        """1 where a comparison holds, 0 elsewhere."""
        match condition:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                above, strict = COMPARED[type(op)]
            case _:
                raise _unreadable(
                    self.text, f"cannot split on {self._segment(condition)}; use single comparisons of t (<, <=, >, >=)"
                )
        sign = self._switch(self.expression(left) - self.expression(right), 1.0 if above != strict else -1.0)
        return (1 + sign) / 2 if above else (1 - sign) / 2
