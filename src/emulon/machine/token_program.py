"""Programs over the words of a vocabulary: named registers of every token, reads, products, and what is written next.

A word's embedding gives its registers their first values; every instruction adds to its target at every token. The
compiler's target is a stock decoder with rotary positions, gated MLPs and an unembedding (`machine.targets.llama`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from emulon.core.arrays import zeros
from emulon.core.errors import BadProgram, BadShape
from emulon.machine.instruction import AffineForm, Register, constant

START = "<s>"
Code = Sequence[float]
Pair = tuple[AffineForm | Code, AffineForm]  # a query and a key


@dataclass(frozen=True)
class Back:
    """The token so many places before; the start token, whose registers are zero, where there are not so many.

    Attributes:
        places: How many; 0 is the token itself.
    """

    places: int

    def __str__(self) -> str:
        return f"{self.places} back"


@dataclass(frozen=True, eq=False)
class Matching:
    """The tokens whose `key`, a ±1 code, equals the reader's `query`: their mean, or only the latest of them.

    Zeros where no token matches. With `equal` the weights of the mean are equal to the last bit.
    """

    query: AffineForm
    key: AffineForm
    latest: bool = False
    equal: bool = False

    def __str__(self) -> str:
        how = "latest " if self.latest else "mean " if self.equal else ""
        return f"{how}where {self.key.text} = {self.query.text}"


@dataclass(frozen=True, eq=False)
class Table:
    """The softmax over the tokens with the flag `among`, of score slope·query + bias; hard where slopes are steep."""

    query: AffineForm
    slope: AffineForm
    bias: AffineForm
    among: AffineForm

    def __str__(self) -> str:
        return f"softmax({self.slope.text}·{self.query.text} + {self.bias.text}) among {self.among.text}"


Where = Back | Matching | Table
Kind = Literal["read", "mul", "gate", "add", "abs"]


@dataclass(frozen=True)
class TokenInstruction:
    """One line of a program: target += times · value read at a place, or times · left · value, entry by entry.

    In the MLP: `mul` multiplies two forms, `gate` takes max(left, 0) · value, `add` has no left factor, `abs` adds
    left · |value|.
    """

    number: int
    kind: Kind
    target: AffineForm
    value: AffineForm
    where: Where | None = None
    left: AffineForm | None = None
    times: float = 1.0

    @property
    def reads(self) -> tuple[str, ...]:
        where = self.where
        forms = [self.value, *([self.left] if self.left is not None else [])]
        if isinstance(where, Matching):
            forms += [where.query, where.key]
        if isinstance(where, Table):
            forms += [where.query, where.slope, where.bias, where.among]
        return tuple(dict.fromkeys(name for form in forms for name in form.reads))

    @property
    def written(self) -> str:
        return self.target.reads[0]

    def __str__(self) -> str:
        value = self.value.text
        times = "" if self.times == 1 else f"{self.times:.6g}·".replace("-", "−")
        if self.where is not None:
            return f"read  {self.target.text} ← {times}{self.value.factor_text if times else value} @ {self.where}"
        left = "" if self.left is None else f"{self.left.factor_text} ⊙ "
        return f"{self.kind:4s}  {self.target.text} ← {times}{left}{self.value.factor_text if left or times else value}"


@dataclass(frozen=True)
class Scores:
    """What some words' scores gain: `matrix` (words, entries) times the form's entries, plus `offset` (words,)."""

    words: tuple[str, ...]
    form: AffineForm
    matrix: Tensor
    offset: Tensor
    text: str


class TokenProgram:
    """Registers, instructions and scores over a vocabulary.

    Args:
        name: What it is called.
        words: The vocabulary; it has `<s>`, with which every text begins.
        context: The most tokens of a text.

    Example:
        >>> program = TokenProgram("echo", ["<s>", "a", "b"], context=64)
        >>> letter = program.given("letter", {"a": [1.0, 0.0], "b": [0.0, 1.0]})
        >>> before = program.register("before", 2)
        >>> program.read(before, letter, at=Back(1))
        >>> program.say({"a": (), "b": ()}, when=program.one)
        >>> print(program)
        echo: 3 words, 1 instruction
          letter  given[2]
          before  register[2]
          1  read  before ← letter @ 1 back
          says a, b where 1
    """

    def __init__(self, name: str, words: Sequence[str], context: int) -> None:
        if START not in words or len(set(words)) < len(words):
            raise BadProgram(f"program {name}: the words have to be distinct, with {START} among them")
        self.name, self.words, self.context = name, tuple(words), context
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.registers: dict[str, Register] = {}
        self.embedded: dict[str, Tensor] = {}
        self.instructions: list[TokenInstruction] = []
        self.scores: list[Scores] = []
        self.one = constant(1.0, (1, 1))
        self.start = self.given("start", {START: 1.0})

    # Registers

    def register(self, name: str, size: int = 1) -> Register:
        """A register that is zero at every token until an instruction adds to it."""
        if name in self.registers:
            raise BadProgram(f"program {self.name} already has a register called {name}")
        self.registers[name] = Register(name, (size, 1))
        return self.registers[name]

    def given(self, name: str, values: Mapping[str, float | Code]) -> Register:
        """A register with first values by word, a number or a list of them; zero at all other words."""
        rows = {word: column(value) for word, value in values.items()}
        sizes = {len(row) for row in rows.values()}
        if len(sizes) != 1 or not rows.keys() <= self.numbers.keys():
            raise BadProgram(f"register {name} of program {self.name} wants values of one size, for known words")
        register = self.register(name, sizes.pop())
        table = zeros(len(self.words), register.size)
        for word, row in rows.items():
            table[self.numbers[word]] = row
        self.embedded[name] = table
        return register

    # Places

    def flag(self, register: AffineForm) -> AffineForm:
        """A 0/1 form as a code of one entry: +1 and −1, and 0 at the start token, which matches nothing."""
        return (2.0 * register - self.one + self.start).named(register.text)

    def match(self, *pairs: Pair, latest: bool = False, equal: bool = False) -> Matching:
        """The tokens at which every key (the second) is what the reader's query (the first) is; both are ±1 codes."""
        queries = [self._code(query) for query, _ in pairs]
        return Matching(stacked(queries), stacked([key for _, key in pairs]), latest, equal)

    def flagged(self, register: AffineForm, *pairs: Pair, latest: bool = False) -> Matching:
        """`match`, and the flag is set there."""
        return self.match(((1.0,), self.flag(register)), *pairs, latest=latest)

    def unless(self, flag: AffineForm, code: Code) -> AffineForm:
        """A code to match with, and none, which matches nothing, where the flag is 1."""
        plain, off = self._code(code), flag.map(-column(code)[:, None], (len(code), 1), flag.text)
        return (plain + off).named(f"{plain.text} unless {flag.text}")

    @staticmethod
    def _code(code: AffineForm | Code) -> AffineForm:
        if isinstance(code, AffineForm):
            return code
        text = "".join("+" if bit > 0 else "−" for bit in code)
        return constant(column(code)[:, None], (len(code), 1)).named(text)

    # Instructions

    def read(self, target: AffineForm, value: AffineForm, *, at: Where, times: float = 1.0) -> None:
        """target += times · value as it stands at a place."""
        self._append("read", target, value, where=at, times=times)

    def mul(self, target: AffineForm, left: AffineForm, right: AffineForm, times: float = 1.0) -> None:
        """target += times · left · right, entry by entry; a scalar factor serves for every entry."""
        self._append("mul", target, right, left=left, times=times)

    def gate(self, target: AffineForm, flag: AffineForm, value: AffineForm, times: float = 1.0) -> None:
        """target += times · max(flag, 0) · value: half the cost of `mul`."""
        self._append("gate", target, value, left=flag, times=times)

    def add(self, target: AffineForm, value: AffineForm, times: float = 1.0) -> None:
        """target += times · value."""
        self._append("add", target, value, times=times)

    def abs(self, target: AffineForm, flag: AffineForm, value: AffineForm) -> None:
        """target += flag · |value|."""
        self._append("abs", target, value, left=flag)

    def _append(
        self,
        kind: Kind,
        target: AffineForm,
        value: AffineForm,
        *,
        where: Where | None = None,
        left: AffineForm | None = None,
        times: float = 1.0,
    ) -> None:
        number = len(self.instructions) + 1
        value, left = _widened(value, target), None if left is None else _widened(left, target)
        one = TokenInstruction(number, kind, target, value, where, left, times)
        chosen = target.selections[target.reads[0]] if len(target.parts) == 1 and not target.has_bias else None
        if chosen is None or chosen.factors is not None:
            raise BadProgram(f"instruction {one}: the target has to be a register, or entries of one")
        for name in (*one.reads, one.written):
            if name not in self.registers:
                raise BadProgram(f"instruction {one} uses {name}, which is no register of program {self.name}")
        self.instructions.append(one)

    # What is written next

    def say(self, words: Mapping[str, Code], *, when: AffineForm, code: AffineForm | None = None) -> None:
        """Write the word whose ±1 code the form `code` holds, where `when` is 1; elsewhere `when` is 0 or less."""
        many, bits = len(words), 0 if code is None else code.entries
        table = column([bit for value in words.values() for bit in value]).reshape(many, bits)
        text = f"says {_listed(words)} where {when.text}" + ("" if code is None else f", by {code.text}")
        whole = when if code is None else stacked([when, code])
        matrix = torch.cat([torch.full((many, 1), SAID, dtype=torch.float64, device="cpu"), CODED * table], dim=1)
        offset = torch.full((many,), -SAID - CODED * bits + HALF, dtype=torch.float64, device="cpu")
        self.scores.append(Scores(tuple(words), whole, matrix, offset, text))

    def decode(self, words: Mapping[str, float], value: AffineForm, *, when: AffineForm) -> None:
        """Write the word whose number is nearest to `value`, where `when` is 1; elsewhere `value` is 0.

        The score 2·c·value − c² is largest for the nearest number c.
        """
        numbers = column(list(words.values()))
        matrix = torch.stack([2 * numbers, torch.full_like(numbers, 2 * HALF)], dim=1)
        text = f"says {_listed(words)} nearest to {value.text} where {when.text}"
        self.scores.append(Scores(tuple(words), stacked([value, when]), matrix, -numbers.square(), text))

    def __str__(self) -> str:
        count = len(self.instructions)
        lines = [f"{self.name}: {len(self.words)} words, {count} instruction{'s' if count != 1 else ''}"]
        shown = [name for name in self.registers if name != "start"]
        wide = max((len(name) for name in shown), default=0)
        for name in shown:
            size = self.registers[name].size
            role = "given" if name in self.embedded else "register"
            lines.append(f"  {name:{wide}s}  {role}" + (f"[{size}]" if size > 1 else ""))
        width = len(str(count))
        lines += [f"  {one.number:{width}d}  {one}" for one in self.instructions]
        return "\n".join([*lines, *(f"  {scores.text}" for scores in self.scores)])


