"""The frozen decoder: GPT-2's block (LayerNorm, causal softmax attention, LayerNorm, GELU MLP, residuals)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from emulon.certify import Certificate
from emulon.certify.certificate import SealedModule
from emulon.certify.domain import require_shape
from emulon.core.arrays import accepts_arraylike, own_copy
from emulon.core.errors import BadShape, OutOfDomain
from emulon.machine.compiler import Plan, planned
from emulon.machine.evaluate import distance
from emulon.machine.instruction import Instruction
from emulon.machine.layer import LayerBuilder, MachineBlock
from emulon.machine.layout import ZERO, RegisterLayout, ScheduledLayer
from emulon.machine.normalisation import EPSILON
from emulon.machine.program import RegisterProgram


class CompiledProgram:
    """What the plan and the blocks of a compiled program say of it, whatever the target."""

    plan: Plan
    typed_blocks: Sequence[Any]  # MachineBlock, or a target's own

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and activations."""
        return self.plan.normalisation.dtype

    @property
    def program(self) -> RegisterProgram:
        return self.plan.program

    @property
    def layout(self) -> RegisterLayout:
        """Where registers stand in the stream."""
        return self.plan.layout

    @property
    def layers(self) -> list[ScheduledLayer]:
        """The instructions that each block executes."""
        return self.plan.layers

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def width(self) -> int:
        return self.layout.width

    @property
    def heads(self) -> int:
        return self.layout.heads

    @property
    def inner(self) -> int:
        """The MLP's width in every block of an export: that of the widest layer."""
        return max([1, *(len(block.unit_owners) for block in self.typed_blocks)])

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Bounds on the errors of every register that is written, for every input of the domain."""
        raise NotImplementedError

    @property
    def certificate(self) -> Certificate:
        """Bound on the error of the result."""
        return self.certificates[result_name(self.program)]


def result_name(program: RegisterProgram) -> str:
    """The output register, or what the last instruction wrote where the program names none."""
    return program.output.name if program.output else program.instructions[-1].target.name


@dataclass(frozen=True, eq=False)
class MachineRun:
    """A program that has run: `run["w"]` is a register's final content, (..., tokens, entries).

    What the program's invariants say was checked as it ran.
    """

    transformer: Transformer
    registers: dict[str, Tensor]
    inputs: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.registers[name]

    @property
    def result(self) -> Tensor:
        """The register that the program returns, or that its last instruction wrote."""
        return self.registers[result_name(self.transformer.program)]

    @property
    def certificate(self) -> Certificate:
        """About `result`, for every input of the domain."""
        return self.transformer.certificate

    @cached_property
    def audit(self) -> Certificate:
        """About `result`, for this run only: the program's instructions, carried out in balls, beside it."""
        program = self.transformer.program
        away = distance(program, self.inputs, result_name(program), self.result.double())
        error = away.nan_to_num(nan=math.inf).max().item()
        return Certificate({"distance to the instructions": error}, self.transformer.dtype, scope="run")


