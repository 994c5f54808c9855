"""The phases of a composite layer, one after the other, as one phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.error_propagation import VOID, ErrorPropagation
from emulon.networks.layers import (
    Composite,
    NetworkPhase,
    PhaseTrace,
    Prompt,
    Slack,
    beside,
    joint_capacity,
)


@dataclass(frozen=True, eq=False)
class CompositePhase(NetworkPhase):
    """A composite layer as the phases of its parts, one after the other."""

    layer: Composite
    phases: tuple[NetworkPhase, ...]  # type: ignore[misc]  # a field here

    @property
    def kind(self) -> str:  # type: ignore[override]  # that of its layer
        return self.layer.kind

    @property
    def proved(self) -> bool:
        return all(phase.proved for phase in self.phases)

    @property
    def capacity(self) -> Capacity:
        return joint_capacity(self.phases)

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        """Those of its parts, with numbers as float64 computes them."""
        registers = self.layer.split(x)
        for phase in self.phases:
            given = beside(phase.layer.reads, registers)
            yield from phase.prompts(given)
            registers.append(phase.layer.exact(given))

    def run(self, interpreter: Interpreter, x: Tensor, mode: Mode, slack: Slack) -> Tensor:
        registers: list[Tensor] = self.layer.split(x)
        # The last part writes the composite's own register.
        slacks = (*slack.parts[:-1], slack.parts[-1]._replace(register=slack.register))
        for phase, part in zip(self.phases, slacks, strict=True):
            registers.append(phase.run(interpreter, beside(phase.layer.reads, registers), mode, part))
        return registers[-1]

    def traced(self, interpreter: Interpreter, x: Tensor) -> Iterator[PhaseTrace]:
        registers = self.layer.split(x)
        for phase in self.phases:
            *inner, last = phase.traced(interpreter, beside(phase.layer.reads, registers))
            yield from (*inner, last)
            registers.append(last.written)

    def own_error(self, line: IdentityGrid) -> float:
        return ErrorPropagation(line, VOID["data"]).own(self)[-1].bound.each.max().item()

    def description(self) -> str:
        return "; ".join(phase.description() for phase in self.phases)
