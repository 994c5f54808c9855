"""The truth of a compiled machine, read off its program, its schedule and its layout."""

from __future__ import annotations

from collections import defaultdict

from emulon.machine.instruction import Instruction
from emulon.machine.layer import SWEEP
from emulon.machine.layout import RegisterLayout
from emulon.machine.tokens import START, Average, Matched, Where
from emulon.machine.transformer import Transformer, result_name
from emulon.planted.truth import EMBEDDING, InstructionTruth, RegisterTruth, Truth, VersionTruth

PARTS = {"+": "attention", "⊙": "mlp", "÷": "mlp", "⊓": "mlp"}


def truth_of(machine: Transformer) -> Truth:
    """Directions, versions, instructions with their heads and neurons, and what ŷ depends on."""
    program = machine.program
    layer_of = {one.number: layer for layer, part in enumerate(machine.layers) for one in part.instructions}
    lives = _Lives(machine, layer_of)
    blocks = machine.typed_blocks
    instructions = tuple(
        InstructionTruth(
            one.number,
            str(one),
            layer_of[one.number],
            tuple(head for head, served in enumerate(blocks[layer_of[one.number]].head_owners) if one.number in served),
            tuple(unit for unit, owner in enumerate(blocks[layer_of[one.number]].unit_owners) if owner == one.number),
            tuple(lives.names[read] for read in lives.read_by[one.number]),
            lives.names[lives.written_by[one.number]],
            bool(lives.tokens[lives.written_by[one.number]]),
        )
        for one in program.instructions
    )
    sweeping = tuple(
        (layer, head)
        for layer, block in enumerate(blocks)
        for head, served in enumerate(block.head_owners)
        if SWEEP in served
    )
    output = lives.names[lives.now[result_name(program)]]
    return Truth(
        machine.depth,
        machine.heads,
        machine.inner,
        machine.layout.tokens,
        output,
        _registers(machine.layout),
        lives.versions(),
        instructions,
        sweeping,
    )


class _Lives:
    """Every version of every register: who wrote it, who reads it, and at which tokens a prediction needs it."""

    def __init__(self, machine: Transformer, layer_of: dict[int, int]) -> None:
        self.machine, self.layer_of = machine, layer_of
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
        self.tokens: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.last_read: dict[tuple[str, int], int] = {}
        self._go_back()

    def _go_back(self) -> None:
        """From the output backwards: an instruction hands the tokens that need its result on to what it reads."""
        program = self.machine.program
        asked = range(1, program.tokens + 1, 2 if program.prompt is not None else 1)
        self.tokens[self.now[result_name(program)]] |= set(asked)
        self.last_read[self.now[result_name(program)]] = self.machine.depth
        for one in reversed(program.instructions):
            needed = self.tokens[self.written_by[one.number]]
            if needed:
                self._hand_on(one, needed)

    def _hand_on(self, one: Instruction, needed: set[int]) -> None:
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
        """All but the emptiness before a first write: what is added to that goes into what is written."""
        writer = {version: number for number, version in self.written_by.items()}
        by_number = {one.number: one for one in self.machine.program.instructions}
        out = []
        for name, count in self.names:
            if count == 0 and name not in self.machine.program.known:
                continue
            number, after = writer.get((name, count)), writer.get((name, count + 1))
            out.append(
                VersionTruth(
                    name,
                    count,
                    number,
                    EMBEDDING if number is None else self.layer_of[number],
                    "embedding" if number is None else PARTS[by_number[number].raw.operator],
                    self.machine.depth if after is None else self.layer_of[after],
                    self.last_read.get((name, count)),
                    tuple(sorted(self.tokens[name, count])),
                )
            )
        return tuple(out)


def read_from(where: Where, token: int) -> list[int]:
    """The tokens that this one reads by a map; not the start token, which holds zeros."""
    if isinstance(where, Average):
        return [member for member in where.members if member <= token]
    read = where.table[token - 1]
    return [] if read in (None, START) else [read]


def _registers(layout: RegisterLayout) -> dict[str, RegisterTruth]:
    program = layout.program
    written = {one.target.name for one in program.instructions} | set(program.known)
    out = {}
    for name in layout.slots:
        register = program.registers.get(name)
        size = layout.slots.size(name)
        labels = (name,) if size == 1 else tuple(f"{name}[{i}]" for i in range(size))
        kind = "spare" if name == "filler" else "system"
        if register is not None:
            labels = register.labels
            kind = "input" if name in program.inputs else "constant" if name in program.constants else "register"
            kind = kind if name in written else "spare"
        out[name] = RegisterTruth(name, kind, labels, layout.read(name), layout.write(name))
    return out
