"""The ground truth of a planted model: directions of registers, heads and neurons of instructions, the causal graph.

`truth_of` derives it from a compiled program and how its parts are arranged. Blocks count from 0, as in Hugging Face
and TransformerLens; −1 is the embedding. Token 0 is the start token.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.machine.instruction import Instruction
from emulon.machine.layer import SWEEP, MachineBlock
from emulon.machine.layout import RegisterLayout
from emulon.machine.targets.llama_registers import LlamaBlock, LlamaMachine
from emulon.machine.tokens import START, Average, Matched, Where
from emulon.machine.transformer import Transformer, result_name

EMBEDDING = -1
# A program compiled for one of the architectures.
Compiled = Transformer | LlamaMachine


@dataclass(frozen=True)
class RegisterTruth:
    """A register's directions, the same at every block and token; what it holds when is in its versions.

    Attributes:
        name: Its name in the program.
        kind: input, constant, register, spare (nothing reads it) or system (codes, pads, ones).
        labels: Names of its entries.
        read: `stream @ read.mT` are its stored entries, before and after the final normalisation.
        write: `amounts @ write`, added to the stream, adds these amounts to the entries.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    read: Float[Tensor, "size width"]
    write: Float[Tensor, "size width"]


@dataclass(frozen=True)
class VersionTruth:
    """A register's content between two writes: `w#2` is written by the second write to w, `w#0` is its initial content.

    Attributes:
        register: The register.
        count: How often it has been written.
        instruction: The number of the instruction that writes it, None for initial content.
        layer: The block that writes it, −1 for the embedding.
        part: embedding, attention or mlp: what writes it.
        until: The block that overwrites it; the number of blocks if none does.
        last_read: The last block that reads it and on whose reading ŷ depends, None if there is none.
        tokens: Tokens at which ŷ depends on it.
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
        """The blocks after which the stream holds it; −1 is the first block's input."""
        return range(self.layer, self.until)


@dataclass(frozen=True)
class InstructionTruth:
    """One instruction of the program, and what executes it.

    Attributes:
        number: Its place in the program, from 1.
        text: The instruction.
        layer: The block that executes it.
        heads: The heads that take part.
        neurons: The neurons that take part.
        reads: Versions that it reads.
        writes: The version that it writes.
        matters: Whether ŷ depends on it.
    """

    number: int
    text: str
    layer: int
    heads: tuple[int, ...]
    neurons: tuple[int, ...]
    reads: tuple[str, ...]
    writes: str
    matters: bool


