"""From layers to phases: ranges of all numbers, each activation's share of the tolerance, and its softmax.

Ranges follow from a box by interval arithmetic, for every input of it, or are those that data show, with a margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from emulon.certify.domain import require_scale
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
    Slack,
    ValueRanges,
    beside,
    computed,
    joint_capacity,
    zeros,
)
from emulon.networks.linear import Constant, ConstantPhase, Linear, LinearPhase
from emulon.networks.products import ReciprocalRoot
from emulon.networks.softmaxes import softmax_for

f64 = torch.float64
# A run makes sure that exact numbers are in range by keeping as far from the edges as its numbers may be off. Where
# that is more than this part of the range, nothing is made sure: it would refuse what is right. Ranges seen on data
# have a margin to spare, those computed for a domain a thousandth.
VOID = {"data": 5e-3, "domain": 1e-4}


@dataclass(frozen=True)
class Register:
    """Errors of one register in several cases, and where (`known`) its exact numbers are certain to be in range.

    `limit` is how far from the edges of its range the register can be asked to stay; `parts` are a composite's.
    """

    bound: ErrorBound
    known: Bool[Tensor, " cases"]
    limit: float
    parts: tuple[Register, ...] = ()

    @property
    def slack(self) -> Slack:
        """In the last case; nothing where exact numbers are not certain to be in range all the same."""
        most = self.limit if self.known[-1] else 0.0
        return Slack(self.bound.each[-1].clamp(max=most), tuple(part.slack for part in self.parts))


@dataclass(frozen=True)
class ErrorPropagation:
    """On the interpreter with this number line; `void` is one of `VOID`."""

    line: IdentityGrid
    void: float
    _own: dict[NetworkPhase, list[Register]] = field(default_factory=dict)

    def through(self, phases: Sequence[NetworkPhase], box: Box, before: float | Tensor = 0.0) -> list[Register]:
        """All registers of a network when its first 0, 1, …, all layers err; the input is off by `before` already."""
        cases = torch.arange(len(phases) + 1, device="cpu")
        bound = ErrorBound.of(torch.zeros(len(cases), len(box.lo), dtype=f64, device="cpu") + before)
        first = self._register(bound, box, None)
        return self._registers(phases, [first], [cases > number for number in range(len(phases))], None)

    def own(self, phase: NetworkPhase) -> list[Register]:
        """All registers of a composite's phase on exact inputs, in one case."""
        layer = phase.layer
        assert isinstance(layer, Composite)
        if phase not in self._own:
            one = torch.ones(1, dtype=torch.bool, device="cpu")
            exact = [ErrorBound.of(0 * part.lo.unsqueeze(0)) for part in layer.split(phase.ranges.inputs)]
            given = [Register(bound, one, math.inf) for bound in exact]
            self._own[phase] = self._registers(phase.phases, given, [one] * len(phase.phases), None)
        return self._own[phase]

    def _register(
        self,
        bound: ErrorBound,
        box: Box,
        follows: Bool[Tensor, " cases"] | None,
        constant: bool = False,
        parts: Sequence[Register] = (),
    ) -> Register:
        limit = math.inf if constant or not len(box.lo) else self.void * (box.hi - box.lo).min().item()
        known = (bound.each <= limit).all(dim=-1)
        return Register(bound, known if follows is None else known | follows, limit, tuple(parts))

    def _registers(
        self,
        phases: Sequence[NetworkPhase],
        given: Sequence[Register],
        erring: Sequence[Bool[Tensor, " cases"]],
        follows: Bool[Tensor, " cases"] | None,
    ) -> list[Register]:
        """`erring` says in which cases each phase errs; `follows` where all exact numbers are known to be in range."""
        found = list(given)
        for phase, errs in zip(phases, erring, strict=True):
            read, layer, parts = [found[i] for i in phase.layer.reads], phase.layer, list[Register]()
            if isinstance(layer, Composite):
                parts = self._parts(phase, read, errs, follows)
                bound = self._by_map(phase, layer, read, errs, parts)
            else:
                assert isinstance(layer, SimpleLayer)
                own = phase.own_error(self.line)
                bound = layer.propagated([each.bound for each in read], phase.ranges)
                if not layer.is_affine and read:
                    bound = bound.where(_all_known(read))
                bound = bound.plus(ErrorBound.of((errs.to(f64) * own).unsqueeze(-1).expand(-1, bound.each.shape[-1])))
            constant = phase.kind == "constant"
            found.append(self._register(bound, phase.ranges.output, follows, constant, parts[len(read) :]))
        return found

    def _parts(
        self, phase: NetworkPhase, read: Sequence[Register], errs: Tensor, follows: Tensor | None
    ) -> list[Register]:
        """The registers of a composite, part by part."""
        if isinstance(phase.layer, ReciprocalRoot) and phase.layer.coarse is not None:
            follows = read[0].known  # ranges of its parts hold for every input in range
        return self._registers(phase.phases, read, [errs] * len(phase.phases), follows)

    def _by_map(
        self, phase: NetworkPhase, layer: Composite, read: Sequence[Register], errs: Tensor, parts: Sequence[Register]
    ) -> ErrorBound:
        """The least of the bounds: part by part; by the map, with what its parts add to exact inputs; of any answer."""
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
    def kind(self) -> str:  # type: ignore[override]  # that of its layer
        return self.layer.kind

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

    def own_error(self, line: IdentityGrid) -> float:
        return ErrorPropagation(line, VOID["data"]).own(self)[-1].bound.each.max().item()

    def description(self) -> str:
        return "; ".join(phase.description() for phase in self.phases)


