"""The ground truth of a planted model: registers and their directions, heads and neurons of every instruction, edges.

Blocks count from 0, as Hugging Face and TransformerLens count them; −1 is the embedding. Token 0 is the start token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

EMBEDDING = -1


@dataclass(frozen=True)
class RegisterTruth:
    """A register's directions: its stored entries are `stream @ read.mT`, and `amounts @ write` added to the stream
    adds these amounts to them. `read` sums to zero, so that it reads through a LayerNorm, too. They are the same at
    every layer and token; when a register holds what, its versions say."""

    name: str
    kind: str  # input, constant, register, spare (nothing reads it), system (codes, pads, ones)
    labels: tuple[str, ...]
    read: Float[Tensor, "size width"]
    write: Float[Tensor, "size width"]


@dataclass(frozen=True)
class VersionTruth:
    """What a register holds between two writes: `w#2` is what the second write left in w, `w#0` what it starts with.

    It stands in the stream from after block `layer` (its attention or MLP, `part`) until block `until` overwrites it
    (the number of blocks where nothing does), and `tokens` are those at which some prediction depends on it.
    `last_read` is the last block that reads it for the sake of a prediction, None where there is no such.
    """

    register: str
    count: int
    instruction: int | None
    layer: int
    part: str  # embedding, attention, mlp
    until: int
    last_read: int | None
    tokens: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.register}#{self.count}"

    @property
    def layers(self) -> range:
        """The blocks after which the stream holds it; −1 is what the first block sees."""
        return range(self.layer, self.until)


@dataclass(frozen=True)
class InstructionTruth:
    """One line of the program: the block that does it, with which heads and neurons, and whether ŷ depends on it."""

    number: int
    text: str
    layer: int
    heads: tuple[int, ...]
    neurons: tuple[int, ...]
    reads: tuple[str, ...]  # versions
    writes: str  # a version
    matters: bool


@dataclass(frozen=True)
class Truth:
    """The whole of it; `truth.json` has it as `to_json` does."""

    blocks: int
    heads: int
    neurons: int
    tokens: int
    output: str  # the version that is read off the last stream
    registers: dict[str, RegisterTruth]
    versions: tuple[VersionTruth, ...]
    instructions: tuple[InstructionTruth, ...]
    # Heads that serve no single instruction: they sweep a divisor out for all that follow.
    sweeping: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        return next(iter(self.registers.values())).read.shape[1]

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The causal graph between versions: what is read, and what is written with it."""
        return tuple((read, one.writes) for one in self.instructions for read in one.reads)

    @property
    def used_heads(self) -> frozenset[tuple[int, int]]:
        """(block, head) of those that a prediction depends on."""
        working = {(one.layer, head) for one in self.instructions if one.matters for head in one.heads}
        return frozenset(working | set(self.sweeping))

    @property
    def used_neurons(self) -> frozenset[tuple[int, int]]:
        return frozenset((one.layer, neuron) for one in self.instructions if one.matters for neuron in one.neurons)

    @property
    def unused_heads(self) -> frozenset[tuple[int, int]]:
        every = {(block, head) for block in range(self.blocks) for head in range(self.heads)}
        return frozenset(every - self.used_heads)

    @property
    def unused_neurons(self) -> frozenset[tuple[int, int]]:
        every = {(block, neuron) for block in range(self.blocks) for neuron in range(self.neurons)}
        return frozenset(every - self.used_neurons)

    @property
    def unused_registers(self) -> tuple[str, ...]:
        """Those that no prediction depends on, at any layer or token: spare ones, and distractors'."""
        needed = {one.register for one in self.versions if one.last_read is not None}
        return tuple(name for name, one in self.registers.items() if one.kind != "system" and name not in needed)

    def version(self, name: str) -> VersionTruth:
        return next(one for one in self.versions if one.name == name)

    def held_after(self, layer: int) -> dict[str, VersionTruth]:
        """By register, the version that the stream after this block holds."""
        return {one.register: one for one in self.versions if layer in one.layers}

    def read(self, register: str, stream: Float[Tensor, "... width"]) -> Float[Tensor, "... size"]:
        return stream @ self.registers[register].read.to(stream).mT

    # How obfuscations change it.

    def rotated(self, rotation: Float[Tensor, "width width"]) -> Truth:
        """In the basis of a stream that was multiplied by `rotation`."""
        change = {
            name: replace(one, read=one.read @ rotation.mT, write=one.write @ rotation.mT)
            for name, one in self.registers.items()
        }
        return replace(self, registers=change)

    def moved(self, block: Callable[[int], int], blocks: int) -> Truth:
        """Block ℓ is now block(ℓ), of `blocks` in all; the order is the same."""

        def place(layer: int) -> int:
            return blocks if layer == self.blocks else EMBEDDING if layer == EMBEDDING else block(layer)

        versions = tuple(
            replace(
                one,
                layer=place(one.layer),
                until=place(one.until),
                last_read=None if one.last_read is None else place(one.last_read),
            )
            for one in self.versions
        )
        instructions = tuple(replace(one, layer=place(one.layer)) for one in self.instructions)
        sweeping = tuple((place(layer), head) for layer, head in self.sweeping)
        return replace(self, blocks=blocks, versions=versions, instructions=instructions, sweeping=sweeping)

    def relabelled(self, heads: Sequence[Sequence[int]], neurons: Sequence[Sequence[int]]) -> Truth:
        """The truth with head h of block ℓ renamed to `heads[ℓ][h]`, and neurons likewise."""
        instructions = tuple(
            replace(
                one,
                heads=tuple(sorted(heads[one.layer][head] for head in one.heads)),
                neurons=tuple(sorted(neurons[one.layer][neuron] for neuron in one.neurons)),
            )
            for one in self.instructions
        )
        sweeping = tuple((layer, heads[layer][head]) for layer, head in self.sweeping)
        return replace(self, instructions=instructions, sweeping=sweeping)

    # Files.

    def to_json(self) -> dict[str, Any]:
        registers = [
            {**asdict(one), "read": one.read.tolist(), "write": one.write.tolist()} for one in self.registers.values()
        ]
        return {
            "blocks": self.blocks,
            "heads": self.heads,
            "neurons": self.neurons,
            "tokens": self.tokens,
            "output": self.output,
            "registers": registers,
            "versions": [asdict(one) for one in self.versions],
            "instructions": [asdict(one) for one in self.instructions],
            "sweeping": self.sweeping,
            "edges": self.edges,
            "unused": {
                "heads": sorted(self.unused_heads),
                "neurons": sorted(self.unused_neurons),
                "registers": self.unused_registers,
            },
        }
