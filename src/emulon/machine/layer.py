"""One layer of a program as weights: what attention reads in any target, and a block of GPT-2."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from emulon.attention import attend
from emulon.core.arrays import zeros
from emulon.machine.error import Division
from emulon.machine.instruction import Instruction, Raw
from emulon.machine.layout import CODE, DIVIDE, IS_START, PAD, RegisterLayout, ScheduledLayer
from emulon.machine.normalisation import EPSILON, square, steepness
from emulon.machine.ranges import range_of
from emulon.machine.tokens import Lookup, Matched, Where, sharpness

if TYPE_CHECKING:
    from emulon.machine.compiler import Plan

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
        empty = zeros(0, width)
        return torch.cat([empty, *self.read]), torch.cat([empty, *self.write])


class Heads(NamedTuple):
    """Attention as (heads, head_width, width) each, and of every head its instructions and its map."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    owners: list[list[int]]
    maps: list[str | None]


class BlockBuilder:
    """Attention and kinks of the blocks of any target.

    Scores are sharpened by `beta` and multiplied by `factor`; heads match in these `places`.
    """

    def __init__(self, plan: Plan, beta: Callable[[Where], float], places: Sequence[int], factor: float = 1.0) -> None:
        self.layout, self.divisions, self.dirty = plan.layout, plan.divisions, set(plan.dirty)
        self.beta, self.places, self.factor = beta, list(places), factor
        self.here: Where = plan.program.here

    def no_heads(self) -> Heads:
        layout = self.layout
        shape = (4, layout.heads, layout.head_width, layout.width)
        query, key, value, output = zeros(*shape)
        return Heads(query, key, value, output, [[] for _ in range(layout.heads)], [None] * layout.heads)

    def heads(self, rows: dict[Where, Wires]) -> Heads:
        """As many heads for every map as what is read by it needs."""
        heads, size, head = self.no_heads(), self.layout.head_width, 0
        for where, part in rows.items():
            read, write = part.stacked(self.layout.width)
            for start in range(0, len(read), size):
                chosen = slice(start, start + size)
                self.match(heads, head, *self._sides(where))
                heads.value[head, : len(read[chosen])] = read[chosen]
                heads.output[head, : len(read[chosen])] = write[chosen]
                heads.owners[head] = sorted(set(part.owners[chosen]) - {NOBODY})
                heads.maps[head] = where.name
                head += 1
        return heads

    def match(self, heads: Heads, head: int, ask: Tensor, code: Tensor) -> None:
        places = self.places[: len(ask)]
        heads.query[head, places], heads.key[head, places] = ask * self.factor, code

    def _sides(self, where: Where) -> tuple[Tensor, Tensor]:
        """Query and key functionals: code against code for a lookup, 1 against the mark for an average, and register
        against register beside that for a match."""
        layout, beta = self.layout, self.beta(where)
        if isinstance(where, Lookup):
            return beta * layout.read(layout.key(where)), layout.read(CODE)
        ask, mark = beta * layout.constant(), layout.mark(where)
        if isinstance(where, Matched):
            ask = torch.cat([ask, where.sharp * layout.read(where.query)])
            return ask, torch.cat([mark, layout.read(where.key)])
        return ask, mark

    def kinks(self, raw: Raw, steep: float) -> Iterator[tuple[Tensor, float]]:
        """Rows and weights of clip(z, ±c) = (|z + c| − |z − c|)/2, where |t| is (f(s·t) + f(−s·t))/s for a steep s."""
        for sign, end in ((1.0, raw.read + raw.limit), (-1.0, raw.read - raw.limit)):
            row = steep * self.layout.row(end)
            for side in (row, -row):
                yield side, sign / (2 * steep)


