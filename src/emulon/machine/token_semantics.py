"""What a token program means: every register of every token of a text in float64, and no weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emulon.core.errors import BadProgram
from emulon.machine.instruction import AffineForm
from emulon.machine.token_program import SAID, START, Back, Matching, TokenInstruction, TokenProgram, Where


class Meaning:
    """A text's registers, as the program states them: reads take their tokens alone, products are products.

    Args:
        program: A token program.
        words: The text, beginning with `<s>`.
    Raises:
        BadProgram: The text begins otherwise, or has a word that the program does not know.

    Example:
        >>> Meaning(program, ["<s>", "7", "3", "="]).next_word
        '3'
    """

    def __init__(self, program: TokenProgram, words: Sequence[str]) -> None:
        unknown = next((word for word in words if word not in program.numbers), None)
        if unknown is not None or list(words[:1]) != [START]:
            raise BadProgram(f"a text of {program.name} begins with {START} and has no word {unknown!r}")
        self.program, self.count = program, len(words)
        tokens = torch.tensor([program.numbers[word] for word in words], device="cpu")
        self.registers: dict[str, Tensor] = {}
        for name, register in program.registers.items():
            given = program.embedded.get(name)
            zeros = torch.zeros(len(words), register.size, dtype=torch.float64, device="cpu")
            self.registers[name] = zeros if given is None else given[tokens]
        for one in program.instructions:
            self._execute(one)

    def value(self, form: AffineForm) -> Tensor:
        """What a form is at every token, (tokens, entries)."""
        parts = (self.registers[name] @ part.mT for name, part in form.parts.items())
        return sum(parts, form.bias.expand(self.count, -1).clone())

    @property
    def scores(self) -> Tensor:
        """The words' scores at every token, (tokens, words)."""
        program = self.program
        total = torch.zeros(self.count, len(program.words), dtype=torch.float64, device="cpu")
        said = torch.zeros(len(program.words), dtype=torch.bool, device="cpu")
        for scores in program.scores:
            places = torch.tensor([program.numbers[word] for word in scores.words], device="cpu")
            total[:, places] += self.value(scores.form) @ scores.matrix.mT + scores.offset
            said[places] = True
        total[:, ~said] = -SAID
        return total

    @property
    def next_word(self) -> str:
        """The word that the program writes behind the text."""
        return self.program.words[int(self.scores[-1].argmax())]

    def _execute(self, one: TokenInstruction) -> None:
        value = self.value(one.value)
        if one.where is not None:
            value = one.times * (self.weights(one.where) @ value)
        else:
            left = torch.ones_like(value) if one.left is None else self.value(one.left)
            if one.kind == "abs":
                value = value.abs()
            value = one.times * (left.clamp(min=0) if one.kind == "gate" else left) * value
        (name,) = one.target.reads
        self.registers[name] = self.registers[name] + value @ one.target.parts[name]

    def weights(self, where: Where) -> Tensor:
        """How much every token (a row) reads of every other."""
        places = torch.arange(self.count, device="cpu")
        past = places[None, :] <= places[:, None]
        if isinstance(where, Back):
            return (places[None, :] == (places[:, None] - where.places).clamp(min=0)).double()
        if isinstance(where, Matching):
            # Codes of ±1 are equal where the product of their entries sums up to their number.
            found = (self.value(where.query) @ self.value(where.key).mT > where.key.entries - 0.5) & past
            if where.latest:
                last = (found * (places + 1)).amax(dim=1, keepdim=True)
                return ((places + 1 == last) & found).double()
            return found.double() / found.sum(dim=1, keepdim=True).clamp(min=1)
        among = (self.value(where.among)[:, 0] > 0.5) & past
        scores = self.value(where.query) @ self.value(where.slope).mT + self.value(where.bias).mT
        scores = scores.masked_fill(~among, -torch.inf)
        return torch.softmax(scores, dim=1).nan_to_num(nan=0.0)
