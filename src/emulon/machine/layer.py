"""One layer of a program as the weights of one GPT-2 block."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emulon.machine.error import Division
from emulon.machine.instruction import Instruction
from emulon.machine.layout import CODE, DIVIDE, IS_START, ONE, PAD, RegisterLayout, ScheduledLayer
from emulon.machine.normalisation import Normalisation, Square, steepness
from emulon.machine.tokens import Lookup, Matched, Where, sharpness

SWEPT = "swept divisor"
SWEEP = 0  # the owner of what takes an old divisor away: no instruction, but all that follow need it
NOBODY = -1  # of what erases slots that hold nothing yet but rounding


@dataclass
class Wires:
    """Linear functionals of the normalised stream and the directions their values are written to, row by row.

    `owners` has, for every row, the number of the instruction that it is there for.
    """

    read: list[Tensor] = field(default_factory=list)
    write: list[Tensor] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def add(self, read: Tensor, write: Tensor, owner: int) -> None:
        self.read.append(read)
        self.write.append(write)
        self.owners += [owner] * len(read)

    def __len__(self) -> int:
        return len(self.owners)

    def stacked(self, width: int) -> tuple[Tensor, Tensor]:
        empty = torch.zeros(0, width, dtype=torch.float64, device="cpu")
        return torch.cat([empty, *self.read]), torch.cat([empty, *self.write])


@dataclass
class Weights:
    """A block: heads (query, key, value: heads × head_width × width), output, MLP, biases and LayerNorm gains.

    `head_owners` and `unit_owners` have the numbers of the instructions that each head and each neuron works for;
    `head_maps` the map that each head reads by, None where no instruction uses it.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    output_bias: Tensor
    inward: Tensor
    outward: Tensor
    outward_bias: Tensor
    gain: float
    mlp_gain: float
    head_owners: list[list[int]]
    head_maps: list[str | None]
    unit_owners: list[int]


