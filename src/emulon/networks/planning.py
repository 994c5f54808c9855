"""From layers to phases: ranges of all numbers, each activation's share of the tolerance, and its softmax.

Ranges follow from a box by interval arithmetic, for every input of it, or are those that data show, with a margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from emulon.certify.domain import require_scale
from emulon.core.arrays import zeros
from emulon.core.errors import OutOfDomain
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.attention import Attention, AttentionPhase
from emulon.networks.elementwise import KINK, Elementwise, Function, FunctionPhase, Gate, GatePhase
from emulon.networks.layers import (
    AttentionRanges,
    Box,
    Composite,
    ErrorBound,
    Layer,
    NetworkPhase,
    Prompt,
    SimpleLayer,
    ValueRanges,
    beside,
    computed,
    joint_capacity,
)
from emulon.networks.maps import Constant, ConstantPhase, Linear, LinearPhase, ReciprocalRoot
from emulon.networks.softmaxes import Softmax, softmax_for

f64 = torch.float64
# A run keeps its numbers this part of a range from the edges, so that the exact ones are in range wherever errors are
# smaller. Ranges seen on data have a larger margin than those computed for a domain.
VOID = {"data": 5e-3, "domain": 1e-4}


@dataclass(frozen=True)
class Seen:
    """Ranges of one layer as data showed them, with their margin."""

    output: Box
    attention: AttentionRanges | None


class Register(NamedTuple):
    """Errors of one register in several cases; `known` are those in which its exact numbers are certainly in range."""

    bound: ErrorBound
    known: Bool[Tensor, " cases"]


@dataclass(frozen=True)
class ErrorPropagation:
    """On the interpreter with this number line; `void` is one of `VOID`."""

    line: IdentityGrid
    void: float
    _own: dict[NetworkPhase, list[Register]] = field(default_factory=dict)

    def through(self, phases: Sequence[NetworkPhase], box: Box, before: float | Tensor = 0.0) -> list[Register]:
        """All registers of a network when its first 0, 1, …, all layers err; the input is off by `before` already."""
        cases = torch.arange(len(phases) + 1, device="cpu")
        bound = ErrorBound.of(zeros(len(cases), len(box.lo)) + before)
        first = Register(bound, (bound.each <= box.inner(self.void)).all(dim=-1))
        return self._registers(phases, [first], [cases > number for number in range(len(phases))])

    def own(self, phase: NetworkPhase) -> list[Register]:
        """All registers of a composite's phase on exact inputs, in one case."""
        layer = phase.layer
        assert isinstance(layer, Composite)
        if phase not in self._own:
            one = torch.ones(1, dtype=torch.bool, device="cpu")
            inputs = layer.split(phase.ranges.inputs)
            given = [Register(ErrorBound.of(zeros(1, len(part.lo))), one) for part in inputs]
            self._own[phase] = self._registers(phase.phases, given, [one] * len(phase.phases))
        return self._own[phase]

    def _registers(
        self,
        phases: Sequence[NetworkPhase],
        given: Sequence[Register],
        erring: Sequence[Bool[Tensor, " cases"]],
        certain: Bool[Tensor, " cases"] | bool = False,
    ) -> list[Register]:
        """`erring` says in which cases each phase errs; `certain` where all exact numbers are known to be in range."""
        found = list(given)
        for phase, errs in zip(phases, erring, strict=True):
            read, layer = [found[i] for i in phase.layer.reads], phase.layer
            if isinstance(layer, Composite):
                bound = self._of_composite(phase, layer, read, errs, certain)
            else:
                assert isinstance(layer, SimpleLayer)
                bound = layer.propagated([each.bound for each in read], phase.ranges)
                if not layer.is_affine and read:
                    bound = bound.where(_all_known(read))
                own = (errs.to(f64) * phase.own_error(self.line)).unsqueeze(-1)
                bound = bound.plus(ErrorBound.of(own.expand(-1, bound.each.shape[-1])))
            known = (bound.each <= phase.limit(self.void)).all(dim=-1)
            found.append(Register(bound, known | certain))
        return found

    def _of_composite(
        self,
        phase: NetworkPhase,
        layer: Composite,
        read: Sequence[Register],
        errs: Bool[Tensor, " cases"],
        certain: Bool[Tensor, " cases"] | bool,
    ) -> ErrorBound:
        """The least of the bounds: part by part; by the map, with what its parts add to exact inputs; of any answer."""
        if isinstance(layer, ReciprocalRoot) and layer.coarse is not None:
            certain = read[0].known  # ranges of its parts hold for every input in range
        parts = self._registers(phase.phases, read, [errs] * len(phase.phases), certain)
        own = [each.bound.where(errs, 0.0) for each in self.own(phase)]
        by_map = layer.map_error([each.bound for each in read], phase.ranges, own).plus(own[-1])
        bound = parts[-1].bound.least(by_map.where(_all_known(parts[:-1])))
        largest = layer.largest_error(phase.ranges)
        return bound if largest is None else bound.least(largest)


def _all_known(registers: Sequence[Register]) -> Bool[Tensor, " cases"]:
    return torch.stack([each.known for each in registers]).all(dim=0)


