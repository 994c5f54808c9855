"""Networks as files: the layers with their weights, and the plan with its softmaxes, sealed as programs are.

A checksum says that a file is whole; anyone who alters a file can compute it anew. So nothing that a certificate
depends on is believed: what a layer reads follows from the outputs before it, every softmax is proved again in ball
arithmetic, and ranges are derived again by intervals where they are to hold for a whole domain, and inside of
reciprocal roots. Ranges seen on data are checked by each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from emulon.certify.domain import require_scale
from emulon.certify.interpolation import Interpolation, holds
from emulon.core.files import checked
from emulon.expressions import parse
from emulon.interpreter.files import BadFile, read_sealed, whole, write_sealed
from emulon.networks.attention import Attention, AttentionPhase
from emulon.networks.elementwise import Function, FunctionPhase, Gate, GatePhase
from emulon.networks.layers import AttentionRanges, Box, Composite, Layer, NetworkPhase, ValueRanges, states
from emulon.networks.linear import Constant, ConstantPhase, Linear, LinearPhase
from emulon.networks.planning import SHARPEST, SLACK, SPARE, CompositePhase, layer_from_box
from emulon.networks.products import Norm, Product, ReciprocalRoot
from emulon.networks.program import NetworkProgram
from emulon.networks.softmaxes import ROOT, SQUARE, Softmax, softmax_for

f64 = torch.float64
KINDS = (Linear, Constant, Function, Gate, Attention, Product, ReciprocalRoot, Norm)
LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in KINDS}
# Attention over more positions than this is not run, and would fill memory with its mask.
MOST_POSITIONS = 1 << 16
AGAIN = "compile it again"


@dataclass(frozen=True)
class PlanRecord:
    """Of a phase's plan what does not follow from its layer and from the ranges before it."""

    output: Box
    attention: AttentionRanges | None
    sharpness: float | None
    softmax: Softmax | None
    parts: tuple[PlanRecord, ...]

    @classmethod
    def of(cls, phase: NetworkPhase) -> PlanRecord:
        sharpness, softmax = getattr(phase, "sharpness", None), getattr(phase, "softmax", None)
        return cls(phase.ranges.output, phase.ranges.attention, sharpness, softmax, tuple(map(cls.of, phase.phases)))


@dataclass(frozen=True)
class PhaseRecord:
    """One phase in a file: its layer's class and fields, and its plan. Parts of a composite follow from its fields."""

    kind: Literal["Linear", "Constant", "Function", "Gate", "Attention", "Product", "ReciprocalRoot", "Norm"]
    layer: dict[str, Any]
    plan: PlanRecord

    @classmethod
    def of(cls, phase: NetworkPhase) -> PhaseRecord:
        own = {field.name: getattr(phase.layer, field.name) for field in fields(phase.layer)}
        return cls(type(phase.layer).__name__, own, PlanRecord.of(phase))  # type: ignore[arg-type]  # one of these


@dataclass(frozen=True)
class NetworkRecord:
    """All facts of a network's file."""

    name: str
    box: Box
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    tolerance: float
    source: Literal["domain", "data"]
    phases: tuple[PhaseRecord, ...]


def save_network(program: NetworkProgram, path: str | Path) -> None:
    """Write a network to a file, whole or not at all.

    Args:
        program: What `compile_network` returned.
        path: The file, such as `network.safetensors`.
    """
    own = {field.name: getattr(program, field.name) for field in fields(NetworkRecord)}
    record = NetworkRecord(**own | {"phases": tuple(map(PhaseRecord.of, program.phases))})
    tensors: dict[str, Tensor] = {}
    facts = _facts_of(record, "network", tensors)
    write_sealed(path, "network", tensors, facts)


def load_network(path: str | Path) -> NetworkProgram:
    """The network in a file that `save_network` wrote.

    Args:
        path: A file of `save_network`.
    Returns:
        The same program, with what its certificate depends on proved again.
    Raises:
        BadFile: The file is missing, damaged or altered, or claims what cannot be proved.
    """
    tensors, facts = read_sealed(Path(path), "network")
    with whole(path, AGAIN):
        if any(part.dtype != f64 or not bool(torch.isfinite(part).all()) for part in tensors.values()):
            raise ValueError("its numbers are not finite, or not in float64")
        record = checked(NetworkRecord, facts, "the network", tensors)
        layers = [
            checked(LAYERS[each.kind], each.layer, f"layer {number}", tensors)
            for number, each in enumerate(record.phases)
        ]
        phases = _phases(layers, [each.plan for each in record.phases], [record.box], record.shape)
        own = {field.name: getattr(record, field.name) for field in fields(record)}
        program = NetworkProgram(**own | {"phases": phases})
        _require_sizes(program)
        wrong = _false_claim(program)
    if wrong is not None:
        raise BadFile(f"{path} claims what is not so: {wrong}; {AGAIN}")
    return program


