"""A register program as a stock `LlamaForCausalLM` in float32, called with `inputs_embeds`.

RMSNorm is the identity (`ExactNorm`); RoPE is made negligible by matching on slow pairs only; a product is two gated
units. A division takes the pad away, so that RMSNorm divides by what stands in the divide slot; the next attention puts
the pad back, which the start token keeps in a slot of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Slots
from emulon.certify import Certificate
from emulon.core.arrays import zeros
from emulon.core.errors import BadProgram
from emulon.machine.compiler import content, peaks, prepared
from emulon.machine.error import Division
from emulon.machine.instruction import Instruction
from emulon.machine.layer import NOBODY, SWEEP, BlockBuilder, Heads, Wires, demands, wires
from emulon.machine.layout import DIVIDE, PAD, RegisterLayout, ScheduledLayer
from emulon.machine.program import RegisterProgram
from emulon.machine.targets.llama_error import GATE, PAD_SIZE, LlamaPlan, exact_norm, sharpness, steepness
from emulon.machine.tokens import START, Matched, Where
from emulon.machine.transformer import CompiledProgram

# The largest entry of a register in the stream.
FULL = 1.5
# The pad of the start token, in programs that divide: it is never taken away.
BANK = "bank"
# RoPE turns the first pair of a head by one radian a token, the last by 1e-30^(1 − 2/size).
THETA = 1e30
# Pairs that turn by less than this over the whole prompt leave float32 scores as they are.
STILL = 2.0**-14
HEAD_WIDTHS, WIDTHS = (64, 16), (64, 256, 1024, 4096)


class LlamaLayout(RegisterLayout):
    """Slots in a stream of width 4^k: a pad that also reads as 1, codes, marks, registers, filler.

    No slot is subtracted from what is read: RMSNorm has no mean.
    """

    def __init__(
        self, program: RegisterProgram, layers: list[ScheduledLayer], peaks: Mapping[str, float], dirty: set[str]
    ) -> None:
        maps = dict.fromkeys([program.here, *(one.where for layer in layers for one in layer.adds)])
        # Entries up to FULL: the coarser a register's scale, the more a rotated stream's rounding costs it.
        super().__init__(program, maps, {name: peak / FULL for name, peak in peaks.items()}, divides=False)
        self.divides = any(layer.divisions for layer in layers)
        extra = {DIVIDE: 1, BANK: 1} if self.divides else {}
        sizes = {name: size for name, size in self._sizes.items() if name not in (PAD, "zero")}
        self._sizes = {PAD: 1, **extra, **sizes}
        self.slots = Slots(**self._sizes)
        self.shape(demands(self, layers, dirty, sweeps=False))

    def shape(self, demands: list[list[int]]) -> None:
        """Choose width and heads: the narrowest stream, then the widest heads, that hold everything."""
        least = self.slots.width
        match = max([2, *(1 + where.size for where in self.maps if isinstance(where, Matched))])
        for width in WIDTHS:
            for size in HEAD_WIDTHS:
                heads = width // size
                fits = all(sum(math.ceil(count / size) for count in layer) <= heads for layer in demands)
                if width >= least and fits and len(still_places(size, self.tokens)) >= match:
                    self.heads, self._size = heads, size
                    if width > least:
                        self._sizes["filler"] = width - least
                    self.slots = Slots(**self._sizes)
                    return
        raise BadProgram(f"program {self.program.name} needs a stream of more than {WIDTHS[-1]} slots")

    @property
    def head_width(self) -> int:
        """Entries of a head."""
        return self._size

    def centred(self, rows: Tensor) -> Tensor:
        """Rows as they are."""
        return rows

    def constant(self) -> Float[Tensor, "1 width"]:
        """The functional that reads 1 at every token: the pad, behind its gain."""
        row = zeros(1, self.width)
        row[0, self.slots[PAD]] = 1.0
        if self.divides:
            row[0, self.slots[BANK]] = 1.0
        return row

    def mark(self, where: Where) -> Tensor:
        """Less 1, so that members of a mean have scores of exactly zero."""
        return self.read(self.key(where)) - self.constant()

    def pads(self, pad: float) -> dict[str, Tensor]:
        """P at every token; at the start token of a program that divides it is in the bank."""
        column = torch.full((self.tokens, 1), pad, dtype=torch.float64, device="cpu")
        if not self.divides:
            return {PAD: column}
        bank = torch.zeros_like(column)
        bank[START] = pad
        return {PAD: column - bank, BANK: bank}


@dataclass
class LlamaBlock:
    """One decoder layer: heads × head width × width for the attention, units × width for the MLP.

    `head_owners` and `unit_owners` have the numbers of the instructions that each head and each unit works for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    gate: Tensor
    up: Tensor
    outward: Tensor
    attention_gain: Tensor
    mlp_gain: Tensor
    head_owners: list[list[int]]
    unit_owners: list[int]

    @property
    def units(self) -> int:
        """Units in use."""
        return len(self.unit_owners)