class Transformer(CompiledProgram, SealedModule):
    """A compiled program. `predict(xs, ys)` for programs over examples, `run(**inputs)` for any.

    Args:
        plan: What was compiled, and its ranges, layers, slots and pads.
        blocks: The blocks' weights.
    """

    typed_blocks: list[MachineBlock]
    positions: Tensor
    final_gain: Tensor

    def __init__(self, plan: Plan, blocks: list[MachineBlock]) -> None:
        super().__init__()
        self.plan, self._certificates = plan, plan.certificates()
        self.blocks, self.typed_blocks = nn.ModuleList(blocks), blocks
        self.register_buffer("positions", plan.layout.positions(plan.normalisation.pad).to(self.dtype))
        self.register_buffer("final_gain", blocks[0].gain.clone())

    @property
    def certificates(self) -> dict[str, Certificate]:
        self.require_unchanged()
        return self._certificates

    def __repr__(self) -> str:
        bound, parameters = self.certificate.bound, sum(buffer.numel() for buffer in self.buffers())
        promise = f"error {self.certificate}" if math.isfinite(bound) else "no error bound on so wide a domain"
        return (
            f"Transformer({self.program.name}: depth {self.depth}, width {self.width}, heads {self.heads}, "
            f"mlp {self.inner}, {parameters} parameters, {promise})"
        )

    def embed(self, **inputs: Float[Tensor, "... tokens _"]) -> Float[Tensor, "... all_tokens width"]:
        """Input registers into their slots, a start token before them: GPT-2's `inputs_embeds`."""
        if set(inputs) != set(self.program.inputs):
            raise BadShape(
                f"program {self.program.name} takes inputs {sorted(self.program.inputs)}, got {sorted(inputs)}"
            )
        for name, values in inputs.items():
            require_shape(values, name, self.program.tokens, self.program.registers[name].size)
            self.program.inputs[name].require(name, values)
        scale = self.layout.scale
        tokens = self.layout.slots.pack(
            **{name: values.to(self.dtype) / scale[name] for name, values in inputs.items()}
        )
        return torch.cat([torch.zeros_like(tokens[..., :1, :]), tokens], dim=-2)

    def forward(self, embedded: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... tokens width"]:
        """The whole decoder, final LayerNorm included. Its invariants are watched on the way."""
        stream = embedded + self.positions
        for block, layer in zip(self.typed_blocks, self.layers, strict=True):
            stream = block(stream)
            for one in layer.instructions:
                if one.invariant is not None:
                    self._require_in_range(one, one.invariant.reason, stream)
        return layer_norm(stream, self.final_gain.shape, self.final_gain, None, EPSILON)

    def _require_in_range(self, one: Instruction, reason: str, stream: Float[Tensor, "... tokens width"]) -> None:
        """Refuse data for which the instruction's result leaves the range that the analysis found for it."""
        name, reach = one.target.name, self.plan.analysis.after[one.number - 1]
        values = stream[..., 1:, self.layout.slots[name]] * self.layout.scale[name]
        low, high = values.min().item(), values.max().item()
        norm = torch.linalg.vector_norm(values, dim=-1).max().item()
        # A NaN fails every comparison, so the condition is written for what is right.
        if not (reach.low <= low and high <= reach.high and norm <= reach.norm):
            raise OutOfDomain(
                f"{one.label} gave values in [{low:.6g}, {high:.6g}] of norm {norm:.6g}; the program was built for "
                f"[{reach.low:.6g}, {reach.high:.6g}] and {reach.norm:.6g} ({reason}); "
                "rescale the data or build a wider domain"
            )

    def registers(self, hidden: Float[Tensor, "... tokens width"]) -> dict[str, Tensor]:
        """Every register, (..., tokens, entries), read from the last hidden state; the start token is left out."""
        zero = hidden[..., 1:, self.layout.slots[ZERO]]
        return {
            name: register.expand(hidden[..., 1:, self.layout.slots[name]] - zero) * self.layout.scale[name]
            for name, register in self.program.registers.items()
        }

    def run(self, **inputs: Float[Tensor, "... tokens _"]) -> MachineRun:
        """The program on these input registers."""
        embedded = self.embed(**inputs)
        stored = {name: own_copy(values, dtype=self.dtype) for name, values in inputs.items()}
        return MachineRun(self, self.registers(self(embedded)), stored)

    @accepts_arraylike("xs", "ys", like="xs", side="rows")
    def predict(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]
    ) -> Float[Tensor, "... samples"]:
        """One prediction per position, ŷ_i for x_i from the examples before it."""
        prompt = self.program.prompt
        if prompt is None or self.program.output is None:
            raise BadShape(f"program {self.program.name} is not over examples, or returns nothing; use run()")
        return prompt.predictions(self.run(**prompt.fill(xs, ys)).result)


def compile_program(program: RegisterProgram, dtype: torch.dtype, *, rotated: int = 0) -> Transformer:
    """Plan, certify, build; `rotated` places of every head stay free."""
    plan = planned(program, dtype, rotated=rotated)
    builder = LayerBuilder(plan)
    return Transformer(plan, [builder.build(layer, f"layer {i}") for i, layer in enumerate(plan.layers, start=1)])
