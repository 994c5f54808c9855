"""The whole canary: a stock Llama that writes learning algorithms as text, judged word by word.

Claim. A word that is called wrong is written by no engine that computes as `language.certificate.ASSUMES` says.
Proof. Between numbers one word alone is right, by margins of 31 of the logits' 32. A weight is three words: hundredths
of what is left, then thousandths of these, twice. Word c has the largest logit where it is nearest to what is left, x,
but for 6·U·x² of its score, and what is left is known within `bounds` of the exact step from the weights as they were
written before it. So |c − x| ≤ ½ + 6·U·x² + `bounds` in the word's unit; where one c alone is so near, its margin lies
above whatever the logits may be off by. What one step has wrong is not counted in the next. QED
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.canary.check import ALL_BITS, Kept, OpenEngine
from emulon.certify.transcript_checker import PRECISION, exact_iterates
from emulon.core.hub import head_text
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language import prompt, text_of, write
from emulon.language.certificate import U, bounds
from emulon.language.methods import known_methods
from emulon.language.model import structure
from emulon.language.vocabulary import SMALL, UNITS, Vocabulary, group_text

# A smooth loss, a kink, a margin.
METHODS = ("ridge", "lasso", "logistic_regression")
STEPS, ROWS, FEATURES, LAYERS = 2, 2, 2, 8
Run = Callable[[Sequence[Sequence[int]]], NDArray[Any]]


class _WrongWord(Exception):
    """A word that no correct engine writes."""


def whole(open_engine: OpenEngine) -> list[Kept]:
    """Let an engine write two steps of three learning algorithms from its logits alone, greedily.

    Args:
        open_engine: As for `check`. The model is a Llama of 34 MB in float32.
    Returns:
        A row a method: bits of the worst weight beside those that are proved, and how many words are decided by their
        margins; or the first wrong word.

    Example:
        >>> [row.wrong for row in whole(lambda folder: MyEngine(folder).logits)]
        [False, False, False]
    """
    with TemporaryDirectory() as folder:
        write(folder)
        run = open_engine(Path(folder))
        return [_written(run, name) for name in METHODS]


def _written(run: Run, name: str) -> Kept:
    draw, words = np.random.default_rng(METHODS.index(name)), Vocabulary(SMALL)
    # Hundredths: engines err most in the remainders of numbers that are not.
    x = draw.uniform(-1, 1, size=(ROWS, FEATURES)).round(2)
    y = np.sign(x[:, 0]) if name.startswith("logistic") else (x @ draw.uniform(-1, 1, size=FEATURES)).round(2)
    asked = prompt(known_methods()[name](steps=STEPS), x, y)
    tokens, alone, bits = words.encode(text_of(asked)), 0, []
    begin = len(tokens)
    for step in range(asked.first, asked.until):
        asked = replace(asked, first=step, until=step + 1)
        bound = bounds(asked)[0]
        with ball_arithmetic(PRECISION):
            exact = [float(ball.mid()) for ball in exact_iterates(asked, 1)[0]]
        try:
            weights, decided = _step(run, words, tokens, structure(asked), exact, bound * UNITS)
        except _WrongWord as wrong:
            return Kept("whole", name, f"{wrong} in step {step + 1}", LAYERS, 0.0, ALL_BITS)
        error = max(abs(a - b) for a, b in zip(weights, exact, strict=True)) / UNITS
        kept, proved = (min(-math.log2(max(one, 2.0**-60)), ALL_BITS) for one in (error, bound))
        bits.append((kept - proved, kept, proved))
        alone += decided
        asked = replace(asked, before=asked.start, start=tuple(weights))
    told = f"{STEPS} steps as text; {alone} of {len(tokens) - begin} words alone are right"
    return Kept("whole", name, told, LAYERS, *min(bits)[1:])


def _step(
    run: Run, words: Vocabulary, tokens: list[int], shape: list[str], exact: list[float], off: float
) -> tuple[list[int], int]:
    """The weights that are written, in hundred-millionths as `exact` and `off`, and how many words alone are right."""
    weights: list[int] = []
    alone, unit = 0, 0
    for word in shape:
        tokens.append(int(np.argmax(run([tokens])[0])))
        right = [word]
        if word.startswith("w"):
            weights, unit = [*weights, 0], UNITS
        elif not word:
            # Hundredths, then thousandths of these, twice.
            unit //= 100 if unit == UNITS else 1000
            text, left = head_text if unit == 10**6 else group_text, (exact[len(weights) - 1] - weights[-1]) / unit
            reach = 0.5 + 6 * U * left**2 + off / unit
            counts = {text(k): k for k in range(math.ceil(left - reach), math.floor(left + reach) + 1)}
            right = list(counts)
        if (said := words.decode(tokens[-1:])) not in right:
            raise _WrongWord(f"{said!r} was written for {' or '.join(map(repr, right[:2]))}")
        alone += len(right) == 1
        if not word:
            weights[-1] += unit * counts[said]
    return weights, alone
