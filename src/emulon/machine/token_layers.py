"""Token programs into layers: slots for the registers, key and value dimensions for the reads, units for the products.

A layer is two phases, attention then MLP; every instruction goes into the first layer in which what it reads is whole
and which it still fits. All heads share one key and one value.

What the pairs of a rotary head say: the fast ones a token's place, one how recent it is, the slow ones its content.
Pair j turns by ω_j = 10^(−5j/8) a token, theta = 1e20 with 32 pairs. Keys of the fast pairs are (1, 0) at every token,
so that the query (cos ω_j·k, −sin ω_j·k) scores Σ_j cos ω_j(distance − k): highest k tokens back. One pair further down
turns by less than a right angle over the whole context: its score falls with every token of distance. The rest turn
so little that they compare contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.core.arrays import zeros
from emulon.core.errors import BadProgram
from emulon.expressions.evaluation import ball_arithmetic
from emulon.machine.instruction import AffineForm
from emulon.machine.layout import Clock
from emulon.machine.token_program import START, Back, Matching, Table, TokenInstruction, TokenProgram, Where

f64 = torch.float64
ONE = "one"
SCALE = 8.0  # scores are divided by √head width
BIT = 64.0  # nats of one entry of a code
MASK = 2.0**46  # nats that keep what is not among a table's tokens out of it
GATE = 2.0**20  # steepness of the MLP's gates
LAYER = 1 << 22  # parameters that take as long as what every layer does besides
HEAD_WIDTH, PAIRS, THETA = 64, 32, 1e20
PLACE = 128.0  # nats of a fast pair
FARTHEST = 0.65  # radians that the recency pair turns over the context
STILL = 2.0**-13  # radians over the context below which cosines are 1 in float32, and products exact
LEAST_GAP = 40.0  # nats by which the wanted place beats every other
BITS = 128  # of the balls that cosines are computed in


@dataclass(frozen=True)
class Rotary:
    """Roles of the pairs for texts of up to `context` tokens."""

    context: int

    @staticmethod
    def frequency(pair: int) -> float:
        """ω of a pair, as a float for choices and checks; weights take it from `turned`."""
        return float(10.0 ** (-0.625 * pair))

    @cached_property
    def recency(self) -> int:
        """The first pair that turns less than a right angle, and a bit."""
        return next(pair for pair in range(PAIRS) if self.frequency(pair) * self.context <= FARTHEST)

    @property
    def slope(self) -> float:
        """Amplitude of recency in nats, a power of two: about −10 for every token of distance."""
        return float(2.0 ** round(np.log2(8 / self.frequency(self.recency))))

    @property
    def content(self) -> list[int]:
        """The pairs that are left, slowest first."""
        return list(range(PAIRS - 1, self.recency, -1))

    @property
    def still(self) -> int:
        """How many of them turn so little that a mean's weights are equal to the last bit."""
        return sum(self.frequency(pair) * self.context <= STILL for pair in self.content)


@cache
def require_gap(rotary: Rotary, places: int) -> None:
    """Refuse places back that beat every other by too few nats."""
    distance = np.arange(rotary.context + 1) - places
    distance = distance[distance != 0]
    lost = sum(1 - np.cos(rotary.frequency(pair) * distance) for pair in range(rotary.recency))
    gap = PLACE * float(np.min(lost))
    if gap < LEAST_GAP:
        where = f"{places} tokens back in a text of {rotary.context}"
        raise BadProgram(f"{where} beats other places by {gap:.3g} nats only; take a shorter context")


@cache
def turned(rotary: Rotary, places: int) -> list[tuple[float, float]]:
    """(cos ω·k, −sin ω·k) of the fast pairs: balls of 128 bits, whose middles are rounded to float64."""
    from flint import arb, fmpq

    with ball_arithmetic(BITS):
        angles: list[Any] = [places * arb(10) ** fmpq(-5 * pair, 8) for pair in range(rotary.recency)]
        return [(float(angle.cos().mid()), -float(angle.sin().mid())) for angle in angles]


class TokenLayout:
    """Where every register stands in the stream; the first slot holds the pad, which norms turn into 1."""

    def __init__(self, program: TokenProgram) -> None:
        self.program, self.rotary = program, Rotary(program.context)
        self.slots = Slots(**{ONE: 1}, **{name: one.size for name, one in program.registers.items()})
        self.width: int = next(4**power for power in range(4, 9) if 4**power >= self.slots.width)

    def row(self, form: AffineForm) -> Tensor:
        """Each entry of a form as a functional of the stream, (entries, width)."""
        rows = zeros(form.entries, self.width)
        for name, part in form.parts.items():
            rows[:, self.slots[name]] = part
        rows[:, self.slots[ONE].start] += form.bias
        return rows

    def embedding(self, pad: float) -> Tensor:
        """(words, width)."""
        table = zeros(len(self.program.words), self.width)
        table[:, self.slots[ONE]] = pad
        for name, values in self.program.embedded.items():
            table[:, self.slots[name]] = values
        return table

    def unembedding(self, never: float) -> Tensor:
        """(words, width); a word that nothing says scores `never`."""
        number, one = self.program.numbers, self.slots[ONE].start
        table = zeros(len(self.program.words), self.width)
        said = torch.zeros(len(self.program.words), dtype=torch.bool, device="cpu")
        for scores in self.program.scores:
            rows = torch.tensor([number[word] for word in scores.words], device="cpu")
            table[rows] += scores.matrix @ self.row(scores.form)
            table[rows, one] += scores.offset
            said[rows] = True
        table[~said, one] = never
        return table