@dataclass(frozen=True, eq=False)
class CompositePhase(NetworkPhase):
    """A composite layer as the phases of its parts, one after the other."""

    layer: Composite
    phases: tuple[NetworkPhase, ...]  # type: ignore[misc]  # a field here

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

    def run(self, interpreter: Interpreter, x: Tensor, mode: Mode, void: float) -> Tensor:
        registers: list[Tensor] = self.layer.split(x)
        for phase in self.phases:
            registers.append(phase.run(interpreter, beside(phase.layer.reads, registers), mode, void))
        return registers[-1]

    def own_error(self, line: IdentityGrid) -> float:
        return ErrorPropagation(line, VOID["data"]).own(self)[-1].bound.each.max().item()

    def description(self) -> str:
        return "; ".join(phase.description() for phase in self.phases)


# Ranges by intervals are widened by this part; those by formulas, where others were seen on data, by the second.
SLACK, SPARE = 1e-3, 2e-2
# The least relative interpolation error that is asked for, about float64's own.
FINEST = 2.0**-44
# Errors by which gains are measured, whose squares do not matter.
TINY = 1e-12
# The sharpest gate within reach of the identity grid.
SHARPEST = 2.0**40


def with_ranges(
    layers: Sequence[Layer],
    boxes: Sequence[Box],
    by: float,
    registers: Sequence[Tensor] | None = None,
    recorded: Iterator[Seen] | None = None,
) -> tuple[list[Layer], list[ValueRanges]]:
    """Where all numbers are: by interval arithmetic, for every input of the boxes, or as data show it.

    Intervals are certain, and wider with every layer. As data show it, all features of a register are in one interval.

    Args:
        layers: of the network, or the parts of a composite.
        boxes: of the registers that are there before.
        by: ranges are widened by this part.
        registers: those numbers themselves, of data.
        recorded: what data showed before, of layer after layer, each before its parts.
    Returns:
        The layers, planned for their ranges, and these.
    Raises:
        OutOfDomain: Intervals have no bound, numbers on these data are not finite, or range too widely.
    """
    boxes, made, found = list(boxes), list[Layer](), list[ValueRanges]()
    roots = {layer.reads[0]: layer.features for layer in layers if isinstance(layer, ReciprocalRoot)}

    def add(number: int, x: Tensor | None = None) -> Any:
        layer, exact = layers[number], None
        seen = None if recorded is None else next(recorded, None)
        if x is not None:
            exact = layer.exact(x)
            seen = Seen(_with_margin(box_of(exact), by, roots.get(len(boxes))), _attention_seen(layer, x, by))
        layer, ranges = _with_ranges(layer, [boxes[read] for read in layer.reads], by, seen, x, recorded)
        made.append(layer)
        found.append(ranges)
        boxes.append(ranges.output)
        return exact

    if registers is None:
        for number in range(len(layers)):
            add(number)
    else:
        for _ in computed(layers, registers, add):
            pass
    return made, found


def _with_ranges(
    layer: Layer,
    inputs: Sequence[Box],
    by: float,
    seen: Seen | None = None,
    x: Tensor | None = None,
    recorded: Iterator[Seen] | None = None,
) -> tuple[Layer, ValueRanges]:
    """One layer and its ranges."""
    layer, both, parts = layer.planned(inputs), Box.beside(inputs), list[ValueRanges]()
    formulas = layer.part_ranges(inputs) if isinstance(layer, Composite) else None
    if isinstance(layer, Composite) and formulas is None:
        planned, parts = with_ranges(layer.parts, inputs, by, None if x is None else layer.split(x), recorded)
        layer = layer.with_parts(planned)
    elif isinstance(layer, Composite) and formulas is not None:
        by, seen = by if seen is None else SPARE, None
        planned, boxes = list[Layer](), [*inputs, *(box.widened(by) for box in formulas)]
        for part, output in zip(layer.parts, boxes[len(inputs) :], strict=True):
            made, ranges = _with_ranges(part, [boxes[read] for read in part.reads], by)
            planned.append(made)
            parts.append(_with_output(ranges, output))
        layer = layer.with_parts(planned)
    if seen is None:
        exact = layer.interval(both)
        if not (torch.isfinite(exact.lo).all() and torch.isfinite(exact.hi).all()):
            raise OutOfDomain(f"{layer.name}: intervals have grown without bound on the way; give data=… for ranges")
        seen = Seen(exact.widened(by), None)
    attention = seen.attention or layer.attention_ranges(both)
    return layer, _with_output(ValueRanges(both, seen.output, attention, tuple(parts)), seen.output)


def _with_output(ranges: ValueRanges, output: Box) -> ValueRanges:
    """With this output range, also of the last part of a composite."""
    parts = ranges.parts and (*ranges.parts[:-1], _with_output(ranges.parts[-1], output))
    return replace(ranges, output=output, parts=parts)


def _attention_seen(layer: Layer, x: Tensor, margin: float) -> AttentionRanges | None:
    seen, part = layer.attention_ranges(x), 1 + margin
    return seen and AttentionRanges(seen.q * part, seen.k * part, seen.v * part, seen.score * part**2)