# Scores, in nats: of a condition, of one entry of a code, of what is said over everything that is not.
SAID, CODED, HALF = 2.0**16, 2.0**10, 32.0


def column(values: float | Code) -> Tensor:
    """Numbers as a float64 tensor of one axis."""
    return torch.tensor(values, dtype=torch.float64, device="cpu").reshape(-1)


def stacked(forms: Sequence[AffineForm]) -> AffineForm:
    """Several columns as one."""
    if len(forms) == 1:
        return forms[0]
    entries, placed = sum(form.entries for form in forms), []
    for number, form in enumerate(forms):
        at = sum(other.entries for other in forms[:number])
        place = zeros(entries, form.entries)
        place[torch.arange(at, at + form.entries, device="cpu"), torch.arange(form.entries, device="cpu")] = 1.0
        placed.append(form.map(place, (entries, 1), ""))
    return reduce(lambda a, b: a + b, placed).named(f"({', '.join(form.text for form in forms)})")


def _widened(form: AffineForm, target: AffineForm) -> AffineForm:
    """A scalar form for every entry of the target."""
    if form.shape == target.shape:
        return form
    if form.shape != (1, 1):
        raise BadShape(f"{target.text} has shape {target.shape} but {form.text} has {form.shape}")
    ones = torch.ones(target.entries, 1, dtype=torch.float64, device="cpu")
    return form.map(ones, target.shape, form.text)


def _listed(words: Mapping[str, object]) -> str:
    names = list(words)
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} … {names[-1]}"