class LayerBuilder:
    """Turns layers into weights; remembers which slots hold something that a write has to erase first."""

    def __init__(
        self,
        layout: RegisterLayout,
        normalisation: Normalisation,
        divisions: dict[int, Division],
        square: Square,
        dirty: set[str],
    ) -> None:
        self.layout, self.normalisation, self.divisions, self.square = layout, normalisation, divisions, square
        self.dirty = set(dirty)
        self.here: Where = layout.program.here

    def build(self, layer: ScheduledLayer, peaks: dict[int, tuple[float, float]]) -> Weights:
        """`peaks` gives, by instruction number, the bounds X and Y of a product's factors."""
        attention = wires(self.layout, layer, self.here, self.dirty)
        mlp = Wires()
        gain = mlp_gain = self.normalisation.gain
        output_bias = torch.zeros(self.layout.width, dtype=torch.float64, device="cpu")
        outward_bias = output_bias.clone()
        self.dirty = swept(self.dirty)
        if layer.divisions:
            division = self.divisions[layer.divisions[0].number]
            self._divisor(attention[self.here], layer.divisions[0], division)
            mlp_gain = self.normalisation.divide_gain(division.factor)
            pads = torch.tensor([self.normalisation.pad, -self.normalisation.pad], dtype=torch.float64, device="cpu")
            output_bias[self.layout.slots[PAD]] = -pads
            outward_bias[self.layout.slots[PAD]] = pads
        for one in layer.adds + layer.divisions:
            self.dirty.add(one.target.name)
        for one in layer.divisions:
            _pass(mlp, self.layout.row(one.raw.read), self.layout.write(one.target.name), one.number)
        for one in layer.products:
            self._multiply(mlp, one, *peaks[one.number])
        for one in layer.clips:
            self._clip(mlp, one)
        inward, outward = mlp.stacked(self.layout.width)
        owners, maps = self._roles(attention)
        heads = self._heads(attention)
        return Weights(*heads, output_bias, inward, outward.mT, outward_bias, gain, mlp_gain, owners, maps, mlp.owners)

    def _divisor(self, rows: Wires, instruction: Instruction, division: Division) -> None:
        """±D·c into the divide slots; the start token, whose registers are zero, divides by the domain's largest c."""
        assert instruction.raw.local is not None
        read = self.layout.row(instruction.raw.local) + division.high * self.layout.read(IS_START)
        write = torch.zeros(1, self.layout.width, dtype=torch.float64, device="cpu")
        write[0, self.layout.slots[DIVIDE]] = torch.tensor(
            [division.factor, -division.factor], dtype=torch.float64, device="cpu"
        )
        rows.add(read, write, instruction.number)
        self.dirty.add(DIVIDE)

    def _multiply(self, mlp: Wires, instruction: Instruction, x: float, y: float) -> None:
        """Σ x·y by units g(s(x/X ± y/Y))."""
        layout, raw = self.layout, instruction.raw
        assert raw.local is not None
        left, right = layout.row(raw.read) / x, layout.row(raw.local) / y
        write = layout.write(instruction.target.name)[list(raw.into)] * (x * y / 4)
        for scale, weight in zip(self.square.scales, self.square.weights, strict=True):
            for sign, z in ((1.0, left + right), (-1.0, left - right)):
                mlp.add(scale * z, sign * weight * write, instruction.number)
                mlp.add(-scale * z, sign * weight * write, instruction.number)
        self._replace(mlp, instruction)

    def _clip(self, mlp: Wires, instruction: Instruction) -> None:
        """clip(z, ±c) = (|z + c| − |z − c|)/2, and |t| is (GELU(s·t) + GELU(−s·t))/s but for 0.34/s."""
        raw, write = instruction.raw, self.layout.write(instruction.target.name)
        steep = steepness(raw.limit, self.normalisation.dtype)
        for sign, end in ((1.0, raw.read + raw.limit), (-1.0, raw.read - raw.limit)):
            row = steep * self.layout.row(end)
            for side in (row, -row):
                mlp.add(side, sign / (2 * steep) * write, instruction.number)
        self._replace(mlp, instruction)

    def _replace(self, mlp: Wires, instruction: Instruction) -> None:
        """What the target held before is taken away."""
        name = instruction.target.name
        if name in self.dirty:
            _pass(mlp, self.layout.read(name), -self.layout.write(name), instruction.number)
        self.dirty.add(name)

    def _roles(self, attention: dict[Where, Wires]) -> tuple[list[list[int]], list[str | None]]:
        """Whom every head works for, and the map that it reads by."""
        owners: list[list[int]] = []
        maps: list[str | None] = []
        for where, rows in attention.items():
            for start in range(0, len(rows), self.layout.head_width):
                owners.append(sorted(set(rows.owners[start : start + self.layout.head_width])))
                maps.append(where.name)
        idle = self.layout.heads - len(maps)
        return owners + [[] for _ in range(idle)], maps + [None] * idle

    def _heads(self, attention: dict[Where, Wires]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        layout, size = self.layout, self.layout.head_width
        query = torch.zeros(layout.heads, size, layout.width, dtype=torch.float64, device="cpu")
        key, value = query.clone(), query.clone()
        output = torch.zeros(layout.heads, layout.width, size, dtype=torch.float64, device="cpu")
        head = 0
        for where, rows in attention.items():
            read, write = rows.stacked(layout.width)
            for start in range(0, len(read), size):
                part, to = read[start : start + size], write[start : start + size]
                ask, code = self._match(where)
                query[head, : len(ask)], key[head, : len(code)] = ask, code
                value[head, : len(part)] = part
                output[head, :, : len(part)] = to.mT
                head += 1
        return query, key, value, output.permute(1, 0, 2).reshape(layout.width, -1)

    def _match(self, where: Where) -> tuple[Tensor, Tensor]:
        """Query and key functionals: code against code for a lookup, 1 against the mark for an average, and register
        against register beside that for a match."""
        layout = self.layout
        beta = sharpness(where, layout.tokens, self.normalisation.dtype)
        if isinstance(where, Lookup):
            return beta * layout.read(layout.key(where)), layout.read(CODE)
        if isinstance(where, Matched):
            seen = beta * (layout.read(ONE) + layout.read(IS_START))
            ask = torch.cat([seen, where.sharp * layout.read(where.query)])
            return ask, torch.cat([layout.read(layout.key(where)), layout.read(where.key)])
        return beta * (layout.read(ONE) + layout.read(IS_START)), layout.read(layout.key(where))


def _pass(mlp: Wires, read: Tensor, write: Tensor, owner: int) -> None:
    """GELU(z) − GELU(−z) = z: an exact linear pair."""
    mlp.add(read, write, owner)
    mlp.add(-read, -write, owner)


def swept(dirty: set[str]) -> set[str]:
    """A swept divisor leaves a trace of rounding, which the next division sweeps again."""
    return (dirty - {DIVIDE}) | {SWEPT} if DIVIDE in dirty else dirty


def wires(
    layout: RegisterLayout, layer: ScheduledLayer, here: Where, dirty: set[str], empty: Container[str] = ()
) -> dict[Where, Wires]:
    """What the attention of a layer reads, map by map; erasing an old value is reading it here and subtracting it.

    Registers that are `dirty` are erased, also those that are `empty`.
    """
    rows: dict[Where, Wires] = {}
    for one in layer.adds:
        write, read = layout.write(one.target.name), one.raw.read if one.increment is None else one.increment
        rows.setdefault(one.where, Wires()).add(layout.row(read), write, one.number)
        if one.raw.local is not None:
            rows.setdefault(here, Wires()).add(layout.row(one.raw.local), write, one.number)
    for one in layer.adds + layer.divisions:
        if one.target.name in dirty and one.increment is None:
            erased = layout.read(one.target.name), -layout.write(one.target.name)
            rows.setdefault(here, Wires()).add(*erased, NOBODY if one.target.name in empty else one.number)
    if DIVIDE in dirty or (layer.divisions and SWEPT in dirty):
        rows.setdefault(here, Wires()).add(layout.read(DIVIDE), -layout.write(DIVIDE), SWEEP)
    if layer.divisions:
        rows.setdefault(here, Wires())
    return rows


def demands(layout: RegisterLayout, layers: list[ScheduledLayer], here: Where, dirty: set[str]) -> list[list[int]]:
    """How many values each map carries, layer by layer, before any head exists."""
    dirty, out = set(dirty), []
    for layer in layers:
        rows = wires(layout, layer, here, dirty)
        if layer.divisions:
            divisor = torch.zeros(1, layout.width, dtype=torch.float64, device="cpu")
            rows[here].add(divisor, divisor, SWEEP)
        out.append([len(part) for part in rows.values()])
        dirty = swept(dirty) | {one.target.name for one in layer.instructions}
        dirty |= {DIVIDE} if layer.divisions else set()
    return out
