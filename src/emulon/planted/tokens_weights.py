"""The weights of a planted model of words: collecting numbers, and keeping number words from all others.

Scores of the collecting block. Pair j of a head turns by ω_j a word, and a query turned by ω_j·k scores
A·Σ_j cos ω_j(δ − k) against a number δ words back: highest at δ = k. Angles are off by ε_j = ω_j·context·2⁻²¹, so that
cosines are off by ε²/2 at δ = k and by |sin|ε + ε²/2 elsewhere; products and sums by γ₈ of A times the pairs' number.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify.rounding import gamma
from emulon.core.errors import BadProgram
from emulon.machine.targets.llama_error import PAD_SIZE
from emulon.machine.targets.llama_registers import THETA, LlamaMachine
from emulon.planted.architecture import NORMS, WORD, Block
from emulon.planted.obfuscation import Draft

# Entries of the slots `word`: a number's pad and its value, +1 at y_i and −1 at x_i, 1 at the start.
PAD, VALUE, ROLE, FIRST = range(4)
# Differences of scores: between number words and others in every block, and least in the collecting one.
ISOLATED, LEAST, STEEPEST = 2.0**30, 128.0, 2.0**24


class WordWeights:
    """A draft's weights and what surrounds them; rows are functionals of the normalised stream."""

    def __init__(self, draft: Draft, context: int) -> None:
        assert isinstance(draft.machine, LlamaMachine)
        self.draft, self.layout, self.context = draft, draft.machine.layout, context
        self.word = self.layout.read(WORD)
        self.size, self.width = self.layout.head_width, self.layout.width
        self.features = draft.truth.registers["x"].write.shape[0]
        self.heads = max(draft.truth.heads, self.features + 1)
        self.gain = self._with_pad(draft.weights.gain)

    def blocks(self) -> list[Block]:
        """The collecting block, then the program's, where number words see one another only."""
        return [self._collecting(), *(self._apart(block) for block in self.draft.weights.blocks)]

    def embedding(self, special: int, values: Tensor) -> Tensor:
        """Rows for so many special words, for the markers, and for numbers of these values."""
        markers = self.draft.weights.positions.clone()
        slots = self.layout.slots[WORD]
        markers[1::2, slots.start + ROLE] = 1.0
        markers[2::2, slots.start + ROLE] = -1.0
        markers[0, slots.start + FIRST] = 1.0
        numbers = torch.zeros(special + len(values), self.width, dtype=torch.float64, device="cpu")
        numbers[:, slots.start + PAD] = PAD_SIZE
        numbers[special:, slots.start + VALUE] = values
        return torch.cat([numbers[:special], markers, numbers[special:]])

    def unembedding(self, words: int, counts: Tensor, step: float, never: float) -> Tensor:
        """2kz − k² for the number k·step, z = ŷ/step; behind a number the first word, which ends the text."""
        truth, one = self.draft.truth, self.layout.constant()
        answer = truth.registers[truth.version(truth.output).register].read
        rows = -never * one.expand(words, -1).clone()
        rows[words - len(counts) :] = 2 * counts[:, None] * (answer / step) - counts.square()[:, None] * one
        rows[0] += never * self.word[PAD]
        return rows

    def _with_pad(self, gain: Tensor) -> Tensor:
        """The gain with which the pads of number words read as 1."""
        gain = gain.clone()
        gain[self.layout.slots[WORD].start + PAD] = 1 / math.sqrt(self.width)
        return gain

    def _apart(self, block: Block) -> Block:
        """More heads, and in each one place of RoPE's slowest pair in which number words know one another."""
        parts = {name: self._more_heads(getattr(block, name)) for name in ("query", "key", "value", "output")}
        place = self.size - 1
        parts["query"][:, place] = ISOLATED * math.sqrt(self.size) * (self.word[PAD] - self.layout.constant())
        parts["key"][:, place] = self.word[PAD]
        fixed = {name: self._with_pad(part) if name == NORMS[2] else part for name, part in block.fixed.items()}
        return Block(**parts, inward=block.inward, outward=block.outward, fixed=fixed)

    def _more_heads(self, part: Tensor) -> Tensor:
        return torch.cat([part, part.new_zeros(self.heads - len(part), *part.shape[1:])])

    def _collecting(self) -> Block:
        """One head for each feature, which reads at y_i so many words back, and one for y, which reads at x_i one back.

        Where a head has nothing to read, it reads the start, whose value is zero.
        """
        empty = self.draft.weights.dead_block()
        one, root = self.layout.constant(), math.sqrt(self.size)
        names = ("query", "key", "value", "output")
        parts = {name: self._more_heads(torch.zeros_like(getattr(empty, name))) for name in names}
        registers, pairs = self.draft.truth.registers, self._pairs()
        reads = [(self.features - j, row, 1.0) for j, row in enumerate(registers["x"].write)]
        reads.append((1, registers["y"].write[0], -1.0))
        for head, (back, row, role) in enumerate(reads):
            size = self._steepness(back)
            for pair in pairs:
                angle = self._frequency(pair) * back
                parts["query"][head, pair] = size * root * math.cos(angle) * one
                parts["query"][head, pair + self.size // 2] = -size * root * math.sin(angle) * one
                parts["key"][head, pair] = self.word[PAD]
            sink = 4 * size * len(pairs) * root
            parts["query"][head, self.size - 1] = sink * (self.word[PAD] + one - role * self.word[ROLE])
            parts["key"][head, self.size - 1] = self.word[FIRST]
            parts["value"][head, 0], parts["output"][head, 0] = self.word[VALUE], row
        fixed = {name: self.gain.clone() for name in empty.fixed}
        return Block(**parts, inward=empty.inward, outward=empty.outward, fixed=fixed)

    def _pairs(self) -> list[int]:
        """All but the slowest, which says where a head has nothing to read."""
        return list(range(self.size // 2 - 1))

    def _frequency(self, pair: int) -> float:
        return float(THETA ** (-2 * pair / self.size))

    def _steepness(self, back: int) -> float:
        """A, the least power of two with which a number so many words back beats all others by LEAST."""
        distance = torch.arange(self.context, dtype=torch.float64, device="cpu")
        distance = distance[distance != back]
        lost = torch.zeros_like(distance)
        for pair in self._pairs():
            omega = self._frequency(pair)
            angle, off = omega * (distance - back), omega * self.context * 2.0**-21
            lost += 1 - angle.cos() - angle.sin().abs() * off - off**2
        least = float(lost.min()) - 2 * len(self._pairs()) * gamma(8, torch.float32)
        if least * STEEPEST < LEAST:
            raise BadProgram(f"{back} words back in a text of {self.context} is too near others; use fewer samples")
        return 2.0 ** math.ceil(math.log2(LEAST / least))
