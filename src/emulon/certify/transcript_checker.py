"""Checks transcripts of the text language, and trusts none: python-flint and the standard library are all it imports.

    python transcript_checker.py TRANSCRIPT [--within NUMBER]

A transcript is a prompt (the program, the data, the starting weights) and the weights that a model wrote after it.
Claim: with exit code 0, every number and word has its place, all steps are there, and every written weight is within
the printed bound of the exact iterate of the algorithm that the prompt states, on the data that the prompt states.
Proof. The exact iterates are enclosed in balls, from the prompt alone; a hard gate whose piece cannot be decided takes
the hull of the values of those that are left; precision is doubled until balls are small against the last digit. The
bound is the largest distance from a written weight to any point of its ball. Nothing of the model is used. QED

The step. r_i = w·x_i − y_i (after `margin` r_i = y_i·(w·x_i), and x_i stands for y_i·x_i below), n rows,
  u = w − rate·(Σ_i f(r_i)·x_i / n + ridge·w) + momentum·(w − w_before),   w' = g(u), coordinate by coordinate.
f, the loss's derivative, and g, the proximal map, are gated affine pieces: f(r) = Σ_k p_k·(times_k·r + plus_k) with
p = softmax(2^s·(slope_k·r + bias_k)); with s = 24 the gate is hard: the piece of largest slope_k·r + bias_k alone, and
the mean of those that tie exactly.
Exit codes: 0 it holds, 1 it does not, 2 it cannot be read. A reason is one line.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import nlargest
from typing import Any, NoReturn

from flint import arb, arb_mat, ctx

ONE = 10**8  # a number is a whole number of hundred-millionths
HEAD, GROUP = re.compile(r"[+-]1?[0-9]\.[0-9][0-9]"), re.compile(r"[+-][0-9]{3}")
COUNT = re.compile(r"0|[1-9][0-9]{0,5}")
HARD = 24  # the sharpness of a hard gate
PRECISION, HIGHEST = 256, 1 << 14  # bits of the first attempt, and of the last
SMALL = 10.0**-12 * ONE  # radius that balls of exact weights must come below
WITHIN = 1e-6  # how far a written weight may be from the exact one, where nothing else is said
BAND = 1e-6  # a jump so near to a residual is counted
LARGEST = 1 << 24  # letters of a transcript
WORK = 10**6  # values of pieces that a transcript may need; what a higher precision may cost is four times as much
Row = tuple[int, ...]


class Refused(ValueError):
    """The text is no transcript, or its numbers are not those of the algorithm; one line says where."""


@dataclass(frozen=True)
class Gate:
    """Affine pieces (slope, bias, times, plus) under a gate of sharpness 2^s."""

    sharpness: int
    pieces: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Prompt:
    """What a prompt says; every number in hundred-millionths. `start` are the weights after `first` steps."""

    until: int
    rate: int
    ridge: int
    momentum: int
    loss: Gate
    prox: Gate
    rows: tuple[Row, ...]
    targets: Row
    before: Row
    start: Row
    first: int = 0
    margin: bool = False


@dataclass(frozen=True)
class Transcript:
    """A prompt and the weights written after it, step by step; `overflow` where the writer gave up with that word."""

    prompt: Prompt
    written: tuple[Row, ...]
    overflow: bool = False


class Words:
    """The words of a text in order; what is not as it has to be is refused with its place."""

    def __init__(self, text: str) -> None:
        if len(text) > LARGEST:
            raise Refused(f"the text has more than {LARGEST} letters")
        self.words, self.at = text.split(), 0

    @property
    def next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def refuse(self, wanted: str) -> NoReturn:
        found = f"word {self.at + 1} is {self.next[:20]!r}" if self.next else f"the text ends after {self.at} words"
        raise Refused(f"{found}; wanted {wanted}")

    def take(self, word: str) -> None:
        if self.next != word:
            self.refuse(word)
        self.at += 1

    def take_if(self, word: str) -> bool:
        found = self.next == word
        self.at += found
        return found

    def count(self, prefix: str) -> int:
        """The whole number that follows a prefix in one word."""
        word = self.next
        if not word.startswith(prefix) or not COUNT.fullmatch(word[len(prefix) :]):
            self.refuse(f"{prefix} and a whole number")
        self.at += 1
        return int(word[len(prefix) :])

    def number(self) -> int:
        """Three words, in hundred-millionths."""
        for kind, name in ((HEAD, "+0.32"), (GROUP, "-488"), (GROUP, "+484")):
            if not kind.fullmatch(self.next) or self.next in ("-0.00", "-000"):
                self.refuse(f"a part of a number such as {name}")
            self.at += 1
        head, middle, low = self.words[self.at - 3 : self.at]
        return int(head.replace(".", "")) * 10**6 + int(middle) * 1000 + int(low)

    def named(self, name: str) -> int:
        self.take(name)
        return self.number()

    def vector(self, letter: str, length: int = 0) -> Row:
        """`x1 … x2 …`: as many as there are, or so many."""
        found: list[int] = []
        while (length and len(found) < length) or (not length and self.next == f"{letter}{len(found) + 1}"):
            found.append(self.named(f"{letter}{len(found) + 1}"))
        if not found:
            self.refuse(f"{letter}1")
        return tuple(found)

    def gate(self, name: str) -> Gate:
        """All pieces that end in this name."""
        pieces: list[tuple[int, int, int, int]] = []
        sharpness: list[int] = []
        while self.next == "slope":
            start = self.at
            slope, bias, times, plus = (self.named(part) for part in ("slope", "bias", "times", "plus"))
            if pieces and not self.next.startswith(name):
                self.at = start
                break
            sharpness.append(self.count(f"{name}^"))
            pieces.append((slope, bias, times, plus))
        if not pieces:
            self.refuse(f"slope, a piece of {name}")
        if len({*sharpness}) > 1 or sharpness[0] > HARD or (len(pieces) == 1 and sharpness[0]):
            raise Refused(f"{name}: all pieces have one sharpness of 0 to {HARD}, and a single piece has 0")
        return Gate(sharpness[0], tuple(pieces))


def read_prompt(words: Words) -> Prompt:
    """The prompt at the beginning of a text.

    Raises:
        Refused: Something is missing, out of order, or no number.
    """
    until, margin = words.count("until:"), words.take_if("margin")
    rate, ridge, momentum = (words.named(name) for name in ("rate", "ridge", "momentum"))
    loss, prox = words.gate("loss"), words.gate("prox")
    rows: list[Row] = []
    targets: list[int] = []
    while words.next.startswith("#"):
        words.take(f"#{len(rows) + 1}")
        targets.append(words.named("y"))
        rows.append(words.vector("x", len(rows[0]) if rows else 0))
    if not rows:
        words.refuse("#1, the first row of the data")
    if margin and not {*targets} <= {ONE, -ONE}:
        raise Refused("after margin every y is +1.00 or -1.00")
    blocks: list[Row] = []
    start = words.next[5:] if words.next.startswith("step:") else ""
    first = -1 if start == "-1" else words.count("step:")
    words.at += start == "-1"
    blocks.append(words.vector("w", len(rows[0])))
    words.take(f"step:{first + 1}")
    blocks.append(words.vector("w", len(rows[0])))
    if until < first + 1:
        raise Refused(f"until:{until} is before step:{first + 1}, where the weights start")
    before, now = blocks
    data = (tuple(rows), tuple(targets), before, now)
    return Prompt(until, rate, ridge, momentum, loss, prox, *data, first=first + 1, margin=margin)


def read(text: str) -> Transcript:
    """A transcript from its text, prompt first.

    Raises:
        Refused: It is not a prompt followed by all its steps and nothing else; with the word `overflow` it may end at
            any number.
    """
    words = Words(text)
    prompt = read_prompt(words)
    written: list[Row] = []
    for step in range(prompt.first + 1, prompt.until + 1):
        words.take(f"step:{step}")
        for row in range(len(prompt.rows)):
            words.take(f"@{row + 1}")
        weights: list[int] = []
        for j in range(len(prompt.start)):
            words.take(f"w{j + 1}")
            if words.take_if("overflow"):
                return _ended(words, Transcript(prompt, tuple(written), overflow=True))
            weights.append(words.number())
        written.append(tuple(weights))
    return _ended(words, Transcript(prompt, tuple(written)))


def _ended(words: Words, transcript: Transcript) -> Transcript:
    if words.next:
        words.refuse("nothing more")
    return transcript


class Steps:
    """The exact step of a prompt in ball arithmetic. Arguments and results are balls around numbers times `ONE`."""

    def __init__(self, prompt: Prompt) -> None:
        sign = [target // ONE if prompt.margin else 1 for target in prompt.targets]
        rows = [[s * x for x in row] for s, row in zip(sign, prompt.rows, strict=True)]
        self.prompt, self.near_jumps = prompt, 0
        self.rows, self.columns = arb_mat(rows), arb_mat(rows).transpose()
        self.targets = [0 if prompt.margin else ONE * target for target in prompt.targets]

    def __call__(self, now: Sequence[Any], before: Sequence[Any]) -> list[Any]:
        prompt, scores = self.prompt, self.rows * arb_mat([[w] for w in now])
        residuals = [scores[i, 0] - target for i, target in enumerate(self.targets)]
        slopes = [self.gated(prompt.loss, residual, ONE**2) for residual in residuals]
        sums = self.columns * arb_mat([[slope] for slope in slopes])
        moved = []
        for j, (w, last) in enumerate(zip(now, before, strict=True)):
            gradient = sums[j, 0] / (ONE**2 * len(slopes)) + prompt.ridge * w / ONE
            u = w - prompt.rate * gradient / ONE + prompt.momentum * (w - last) / ONE
            moved.append(self.gated(prompt.prox, u, ONE))
        return moved

    def gated(self, gate: Gate, t: Any, unit: int) -> Any:
        """The gate's value at t/unit, times unit."""
        if len(gate.pieces) == 1:
            _, _, times, plus = gate.pieces[0]
            return (times * t + plus * unit) / ONE
        return (self._hard if gate.sharpness == HARD else self._soft)(gate, t, unit)

    def _hard(self, gate: Gate, t: Any, unit: int) -> Any:
        self.near_jumps += near_jump(gate, float(t.mid()) / unit)
        scores = [slope * t + bias * unit for slope, bias, _, _ in gate.pieces]
        least = max(score.lower() for score in scores)
        open_ = [k for k, score in enumerate(scores) if not score < least]
        values = [(times * t + plus * unit) / ONE for _, _, times, plus in (gate.pieces[k] for k in open_)]
        if all(scores[k] == scores[open_[0]] for k in open_[1:]):
            return sum(values[1:], values[0]) / len(open_)
        return hull(values)

    def _soft(self, gate: Gate, t: Any, unit: int) -> Any:
        """At the ball's middle, and as far from it as its radius times the largest slope.

        f′ = Σ p_k·times_k + 2^s·cov_p(slope, value), and |cov_p| is at most a quarter of the two ranges' product.
        """
        middle, steepness = t.mid(), 1 << gate.sharpness
        scores = [(slope * middle + bias * unit) * steepness / (ONE * unit) for slope, bias, _, _ in gate.pieces]
        highest = max((score.mid() for score in scores), key=float)
        weights = [(score - highest).exp() for score in scores]
        values = [(times * middle + plus * unit) / ONE for _, _, times, plus in gate.pieces]
        value = sum((p * v for p, v in zip(weights, values, strict=True)), arb(0)) / sum(weights, arb(0))
        if t.rad() == 0:
            return value
        slopes = [slope for slope, _, _, _ in gate.pieces]
        wide = 2 * hull((times * t + plus * unit) / (ONE * unit) for _, _, times, plus in gate.pieces).rad()
        steepest = max(abs(times) for _, _, times, _ in gate.pieces)
        slope = (arb(steepest) + arb(max(slopes) - min(slopes)) * steepness * wide / 4) / ONE
        return value + arb(0, (slope * t.rad()).abs_upper())


