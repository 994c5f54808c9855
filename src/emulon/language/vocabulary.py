"""The words of the language, each one token, and the tokenizer files that Hugging Face opens.

Words are separated by white space. A word's number in the vocabulary is its place in `Vocabulary.tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from emulon.core.files import write_json
from emulon.core.tokenizer import SPECIAL, head_text, tokenizer_files
from emulon.language.numbers import HIGHEST_GROUP, HIGHEST_HEAD, group_text

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
