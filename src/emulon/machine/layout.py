"""Which slots of the stream a register, a code and a scratch result take, and which instructions share a block."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.core.arrays import eye, zeros
from emulon.machine.instruction import AffineForm, Instruction
from emulon.machine.normalisation import up_to_power_of_two
from emulon.machine.tokens import START, Average, Lookup, Matched, Where, codes

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram

PAD, DIVIDE, ZERO, ONE, IS_START, CODE = "pad", "divide", "zero", "one", "start", "code"


class RegisterLayout:
    """Named slots: pads for LayerNorm, a zero, ones, position codes, one query per timestep map, then the registers.

    `width` is `heads` times `head_width`, GPT-2's rule; slots that nothing uses are called filler. A register is stored
    divided by `scale[name]`, a power of two no smaller than anything it ever holds: a token's entries then all have
    size 1 at most, and LayerNorm's mean cannot drown a small register in a large one.
    """

    def __init__(
        self, program: RegisterProgram, maps: Iterable[Where], peaks: Mapping[str, float], *, divides: bool
    ) -> None:
        self.program = program
        self.scale = {name: up_to_power_of_two(peak) if peak > 0 else 1.0 for name, peak in peaks.items()}
        self.maps = tuple(maps)
        self.tokens = program.tokens + 1
        sizes = {PAD: 2, **({DIVIDE: 2} if divides else {}), ZERO: 1, ONE: 1, IS_START: 1, CODE: 2}
        for where in self.maps:
            sizes[self.key(where)] = 2 if isinstance(where, Lookup) else 1
        sizes |= {name: register.size for name, register in program.registers.items()}
        self._sizes = sizes
        self.heads = 1
        self.slots = Slots(**sizes)

    @staticmethod
    def key(where: Where) -> str:
        """The slot that holds a map's query (lookups) or its key (averages)."""
        return f"ask {where.name}" if isinstance(where, Lookup) else f"mark {where.name}"

    def shape_heads(self, demands: list[list[int]], rotated: int = 0) -> None:
        """Choose heads: `demands` lists, layer by layer, how many values each map in use has to carry.

        Queries and keys leave `rotated` places free. The smallest width wins, and of equal widths the fewest heads.
        """
        least = self.slots.width
        narrowest = max(3, 2 + rotated, *(1 + rotated + w.size for w in self.maps if isinstance(w, Matched)))

        def width(heads: int) -> int:
            return max(narrowest, math.ceil(least / heads)) * heads

        def fits(heads: int) -> bool:
            size = width(heads) // heads
            return all(sum(math.ceil(values / size) for values in layer) <= heads for layer in demands)

        most = max((sum(layer) for layer in demands), default=1)
        self.heads = min((h for h in range(1, max(most, 1) + 1) if fits(h)), key=lambda h: (width(h), h))
        if (filler := width(self.heads) - least) > 0:
            self._sizes["filler"] = filler
        self.slots = Slots(**self._sizes)

    @property
    def width(self) -> int:
        return self.slots.width

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def row(self, expression: AffineForm) -> Tensor:
        """Each entry of an expression as a linear functional of the stream, (entries, width).

        LayerNorm subtracts the mean from everything: what is read is therefore always the difference from the zero
        slot.
        """
        rows = zeros(expression.entries, self.width)
        for name, part in expression.parts.items():
            rows[:, self.slots[name]] = part * self.scale[name]
        rows[:, self.slots[ONE]] += expression.bias[:, None]
        return self.centred(rows)

    def centred(self, rows: Tensor) -> Tensor:
        rows[:, self.slots[ZERO]] -= rows.sum(dim=1, keepdim=True)
        return rows

    def read(self, name: str) -> Tensor:
        """The functionals that read the stored entries of a slot group."""
        rows = zeros(self.slots.size(name), self.width)
        rows[:, self.slots[name]] = eye(len(rows)) * self.scale.get(name, 1.0)
        return self.centred(rows)

    def constant(self) -> Tensor:
        """The functional that reads 1 at every token, (1, width)."""
        return self.read(ONE) + self.read(IS_START)

    def mark(self, where: Where) -> Tensor:
        """The functional that tells a map's members, (1, width)."""
        return self.read(self.key(where))

    def write(self, name: str) -> Tensor:
        """The unit vectors (size, width) that write a slot group."""
        columns = zeros(self.slots.size(name), self.width)
        columns[:, self.slots[name]] = eye(len(columns)) / self.scale.get(name, 1.0)
        return columns

    def pads(self, pad: float) -> dict[str, Tensor]:
        """What the pad slots hold at every token."""
        return {PAD: torch.tensor([pad, -pad], dtype=torch.float64, device="cpu").expand(self.tokens, 2)}

    def positions(self, pad: float) -> Tensor:
        """The position embedding (tokens, width): pads, ones, codes, queries, constants and initial values."""
        code = codes(self.tokens)
        after = torch.ones(self.tokens, 1, dtype=torch.float64, device="cpu")
        after[START] = 0.0
        parts: dict[str, Tensor | float] = {**self.pads(pad), ONE: after, IS_START: 1.0 - after, CODE: code}
        for where in self.maps:
            if isinstance(where, Average):
                parts[self.key(where)] = where.marks(self.tokens)[:, None]
            else:
                parts[self.key(where)] = code[where.targets()]
        for name, values in self.program.constants.items():
            parts[name] = torch.cat([torch.zeros_like(values[:1]), values]) / self.scale[name]
        for name, stored in self.program.initial.items():
            parts[name] = after * stored / self.scale[name]
        return self.slots.pack(**parts)


@dataclass
class ScheduledLayer:
    """What one transformer block executes."""

    adds: list[Instruction] = field(default_factory=list)
    products: list[Instruction] = field(default_factory=list)
    divisions: list[Instruction] = field(default_factory=list)
    clips: list[Instruction] = field(default_factory=list)

    @property
    def instructions(self) -> list[Instruction]:
        every = self.adds + self.products + self.divisions + self.clips
        return sorted(every, key=lambda instruction: instruction.number)

    def admits(self, instruction: Instruction) -> bool:
        """Whether the MLP can take it: divisions do not mix with products and clips, nor do different divisors."""
        if instruction.raw.operator == "÷":
            same = all(other.raw.local is instruction.raw.local for other in self.divisions)
            return same and not self.products and not self.clips
        return instruction.raw.operator == "+" or not self.divisions

    def put(self, instruction: Instruction) -> None:
        kinds = {"+": self.adds, "⊙": self.products, "÷": self.divisions, "⊓": self.clips}
        kinds[instruction.raw.operator].append(instruction)


class Clock:
    """When each register was last written and read, in phases: layer ℓ's attention is 2ℓ, its MLP 2ℓ + 1."""

    def __init__(self) -> None:
        self.written: dict[str, int] = defaultdict(lambda: -1)
        self.read: dict[str, int] = defaultdict(lambda: -1)

    def fits(self, instruction: Instruction, layer: int) -> bool:
        """Every read comes after the write it wants; the write comes after, or with, the reads of the old value.

        Reads of a phase see the stream as it was before that phase, so a read and a write of one phase do not clash.
        """
        reads, write, erase = phases(instruction, layer)
        target = instruction.target.name
        return (
            all(self.written[name] < phase for name, phase in reads.items())
            and self.written[target] // 2 < layer
            and self.read[target] <= min(write, erase)
        )

    def note(self, reads: Mapping[str, int], target: str, write: int) -> None:
        """Registers are read at these phases, and the target is written."""
        for name, phase in reads.items():
            self.read[name] = max(self.read[name], phase)
        self.written[target] = max(self.written[target], write)


def phases(instruction: Instruction, layer: int) -> tuple[dict[str, int], int, int]:
    """When it reads each register, when it writes its target, and when it erases the target's old value."""
    attention, mlp = 2 * layer, 2 * layer + 1
    operator = instruction.raw.operator
    if operator == "+":
        return dict.fromkeys(instruction.reads, attention), attention, attention
    if operator in ("⊙", "⊓"):
        return dict.fromkeys(instruction.reads, mlp), mlp, mlp
    assert instruction.raw.local is not None
    divisor = dict.fromkeys(instruction.raw.local.reads, attention)
    return {**dict.fromkeys(instruction.raw.read.reads, mlp), **divisor}, mlp, attention


def schedule(instructions: Sequence[Instruction], *, restores: bool = False) -> list[ScheduledLayer]:
    """Every instruction into the first layer that leaves the program's meaning unchanged.

    With `restores` the attention after a division is kept free, and a division is never in the last layer: a target
    needs that attention to put its pads back.
    """
    layers: list[ScheduledLayer] = []
    clock = Clock()
    for _, each in groupby(instructions, key=lambda one: (one.group, one.number if one.group is None else 0)):
        group, place = list(each), 0
        while not all(
            clock.fits(one, place)
            and (place >= len(layers) or layers[place].admits(one))
            and not (restores and _needs_free_attention(one, place, layers))
            for one in group
        ):
            place += 1
        layers += [ScheduledLayer() for _ in range(place + 1 - len(layers))]
        for one in group:
            layers[place].put(one)
            reads, write, _ = phases(one, place)
            clock.note(reads, one.target.name, write)
    if restores and layers and layers[-1].divisions:
        layers.append(ScheduledLayer())
    return layers


def _needs_free_attention(one: Instruction, place: int, layers: Sequence[ScheduledLayer]) -> bool:
    """Whether it would use the attention after a division, or is a division before an attention in use."""
    operator = one.raw.operator
    after_division = 0 < place <= len(layers) and bool(layers[place - 1].divisions)
    used_next = place + 1 < len(layers) and bool(layers[place + 1].adds or layers[place + 1].divisions)
    return (operator in ("+", "÷") and after_division) or (operator == "÷" and used_next)
