"""Prompts: a method, its data and its starting weights as readable text.

    until:30 rate +0.40 +000 +000 ridge +0.30 +000 +000 momentum +0.00 +000 +000
    slope +0.00 +000 +000 bias +0.00 +000 +000 times +1.00 +000 +000 plus +0.00 +000 +000 loss^0
    slope +0.00 +000 +000 bias +0.00 +000 +000 times +1.00 +000 +000 plus +0.00 +000 +000 prox^0
    #1 y +1.49 -450 +426 x1 +0.35 -441 +831 x2 ...
    step:-1 w1 +0.00 +000 +000 w2 ...
    step:0 w1 +0.00 +000 +000 w2 ...

Words are separated by any white space; `certify.transcript_checker` has the grammar and the meaning.

ℓ′ and the proximal map are gated affine pieces, f(t) = Σ_k p_k·(times_k·t + plus_k), p = softmax(2^s·(slope_k·t +
bias_k)). With s = 24 the gate is hard: the piece of largest slope_k·t + bias_k alone, the mean of the tied ones at a
tie. Any piecewise affine function has that form: with slopes that grow by 1 from piece to piece, biases put the changes
where they belong. tanh and the logistic function are of that form with s = 0 and two constant pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from torch import Tensor

from emulon.algorithms import Algorithm
from emulon.algorithms.losses import MARGIN, require_data
from emulon.certify.transcript_checker import HARD, Gate, Prompt, Refused, Row, Words, read_prompt
from emulon.core.arrays import as_tensor
from emulon.core.errors import BadExpression, BadPrompt, BadShape, OutOfDomain
from emulon.expressions.evaluation import ball_arithmetic
from emulon.expressions.expression import Break, Function, parse
from emulon.expressions.parser import t_symbol
from emulon.language.methods import Method, as_method
from emulon.language.vocabulary import LARGEST, PIECE, SMALL, UNITS, Capacity, encode_units, to_units


def prompt(algorithm: Algorithm | Method, x: Any, y: Any, *, start: Any = None, capacity: Capacity = SMALL) -> Prompt:
    """State a method and its data as a prompt.

    Args:
        algorithm: A gradient descent of emulon, as `Ridge(0.3, steps=30)`, or a `Method`.
        x: Rows of features, (samples, features): a tensor, an array, a DataFrame or lists.
        y: A target a row; for margin losses −1 or +1.
        start: The weights to start from; zeros by default.
        capacity: How much the model can hold.
    Returns:
        The prompt; `text_of` writes it. Every number is rounded to a multiple of 1e-8.
    Raises:
        OutOfDomain: A number is above 19.99 or not finite, or there are too many rows, features or steps.
        EmulonError: The method cannot be stated.

    Example:
        >>> print(text_of(prompt(Ridge(0.3, steps=30), [[1.0], [2.0]], [1.0, 1.5])))
    """
    method, x, y = as_method(algorithm), as_tensor(x, "x").double(), as_tensor(y, "y").double()
    if x.ndim != 2:
        raise BadShape(f"x has shape {tuple(x.shape)}; a prompt holds one table, (samples, features)")
    require_data(x, y)
    descent = method.descent
    require_room(len(x), x.shape[1], descent.steps, capacity)
    rate = _written(descent.resolved_step_size(x, y).item(), "the step size")
    margin = descent.loss.link == MARGIN
    rows = tuple(_row(row, f"row {i + 1}", "x") for i, row in enumerate(x.tolist()))
    targets = tuple(_written(value, f"the target of row {i + 1}") for i, value in enumerate(y.tolist()))
    beginning = (0,) * x.shape[1] if start is None else _row(_vector(start, x), "start", "w")
    return Prompt(
        until=descent.steps,
        rate=rate,
        ridge=_written(descent.l2, "the ridge penalty"),
        momentum=_written(descent.momentum, "momentum"),
        loss=gate_of(descent.loss.derivative),
        prox=_proximal(method, rate),
        rows=rows,
        targets=targets,
        before=beginning,
        start=beginning,
        margin=margin,
    )


def require_room(samples: int, features: int, steps: int, capacity: Capacity) -> None:
    """Refuse what the model cannot hold."""
    for count, most, what in (
        (samples, capacity.samples, "rows"),
        (features, capacity.features, "features"),
        (steps, capacity.steps, "steps"),
    ):
        if count > most:
            raise OutOfDomain(f"{count} {what}; the {capacity.name} model holds {most}: take fewer, or a larger model")


def _proximal(method: Method, rate: int) -> Gate:
    threshold = to_units(rate / UNITS * method.descent.l1)
    if method.proximal is None:
        return soft_threshold(threshold)
    return gate_of(method.proximal.format(rate=rate / UNITS, threshold=threshold / UNITS))


def _vector(start: Any, x: Tensor) -> list[float]:
    weights = as_tensor(start, "start").double()
    if weights.shape != x.shape[1:]:
        raise BadShape(f"start has shape {tuple(weights.shape)}, wanted ({x.shape[1]},)")
    found: list[float] = weights.tolist()
    return found


def _row(values: Iterable[float], where: str, letter: str) -> Row:
    return tuple(_written(value, f"{letter}{j + 1} of {where}") for j, value in enumerate(values))


def _written(value: float, what: str) -> int:
    try:
        return to_units(value)
    except OutOfDomain:
        cure = f"a prompt holds numbers up to {LARGEST}: standardise the data, or divide by a power of ten"
        raise OutOfDomain(f"{what} is {value:.6g}; {cure}") from None


def text_of(prompt: Prompt) -> str:
    """Write a prompt: a line for the parameters, each piece, each row and each block of weights.

    Args:
        prompt: What to say.
    Returns:
        The text; `read` gives the prompt back.

    Example:
        >>> text_of(prompt(Ridge(0.3, steps=30), x, y)).splitlines()[0]
        'until:30 rate +0.11 +234 -123 ridge +0.30 +000 +000 momentum +0.00 +000 +000'
    """
    parameters = " ".join(f"{name} {_number(getattr(prompt, name))}" for name in ("rate", "ridge", "momentum"))
    lines = [f"until:{prompt.until} {'margin ' if prompt.margin else ''}{parameters}"]
    for name, gate in (("loss", prompt.loss), ("prox", prompt.prox)):
        for piece in gate.pieces:
            parts = (f"{part} {_number(value)}" for part, value in zip(PIECE, piece, strict=True))
            lines.append(f"{' '.join(parts)} {name}^{gate.sharpness}")
    for i, (row, target) in enumerate(zip(prompt.rows, prompt.targets, strict=True), start=1):
        lines.append(f"#{i} y {_number(target)} {_numbered('x', row)}")
    blocks = ((prompt.first - 1, prompt.before), (prompt.first, prompt.start))
    lines += [f"step:{step} {_numbered('w', weights)}" for step, weights in blocks]
    return "\n".join(lines) + "\n"


def _number(units: int) -> str:
    return " ".join(encode_units(units))


def _numbered(letter: str, values: Row) -> str:
    return " ".join(f"{letter}{j} {_number(value)}" for j, value in enumerate(values, start=1))


def question(number: int, row: Iterable[float]) -> str:
    """`?1 x1 … y` asks behind weights for w·x of a new row: the model writes the number of its y.

    Questions are numbered from 1 up to the rows that the model can hold. OutOfDomain is raised where a feature cannot
    be written.
    """
    return f"?{number} {_numbered('x', _row(row, f'question {number}', 'x'))} y"


def read(text: str, capacity: Capacity = SMALL) -> Prompt:
    """A prompt from its text, with nothing after it.

    Raises:
        BadPrompt: A word is missing, out of place or unknown; the message names it and what was wanted.
        OutOfDomain: There are too many rows, features or steps for the model.
    """
    words = Words(text)
    try:
        found = read_prompt(words)
        if words.next:
            words.refuse("the end of the prompt")
    except Refused as error:
        raise BadPrompt(str(error)) from None
    require_room(len(found.rows), len(found.start), found.until, capacity)
    if found.until < found.first:
        raise BadPrompt(f"until:{found.until} is before step:{found.first}, where the weights start")
    return found


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
    """The gated pieces of a function of t, every number rounded to a multiple of 1e-8.

    Args:
        expression: Piecewise affine with its kinks and jumps inside ±19.99, as `Max(-1, Min(1, t))`, or
            a + b·tanh(c·t + d), or a + b/(1 + exp(c·t + d)).
    Raises:
        BadExpression: It is none of these, or a number in it cannot be written.
    """
    f = parse(expression)
    try:
        gate = _piecewise(f) if f.switches else _smooth(f)
    except OutOfDomain as error:
        raise BadExpression(f"{expression!r} has a number that a prompt cannot hold: {error}") from None
    if gate is None:
        kinds = "piecewise affine, a + b*tanh(c*t + d), or a + b/(1 + exp(c*t + d))"
        raise BadExpression(f"{expression!r} cannot be written as pieces in a prompt; it may be {kinds}")
    return gate


def _smooth(f: Function) -> Gate | None:
    """One affine piece, or two constant ones."""
    if line := _affine(f.smooth):
        return Gate(0, ((0, 0, *line),))
    if f.sigmoid is None:
        return None
    low, rise, steep, shift = f.sigmoid
    return Gate(0, ((to_units(steep), to_units(shift), 0, to_units(low + rise)), (0, 0, 0, to_units(low))))


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
