"""The words of the language, each one token, numbers among them, and the tokenizer files that Hugging Face opens.

Words are separated by white space. A word's number in the vocabulary is its place in `Vocabulary.tokens`.

A number is three words, `+0.32 -488 +484` for 0.32 − 0.00488 + 0.00000484. The first counts hundredths, the second
hundred-thousandths, the third hundred-millionths. `encode` writes groups that are balanced, −500 to 500, so that a
reader finds the nearest multiple at every stage; `decode` takes all groups from −999 to 999: a writer that rounds one
group to a neighbour mends it in the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal

from emulon.core.errors import EmulonError, OutOfDomain
from emulon.core.files import write_json
from emulon.core.hub import SPECIAL, head_text, tokenizer_files

# Hundred-millionths in 1.
UNITS = 10**8
HIGHEST_HEAD, HIGHEST_GROUP = 1999, 999
LARGEST = HIGHEST_HEAD / 100
HEAD = re.compile(r"[+-]1?[0-9]\.[0-9][0-9]")
GROUP = re.compile(r"[+-][0-9]{3}")


def group_text(group: int) -> str:
    """The second or third word of a number: `-488` for −488."""
    return f"{group:+04d}"


def to_units(value: float | Fraction) -> int:
    """The number in hundred-millionths, rounded to the nearest one, ties to even.

    Raises:
        OutOfDomain: It is not finite, or above `LARGEST` in absolute value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise OutOfDomain(f"{value} cannot be written as a number; remove it from the data")
    exact = Fraction(value)
    if abs(exact) > LARGEST:
        raise OutOfDomain(f"{float(value):.6g} cannot be written: numbers are at most {LARGEST}; rescale the data")
    return round(exact * UNITS)


def encode(value: float | Fraction) -> tuple[str, str, str]:
    """The nearest multiple of 1e-8 as three words, with balanced second and third groups.

    Raises:
        OutOfDomain: The number is not finite, or above 19.99 in absolute value.

    Example:
        >>> " ".join(encode(0.31512484))
        '+0.32 -488 +484'
    """
    return encode_units(to_units(value))


def encode_units(units: int) -> tuple[str, str, str]:
    """`encode` for a whole number of hundred-millionths."""
    head = round(Fraction(units, 10**6))
    if abs(head) > HIGHEST_HEAD:
        raise OutOfDomain(f"{units / UNITS:.6g} cannot be written: numbers are at most {LARGEST}; rescale the data")
    rest = units - head * 10**6
    middle = round(Fraction(rest, 1000))
    return head_text(head), group_text(middle), group_text(rest - 1000 * middle)


def decode(words: Sequence[str]) -> int:
    """Read three words as a whole number of hundred-millionths.

    Raises:
        EmulonError: They are not the three words of a number.
    """
    if len(words) != 3 or not HEAD.fullmatch(words[0]) or not all(map(GROUP.fullmatch, words[1:])):
        raise EmulonError(f"{' '.join(words)[:40]!r} is not a number such as '+0.32 -488 +484'")
    if words[0] == "-0.00" or "-000" in words:
        raise EmulonError(f"{' '.join(words)[:40]!r}: zero is written with a plus sign")
    return int(words[0].replace(".", "")) * 10**6 + int(words[1]) * 1000 + int(words[2])


Kind = Literal[
    "special",  # <s> </s> <pad> <unk>
    "head",  # +0.32: the first word of a number, in hundredths
    "group",  # -488: its second and third
    "row",  # #3: a row of the data begins
    "query",  # ?3: a row whose target is asked for begins
    "scratch",  # @3: the model computes row 3's part of the gradient here
    "step",  # step:7: weights after 7 steps follow
    "until",  # until:30: stop after 30 steps
    "feature",  # x2
    "weight",  # w2
    "label",  # y, and the four numbers of a piece: slope, bias, times, plus
    "parameter",  # rate, ridge, momentum
    "loss",  # loss^24: ends a piece of the loss's derivative, of sharpness 2^24
    "prox",  # prox^24: ends a piece of the proximal map
    "link",  # margin: rows are multiplied by their targets
    "stop",  # overflow: a number could not be written, and the run ends
]
PIECE = ("slope", "bias", "times", "plus")
LABELS = ("y", *PIECE)
PARAMETERS = ("rate", "ridge", "momentum")
SHARPEST = 24


@dataclass(frozen=True)
class Capacity:
    """How much a prompt may hold: features, rows and steps."""

    name: str
    features: int
    samples: int
    steps: int


SMALL = Capacity("small", features=8, samples=60, steps=200)
LARGE = Capacity("large", features=32, samples=500, steps=200)
CAPACITIES = {capacity.name: capacity for capacity in (SMALL, LARGE)}


@dataclass(frozen=True)
class Token:
    """One word; `number` is what it says: hundredths, a group, a row, a step, a coordinate (from 1), an exponent."""

    text: str
    kind: Kind
    number: int = 0


@dataclass(frozen=True)
class Vocabulary:
    """All words of the language for one capacity."""

    capacity: Capacity

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """Every token, in the order of their numbers."""
        size = self.capacity
        rows, steps, features = range(1, size.samples + 1), range(-1, size.steps + 1), range(1, size.features + 1)
        sharpness = range(SHARPEST + 1)
        return (
            *(Token(text, "special") for text in SPECIAL),
            *(Token(head_text(k), "head", k) for k in range(-HIGHEST_HEAD, HIGHEST_HEAD + 1)),
            *(Token(group_text(m), "group", m) for m in range(-HIGHEST_GROUP, HIGHEST_GROUP + 1)),
            *(Token(f"#{i}", "row", i) for i in rows),
            *(Token(f"?{i}", "query", i) for i in rows),
            *(Token(f"@{i}", "scratch", i) for i in rows),
            *(Token(f"step:{t}", "step", t) for t in steps),
            *(Token(f"until:{t}", "until", t) for t in steps if t >= 0),
            *(Token(f"x{j}", "feature", j) for j in features),
            *(Token(f"w{j}", "weight", j) for j in features),
            *(Token(text, "label", number) for number, text in enumerate(LABELS)),
            *(Token(text, "parameter", number) for number, text in enumerate(PARAMETERS)),
            *(Token(f"loss^{s}", "loss", s) for s in sharpness),
            *(Token(f"prox^{s}", "prox", s) for s in sharpness),
            Token("margin", "link"),
            Token("overflow", "stop"),
        )

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every word."""
        return {token.text: number for number, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, text: str) -> Token:
        return self.tokens[self.numbers[text]]

    def __contains__(self, text: object) -> bool:
        return text in self.numbers

    def of_kind(self, *kinds: Kind) -> list[Token]:
        """The tokens of these kinds, in the order of their numbers."""
        return [token for token in self.tokens if token.kind in kinds]

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's words after `<s>`, as the tokenizer of the folder gives them."""
        return [self.numbers.get(word, self.numbers["<unk>"]) for word in ("<s>", *text.split())]

    def decode(self, numbers: list[int]) -> str:
        """The words of these numbers, with spaces between them; special tokens are left out."""
        words = (self.tokens[number] for number in numbers)
        return " ".join(token.text for token in words if token.kind != "special")

    def write_tokenizer(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which Hugging Face's AutoTokenizer opens."""
        for name, content in tokenizer_files([token.text for token in self.tokens]).items():
            write_json(folder / name, content)
