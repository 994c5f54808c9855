"""What a register program's blocks will be: ranges, layers, slots, pads, divisors. No weight is built here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from emulon.certify import Certificate
from emulon.machine.error import Division, LocalError, certify
from emulon.machine.layer import demands
from emulon.machine.layout import RegisterLayout, ScheduledLayer, schedule
from emulon.machine.normalisation import Normalisation, plan
from emulon.machine.program import validate
from emulon.machine.ranges import Analysis, analyse, range_of
from emulon.machine.tokens import Average

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram


@dataclass(frozen=True)
class Plan:
    """All that is known of a program before any weight is built: ranges, layers, slots, pads, divisors."""

    program: RegisterProgram
    analysis: Analysis
    layers: list[ScheduledLayer]
    layout: RegisterLayout
    normalisation: Normalisation
    divisions: dict[int, Division]

    @property
    def dirty(self) -> set[str]:
        return set(self.program.inputs) | set(self.program.initial)

    def certificates(self, *, noise: float = 0.0, skew: float = 0.0, beside: float = 0.0) -> dict[str, Certificate]:
        """Of every register; with `noise` for a stream in another basis (see `Normalisation`), and with `beside`, in
        2-norm, for what stands in slots that nothing reads."""
        normalisation = self.normalisation.holding(beside)
        normalisation = replace(normalisation, content=normalisation.content + noise, noise=noise, skew=skew)
        scale, here, tokens = self.layout.scale, self.program.here, self.layout.tokens
        return certify(self.program, self.analysis, LocalError(normalisation, self.divisions, scale, here, tokens))


def prepared(
    program: RegisterProgram, dtype: torch.dtype, *, restores: bool = False
) -> tuple[Analysis, list[ScheduledLayer], dict[int, tuple[float, float]]]:
    """Ranges, layers, and the interval of every division's divisor."""
    validate(program)
    analysis = analyse(program, dtype)
    return analysis, schedule(program.instructions, restores=restores), divisor_spans(program, analysis)


def planned(program: RegisterProgram, dtype: torch.dtype, *, rotated: int = 0) -> Plan:
    """Validate, analyse, schedule, lay out, choose pads; `rotated` places of every head stay free."""
    analysis, layers, spans = prepared(program, dtype)
    maps = dict.fromkeys([program.here, *(one.where for layer in layers for one in layer.adds)])
    layout = RegisterLayout(program, maps, peaks(program, analysis), divides=bool(spans))
    layout.shape_heads(demands(layout, layers, {*program.inputs, *program.initial}, sweeps=True), rotated)
    normalisation, factors = plan(layout.width, *content(program, layout, analysis), list(spans.values()), dtype)
    chosen, last = dict(zip(spans, factors, strict=True)), -2  # the block of the last division
    divided: dict[int, Division] = {}
    for place, layer in enumerate(layers):
        # How many attentions have swept the last divisor out.
        sweeps = 0 if last < 0 else 1 if last == place - 1 else 2
        divided |= {one.number: Division(chosen[one.number], *spans[one.number], sweeps) for one in layer.divisions}
        last = place if layer.divisions else last
    return Plan(program, analysis, layers, layout, normalisation, divided)


def peaks(program: RegisterProgram, analysis: Analysis) -> dict[str, float]:
    """The largest magnitude of every register."""
    return {name: analysis.largest[name].peak if name in analysis.largest else 0.0 for name in program.registers}


def divisor_spans(program: RegisterProgram, analysis: Analysis) -> dict[int, tuple[float, float]]:
    """By number of a division, the interval of its divisor."""
    out = {}
    for one in program.instructions:
        if one.raw.operator == "÷" and one.raw.local is not None:
            reach = range_of(one.raw.local, analysis.before[one.number - 1])
            out[one.number] = reach.low, reach.high
    return out


def content(program: RegisterProgram, layout: RegisterLayout, analysis: Analysis) -> tuple[float, float]:
    """Bounds on the 2-norm and on the sum of magnitudes of a token, pads aside: registers, ones, codes, queries."""
    system = 2 + sum(1 if isinstance(where, Average) else 2 for where in layout.maps)
    squares, total = 1.0 + 1.0 + len(layout.maps), float(system + 1)
    for name, reach in analysis.largest.items():
        norm = reach.norm / layout.scale[name]
        squares += norm**2
        total += math.sqrt(program.registers[name].size) * norm
    return math.sqrt(squares), total