@dataclass
class Rows:
    """Functionals of the stream in the dimensions of a head, each there once."""

    places: list[int]
    rows: dict[bytes, tuple[int, Tensor]] = field(default_factory=dict)

    def place(self, row: Tensor) -> int:
        """The dimension of a functional; raises IndexError where there is none left."""
        name = row.numpy().tobytes()
        if name not in self.rows:
            self.rows[name] = (self.places.pop(0), row)
        return self.rows[name][0]

    def fill(self, matrix: Tensor) -> None:
        for place, row in self.rows.values():
            matrix[place] = row


class Attention:
    """The reads of one layer as query, key, value and output; raises IndexError where they do not fit."""

    def __init__(self, layout: TokenLayout, reads: list[TokenInstruction]) -> None:
        self.layout, rotary = layout, layout.rotary
        alone = rotary.content
        equal = [one.where for one in reads if one.where is not None and _alone(one.where)]
        needed = len({row.numpy().tobytes() for where in equal for row in self._keys(where)})
        if needed > (rotary.still if any(isinstance(where, Matching) for where in equal) else len(alone)):
            raise IndexError(needed)
        self.alone = Rows(alone[:needed])
        self.shared = Rows([pair + half for pair in alone[needed:] for half in (0, PAIRS)])
        self.values = Rows(list(range(HEAD_WIDTH)))
        self.heads: dict[Where, tuple[Tensor, Tensor]] = {}
        # The slowest pairs go to the codes with the largest amplitude.
        for one in sorted(reads, key=lambda one: not getattr(one.where, "latest", False)):
            self._add(one)

    def weights(self, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Query (heads · head width, width), key and value (head width, width), output (width, heads · head width)."""
        width = self.layout.width
        query, output = zeros(heads, HEAD_WIDTH, width), zeros(heads, width, HEAD_WIDTH)
        key, value = zeros(HEAD_WIDTH, width), zeros(HEAD_WIDTH, width)
        key[: self.layout.rotary.recency + 1, self._one] = 1.0
        for rows, matrix in ((self.alone, key), (self.shared, key), (self.values, value)):
            rows.fill(matrix)
        for number, (asked, given) in enumerate(self.heads.values()):
            query[number], output[number] = asked, given
        return query.flatten(0, 1), key, value, output.permute(1, 0, 2).flatten(1)

    def pairs(self, where: Where) -> list[int]:
        """The pairs that compare a match's codes."""
        if not isinstance(where, Matching):
            return []
        rows = self.alone if where.equal else self.shared
        return [rows.place(row) % PAIRS for row in self._keys(where)]

    @property
    def _one(self) -> int:
        return int(self.layout.slots[ONE].start)

    def _keys(self, where: Where) -> Tensor:
        """The functionals that a place compares, except the sink's."""
        row, one = self.layout.row, self.layout.program.one
        if isinstance(where, Matching):
            return row(where.key)
        assert isinstance(where, Table)
        return torch.cat([row(where.slope), row(where.bias), row(where.among - one)])

    def _add(self, read: TokenInstruction) -> None:
        assert read.where is not None
        if read.where not in self.heads:
            given = zeros(self.layout.width, HEAD_WIDTH)
            self.heads[read.where] = (self._query(read.where), given)
        _, given = self.heads[read.where]
        for value, to in zip(self.layout.row(read.value), self.layout.row(read.target), strict=True):
            given[:, self.values.place(value)] += read.times * to

    def _query(self, where: Where) -> Tensor:
        layout, rotary, one = self.layout, self.layout.rotary, self._one
        asked = zeros(HEAD_WIDTH, layout.width)
        if isinstance(where, Back):
            require_gap(rotary, where.places)
            for pair, (cosine, sine) in enumerate(turned(rotary, where.places)):
                asked[pair, one], asked[pair + PAIRS, one] = PLACE * SCALE * cosine, PLACE * SCALE * sine
        elif isinstance(where, Matching):
            size = rotary.slope / 2 if where.latest else BIT
            rows = self.alone if where.equal else self.shared
            for key, query in zip(self._keys(where), layout.row(where.query), strict=True):
                asked[rows.place(key)] += size * SCALE * query
            sink = self.shared.place(layout.row(layout.program.start)[0])
            asked[sink, one] += size * SCALE * (where.key.entries - 0.5)
            if where.latest:
                asked[rotary.recency + PAIRS, one] = rotary.slope * SCALE
        else:
            slope, bias, among = self._keys(where)
            asked[self.alone.place(slope)] += SCALE * layout.row(where.query)[0]
            asked[self.alone.place(bias), one] += SCALE
            asked[self.alone.place(among), one] += SCALE * MASK
        return asked


def _alone(where: Where) -> bool:
    """Whether its keys need pairs of their own: nothing of their partners may reach a score."""
    return isinstance(where, Table) or (isinstance(where, Matching) and where.equal)


class Units:
    """The products of one layer as gate, up (units, width) and down (width, units)."""

    def __init__(self, layout: TokenLayout, instructions: list[TokenInstruction]) -> None:
        self.layout = layout
        self.gate: list[Tensor] = []
        self.up: list[Tensor] = []
        self.down: list[Tensor] = []
        one = layout.row(layout.program.one)[0]
        for each in instructions:
            value, target = layout.row(each.value), layout.row(each.target)
            left = layout.row(each.left) if each.left is not None else one.expand_as(value)
            for a, b, to in zip(left, value, target, strict=True):
                if each.kind == "abs":
                    self._unit(b, a, to)
                    self._unit(-b, a, to)
                else:
                    self._unit(a, b, each.times * to)
                    if each.kind == "mul":
                        self._unit(-a, -b, each.times * to)

    def _unit(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self.gate.append(GATE * gate)
        self.up.append(up)
        self.down.append(down / GATE)

    def weights(self, units: int) -> tuple[Tensor, Tensor, Tensor]:
        parts = []
        for rows in (self.gate, self.up, self.down):
            matrix = zeros(units, self.layout.width)
            if rows:
                matrix[: len(rows)] = torch.stack(rows)
            parts.append(matrix)
        return parts[0], parts[1], parts[2].mT


@dataclass
class TokenLayer:
    """What one block executes."""

    reads: list[TokenInstruction] = field(default_factory=list)
    products: list[TokenInstruction] = field(default_factory=list)


def scheduled(layout: TokenLayout) -> tuple[list[TokenLayer], int]:
    """The layers and how many heads each has, a power of two: what costs least, in parameters and layers."""
    best = _schedule(layout, heads=layout.width)
    most = max(len({one.where for one in layer.reads}) for layer in best)
    heads = 1 << (most - 1).bit_length()
    while heads > 1 and _cost(fewer := _schedule(layout, heads // 2), heads // 2, layout) < _cost(best, heads, layout):
        best, heads = fewer, heads // 2
    return best, heads


def _cost(layers: Sequence[TokenLayer], heads: int, layout: TokenLayout) -> int:
    """A layer's query and output, and its overhead as so many parameters."""
    return len(layers) * (2 * heads * HEAD_WIDTH * layout.width + LAYER)


def _schedule(layout: TokenLayout, heads: int) -> list[TokenLayer]:
    layers: list[TokenLayer] = []
    clock = Clock()
    for one in layout.program.instructions:
        place = 0
        while not (_admits(one, place, clock) and (place >= len(layers) or _fits(one, layers[place], layout, heads))):
            place += 1
        layers += [TokenLayer() for _ in range(place + 1 - len(layers))]
        if not _fits(one, TokenLayer(), layout, heads):
            raise BadProgram(f"instruction {one.number} ({one}) does not fit into one head of {HEAD_WIDTH}")
        (layers[place].reads if one.kind == "read" else layers[place].products).append(one)
        phase = _phase(one, place)
        clock.note(dict.fromkeys(one.reads, phase), one.written, phase)
    return layers


def _phase(one: TokenInstruction, layer: int) -> int:
    return 2 * layer + (one.kind != "read")


def _admits(one: TokenInstruction, layer: int, clock: Clock) -> bool:
    """Reads come after all earlier writes, and the write does not come before an earlier read; writes add up."""
    phase = _phase(one, layer)
    return all(clock.written[name] < phase for name in one.reads) and clock.read[one.written] <= phase


def _fits(one: TokenInstruction, layer: TokenLayer, layout: TokenLayout, heads: int) -> bool:
    if one.kind != "read":
        return True
    reads = [*layer.reads, one]
    if len({each.where for each in reads}) > heads:
        return False
    try:
        Attention(layout, reads)
    except IndexError:
        return False
    return True


def require_start(program: TokenProgram) -> None:
    """The start token is what is read where nothing is: it may hold nothing but its own flag."""
    for name, values in program.embedded.items():
        if name != "start" and values[program.numbers[START]].any():
            raise BadProgram(f"register {name} of program {program.name} is not zero at {START}")