def hull(balls: Iterable[Any]) -> Any:
    """The smallest ball around some balls, nearly."""
    return reduce(lambda one, other: one.union(other), balls)


def near_jump(gate: Gate, t: float) -> bool:
    """Whether a jump of a hard gate is within `BAND` of t; informs, proves nothing."""
    (a, b, p, q), (c, d, r, s) = nlargest(2, gate.pieces, key=lambda piece: piece[0] * t + piece[1])
    if a == c:
        return False
    at = (d - b) / (a - c)
    return abs(at - t) <= BAND and abs((p - r) * at + (q - s)) > 10


@dataclass(frozen=True)
class Audit:
    """Proved bounds for the weights written after each step, in the sup norm.

    `bounds` are on the distance to the exact iterates, `defects` on that to the exact step from the weights written
    before. `near_jumps` counts residuals of written weights within `BAND` of a jump: there a step may go either way.
    """

    bounds: tuple[float, ...]
    defects: tuple[float, ...]
    near_jumps: int
    precision: int

    @property
    def bound(self) -> float:
        """The largest of all steps."""
        return max(self.bounds, default=0.0)


def exact_iterates(prompt: Prompt, steps: int) -> list[list[Any]]:
    """Balls around the exact weights after each of so many steps, times `ONE`; too wide where a jump cannot be decided.

    The caller sets flint's precision, which this raises as far as `HIGHEST`, or as `WORK` allows.

    Raises:
        Refused: That needs more than `WORK`.
    """
    rows, features = len(prompt.rows), len(prompt.start)
    work = steps * (rows * len(prompt.loss.pieces) + features * len(prompt.prox.pieces) + rows * features // 32)
    if work > WORK:
        raise Refused(f"{steps} steps on {rows} rows need {work} values of pieces, more than {WORK}")
    while True:
        step, path = Steps(prompt), [[arb(w) for w in prompt.before], [arb(w) for w in prompt.start]]
        last = ctx.prec >= HIGHEST or 2 * ctx.prec * work > 4 * PRECISION * WORK
        for _ in range(steps):
            path.append(step(path[-1], path[-2]))
            if not last and not all(w.rad() < SMALL for w in path[-1]):
                break
        else:
            return path[2:]
        ctx.prec *= 2


def audit(transcript: Transcript) -> Audit:
    """Bounds for every written weight. The caller sets flint's precision to `PRECISION`, of which there is one for the
    whole process, and takes it back afterwards."""
    prompt, written = transcript.prompt, transcript.written
    exact = exact_iterates(prompt, len(written))
    precision, ctx.prec = ctx.prec, PRECISION
    bounds = tuple(_distance(found, row) for found, row in zip(exact, written, strict=True))
    step, before = Steps(prompt), (prompt.before, prompt.start, *written)
    defects = []
    for last, now, row in zip(before, before[1:], written, strict=False):
        defects.append(_distance(step([arb(w) for w in now], [arb(w) for w in last]), row))
    return Audit(bounds, tuple(defects), step.near_jumps, precision)


def _distance(balls: Sequence[Any], row: Row) -> float:
    """The largest distance of a number from any point of its ball, rounded up; infinite where a ball is everything."""
    ends = [(ball - w).abs_upper() for ball, w in zip(balls, row, strict=True)]
    if not all(end.is_finite() for end in ends):
        return math.inf
    return max(float(max(ends)) / ONE * (1 + 1e-14), 0.0 if all(end == 0 for end in ends) else 1e-300)


def check(text: str, within: float = WITHIN) -> str:
    """What holds, in a line. The caller sets flint's precision as for `audit`.

    Raises:
        Refused: The text is no whole transcript, or a written weight is farther than `within` from the exact one.
        ValueError: `within` is no positive number.
    """
    if not 0 < within < math.inf:
        raise ValueError(f"--within {within:g}; wanted a positive number")
    transcript = read(text)
    found, first = audit(transcript), transcript.prompt.first
    worst = f"every weight of {len(found.bounds)} steps is within {shown(found.bound)} of the exact iterate"
    jumps = f", {found.near_jumps} times within {BAND:g} of a jump" if found.near_jumps else ""
    for step, bound in enumerate(found.bounds, start=first + 1):
        if not bound <= within:
            raise Refused(f"step {step} is up to {shown(bound)} from the exact iterate, more than {within:g}{jumps}")
    if transcript.overflow:
        raise Refused(f"overflow at step {first + 1 + len(found.bounds)} of {transcript.prompt.until}; {worst}")
    return worst + jumps


def shown(bound: float) -> str:
    """Two digits, rounded up."""
    if not 0 < bound < math.inf:
        return f"{bound:g}"
    last = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return f"{math.ceil(bound / last) * last:.1e}"


def main(words: list[str]) -> int:
    if len(words) not in (1, 3) or (len(words) == 3 and words[1] != "--within"):
        print("usage: transcript_checker.py TRANSCRIPT [--within NUMBER]", file=sys.stderr)
        return 2
    try:
        with open(words[0], encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
        holds = check(text, *map(float, words[2:]))
    except Exception as error:  # whatever a file that is no transcript leads to
        refused = isinstance(error, Refused)
        reason = f"does not hold: {error}" if refused else f"cannot be read: {type(error).__name__} {error}"
        print(f"{words[0]} {reason}".splitlines()[0], file=sys.stderr)
        return 1 if refused else 2
    print(f"{words[0]} holds: {holds}")
    return 0


if __name__ == "__main__":
    ctx.prec = PRECISION
    sys.exit(main(sys.argv[1:]))
