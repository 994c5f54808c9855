"""Networks as files: the layers with their weights, and the plan with its softmaxes, sealed as programs are.

A checksum says that a file is whole; whoever alters a file can make it anew. So nothing that bears on a promise is
believed: what a layer reads follows from the outputs before it, every softmax is proved again in ball arithmetic, every
gate is compared with the function of its layer, and ranges are derived again by intervals where they are said to hold
for a whole domain. Ranges seen on data are checked by each run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from emulon.certify.domain import require_scale
from emulon.certify.interpolation import Interpolation, holds
from emulon.core.files import checked
from emulon.expressions import parse
from emulon.interpreter.files import BadFile, read_sealed, whole, write_sealed
from emulon.networks.attention import AttentionPhase
from emulon.networks.function import FunctionPhase
from emulon.networks.gate import GatePhase
from emulon.networks.layers import Attention, Box, Constant, Elementwise, Inner, Known, Layer, Linear, Root
from emulon.networks.linear import LinearPhase
from emulon.networks.phase import ConstantPhase, NetworkPhase
from emulon.networks.planning import SHARPEST
from emulon.networks.program import NetworkProgram
from emulon.networks.ranges import ROOM, states
from emulon.networks.softmaxes import Softmax, softmax_for

f64 = torch.float64
LAYERS: dict[str, type[Layer]] = {one.__name__: one for one in (Linear, Constant, Elementwise, Root, Attention)}
# Attention over more positions than this is not run, and would fill memory with its mask.
MOST_POSITIONS = 1 << 16
AGAIN = "compile it again"


@dataclass(frozen=True)
class PhaseRecord:
    """One phase in a file: its layer's class and fields, and of the plan what does not follow from these."""

    kind: Literal["Linear", "Constant", "Elementwise", "Root", "Attention"]
    layer: dict[str, Any]
    output: Box
    inner: Inner | None
    sharpness: float | None
    softmax: Softmax | None

    @classmethod
    def of(cls, phase: NetworkPhase) -> PhaseRecord:
        layer, known = phase.layer, phase.known
        own = {field.name: getattr(layer, field.name) for field in fields(layer)}
        sharpness, softmax = getattr(phase, "sharpness", None), getattr(phase, "softmax", None)
        return cls(type(layer).__name__, own, known.output, known.inner, sharpness, softmax)  # type: ignore[arg-type]  # one of these


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
    """Write it whole or not at all."""
    own = {field.name: getattr(program, field.name) for field in fields(NetworkRecord)}
    record = NetworkRecord(**own | {"phases": tuple(map(PhaseRecord.of, program.phases))})
    tensors: dict[str, Tensor] = {}
    facts = _facts_of(record, "network", tensors)
    write_sealed(path, "network", tensors, facts)


def load_network(path: str | Path) -> NetworkProgram:
    """The network in a file that `save_network` wrote.

    Returns:
        The same program, with what it promises proved again.
    Raises:
        BadFile: The file is missing, damaged or altered, or claims what cannot be proved.
    """
    tensors, facts = read_sealed(Path(path), "network")
    with whole(path, AGAIN):
        if any(part.dtype != f64 or not bool(torch.isfinite(part).all()) for part in tensors.values()):
            raise ValueError("its numbers are not finite, or not in float64")
        record = checked(NetworkRecord, facts, "the network", tensors)
        boxes = (record.box, *(each.output for each in record.phases))
        phases = tuple(_phase(number, each, boxes, record.shape, tensors) for number, each in enumerate(record.phases))
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


def _phase(
    number: int, record: PhaseRecord, boxes: Sequence[Box], shape: Sequence[int], tensors: dict[str, Tensor]
) -> NetworkPhase:
    layer = checked(LAYERS[record.kind], record.layer, f"layer {number}", tensors)
    if any(not 0 <= read <= number for read in layer.reads) or not (layer.reads or isinstance(layer, Constant)):
        raise ValueError(f"{layer.name} reads a register that is not there yet")
    inputs = Box.beside([boxes[read] for read in layer.reads] or [Box(boxes[0].lo[:0], boxes[0].hi[:0])])
    known = Known(inputs, record.output, record.inner)
    require_scale(**{f"numbers of {layer.name}": max(inputs.size, record.output.size)})
    if isinstance(layer, Linear):
        return LinearPhase(layer, known)
    if isinstance(layer, Constant):
        return ConstantPhase(layer, known)
    if isinstance(layer, Attention):
        return AttentionPhase(layer, known, shape[0])
    assert isinstance(layer, Elementwise)
    if layer.gated is not None and record.sharpness is not None:
        return GatePhase(layer, known, layer.gated.low, record.sharpness, layer.gated.kinked)
    if record.softmax is None:
        raise ValueError(f"{layer.name} has neither gate nor softmax")
    return FunctionPhase(layer, known, replace(record.softmax, proved=True))  # or it is refused


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
        box, layer = phase.known.output, phase.layer
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
    """What a network says of itself and is not so."""
    found = (_false_range(phase, program.source) or _false_claim_of(phase) for phase in program.phases)
    return next((wrong for wrong in found if wrong is not None), None)