@dataclass(frozen=True)
class Truth:
    """The ground truth of one planted model; `truth.json` has it in the form of `to_json`.

    Attributes:
        blocks: Number of blocks.
        heads: Heads of each block.
        neurons: Neurons of each MLP.
        tokens: Tokens of a prompt, the start token included.
        output: The version that is ŷ.
        registers: Directions, by register.
        versions: Contents of registers between writes.
        instructions: The program, and what executes it.
        sweeping: (block, head) of heads that remove a divisor or restore a pad for all later instructions.
        sweeping_neurons: (block, neuron) of neurons that do so.
    """

    blocks: int
    heads: int
    neurons: int
    tokens: int
    output: str
    registers: dict[str, RegisterTruth]
    versions: tuple[VersionTruth, ...]
    instructions: tuple[InstructionTruth, ...]
    sweeping: tuple[tuple[int, int], ...]
    sweeping_neurons: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return next(iter(self.registers.values())).read.shape[1]

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The causal graph between versions: (read, written) of every instruction."""
        return tuple((read, one.writes) for one in self.instructions for read in one.reads)

    @property
    def used_heads(self) -> frozenset[tuple[int, int]]:
        """(block, head) of the heads that ŷ depends on."""
        return frozenset(self.sweeping).union(*(product([i.layer], i.heads) for i in self.instructions if i.matters))

    @property
    def used_neurons(self) -> frozenset[tuple[int, int]]:
        """(block, neuron) of the neurons that ŷ depends on."""
        working = (product([i.layer], i.neurons) for i in self.instructions if i.matters)
        return frozenset(self.sweeping_neurons).union(*working)

    @property
    def unused_heads(self) -> frozenset[tuple[int, int]]:
        """(block, head) of all other heads."""
        return frozenset(product(range(self.blocks), range(self.heads))) - self.used_heads

    @property
    def unused_neurons(self) -> frozenset[tuple[int, int]]:
        """(block, neuron) of all other neurons."""
        return frozenset(product(range(self.blocks), range(self.neurons))) - self.used_neurons

    @property
    def unused_registers(self) -> tuple[str, ...]:
        """Registers that ŷ does not depend on at any block or token: spare ones and those of distractors."""
        needed = {one.register for one in self.versions if one.last_read is not None}
        return tuple(name for name, one in self.registers.items() if one.kind != "system" and name not in needed)

    def version(self, name: str) -> VersionTruth:
        """The version of this name, as in `w#2`."""
        return next(one for one in self.versions if one.name == name)

    def read(self, register: str, stream: Float[Tensor, "... width"]) -> Float[Tensor, "... size"]:
        """The stored entries of a register, read off a stream."""
        return stream @ self.registers[register].read.to(stream).mT

    def in_stream(self, version: str, amounts: Float[Tensor, "*rows size"]) -> Float[Tensor, "*all_rows width"]:
        """What to add to the stream to add amounts to what a version holds.

        Args:
            version: As in `w#2`.
            amounts: (..., tokens, size) without the start token, or (size,) for every token.
        Returns:
            (..., all tokens, width); nothing is added at the start token.
        """
        change = amounts @ self.registers[self.version(version).register].write.to(amounts)
        rows = change.expand(self.tokens - 1, -1) if change.ndim == 1 else change
        return torch.nn.functional.pad(rows, (0, 0, 1, 0))

    def to_json(self) -> dict[str, Any]:
        """The truth as plain lists, numbers and strings, with edges and unused parts listed."""
        registers = [
            {**asdict(one), "read": one.read.tolist(), "write": one.write.tolist()} for one in self.registers.values()
        ]
        unused = {"heads": sorted(self.unused_heads), "neurons": sorted(self.unused_neurons)}
        lists = {"edges": self.edges, "unused": {**unused, "registers": self.unused_registers}}
        return {**asdict(replace(self, registers={})), "registers": registers, **lists}


# Derivation from a compiled program.

PARTS = {"+": "attention", "⊙": "mlp", "÷": "mlp", "⊓": "mlp"}


@dataclass
class Arrangement:
    """Where the parts of a compiled program are in a model."""

    blocks: int
    places: list[int]  # the index of each of the program's blocks
    heads: list[Tensor] = field(default_factory=list)  # by block, the program's indices; empty: as in the program
    units: list[Tensor] = field(default_factory=list)  # of neurons, likewise
    rotation: Float[Tensor, "width width"] | None = None

    @classmethod
    def of(cls, machine: Compiled) -> Arrangement:
        """Of a program as it was compiled."""
        return cls(machine.depth, list(range(machine.depth)))


def truth_of(machine: Compiled, arranged: Arrangement | None = None) -> Truth:
    """Derive the ground truth of a compiled program, in the arrangement of a model."""
    program, arranged = machine.program, arranged or Arrangement.of(machine)
    layers = zip(arranged.places, machine.layers, strict=True)
    layer_of = {one.number: place for place, part in layers for one in part.instructions}
    versions = _Versions(machine, layer_of, arranged.blocks)
    blocks: dict[int, MachineBlock | LlamaBlock] = dict(zip(arranged.places, machine.typed_blocks, strict=True))

    def heads(place: int, owner: int) -> list[int]:
        own = [head for head, served in enumerate(blocks[place].head_owners) if owner in served]
        return own if not arranged.heads else arranged.heads[place].argsort()[own].tolist()

    def neurons(place: int, owner: int) -> list[int]:
        own = [unit for unit, served in enumerate(blocks[place].unit_owners) if owner == served]
        return own if not arranged.units else arranged.units[place].argsort()[own].tolist()

    instructions = []
    for one in program.instructions:
        place, written = layer_of[one.number], versions.written_by[one.number]
        parts = tuple(sorted(heads(place, one.number))), tuple(sorted(neurons(place, one.number)))
        reads = tuple(versions.names[read] for read in versions.read_by[one.number])
        used, written_name = bool(versions.tokens[written]), versions.names[written]
        instructions.append(InstructionTruth(one.number, str(one), place, *parts, reads, written_name, used))
    return Truth(
        arranged.blocks,
        machine.heads,
        machine.inner,
        machine.layout.tokens,
        versions.names[versions.now[result_name(program)]],
        _registers(machine.layout, arranged.rotation),
        versions.versions(),
        tuple(instructions),
        tuple((place, head) for place in blocks for head in heads(place, SWEEP)),
        tuple((place, unit) for place in blocks for unit in neurons(place, SWEEP)),
    )


class _Versions:
    """Every version of every register: what writes and reads it, and at which tokens ŷ depends on it."""

    def __init__(self, machine: Compiled, layer_of: dict[int, int], blocks: int) -> None:
        self.machine, self.layer_of, self.blocks = machine, layer_of, blocks
        program = machine.program
        self.now = {name: (name, 0) for name in program.registers}
        self.names = {version: f"{version[0]}#{version[1]}" for version in self.now.values()}
        self.read_by: dict[int, list[tuple[str, int]]] = {}
        self.written_by: dict[int, tuple[str, int]] = {}
        for one in program.instructions:
            self.read_by[one.number] = [self.now[name] for name in one.reads]
            name, count = self.now[one.target.name]
            self.now[name] = self.written_by[one.number] = (name, count + 1)
            self.names[name, count + 1] = f"{name}#{count + 1}"
        # From the output backwards: tokens at which a result matters are passed on to what the instruction reads.
        output, asked = self.now[result_name(program)], range(1, program.tokens + 1, 1 if program.prompt is None else 2)
        self.tokens: dict[tuple[str, int], set[int]] = defaultdict(set, {output: set(asked)})
        self.last_read = {output: blocks}
        for one in reversed(program.instructions):
            if needed := self.tokens[self.written_by[one.number]]:
                self._pass_on(one, needed)

    def _pass_on(self, one: Instruction, needed: set[int]) -> None:
        there = (
            {other for token in needed for other in read_from(one.where, token)} if one.raw.operator == "+" else needed
        )
        own = one.raw.local.reads if one.raw.local is not None else ()
        for version in self.read_by[one.number]:
            if version[0] in one.raw.read.reads:
                self.tokens[version] |= there
            if isinstance(one.where, Matched) and version[0] == one.where.key:
                self.tokens[version] |= there
            if version[0] in own or (isinstance(one.where, Matched) and version[0] == one.where.query):
                self.tokens[version] |= needed
            layer = self.layer_of[one.number]
            self.last_read[version] = max(layer, self.last_read.get(version, EMBEDDING))

    def versions(self) -> tuple[VersionTruth, ...]:
        """All but the zeros before a first write: what is added to these ends up in what is written."""
        writer = {self.written_by[one.number]: one for one in self.machine.program.instructions}
        out = []
        for name, count in self.names:
            if count == 0 and name not in self.machine.program.known:
                continue
            own, after = writer.get((name, count)), writer.get((name, count + 1))
            until = self.blocks if after is None else self.layer_of[after.number]
            used = until, self.last_read.get((name, count)), tuple(sorted(self.tokens[name, count]))
            if own is None:
                out.append(VersionTruth(name, count, None, EMBEDDING, "embedding", *used))
            else:
                part = PARTS[own.raw.operator]
                out.append(VersionTruth(name, count, own.number, self.layer_of[own.number], part, *used))
        return tuple(out)


def read_from(where: Where, token: int) -> list[int]:
    """The tokens that a token reads through a map, without the start token, whose registers are zero."""
    if isinstance(where, Average):
        return [member for member in where.members if member <= token]
    read = where.table[token - 1]
    return [] if read in (None, START) else [read]


def _registers(layout: RegisterLayout, rotation: Tensor | None) -> dict[str, RegisterTruth]:
    program = layout.program
    written = {one.target.name for one in program.instructions} | set(program.known)
    out = {}
    for name in layout.slots:
        size, kind = layout.slots.size(name), "spare" if name == "filler" else "system"
        labels = (name,) if size == 1 else tuple(f"{name}[{i}]" for i in range(size))
        if name in program.registers:
            labels = program.registers[name].labels
            kind = "input" if name in program.inputs else "constant" if name in program.constants else "register"
            kind = kind if name in written else "spare"
        rows = [part if rotation is None else part @ rotation.mT for part in (layout.read(name), layout.write(name))]
        out[name] = RegisterTruth(name, kind, labels, *rows)
    return out