@dataclass(frozen=True, eq=False)
class LlamaMachine(CompiledProgram):
    """A program compiled for a stock `LlamaForCausalLM`: its plan, and the weights of its layers in float64."""

    plan: LlamaPlan
    typed_blocks: list[LlamaBlock]

    @cached_property
    def certificates(self) -> dict[str, Certificate]:
        return self.plan.certificates()

    @cached_property
    def positions(self) -> Float[Tensor, "tokens width"]:
        """What `inputs_embeds` holds beside the inputs, in float64."""
        return self.layout.positions(PAD_SIZE)

    @property
    def gain(self) -> Float[Tensor, " width"]:
        """Of a normalisation that is the identity, and reads the pad as 1."""
        return gains(self.layout, PAD_SIZE, (PAD, BANK))


def gains(layout: RegisterLayout, factor: float, ones: tuple[str, ...]) -> Float[Tensor, " width"]:
    """factor/√width for every slot but the named ones, which read as 1 while they hold the norm."""
    root = math.sqrt(layout.width)
    gain = torch.full((layout.width,), factor / root, dtype=torch.float64, device="cpu")
    for name in (PAD, BANK, DIVIDE):
        if name in ones and name in layout.slots:
            gain[layout.slots[name]] = 1 / root
    return gain


class Builder(BlockBuilder):
    """Turns layers into weights; keeps track of the registers that hold nothing yet."""

    layout: LlamaLayout

    def __init__(self, plan: LlamaPlan) -> None:
        # Into places that RoPE leaves still; Llama divides scores by √head width.
        program, size, tokens = plan.program, plan.layout.head_width, plan.layout.tokens
        super().__init__(plan, lambda where: sharpness(where, tokens), still_places(size, tokens), math.sqrt(size))
        filled = {name for name, values in program.initial.items() if values.any()}
        self.empty = self.dirty - set(program.inputs) - filled

    def build(self, layer: ScheduledLayer, after: ScheduledLayer | None) -> LlamaBlock:
        """One layer; `after` is the one before it, after whose division the pad is put back."""
        layout, restores = self.layout, after is not None and bool(after.divisions)
        rows = wires(layout, layer, self.dirty, self.empty)
        gain = mlp_gain = gains(layout, PAD_SIZE, (PAD, BANK))
        gate, up = Wires(), Wires()
        if layer.divisions:
            division = self.divisions[layer.divisions[0].number]
            self._divisor(rows[self.here], layer.divisions[0], division)
            mlp_gain = gains(layout, division.factor, (DIVIDE,))
        self.empty -= {one.target.name for one in layer.adds + layer.divisions}
        for one in layer.divisions:
            self._linear(gate, up, layout.row(one.raw.read), layout.write(one.target.name), one.number, DIVIDE)
        for one in layer.products:
            self._multiply(gate, up, one)
        for one in layer.clips:
            self._clip(gate, up, one)
        if restores:
            self._linear(gate, up, layout.read(DIVIDE), -layout.write(DIVIDE), SWEEP)
            gain = gains(layout, 0.0, (DIVIDE, BANK))
        heads = self._restoring() if restores else self.heads(rows)
        return LlamaBlock(
            *heads[:4],
            gate.stacked(layout.width)[0],
            *up.stacked(layout.width),
            gain,
            mlp_gain,
            heads.owners,
            up.owners,
        )

    def _divisor(self, rows: Wires, instruction: Instruction, division: Division) -> None:
        """D·c into the divide slot and −P into the pad, which reads as 1, at every token but the start."""
        assert instruction.raw.local is not None
        layout = self.layout
        rows.add(layout.row(instruction.raw.local), division.factor * layout.write(DIVIDE), instruction.number)
        rows.add(layout.read(PAD), -PAD_SIZE * layout.write(PAD), instruction.number)

    def _linear(
        self, gate: Wires, up: Wires, read: Tensor, write: Tensor, owner: int, constant: str | None = None
    ) -> None:
        """silu(GATE)·read/GATE = read: the gate reads a constant 1, of the pad or of the slot that stands in for it."""
        one = self.layout.constant() if constant is None else self.layout.read(constant)
        gate.add((GATE * one).expand(len(read), -1), write, owner)
        up.add(read, write / GATE, owner)

    def _multiply(self, gate: Wires, up: Wires, instruction: Instruction) -> None:
        """Σ x·y by units silu(±GATE·x)·(±y)/GATE."""
        layout, raw = self.layout, instruction.raw
        assert raw.local is not None
        left, right = layout.row(raw.read), layout.row(raw.local)
        write = layout.write(instruction.target.name)[list(raw.into)]
        for sign in (1.0, -1.0):
            gate.add(sign * GATE * left, write, instruction.number)
            up.add(right, sign * write / GATE, instruction.number)
        self._replace(gate, up, instruction)

    def _clip(self, gate: Wires, up: Wires, instruction: Instruction) -> None:
        raw, write = instruction.raw, self.layout.write(instruction.target.name)
        one = self.layout.constant().expand(len(write), -1)
        for side, weight in self.kinks(raw, steepness(raw.limit, torch.float32)):
            gate.add(side, write, instruction.number)
            up.add(one, weight * write, instruction.number)
        self._replace(gate, up, instruction)

    def _replace(self, gate: Wires, up: Wires, instruction: Instruction) -> None:
        """What the target held before is taken away."""
        name = instruction.target.name
        owner = NOBODY if name in self.empty else instruction.number
        self._linear(gate, up, self.layout.read(name), -self.layout.write(name), owner)
        self.empty.discard(name)

    def _restoring(self) -> Heads:
        """One head reads the bank of the start token everywhere, the other one takes it away there.

        At the start token both see it alone; elsewhere the second head's score of it is far below the others'.
        """
        heads, layout = self.no_heads(), self.layout
        for head, sign in enumerate((1.0, -1.0)):
            self.match(heads, head, 4 * sharpness(self.here, 2) * layout.read(DIVIDE), sign * layout.read(BANK))
            heads.value[head, :1], heads.output[head, :1] = layout.read(BANK), sign * PAD_SIZE * layout.write(PAD)
            heads.owners[head] = [SWEEP]
        return heads


