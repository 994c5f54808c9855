"""Scalar functions as gated affine pieces, the form in which a prompt states ℓ′ and the proximal map.

f(t) = Σ_k p_k·(times_k·t + plus_k), p = softmax(2^s·(slope_k·t + bias_k)). With s = 24 the gate is hard: the piece of
largest slope_k·t + bias_k alone, the mean of the tied ones at a tie. Any piecewise affine function has that form: with
slopes that grow by 1 from piece to piece, biases put the changes where they belong. tanh and the logistic function are
of that form with s = 0 and two constant pieces.
"""

from __future__ import annotations

from itertools import pairwise

from emulon.certify.transcript_checker import HARD, Gate
from emulon.core.errors import BadExpression, OutOfDomain
from emulon.expressions.evaluation import ball_arithmetic
from emulon.expressions.expression import Break, Function, parse
from emulon.expressions.parser import t_symbol
from emulon.language.numbers import LARGEST, UNITS, to_units

IDENTITY = Gate(0, ((0, 0, UNITS, 0),))
# How far a jump is moved where f takes the value of one side there: 33 nats at sharpness 2^24.
ASIDE = 200


def soft_threshold(threshold: int) -> Gate:
    """Every number moved towards zero by the threshold (in hundred-millionths), and not past it."""
    if not threshold:
        return IDENTITY
    up, down = (UNITS, -threshold, UNITS, -threshold), (-UNITS, -threshold, UNITS, threshold)
    return Gate(HARD, (down, (0, 0, 0, 0), up))


def gate_of(expression: str) -> Gate:
    """The gated pieces of a function of t.

    Args:
        expression: Piecewise affine with its kinks and jumps inside ±19.99, as `Max(-1, Min(1, t))`, or
            a + b·tanh(c·t + d), or a + b/(1 + exp(c·t + d)).
    Returns:
        The gate; every number is rounded to a multiple of 1e-8.
    Raises:
        BadExpression: It is none of these, or a number in it cannot be written.

    Example:
        >>> gate_of("Max(t, 0)").pieces
        ((0, 0, 0, 0), (100000000, 0, 100000000, 0))
    """
    f = parse(expression)
    try:
        gate = None if not f.provable else _piecewise(f) if f.switches else _smooth(f)
    except OutOfDomain as error:
        raise BadExpression(f"{expression!r} has a number that a prompt cannot hold: {error}") from None
    if gate is None:
        kinds = "piecewise affine, a + b*tanh(c*t + d), or a + b/(1 + exp(c*t + d))"
        raise BadExpression(f"{expression!r} cannot be written as pieces in a prompt; it may be {kinds}")
    return gate


def _smooth(f: Function) -> Gate | None:
    """One affine piece, or two constant ones."""
    import sympy

    t, of = t_symbol(), f.smooth
    if line := _affine(of):
        return Gate(0, ((0, 0, *line),))
    a, b, c, d = (sympy.Wild(name, exclude=[t]) for name in "abcd")
    for form, slope in ((a + b * sympy.tanh(c * t + d), 2), (a + b / (1 + sympy.exp(c * t + d)), -1)):
        found = sympy.expand(of).match(form) or sympy.simplify(of).match(form)
        if found and found[b] != 0 and found[c] != 0:
            at, height, steep, shift = (found[part] for part in (a, b, c, d))
            low, high = (at - height, at + height) if slope == 2 else (at, at + height)
            # p₁ = 1/(1 + exp(−(slope·t + bias))): tanh is 2p₁ − 1 at twice its argument.
            first = (to_units(float(slope * steep)), to_units(float(slope * shift)), 0, to_units(float(high)))
            return Gate(0, (first, (0, 0, 0, to_units(float(low)))))
    return None


def _affine(of: object) -> tuple[int, int] | None:
    """(times, plus) of an expression that is times·t + plus."""
    import sympy

    t = t_symbol()
    expression = sympy.expand(of)
    times = sympy.diff(expression, t)
    if times.has(t):
        return None
    return to_units(float(times)), to_units(float(expression.subs(t, 0)))


def _piecewise(f: Function) -> Gate | None:
    breaks = f.breaks(-LARGEST, LARGEST)
    edges = [-2 * LARGEST, *(one.at for one in breaks), 2 * LARGEST]
    lines = []
    for left, right in pairwise(edges):
        # The branches at a few points, away from the breaks: between two breaks they are one function.
        points = [left + part * (right - left) for part in (0.0721, 0.4142, 0.9319)]
        with ball_arithmetic():
            branches = [f.branch(signs) for at in points for signs in f.arb_branches(at, at)]
        line = _affine(branches[0])
        if line is None or any(_affine(branch) != line for branch in branches):
            return None
        lines.append(line)
    first, pieces, bias = -(len(breaks) // 2), [], 0
    changes = [_place(one) for one in breaks]
    for k, line in enumerate(lines):
        bias -= changes[k - 1] if k else 0
        pieces.append(((first + k) * UNITS, bias, *line))
    middle = pieces[-first][1]
    centred = tuple((slope, bias - middle, times, plus) for slope, bias, times, plus in pieces)
    widest = max(abs(part) for piece in centred for part in piece[:2])
    to_units(widest / UNITS)  # refuses what is too large
    return Gate(HARD if len(centred) > 1 else 0, centred)


def _place(one: Break) -> int:
    """Where the pieces change: at the break, or beside it if f has the value of one side there."""
    at = to_units(one.at)
    if not one.jump or abs(one.value - (one.left + one.right) / 2) <= 1e-9:
        return at
    return at + ASIDE if abs(one.value - one.left) < abs(one.value - one.right) else at - ASIDE