class MachineBlock(nn.Module):
    """One block; its weights are buffers, so no optimiser can ever see them.

    `head_owners` and `unit_owners` have the numbers of the instructions that each head and each neuron works for;
    `head_maps` the map that each head reads by, None where no instruction uses it.
    """

    attention: Tensor
    output: Tensor
    output_bias: Tensor
    inward: Tensor
    outward: Tensor
    outward_bias: Tensor
    gain: Tensor
    mlp_gain: Tensor

    def __init__(
        self,
        name: str,
        parts: Mapping[str, Tensor],
        head_owners: list[list[int]],
        head_maps: list[str | None],
        unit_owners: list[int],
    ) -> None:
        super().__init__()
        self.name, self.heads = name, len(head_owners)
        self.head_owners, self.head_maps, self.unit_owners = head_owners, head_maps, unit_owners
        for part, each in parts.items():
            self.register_buffer(part, each)

    @property
    def units(self) -> int:
        return self.inward.shape[0]

    def forward(self, stream: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... tokens width"]:
        seen = layer_norm(stream, self.gain.shape, self.gain, None, EPSILON)
        parts = (3, self.heads, -1)
        split = (seen @ self.attention.mT).unflatten(-1, parts)
        queries, keys, values = split.movedim(-3, 0).transpose(-3, -2)  # each (..., heads, tokens, head_width)
        read = attend(queries, keys, values, causal=True, name=self.name)
        stream = stream + (read.transpose(-3, -2).flatten(-2) @ self.output.mT + self.output_bias)
        seen = layer_norm(stream, self.mlp_gain.shape, self.mlp_gain, None, EPSILON)
        return stream + (gelu(seen @ self.inward.mT) @ self.outward.mT + self.outward_bias)


class LayerBuilder(BlockBuilder):
    """Turns layers into blocks of GPT-2; remembers which slots hold something that a write has to erase first."""

    def __init__(self, plan: Plan) -> None:
        self.normalisation, self.analysis, tokens = plan.normalisation, plan.analysis, plan.layout.tokens
        dtype = self.normalisation.dtype
        super().__init__(plan, lambda where: sharpness(where, tokens, dtype), range(plan.layout.head_width))
        self.square = square(dtype)

    def build(self, layer: ScheduledLayer, name: str) -> MachineBlock:
        attention = wires(self.layout, layer, self.dirty)
        mlp = Wires()
        gain = mlp_gain = self.normalisation.gain
        output_bias = zeros(self.layout.width)
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
            self._multiply(mlp, one)
        for one in layer.clips:
            self._clip(mlp, one)
        inward, outward = mlp.stacked(self.layout.width)
        heads = self.heads(attention)
        parts = {
            "attention": torch.stack(heads[:3]).flatten(0, 2),
            "output": heads.output.permute(2, 0, 1).flatten(1),
            "output_bias": output_bias,
            "inward": inward,
            "outward": outward.mT,
            "outward_bias": outward_bias,
            "gain": torch.full_like(output_bias, gain),
            "mlp_gain": torch.full_like(output_bias, mlp_gain),
        }
        stored = {part: each.to(self.normalisation.dtype).contiguous() for part, each in parts.items()}
        return MachineBlock(name, stored, heads.owners, heads.maps, mlp.owners)

    def _divisor(self, rows: Wires, instruction: Instruction, division: Division) -> None:
        """±D·c into the divide slots; the start token, whose registers are zero, divides by the domain's largest c."""
        assert instruction.raw.local is not None
        read = self.layout.row(instruction.raw.local) + division.high * self.layout.read(IS_START)
        write = zeros(1, self.layout.width)
        write[0, self.layout.slots[DIVIDE]] = torch.tensor(
            [division.factor, -division.factor], dtype=torch.float64, device="cpu"
        )
        rows.add(read, write, instruction.number)
        self.dirty.add(DIVIDE)

    def _multiply(self, mlp: Wires, instruction: Instruction) -> None:
        """Σ x·y by units g(s(x/X ± y/Y)), X and Y the largest of either factor (1 where it is always zero)."""
        layout, raw, before = self.layout, instruction.raw, self.analysis.before[instruction.number - 1]
        assert raw.local is not None
        x, y = range_of(raw.read, before).peak or 1.0, range_of(raw.local, before).peak or 1.0
        left, right = layout.row(raw.read) / x, layout.row(raw.local) / y
        write = layout.write(instruction.target.name)[list(raw.into)] * (x * y / 4)
        for scale, weight in zip(self.square.scales, self.square.weights, strict=True):
            for sign, z in ((1.0, left + right), (-1.0, left - right)):
                mlp.add(scale * z, sign * weight * write, instruction.number)
                mlp.add(-scale * z, sign * weight * write, instruction.number)
        self._replace(mlp, instruction)

    def _clip(self, mlp: Wires, instruction: Instruction) -> None:
        """By GELUs, which are off by 0.34/s."""
        write = self.layout.write(instruction.target.name)
        for side, weight in self.kinks(instruction.raw, steepness(instruction.raw.limit, self.normalisation.dtype)):
            mlp.add(side, weight * write, instruction.number)
        self._replace(mlp, instruction)

    def _replace(self, mlp: Wires, instruction: Instruction) -> None:
        """What the target held before is taken away."""
        name = instruction.target.name
        if name in self.dirty:
            _pass(mlp, self.layout.read(name), -self.layout.write(name), instruction.number)
        self.dirty.add(name)


def _pass(mlp: Wires, read: Tensor, write: Tensor, owner: int) -> None:
    """GELU(z) − GELU(−z) = z: an exact linear pair."""
    mlp.add(read, write, owner)
    mlp.add(-read, -write, owner)


def swept(dirty: set[str]) -> set[str]:
    """A swept divisor leaves a trace of rounding, which the next division sweeps again."""
    return (dirty - {DIVIDE}) | {SWEPT} if DIVIDE in dirty else dirty


def wires(
    layout: RegisterLayout, layer: ScheduledLayer, dirty: set[str], empty: Container[str] = ()
) -> dict[Where, Wires]:
    """What the attention of a layer reads, map by map; erasing an old value is reading it here and subtracting it.

    Registers that are `dirty` are erased, also those that are `empty`.
    """
    rows: dict[Where, Wires] = {}
    here = layout.program.here
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


def demands(layout: RegisterLayout, layers: list[ScheduledLayer], dirty: set[str], *, sweeps: bool) -> list[list[int]]:
    """How many values each map carries, layer by layer, before any head exists.

    Where nothing `sweeps` old divisors out, as in a Llama, the pad is taken beside a divisor, and two maps of one value
    put it back.
    """
    dirty, out = set(dirty), []
    for layer in layers:
        counts = {where: len(part) for where, part in wires(layout, layer, dirty).items()}
        if layer.divisions:
            counts[layout.program.here] += 1 if sweeps else 2
        out.append(list(counts.values()) or ([] if sweeps else [1, 1]))
        dirty = swept(dirty) | {one.target.name for one in layer.instructions}
        dirty |= {DIVIDE} if layer.divisions and sweeps else set()
    return out