def still_places(size: int, tokens: int) -> list[int]:
    """First places of the rotary pairs of a head that turn by less than STILL over the prompt."""
    return [j for j in range(size // 2) if THETA ** (-2 * j / size) * tokens <= STILL]


def plan_llama(program: RegisterProgram) -> LlamaPlan:
    """Validate, analyse, schedule, lay out, choose divisors: what certificates and weights follow from.

    In float32, in which stock Llama normalises whatever the dtype of its weights.
    """
    dtype = torch.float32
    analysis, layers, spans = prepared(program, dtype, restores=True)
    layout = LlamaLayout(program, layers, peaks(program, analysis), set(program.registers))
    norm, factors = exact_norm(layout.width, content(program, layout, analysis)[0], list(spans.values()), dtype)
    chosen = {number: Division(factor, *spans[number], 0) for number, factor in zip(spans, factors, strict=True)}
    return LlamaPlan(program, analysis, layers, layout, norm, chosen)


def compile_registers(program: RegisterProgram) -> LlamaMachine:
    """Compile a register program into the weights of a stock Llama, with a certificate of every register."""
    plan = plan_llama(program)
    builder, before = Builder(plan), [None, *plan.layers[:-1]]
    return LlamaMachine(plan, [builder.build(layer, after) for layer, after in zip(plan.layers, before, strict=True)])


def config_of(state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
    """What of a `LlamaConfig` decides the function that these parameters compute."""
    tokens, width = state["embed_tokens.weight"].shape
    return {
        "model_type": "llama",
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": state["layers.0.mlp.up_proj.weight"].shape[0],
        "num_hidden_layers": sum(name.endswith("mlp.up_proj.weight") for name in state),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": state["layers.0.self_attn.q_proj.weight"].shape[0] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": tokens,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }
