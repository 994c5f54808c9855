"""Instructions into layers: those that do not conflict share one (C.5).

A layer is two phases, attention then MLP. `+` runs in the attention, `⊙` and `⊓` in the MLP, `÷` in both: the attention
sets up the divisor, LayerNorm divides everything the MLP then sees, so nothing else but a division by the same may
share that MLP. What it leaves in the divide slots the next layer's attention sweeps out, if there is one; LayerNorm's
bypass stands it until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emulon.machine.instruction import Instruction


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
        reads, write, erase = _phases(instruction, layer)
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


def _phases(instruction: Instruction, layer: int) -> tuple[dict[str, int], int, int]:
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
    for group in _grouped(instructions):
        place = 0
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
            reads, write, _ = _phases(one, place)
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


def _grouped(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    groups: list[list[Instruction]] = []
    for instruction in instructions:
        if instruction.group is not None and groups and groups[-1][-1].group == instruction.group:
            groups[-1].append(instruction)
        else:
            groups.append([instruction])
    return groups
