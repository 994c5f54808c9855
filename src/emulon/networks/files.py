"""Networks as files: the layers with their weights, and the plan with its softmaxes, sealed as programs are.

A checksum says that a file is whole; anyone who alters a file can compute it anew. So nothing that a certificate
depends on is believed: a file has the layers, ranges that data showed, which each run checks, and softmaxes, which are
proved again in ball arithmetic. Everything else is planned again.
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
from emulon.core.arrays import zeros
from emulon.core.files import checked
from emulon.expressions import parse
from emulon.interpreter.files import read_sealed, whole, write_sealed
from emulon.networks.attention import Attention
from emulon.networks.elementwise import Function, FunctionPhase, Gate
from emulon.networks.layers import Box, Layer, NetworkPhase, states
from emulon.networks.maps import Constant, Linear, Norm, Product, ReciprocalRoot
from emulon.networks.planning import SLACK, Seen, layers_to_phases, with_ranges
from emulon.networks.program import NetworkProgram
from emulon.networks.softmaxes import ROOT, SQUARE, Softmax, softmax_for

f64 = torch.float64
KINDS = (Linear, Constant, Function, Gate, Attention, Product, ReciprocalRoot, Norm)
LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in KINDS}
# Limits for files: an attention mask over more positions would fill the memory.
MOST_POSITIONS, MOST_STEPS = 1 << 16, 1 << 20
AGAIN = "compile it again"


@dataclass(frozen=True)
class LayerRecord:
    """One layer in a file: its class and its fields."""

    kind: Literal["Linear", "Constant", "Function", "Gate", "Attention", "Product", "ReciprocalRoot", "Norm"]
    fields: dict[str, Any]


@dataclass(frozen=True)
class NetworkRecord:
    """All facts of a network's file; ranges and softmaxes of a composite's parts follow its own."""

    name: str
    box: Box
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    tolerance: float
    source: Literal["domain", "data"]
    steps: int
    layers: tuple[LayerRecord, ...]
    seen: tuple[Seen, ...]
    softmaxes: tuple[Softmax, ...]


def save_network(program: NetworkProgram, path: str | Path) -> None:
    """Write a network to a file, whole or not at all.

    Args:
        program: What `compile_network` returned.
        path: The file, such as `network.safetensors`.
    """
    tensors: dict[str, Tensor] = {}
    facts = {
        **{name: value for name, value in _fields_of(program).items() if name != "phases"},
        "layers": tuple({"kind": type(layer).__name__, "fields": _fields_of(layer)} for layer in program.layers),
        "seen": tuple(_seen(program.phases)) if program.source == "data" else (),
        "softmaxes": tuple(each.softmax for each in _all_phases(program.phases) if isinstance(each, FunctionPhase)),
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
            checked(LAYERS[each.kind], each.fields, f"layer {number}", tensors)
            for number, each in enumerate(record.layers)
        ]
        _require_sizes(record, layers)
        for layer in layers:
            _require_layer(layer)
        recorded = iter(record.seen)
        by_data = recorded if record.source == "data" else None
        layers, ranges = with_ranges(layers, [record.box], SLACK, None, by_data)
        positions = record.shape[0] if len(record.shape) == 2 else 1
        softmaxes = iter(record.softmaxes)
        phases = layers_to_phases(layers, ranges, record.tolerance, record.box, positions, softmaxes)
        if [*softmaxes, *recorded]:
            raise ValueError("it has more ranges or softmaxes than layers")
        own: dict[str, Any] = {field.name: getattr(record, field.name, phases) for field in fields(NetworkProgram)}
        for phase in _all_phases(phases):
            _require_claims(phase)
    return NetworkProgram(**own)


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


def _seen(phases: Sequence[NetworkPhase]) -> Iterator[Seen]:
    """Ranges of every layer and its parts, unless these follow from formulas."""
    for phase in phases:
        yield Seen(phase.ranges.output, phase.ranges.attention)
        if not (isinstance(phase.layer, ReciprocalRoot) and phase.layer.coarse is not None):
            yield from _seen(phase.phases)


def _all_phases(phases: Sequence[NetworkPhase]) -> Iterator[NetworkPhase]:
    """All phases, with the parts of composites."""
    for phase in phases:
        yield phase
        yield from _all_phases(phase.phases)


def _require_sizes(record: NetworkRecord, layers: Sequence[Layer]) -> None:
    """Refuse (ValueError) layers that do not fit each other, or the shapes that the file says."""
    shape, box, is_sequence = record.shape, record.box, len(record.shape) == 2
    features = shape[-1] if is_sequence else math.prod(shape)
    positions = shape[0] if is_sequence else 1
    if not shape or min(shape) < 1 or positions > MOST_POSITIONS:
        raise ValueError(f"an input of shape {shape} is not possible")
    if len(box.lo) != features or not 0 < record.tolerance < math.inf or not layers:
        raise ValueError(f"the box is of {len(box.lo)} features instead of {features}")
    if bool((box.lo > box.hi).any()):
        raise ValueError("the box is empty")
    if not 1 <= record.steps <= MOST_STEPS or (record.steps > 1 and shape != record.out_shape):
        raise ValueError(f"{record.steps} steps from {shape} to {record.out_shape} are not possible")
    if len({layer.name for layer in layers}) < len(layers):  # terms of the certificate go by these
        raise ValueError("two layers have one name")
    for number, layer in enumerate(layers):
        wanted = 0 if isinstance(layer, Constant) else 2 if isinstance(layer, Product) else 1
        if any(not 0 <= read <= number for read in layer.reads) or not wanted <= len(layer.reads):
            raise ValueError(f"{layer.name} reads a register that is not there yet")
        if isinstance(layer, Constant) and len(layer.values) != positions:
            raise ValueError(f"{layer.name} has {len(layer.values)} rows for {positions} positions")
    x = ((box.lo + box.hi) / 2).reshape(1, 1, features)
    *_, register = states(layers, x)
    out = record.out_shape[1:] if is_sequence else record.out_shape
    if math.prod(out) != register.shape[-1] or min(out, default=1) < 1:
        raise ValueError(f"the last layer writes {register.shape[-1]} numbers, and the output is of {record.out_shape}")


def _require_layer(layer: Layer) -> None:
    """Refuse (ValueError) parameters that no module has."""
    if isinstance(layer, Gate) and not (layer.low < 1 if layer.kinked else layer.low == 0):
        raise ValueError(f"{layer.name} is a gate of {layer.low}")
    if isinstance(layer, Attention) and not 0 < layer.scale < math.inf:
        raise ValueError(f"the scores of {layer.name} are divided by the root of {layer.scale}")
    if isinstance(layer, Norm) and not 0 <= layer.eps < math.inf:
        raise ValueError(f"{layer.name} has an epsilon of {layer.eps}")
    if isinstance(layer, Linear) and layer.unrounded is not None:
        for name, ball in zip(("weight", "bias"), layer.unrounded.balls(), strict=True):
            if not torch.equal(getattr(layer, name), ball.high):
                raise ValueError(f"the {name} of {layer.name} is not its exact map, rounded")


def _require_claims(phase: NetworkPhase) -> None:
    """Refuse (ValueError) impossible ranges, and softmaxes whose claimed error is not proved."""
    layer, box, known = phase.layer, phase.ranges.output, phase.ranges.attention
    written = layer.exact(zeros(1, 1, len(phase.ranges.inputs.lo))).shape[-1]
    if written != len(box.lo) or not written or bool((box.lo > box.hi).any()):
        raise ValueError(f"{layer.name} writes {written} numbers, and has {len(box.lo)} ranges, or empty ones")
    if known is not None and not all(0 <= most < math.inf for most in vars(known).values()):
        raise ValueError(f"{layer.name} has no ranges of attention")
    if not isinstance(phase, FunctionPhase):
        return
    softmax, (lo, hi) = phase.softmax, phase.ranges.inputs.ends
    if softmax.f != phase.layer.f:
        raise ValueError(f"the softmax of {layer.name} is for another function")
    numbers = (softmax.interpolation, softmax.deviation, softmax.size, softmax.grid.lo, softmax.grid.hi)
    if not all(map(math.isfinite, numbers)) or softmax.grid.bands or len(softmax.grid) == 0:
        raise ValueError(f"the softmax of {layer.name} has no bound")
    claimed = Interpolation(softmax.interpolation, 0.0, softmax.deviation, softmax.size)
    if not _comes_with_the_package(softmax, lo, hi) and not holds(
        softmax.grid.numbers, parse(softmax.f), softmax.grid.lo, softmax.grid.hi, claimed
    ):
        raise ValueError(f"{layer.name} is not as near to {softmax.f} as it says")


def _comes_with_the_package(softmax: Softmax, lo: float, hi: float) -> bool:
    """Whether this is a shipped softmax for squares or roots, which the tests prove, bit for bit."""
    if softmax.f not in (SQUARE, ROOT):
        return False
    return softmax.facts == softmax_for(softmax.f, lo, hi, 1.0).facts
