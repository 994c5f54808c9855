"""Register program → transformer, one call per pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from emulon.certify import Certificate
from emulon.machine.error import Division, LocalError, certify
from emulon.machine.instruction import Instruction
from emulon.machine.layer import LayerBuilder, demands
from emulon.machine.layout import RegisterLayout, ScheduledLayer, schedule
from emulon.machine.normalisation import Normalisation, plan
from emulon.machine.program import validate
from emulon.machine.ranges import Analysis, analyse, range_of
from emulon.machine.tokens import Average, Where
from emulon.machine.transformer import RangeWatch, Transformer

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
    spans = {one.number: divisor_span(one, analysis) for one in divisions(program)}
    return analysis, schedule(program.instructions, restores=restores), spans


def planned(program: RegisterProgram, dtype: torch.dtype, *, rotated: int = 0) -> Plan:
    """Validate, analyse, schedule, lay out, choose pads; `rotated` places of every head stay free."""
    analysis, layers, spans = prepared(program, dtype)
    layout = layers_to_layout(program, layers, analysis, rotated)
    normalisation, factors = plan(layout.width, *content(program, layout, analysis), list(spans.values()), dtype)
    return Plan(program, analysis, layers, layout, normalisation, divisions_of(layers, spans, factors))


def compile_program(program: RegisterProgram, dtype: torch.dtype, *, rotated: int = 0) -> Transformer:
    """Plan, certify, build."""
    known = planned(program, dtype, rotated=rotated)
    certificates = known.certificates()
    builder = LayerBuilder(known)
    analysis = known.analysis
    peaks = {one.number: factor_peaks(one, analysis) for one in program.instructions if one.raw.operator == "⊙"}
    blocks = [builder.build(layer, peaks, f"layer {i}") for i, layer in enumerate(known.layers, start=1)]
    watches = [layer_to_watches(layer, known.layout, analysis) for layer in known.layers]
    pad = known.normalisation.pad
    return Transformer(program, known.layout, known.layers, blocks, pad, watches, certificates, dtype)


def layers_to_layout(
    program: RegisterProgram, layers: list[ScheduledLayer], analysis: Analysis, rotated: int
) -> RegisterLayout:
    dirty = set(program.inputs) | set(program.initial)
    maps: dict[Where, None] = {program.here: None}
    maps |= dict.fromkeys(one.where for layer in layers for one in layer.adds)
    peaks = {name: analysis.largest[name].peak if name in analysis.largest else 0.0 for name in program.registers}
    layout = RegisterLayout(program, maps, peaks, divides=bool(divisions(program)))
    layout.shape_heads(demands(layout, layers, dirty, sweeps=True), rotated)
    return layout


def divisions(program: RegisterProgram) -> list[Instruction]:
    return [one for one in program.instructions if one.raw.operator == "÷"]


def divisor_span(instruction: Instruction, analysis: Analysis) -> tuple[float, float]:
    assert instruction.raw.local is not None
    reach = range_of(instruction.raw.local, analysis.before[instruction.number - 1])
    return reach.low, reach.high


def divisions_of(
    layers: list[ScheduledLayer], spans: dict[int, tuple[float, float]], factors: list[float]
) -> dict[int, Division]:
    """D for every division, and how many attentions have swept the divisor before it."""
    chosen = dict(zip(spans, factors, strict=True))
    out: dict[int, Division] = {}
    last = None
    for place, layer in enumerate(layers):
        for one in layer.divisions:
            sweeps = 0 if last is None else 1 if last == place - 1 else 2
            out[one.number] = Division(chosen[one.number], *spans[one.number], sweeps)
        last = place if layer.divisions else last
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


def factor_peaks(instruction: Instruction, analysis: Analysis) -> tuple[float, float]:
    """X and Y, the largest magnitudes of a product's two factors; a factor that is always zero counts as 1."""
    raw, before = instruction.raw, analysis.before[instruction.number - 1]
    assert raw.local is not None
    return range_of(raw.read, before).peak or 1.0, range_of(raw.local, before).peak or 1.0


def layer_to_watches(layer: ScheduledLayer, layout: RegisterLayout, analysis: Analysis) -> list[RangeWatch]:
    return [
        RangeWatch(
            layout.slots[one.target.name],
            layout.scale[one.target.name],
            analysis.after[one.number - 1],
            one.label,
            one.invariant.reason,
        )
        for one in layer.instructions
        if one.invariant is not None
    ]