def _with_margin(seen: Box, margin: float, under_root: int | None) -> Box:
    """Wider by the margin; by a factor for a variance, and for numbers under a root that would come near zero.

    `under_root` is the number of features of a root that reads this, if there is one.
    """
    wider = seen.widened(margin)
    if under_root is None or not seen.ends[0] > 0 or (under_root > 1 and wider.ends[0] >= seen.ends[0] / 2):
        return wider
    return seen.scaled_up((1 + margin) ** 2 - 1)


def box_of(register: Tensor) -> Box:
    """One interval for all numbers."""
    if not torch.isfinite(register).all():
        raise OutOfDomain("the network's own numbers on this data are not finite; check its weights and the data")
    lo, hi = (end.expand(register.shape[-1]).clone() for end in (register.min(), register.max()))
    return Box(lo, hi)


def layers_to_phases(
    layers: Sequence[Layer],
    ranges: Sequence[ValueRanges],
    tolerance: float,
    box: Box,
    positions: int,
    softmaxes: Iterator[Softmax] | None = None,
) -> tuple[NetworkPhase, ...]:
    """Every activation gets an equal share of the tolerance, divided by the gain of what follows.

    `softmaxes`, one for every function, are used where they reach over its range.
    """
    simple = list(simple_layers(layers, ranges))
    functions = max(1, sum(isinstance(layer, Elementwise) for layer, _ in simple))
    shares = (
        max(tolerance / (functions * max(gain, 1e-300)), FINEST * max(where.output.size, 1e-300))
        for gain, (_, where) in zip(_gains(layers, ranges, len(simple), len(box.lo)), simple, strict=True)
    )
    return _phases(layers, ranges, shares, positions, softmaxes)


def simple_layers(layers: Sequence[Layer], ranges: Sequence[ValueRanges]) -> Iterator[tuple[Layer, ValueRanges]]:
    """All layers and their ranges, composites replaced by their parts."""
    for layer, where in zip(layers, ranges, strict=True):
        if isinstance(layer, Composite):
            yield from simple_layers(layer.parts, where.parts)
        else:
            yield layer, where


def _phases(
    layers: Sequence[Layer],
    ranges: Sequence[ValueRanges],
    shares: Iterator[float],
    positions: int,
    softmaxes: Iterator[Softmax] | None,
) -> tuple[NetworkPhase, ...]:
    return tuple(
        CompositePhase(layer, where, _phases(layer.parts, where.parts, shares, positions, softmaxes))
        if isinstance(layer, Composite)
        else _phase(layer, where, next(shares), positions, softmaxes)
        for layer, where in zip(layers, ranges, strict=True)
    )


def _phase(
    layer: Layer, ranges: ValueRanges, tolerance: float, positions: int, softmaxes: Iterator[Softmax] | None
) -> NetworkPhase:
    require_scale(**{f"numbers of {layer.name}": max(ranges.inputs.size, ranges.output.size)})
    if isinstance(layer, Linear):
        return LinearPhase(layer, ranges)
    if isinstance(layer, Attention):
        return AttentionPhase(layer, ranges, positions)
    if isinstance(layer, Constant):
        return ConstantPhase(layer, ranges)
    if isinstance(layer, Gate):
        sharpest = SHARPEST / max(ranges.inputs.size, 1.0)
        wanted = (1 - layer.low) * KINK / tolerance if layer.kinked else 1.0
        return GatePhase(layer, ranges, 2.0 ** math.ceil(math.log2(min(max(wanted, 1.0), sharpest))))
    assert isinstance(layer, Function)
    softmax, (lo, hi) = None if softmaxes is None else next(softmaxes, None), ranges.inputs.ends
    if softmax is None or not softmax.grid.lo <= lo <= hi <= softmax.grid.hi:
        softmax = softmax_for(layer.f, lo, hi, tolerance)
    return FunctionPhase(layer, ranges, softmax)


def _gains(layers: Sequence[Layer], ranges: Sequence[ValueRanges], number: int, features: int) -> list[float]:
    """How far an error of every simple layer can move the network's output, per unit: sup to sup."""
    found = _propagated(layers, ranges, [ErrorBound.of(zeros(number, features))], count())
    return (found.each.amax(dim=-1) / TINY).tolist()


def _propagated(
    layers: Sequence[Layer], ranges: Sequence[ValueRanges], given: Sequence[ErrorBound], numbers: Iterator[int]
) -> ErrorBound:
    """Of the last register in as many cases as there are simple layers, each of which errs by `TINY` in its own."""
    registers = list(given)
    for layer, where in zip(layers, ranges, strict=True):
        read = [registers[i] for i in layer.reads]
        if isinstance(layer, Composite):
            bound = _propagated(layer.parts, where.parts, read, numbers)
        else:
            assert isinstance(layer, SimpleLayer)
            bound, own = layer.propagated(read, where), zeros(len(given[0].each), 1)
            own[next(numbers)] = TINY
            bound = bound.plus(ErrorBound.of(own.expand(-1, bound.each.shape[-1])))
        registers.append(bound)
    return registers[-1]
