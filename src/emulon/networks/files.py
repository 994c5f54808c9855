"""Networks as files: the layers with their weights, and the plan with its softmaxes, sealed as programs are.

A checksum says that a file is whole; anyone who alters a file can compute it anew. So nothing that a certificate
depends on is believed: what a layer reads follows from the outputs before it, every softmax is proved again in ball
arithmetic, and ranges are derived again by intervals where they are to hold for a whole domain, and inside of
reciprocal roots. Ranges seen on data are checked by each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from emulon.certify.interpolation import Interpolation, holds
from emulon.core.files import checked
from emulon.expressions import parse
from emulon.interpreter.files import BadFile, read_sealed, whole, write_sealed
from emulon.networks.attention import Attention
from emulon.networks.elementwise import Function, FunctionPhase, Gate, GatePhase
from emulon.networks.layers import AttentionRanges, Box, Composite, Layer, NetworkPhase, ValueRanges, states
from emulon.networks.linear import Constant, Linear
from emulon.networks.planning import (
    SHARPEST,
    SLACK,
    SPARE,
    Choice,
    layer_with_ranges,
    phases_of,
    simple_layers,
)
from emulon.networks.products import Norm, Product, ReciprocalRoot
from emulon.networks.program import NetworkProgram
from emulon.networks.softmaxes import ROOT, SQUARE, Softmax, softmax_for

f64 = torch.float64
KINDS = (Linear, Constant, Function, Gate, Attention, Product, ReciprocalRoot, Norm)
LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in KINDS}
# Attention over more positions is not run, and would fill memory with its mask; nor are more steps.
MOST_POSITIONS, MOST_STEPS = 1 << 16, 1 << 20
AGAIN = "compile it again"


@dataclass(frozen=True)
class RangesRecord:
    """Of the ranges of a layer what does not follow from those before it."""

    output: Box
    attention: AttentionRanges | None
    parts: tuple[RangesRecord, ...]

    @classmethod
    def of(cls, ranges: ValueRanges) -> RangesRecord:
        return cls(ranges.output, ranges.attention, tuple(map(cls.of, ranges.parts)))


@dataclass(frozen=True)
class LayerRecord:
    """One layer in a file: its class and its fields, from which the parts of a composite follow."""

    kind: Literal["Linear", "Constant", "Function", "Gate", "Attention", "Product", "ReciprocalRoot", "Norm"]
    layer: dict[str, Any]
    ranges: RangesRecord

    @classmethod
    def of(cls, phase: NetworkPhase) -> LayerRecord:
        kind: Any = type(phase.layer).__name__
        return cls(kind, _fields_of(phase.layer), RangesRecord.of(phase.ranges))


@dataclass(frozen=True)
class NetworkRecord:
    """All facts of a network's file; gates and functions are those of the `simple_layers`, in their order."""

    name: str
    box: Box
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    tolerance: float
    source: Literal["domain", "data"]
    steps: int
    layers: tuple[LayerRecord, ...]
    sharpnesses: tuple[float, ...]
    softmaxes: tuple[Softmax, ...]


def save_network(program: NetworkProgram, path: str | Path) -> None:
    """Write a network to a file, whole or not at all.

    Args:
        program: What `compile_network` returned.
        path: The file, such as `network.safetensors`.
    """
    phases = [*_all_phases(program.phases)]
    tensors: dict[str, Tensor] = {}
    facts = {
        **{name: value for name, value in _fields_of(program).items() if name != "phases"},
        "layers": tuple(map(LayerRecord.of, program.phases)),
        "sharpnesses": tuple(phase.sharpness for phase in phases if isinstance(phase, GatePhase)),
        "softmaxes": tuple(phase.softmax for phase in phases if isinstance(phase, FunctionPhase)),
    }
    write_sealed(path, "network", tensors, _facts_of(facts, "network", tensors))


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
            for number, each in enumerate(record.layers)
        ]
        ranges = _ranges(layers, [each.ranges for each in record.layers], [record.box])
        positions = record.shape[0] if len(record.shape) == 2 else 1
        phases = phases_of(layers, ranges, _choices(layers, ranges, record), positions)
        own: dict[str, Any] = {field.name: getattr(record, field.name, phases) for field in fields(NetworkProgram)}
        program = NetworkProgram(**own)
        _require_sizes(program)
        wrong = _false_claim(program)
    if wrong is not None:
        raise BadFile(f"{path} claims what is not so: {wrong}; {AGAIN}")
    return program


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _facts_of(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON has it; tensors go to `tensors`, and their names stand for them."""
    if isinstance(value, Tensor):
        tensors[place] = value.contiguous().clone()
        return place
    if is_dataclass(value):
        value = _fields_of(value)
    if isinstance(value, dict):
        return {name: _facts_of(part, f"{place}.{name}", tensors) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_facts_of(part, f"{place}.{i}", tensors) for i, part in enumerate(value)]
    return value


def _choices(layers: Sequence[Layer], ranges: Sequence[ValueRanges], record: NetworkRecord) -> Iterator[Choice]:
    """What the file says of each simple layer; nothing where it says too little, and gates and functions need it."""
    gates, softmaxes = iter(record.sharpnesses), iter(record.softmaxes)
    for layer, _ in simple_layers(layers, ranges):
        if isinstance(layer, Gate):
            yield next(gates, None)
        else:
            yield next(softmaxes, None) if isinstance(layer, Function) else None
    if [*gates, *softmaxes]:
        raise ValueError("it has more gates or softmaxes than layers")


def _ranges(layers: Sequence[Layer], records: Sequence[RangesRecord], inputs: Sequence[Box]) -> list[ValueRanges]:
    """With what layers read, which follows from what is written before them."""
    boxes, found = list(inputs), list[ValueRanges]()
    if len(layers) != len(records):
        raise ValueError(f"there are {len(records)} ranges for {len(layers)} layers")
    for layer, record in zip(layers, records, strict=True):
        if any(not 0 <= read < len(boxes) for read in layer.reads) or not (layer.reads or isinstance(layer, Constant)):
            raise ValueError(f"{layer.name} reads a register that is not there yet")
        given, parts = [boxes[read] for read in layer.reads], list[ValueRanges]()
        if isinstance(layer, Composite):
            _require_composite(layer, [len(box.lo) for box in given])
            parts = _ranges(layer.parts, record.parts, given)
            last = parts[-1].output
            if not (torch.equal(last.lo, record.output.lo) and torch.equal(last.hi, record.output.hi)):
                raise ValueError(f"{layer.name} and its last part have different ranges")
        found.append(ValueRanges(Box.beside(given), record.output, record.attention, tuple(parts)))
        boxes.append(record.output)
    return found


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
    if not 1 <= program.steps <= MOST_STEPS or (program.steps > 1 and program.shape != program.out_shape):
        raise ValueError(f"{program.steps} steps from {program.shape} to {program.out_shape} are not possible")
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
    for phase in _all_phases(program.phases):
        wrong = _false_range(phase, program.source) or _false_claim_of(phase)
        if wrong is not None:
            return wrong
    return None


def _all_phases(phases: Sequence[NetworkPhase]) -> Iterator[NetworkPhase]:
    """Parts of composites among them."""
    for phase in phases:
        yield phase
        yield from _all_phases(phase.phases)


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
    _, sure = layer_with_ranges(layer, inputs, (SPARE if source == "data" else SLACK) / 2, plan=False)
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