f64 = torch.float64
# Computed numbers may lie this part outside of exact ranges; of ranges by formulas, where data show others, this.
SLACK, SPARE = 1e-3, 2e-2
# Of the numbers in a register, the part that its interpolation is never asked to be below: about float64's own.
FINEST = 2.0**-44
# How gains are measured: errors so small that their squares do not matter.
TINY = 1e-12
# Gates are not asked to be sharper than this: the number line would not reach.
SHARPEST = 2.0**40


def from_box(
    layers: Sequence[Layer], boxes: Sequence[Box], slack: float = SLACK, plan: bool = True
) -> tuple[list[Layer], list[ValueRanges]]:
    """For every input of the boxes, by interval arithmetic: certain, and wider with every layer, by `slack` at least.

    Returns:
        The layers, planned for their ranges if `plan`, and these.
    Raises:
        OutOfDomain: Intervals have no bound.
    """
    boxes, made, found = list(boxes), list[Layer](), list[ValueRanges]()
    for layer in layers:
        planned, ranges = layer_from_box(layer, [boxes[read] for read in layer.reads], slack, plan)
        made.append(planned)
        found.append(ranges)
        boxes.append(ranges.output)
    return made, found


def layer_from_box(layer: Layer, inputs: Sequence[Box], slack: float, plan: bool) -> tuple[Layer, ValueRanges]:
    both, parts = Box.beside(inputs), list[ValueRanges]()
    layer = layer.planned(inputs) if plan else layer
    if isinstance(layer, Composite):
        known = layer.part_ranges(inputs)
        if known is None:
            planned, parts = from_box(layer.parts, inputs, slack, plan)
        else:
            planned, parts = _by_formulas(layer, inputs, known, slack, plan)
        layer = layer.with_parts(planned) if plan else layer
    exact = layer.interval(both)
    if not (torch.isfinite(exact.lo).all() and torch.isfinite(exact.hi).all()):
        raise OutOfDomain(f"{layer.name}: intervals have grown without bound on the way; give data=… for ranges")
    return layer, _with_output(
        ValueRanges(both, exact, layer.attention_ranges(both), tuple(parts)), exact.widened(slack)
    )


def _by_formulas(
    layer: Composite, inputs: Sequence[Box], known: Sequence[Box], slack: float, plan: bool
) -> tuple[list[Layer], list[ValueRanges]]:
    """Parts whose outputs are known: widened once, and not with every part."""
    boxes, planned, exact = [*inputs, *known], list[Layer](), list[ValueRanges]()
    for part, output in zip(layer.parts, known, strict=True):
        made, ranges = layer_from_box(part, [boxes[read] for read in part.reads], 0.0, plan)
        planned.append(made)
        exact.append(_with_output(ranges, output))
    return planned, _widened(planned, inputs, exact, slack)


def _widened(
    layers: Sequence[Layer], inputs: Sequence[Box], exact: Sequence[ValueRanges], by: float
) -> list[ValueRanges]:
    boxes, found = list(inputs), list[ValueRanges]()
    for layer, ranges in zip(layers, exact, strict=True):
        given = [boxes[read] for read in layer.reads]
        parts = _widened(layer.parts, given, ranges.parts, by) if isinstance(layer, Composite) else []
        found.append(ValueRanges(Box.beside(given), ranges.output.widened(by), ranges.attention, tuple(parts)))
        boxes.append(found[-1].output)
    return found


