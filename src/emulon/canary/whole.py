"""The whole canary: a stock Llama that writes learning algorithms as text, judged word by word.

Claim. A word that is called wrong is written by no engine that computes as `language.certificate.ASSUMES` says.
Proof. Between numbers one word alone is right, by margins of 31 of the logits' 32. A weight is three words, of which
the first two may be mended by the next: it is right as a whole when it is within `bounds` of the exact step from the
weights as they were written before it. So what one step has wrong is not counted in the next. QED
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
from emulon.certify.transcript_checker import PRECISION, Prompt, exact_iterates
from emulon.core.errors import EmulonError
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language import prompt, text_of, write
from emulon.language.certificate import bounds
from emulon.language.methods import known_methods
from emulon.language.model import structure
from emulon.language.vocabulary import SMALL, UNITS, Vocabulary, decode

# A smooth loss, a kink, a margin.
METHODS = ("ridge", "lasso", "logistic_regression")
STEPS, ROWS, FEATURES, LAYERS = 2, 2, 2, 8


def whole(open_engine: OpenEngine) -> list[Kept]:
    """Let an engine write two steps of three learning algorithms from its logits alone, greedily.

    Args:
        open_engine: As for `check`. The model is a Llama of 34 MB in float32.
    Returns:
        A row a method: bits of the worst weight, beside those that are proved, or the first wrong word.

    Example:
        >>> [row.wrong for row in whole(lambda folder: MyEngine(folder).logits)]
        [False, False, False]
    """
    with TemporaryDirectory() as folder:
        write(folder)
        run = open_engine(Path(folder))
        return [_written(run, name) for name in METHODS]


def _written(run: Callable[[Sequence[Sequence[int]]], NDArray[Any]], name: str) -> Kept:
    draw, words = np.random.default_rng(METHODS.index(name)), Vocabulary(SMALL)
    x = draw.uniform(-1, 1, size=(ROWS, FEATURES))
    y = np.sign(x[:, 0]) if name.startswith("logistic") else x @ draw.uniform(-1, 1, size=FEATURES)
    asked = prompt(known_methods()[name](steps=STEPS), x, y)
    tokens, found = words.encode(text_of(asked)), []
    for step in range(asked.first, asked.until):
        asked, numbers = replace(asked, first=step, until=step + 1), []
        for word in structure(asked):
            tokens.append(int(np.argmax(run([tokens])[0])))
            said = words.decode(tokens[-1:])
            if word and said != word:
                return Kept(
                    "whole", name, f"{said!r} was written for {word!r} in step {step + 1}", LAYERS, 0.0, ALL_BITS
                )
            numbers += [] if word else [said]
        found.append(_judged(asked, numbers, name))
        if found[-1].wrong:
            return found[-1]
        weights = tuple(decode(numbers[at : at + 3]) for at in range(0, len(numbers), 3))
        asked = replace(asked, before=asked.start, start=weights)
    return min(found, key=lambda row: row.kept - row.proved)


def _judged(asked: Prompt, numbers: list[str], name: str) -> Kept:
    """One step from the weights that were written before it."""
    bound = bounds(asked)[0]
    with ball_arithmetic(PRECISION):
        exact = [float(ball.mid()) for ball in exact_iterates(asked, 1)[0]]
    try:
        weights = [decode(numbers[at : at + 3]) for at in range(0, len(numbers), 3)]
        error = max(abs(a - b) for a, b in zip(weights, exact, strict=True)) / UNITS
    except EmulonError:
        error = 1.0
    kept, proved = (min(-math.log2(max(one, 2.0**-60)), ALL_BITS) for one in (error, bound))
    return Kept("whole", name, f"step {asked.until} of {name}, written as text", LAYERS, max(kept, 0.0), proved)