def _false_range(phase: NetworkPhase, source: str) -> str | None:
    """Ranges for a whole domain, derived layer by layer from those before; with less room than they were made with,
    for intervals differ between processors in the last digits. An attention's numbers inside may not exceed theirs."""
    layer, known = phase.layer, phase.known
    inner = None if known.inner is None else [getattr(known.inner, field.name) for field in fields(known.inner)]
    if isinstance(layer, Attention) and not (inner and all(0 <= most < math.inf for most in inner)):
        return f"{layer.name} has no ranges inside"
    if source == "data":  # which every run checks
        return None
    if not layer.interval(known.inputs).widened(ROOM / 2).is_inside(known.output):
        return f"{layer.name} may leave its range"
    sure = layer.inside_of(known.inputs)
    if sure is not None and inner is not None:
        wanted = [getattr(sure, field.name) for field in fields(sure)]
        if any(most < least * (1 - 1e-9) for most, least in zip(inner, wanted, strict=True)):
            return f"{layer.name} may leave its ranges inside"
    return None


def _false_claim_of(phase: NetworkPhase) -> str | None:
    layer = phase.layer
    if isinstance(layer, Elementwise) and layer.gated is not None and not _is_gate(layer):
        return f"{layer.name} is gated as another function"
    if isinstance(phase, GatePhase):
        sharpest = SHARPEST if phase.kinked else 1.0
        if not 1 <= phase.sharpness <= sharpest or math.frexp(phase.sharpness)[0] != 0.5:
            return f"the gate of {layer.name} has a sharpness of {phase.sharpness:g}"
    if isinstance(layer, Linear) and layer.unrounded is not None:
        for name, ball in zip(("weight", "bias"), layer.unrounded.balls(), strict=True):
            if not torch.equal(getattr(layer, name), ball.high):
                return f"the {name} of {layer.name} is not what it says that it is rounded from"
    if isinstance(layer, Attention) and not 0 < layer.scale < math.inf:
        return f"the scores of {layer.name} are divided by the root of {layer.scale}"
    if isinstance(phase, FunctionPhase) and phase.known.inputs.ends[1] > phase.layer.most:
        return f"{layer.name} reaches where it is another function"
    if isinstance(phase, FunctionPhase):
        softmax, (lo, hi) = phase.softmax, phase.known.inputs.ends
        known = (softmax.interpolation, softmax.deviation, softmax.size, softmax.grid.lo, softmax.grid.hi)
        if softmax.f != phase.layer.f or not softmax.grid.lo <= lo <= hi <= softmax.grid.hi:
            return f"the softmax of {layer.name} is for another function, or another range"
        if not all(map(math.isfinite, known)) or softmax.grid.bands or len(softmax.grid) == 0:
            return f"the softmax of {layer.name} promises nothing"
        claimed = Interpolation(softmax.interpolation, 0.0, softmax.deviation, softmax.size)
        if not _comes_with_the_package(softmax, lo, hi) and not holds(
            softmax.grid.numbers, parse(softmax.f), softmax.grid.lo, softmax.grid.hi, claimed
        ):
            return f"{layer.name} is not as near to {softmax.f} as it says"
    return None


def _is_gate(layer: Elementwise) -> bool:
    """Whether its function is max(t, low·t), or t·σ(t), as its gate says."""
    gated = layer.gated
    assert gated is not None
    if not gated.kinked:
        return gated.low == 0 and layer.f == "t/(1 + exp(-t))"
    if gated.low == 0 and layer.f == "Max(t, 0)":
        return True
    written = re.fullmatch(r"Max\(t, \(?(-?[0-9][0-9./e+-]*)\)?\*t\)", layer.f)
    return written is not None and gated.low < 1 and float(Fraction(written[1])) == gated.low


def _comes_with_the_package(softmax: Softmax, lo: float, hi: float) -> bool:
    """Squares and roots, which the tests prove: to the last bit, with the same claims."""
    if softmax.f not in ("t**2", "1/sqrt(t)"):
        return False
    ours = softmax_for(softmax.f, lo, hi, 1.0)
    same = all(torch.equal(part, ours.tensors[name]) for name, part in softmax.tensors.items())
    return same and softmax.facts == ours.facts