def _with_output(ranges: ValueRanges, output: Box) -> ValueRanges:
    """What a composite writes is what its last part writes."""
    parts = ranges.parts and (*ranges.parts[:-1], _with_output(ranges.parts[-1], output))
    return replace(ranges, output=output, parts=parts)


def from_data(
    layers: Sequence[Layer], x: Float64[Tensor, "rows positions features"], margin: float
) -> tuple[list[Layer], list[ValueRanges]]:
    """As these inputs show it, all features of a register in one interval, widened by the margin.

    Returns:
        The layers, planned for their ranges, and these.
    Raises:
        OutOfDomain: The network's numbers on these data are not finite, or range too widely.
    """
    return _from_data(layers, [x], [box_of(x).widened(margin)], margin)


def _from_data(
    layers: Sequence[Layer], registers: Sequence[Tensor], boxes: Sequence[Box], margin: float
) -> tuple[list[Layer], list[ValueRanges]]:
    boxes, made, found = list(boxes), list[Layer](), list[ValueRanges]()
    roots = {layer.reads[0]: layer.features for layer in layers if isinstance(layer, ReciprocalRoot)}

    def compute(number: int, x: Tensor) -> Tensor:
        inputs = [boxes[read] for read in layers[number].reads]
        layer, parts = layers[number].planned(inputs), list[ValueRanges]()
        exact = layer.exact(x)
        output, both = _with_margin(box_of(exact), margin, roots.get(len(boxes))), Box.beside(inputs)
        if isinstance(layer, Composite):
            if layer.part_ranges(inputs) is None:
                planned, parts = _from_data(layer.parts, layer.split(x), inputs, margin)
                layer = layer.with_parts(planned)
            else:
                layer, known = layer_from_box(layer, inputs, SPARE, plan=True)
                parts, output = [*known.parts], known.output
        inside = layer.attention_ranges(x)
        if inside is not None:
            part = 1 + margin
            inside = AttentionRanges(inside.q * part, inside.k * part, inside.v * part, inside.score * part**2)
        made.append(layer)
        found.append(_with_output(ValueRanges(both, output, inside, tuple(parts)), output))
        boxes.append(output)
        return exact

    for _ in computed(layers, registers, compute):
        pass
    return made, found


def _with_margin(seen: Box, margin: float, under_root: int | None) -> Box:
    """Wider by the margin; a variance, and other numbers under a root that would come near zero, by a factor.

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
    layers: Sequence[Layer], ranges: Sequence[ValueRanges], tolerance: float, box: Box, positions: int
) -> tuple[NetworkPhase, ...]:
    """Every activation gets an equal share of the tolerance, divided by the gain of what follows."""
    simple = list(simple_layers(layers, ranges))
    functions = max(1, sum(isinstance(layer, Elementwise) for layer, _ in simple))
    shares = (
        max(tolerance / (functions * max(gain, 1e-300)), FINEST * max(where.output.size, 1e-300))
        for gain, (_, where) in zip(_gains(layers, ranges, len(simple), len(box.lo)), simple, strict=True)
    )
    return _phases(layers, ranges, shares, positions)


def simple_layers(layers: Sequence[Layer], ranges: Sequence[ValueRanges]) -> Iterator[tuple[Layer, ValueRanges]]:
    """All layers and their ranges, composites replaced by their parts."""
    for layer, where in zip(layers, ranges, strict=True):
        if isinstance(layer, Composite):
            yield from simple_layers(layer.parts, where.parts)
        else:
            yield layer, where


def _phases(
    layers: Sequence[Layer], ranges: Sequence[ValueRanges], shares: Iterator[float], positions: int
) -> tuple[NetworkPhase, ...]:
    return tuple(
        CompositePhase(layer, where, _phases(layer.parts, where.parts, shares, positions))
        if isinstance(layer, Composite)
        else _phase(layer, where, next(shares), positions)
        for layer, where in zip(layers, ranges, strict=True)
    )


def _phase(layer: Layer, ranges: ValueRanges, tolerance: float, positions: int) -> NetworkPhase:
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
    return FunctionPhase(layer, ranges, softmax_for(layer.f, *ranges.inputs.ends, tolerance))


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