def _facts_of(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON has it; tensors go to `tensors`, and their names stand for them."""
    if isinstance(value, Tensor):
        tensors[place] = value.contiguous().clone()
        return place
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {name: _facts_of(part, f"{place}.{name}", tensors) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_facts_of(part, f"{place}.{i}", tensors) for i, part in enumerate(value)]
    return value


def _phases(
    layers: Sequence[Layer], plans: Sequence[PlanRecord], inputs: Sequence[Box], shape: Sequence[int]
) -> tuple[NetworkPhase, ...]:
    boxes, found = list(inputs), list[NetworkPhase]()
    if len(layers) != len(plans):
        raise ValueError(f"there are {len(plans)} plans for {len(layers)} layers")
    for layer, plan in zip(layers, plans, strict=True):
        if any(not 0 <= read < len(boxes) for read in layer.reads) or not (layer.reads or isinstance(layer, Constant)):
            raise ValueError(f"{layer.name} reads a register that is not there yet")
        given = [boxes[read] for read in layer.reads]
        found.append(_phase(layer, plan, given, shape))
        boxes.append(plan.output)
    return tuple(found)


def _phase(layer: Layer, plan: PlanRecord, inputs: Sequence[Box], shape: Sequence[int]) -> NetworkPhase:
    ranges = ValueRanges(Box.beside(inputs), plan.output, plan.attention)
    require_scale(**{f"numbers of {layer.name}": max(ranges.inputs.size, ranges.output.size)})
    if isinstance(layer, Composite):
        _require_composite(layer, [len(box.lo) for box in inputs])
        parts = _phases(layer.parts, plan.parts, inputs, shape)
        last = plan.parts[-1].output
        if not (torch.equal(last.lo, plan.output.lo) and torch.equal(last.hi, plan.output.hi)):
            raise ValueError(f"{layer.name} and its last part have different ranges")
        return CompositePhase(layer, replace(ranges, parts=tuple(part.ranges for part in parts)), parts)
    if isinstance(layer, Linear):
        return LinearPhase(layer, ranges)
    if isinstance(layer, Constant):
        return ConstantPhase(layer, ranges)
    if isinstance(layer, Attention):
        return AttentionPhase(layer, ranges, shape[0])
    if isinstance(layer, Gate) and plan.sharpness is not None:
        return GatePhase(layer, ranges, plan.sharpness)
    if plan.softmax is None or not isinstance(layer, Function):
        raise ValueError(f"{layer.name} has neither gate nor softmax")
    return FunctionPhase(layer, ranges, plan.softmax)


def _require_composite(layer: Composite, sizes: Sequence[int]) -> None:
    """Refuse (ValueError) sizes that do not fit, and choices that no plan has made."""
    fields_of: Any = layer
    size = layer.features if isinstance(layer, ReciprocalRoot) else len(fields_of.weight)
    wanted = [size, 1 if layer.broadcast else size] if isinstance(layer, Product) else [size]
    if list(sizes) != wanted or size < 1:
        raise ValueError(f"{layer.name} takes {wanted} features and is given {list(sizes)}")
    if isinstance(layer, Norm) and not 0 <= layer.eps < math.inf:
        raise ValueError(f"{layer.name} has an epsilon of {layer.eps}")
    scales = (layer.scale,) if isinstance(layer, Product) else fields_of.scales
    coarse = getattr(layer, "coarse", None) or (1.0,)
    if any(math.frexp(scale)[0] != 0.5 for scale in scales) or not all(0 < each < math.inf for each in coarse):
        raise ValueError(f"{layer.name} is scaled by {scales} and {coarse}")


def _require_sizes(program: NetworkProgram) -> None:
    """Refuse (ValueError) layers that do not fit each other, ranges, or the shapes that the program says."""
    features = program.shape[-1] if program.is_sequence else math.prod(program.shape)
    if not program.shape or min(program.shape) < 1 or program.positions > MOST_POSITIONS:
        raise ValueError(f"an input of shape {program.shape} is not possible")
    if len(program.box.lo) != features or not 0 < program.tolerance < math.inf or not program.phases:
        raise ValueError(f"the box is of {len(program.box.lo)} features instead of {features}")
    if bool((program.box.lo > program.box.hi).any()):
        raise ValueError("the box is empty")
    names = [layer.name for layer in program.layers]
    if len(set(names)) < len(names):  # terms of the certificate go by these
        raise ValueError("two layers have one name")
    x = ((program.box.lo + program.box.hi) / 2).reshape(1, 1, features)
    for phase, register in zip(program.phases, states(program.layers, x), strict=True):
        box, layer = phase.ranges.output, phase.layer
        if register.shape != (1, 1, len(box.lo)) or len(box.lo) == 0 or bool((box.lo > box.hi).any()):
            raise ValueError(f"{layer.name} writes {tuple(register.shape[2:])} numbers, and has {len(box.lo)} ranges")
        if isinstance(layer, Constant) and len(layer.values) != program.positions:
            raise ValueError(f"{layer.name} has {len(layer.values)} rows for {program.positions} positions")
    out = program.out_shape[1:] if program.is_sequence else program.out_shape
    if math.prod(out) != register.shape[-1] or min(out, default=1) < 1:
        raise ValueError(
            f"the last layer writes {register.shape[-1]} numbers, and the output is of {program.out_shape}"
        )


def _false_claim(program: NetworkProgram) -> str | None:
    """What a network claims and is not so."""
    found = (
        wrong
        for phase in _simple_and_composite(program.phases)
        for wrong in (_false_range(phase, program.source), _false_claim_of(phase))
    )
    return next((wrong for wrong in found if wrong is not None), None)


def _simple_and_composite(phases: Sequence[NetworkPhase]) -> Iterator[NetworkPhase]:
    for phase in phases:
        yield phase
        yield from _simple_and_composite(phase.phases)


def _false_range(phase: NetworkPhase, source: str) -> str | None:
    """Ranges for a whole domain, and those of a root in two, derived from the ranges before them; with less slack than
    they were made with, for intervals differ between processors in the last digits."""
    layer, ranges = phase.layer, phase.ranges
    if isinstance(layer, Attention):
        known = ranges.attention
        if known is None or not all(0 <= most < math.inf for most in vars(known).values()):
            return f"{layer.name} has no ranges of attention"
    by_formulas = isinstance(layer, ReciprocalRoot) and layer.coarse is not None
    if source == "data" and not by_formulas:  # which every run checks
        return None
    inputs = layer.split(ranges.inputs) if isinstance(layer, Composite) else [ranges.inputs]
    _, sure = layer_from_box(layer, inputs, (SPARE if source == "data" else SLACK) / 2, plan=False)
    return None if _is_inside(sure, ranges) else f"{layer.name} may leave its range"


def _is_inside(sure: ValueRanges, claimed: ValueRanges) -> bool:
    if sure.attention is not None and claimed.attention is not None:
        wanted, given = vars(sure.attention), vars(claimed.attention)
        if any(given[name] < least * (1 - 1e-9) for name, least in wanted.items()):
            return False
    parts = zip(sure.parts, claimed.parts, strict=True)
    return sure.output.is_inside(claimed.output) and all(_is_inside(*pair) for pair in parts)


def _false_claim_of(phase: NetworkPhase) -> str | None:
    layer = phase.layer
    if isinstance(layer, Gate) and not (layer.low < 1 if layer.kinked else layer.low == 0):
        return f"{layer.name} is a gate of {layer.low}"
    if isinstance(phase, GatePhase):
        sharpest = SHARPEST if phase.layer.kinked else 1.0
        if not 1 <= phase.sharpness <= sharpest or math.frexp(phase.sharpness)[0] != 0.5:
            return f"the gate of {layer.name} has a sharpness of {phase.sharpness:g}"
    if isinstance(layer, Linear) and layer.unrounded is not None:
        for name, ball in zip(("weight", "bias"), layer.unrounded.balls(), strict=True):
            if not torch.equal(getattr(layer, name), ball.high):
                return f"the {name} of {layer.name} is not its exact map, rounded"
    if isinstance(layer, Attention) and not 0 < layer.scale < math.inf:
        return f"the scores of {layer.name} are divided by the root of {layer.scale}"
    return _false_softmax(phase) if isinstance(phase, FunctionPhase) else None


def _false_softmax(phase: FunctionPhase) -> str | None:
    layer, softmax, (lo, hi) = phase.layer, phase.softmax, phase.ranges.inputs.ends
    assert isinstance(layer, Function)
    known = (softmax.interpolation, softmax.deviation, softmax.size, softmax.grid.lo, softmax.grid.hi)
    if softmax.f != layer.f or not softmax.grid.lo <= lo <= hi <= softmax.grid.hi:
        return f"the softmax of {layer.name} is for another function, or another range"
    if not all(map(math.isfinite, known)) or softmax.grid.bands or len(softmax.grid) == 0:
        return f"the softmax of {layer.name} has no bound"
    claimed = Interpolation(softmax.interpolation, 0.0, softmax.deviation, softmax.size)
    proved = _comes_with_the_package(softmax, lo, hi) or holds(
        softmax.grid.numbers, parse(softmax.f), softmax.grid.lo, softmax.grid.hi, claimed
    )
    return None if proved else f"{layer.name} is not as near to {softmax.f} as it says"


def _comes_with_the_package(softmax: Softmax, lo: float, hi: float) -> bool:
    """Squares and roots, which the tests prove: to the last bit, with the same claims."""
    if softmax.f not in (SQUARE, ROOT):
        return False
    ours = softmax_for(softmax.f, lo, hi, 1.0)
    same = all(torch.equal(part, ours.tensors[name]) for name, part in softmax.tensors.items())
    return same and softmax.facts == ours.facts
