"""Networks as files: the layers with their weights, and the plan with its softmaxes, sealed as programs are.

A checksum says that a file is whole. What it claims is proved again on loading: every softmax in ball arithmetic, and
every range by intervals where it is said to hold for a whole domain. Ranges seen on data are checked by each run.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emulon.certify.interpolation import Interpolation, holds
from emulon.expression import parse
from emulon.interpreter.files import BadFile, read_sealed, require_kind, whole, write_sealed
from emulon.networks.attention import AttentionPhase
from emulon.networks.function import FunctionPhase
from emulon.networks.gate import GatePhase
from emulon.networks.layers import (
    Attention,
    Box,
    Constant,
    Elementwise,
    Gated,
    Inner,
    Known,
    Layer,
    Linear,
    Root,
    Unrounded,
)
from emulon.networks.linear import LinearPhase
from emulon.networks.lowering import HEAD
from emulon.networks.phase import ConstantPhase, NetworkPhase
from emulon.networks.program import NetworkProgram
from emulon.networks.ranges import from_box
from emulon.networks.softmaxes import Softmax, softmax_for

f64 = torch.float64
TENSORS = {"linear": ("weight", "bias"), "constant": ("values",), "elementwise": (), "attention": HEAD}
SOFTMAX = ("slopes", "intercepts", "values")
UNROUNDED = tuple(field.name for field in fields(Unrounded))


def save_network(program: NetworkProgram, path: str | Path) -> None:
    """Write it whole or not at all."""
    tensors: dict[str, Tensor] = {"box.lo": program.box.lo, "box.hi": program.box.hi}
    plain = ("name", "shape", "out_shape", "tolerance", "source")
    facts: dict[str, Any] = {name: getattr(program, name) for name in plain}
    facts["phases"] = []
    for number, phase in enumerate(program.phases):
        layer = phase.layer
        own = {name: getattr(layer, name) for name in TENSORS[layer.kind]}
        if isinstance(layer, Linear) and layer.unrounded is not None:
            own |= {f"unrounded.{name}": part for name, part in vars(layer.unrounded).items()}
        boxes = {f"{side}.{end}": getattr(getattr(phase.known, side), end) for side, end in _ENDS}
        softmax = {f"softmax.{name}": part for name, part in phase.tensors.items()}
        tensors |= {f"{number}.{name}": part for name, part in (own | boxes | softmax).items()}
        facts["phases"].append({**_layer_facts(layer), "phase": phase.kind, "plan": phase.facts, **_inner(phase.known)})
    write_sealed(path, "network", {name: part.contiguous().clone() for name, part in tensors.items()}, facts)


def load_network(path: str | Path) -> NetworkProgram:
    """A network exactly as saved, once what it claims of itself has been proved again."""
    tensors, facts = read_sealed(Path(path), "network")
    with whole(path, "compile it again"):
        if any(part.dtype != f64 or not bool(torch.isfinite(part).all()) for part in tensors.values()):
            raise TypeError("its numbers are not finite, or not in float64")
        require_kind(facts, {"name": str, "tolerance": float, "source": str})
        phases = tuple(_phase(number, tensors, each, facts) for number, each in enumerate(facts["phases"]))
        shapes = (tuple(map(int, facts["shape"])), tuple(map(int, facts["out_shape"])))
        box = Box(tensors["box.lo"], tensors["box.hi"])
        program = NetworkProgram(facts["name"], phases, box, *shapes, facts["tolerance"], facts["source"])
        wrong = _false_claim(program)
    if wrong is not None:
        raise BadFile(f"{path} claims what is not so: {wrong}; compile it again")
    return program


_ENDS = tuple((side, end) for side in ("inputs", "output") for end in ("lo", "hi"))


def _layer_facts(layer: Layer) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": layer.kind, "name": layer.name, "reads": layer.reads}
    if isinstance(layer, Elementwise):
        facts |= {"f": layer.f, "gated": None if layer.gated is None else asdict(layer.gated)}
        facts |= {"root": isinstance(layer, Root), "within": getattr(layer, "within", None)}
        facts["most"] = layer.most if math.isfinite(layer.most) else None
    if isinstance(layer, Attention):
        facts |= {"causal": layer.causal, "scale": layer.scale}
    return facts


def _inner(known: Known) -> dict[str, Any]:
    return {"inner": None if known.inner is None else asdict(known.inner)}


def _layer(facts: dict[str, Any], own: dict[str, Tensor]) -> Layer:
    require_kind(facts, {"kind": str, "name": str})
    common: dict[str, Any] = {"name": facts["name"], "reads": tuple(map(int, facts["reads"]))}
    parts: dict[str, Any] = {name: own[name] for name in TENSORS[facts["kind"]]}
    if facts["kind"] == "linear":
        exact = {name: own[f"unrounded.{name}"] for name in UNROUNDED if f"unrounded.{name}" in own}
        return Linear(**common, **parts, unrounded=Unrounded(**exact) if exact else None)
    if facts["kind"] == "constant":
        return Constant(**common, **parts)
    if facts["kind"] == "attention":
        return Attention(**common, **parts, causal=bool(facts["causal"]), scale=float(facts.get("scale", 1.0)))
    gated = None if facts["gated"] is None else Gated(**facts["gated"])
    if facts["root"]:
        return Root(**common, f=facts["f"], within=facts["within"] and tuple(facts["within"]))
    most = facts.get("most")
    return Elementwise(**common, f=facts["f"], gated=gated, most=math.inf if most is None else float(most))


def _phase(number: int, tensors: dict[str, Tensor], facts: dict[str, Any], whole: dict[str, Any]) -> NetworkPhase:
    start = f"{number}."
    own = {name.removeprefix(start): part for name, part in tensors.items() if name.startswith(start)}
    layer = _layer(facts, own)
    if any(not 0 <= read <= number for read in layer.reads):
        raise TypeError(f"{layer.name} reads a register that is not there yet")
    inputs, output = (Box(own[f"{side}.lo"], own[f"{side}.hi"]) for side in ("inputs", "output"))
    known = Known(inputs, output, None if facts["inner"] is None else Inner(**facts["inner"]))
    plan = facts["plan"]
    if isinstance(layer, Linear):
        return LinearPhase(layer, known)
    if isinstance(layer, Constant):
        return ConstantPhase(layer, known)
    if isinstance(layer, Attention):
        return AttentionPhase(layer, known, int(whole["shape"][0]))
    assert isinstance(layer, Elementwise)
    if facts["phase"] == "gate":
        require_kind(plan, {"low": float, "sharpness": float, "kinked": bool})
        return GatePhase(layer, known, plan["low"], plan["sharpness"], plan["kinked"])
    softmax = Softmax.from_parts(plan["softmax"], {name: own[f"softmax.{name}"] for name in SOFTMAX})
    return FunctionPhase(layer, known, softmax)


def _false_claim(program: NetworkProgram) -> str | None:
    """What a network says of itself and is not so."""
    if program.source not in ("domain", "data") or not program.phases:
        return "ranges come from nowhere"
    if program.source == "domain":
        for phase, sure in zip(program.phases, from_box(program.layers, program.box), strict=True):
            if not (sure.inputs.is_inside(phase.known.inputs) and sure.output.is_inside(phase.known.output)):
                return f"{phase.layer.name} may leave its range"
    return next((wrong for phase in program.phases if (wrong := _false_claim_of(phase)) is not None), None)


def _false_claim_of(phase: NetworkPhase) -> str | None:
    if isinstance(phase, GatePhase):
        asked = phase.layer.gated
        power = math.log2(phase.sharpness) if phase.sharpness > 0 else math.nan
        same = asked is not None and (asked.low, asked.kinked) == (phase.low, phase.kinked)
        if not same or power != round(power) or not (phase.kinked or phase.sharpness == 1):
            return f"{phase.layer.name} is gated as another function"
    if isinstance(phase, LinearPhase) and phase.layer.unrounded is not None:
        rounded = phase.layer.unrounded.balls()
        for name, ball in zip(("weight", "bias"), rounded, strict=True):
            if not torch.equal(getattr(phase.layer, name), ball.high):
                return f"the {name} of {phase.layer.name} is not what it says that it is rounded from"
    if isinstance(phase, AttentionPhase) and not 0 < phase.layer.scale < math.inf:
        return f"the scores of {phase.layer.name} are divided by the root of {phase.layer.scale}"
    if isinstance(phase, FunctionPhase) and phase.known.inputs.ends[1] > phase.layer.most:
        return f"{phase.layer.name} reaches where it is another function"
    if isinstance(phase, FunctionPhase):
        softmax, (lo, hi) = phase.softmax, phase.known.inputs.ends
        if softmax.f != phase.layer.f or not softmax.grid.lo <= lo <= hi <= softmax.grid.hi:
            return f"the softmax of {phase.layer.name} is for another function, or another range"
        claimed = Interpolation(softmax.interpolation, 0.0, softmax.deviation, softmax.size)
        if not _comes_with_the_package(softmax, lo, hi) and not holds(
            softmax.grid.numbers, parse(softmax.f), softmax.grid.lo, softmax.grid.hi, claimed
        ):
            return f"{phase.layer.name} is not as near to {softmax.f} as it says"
    return None


def _comes_with_the_package(softmax: Softmax, lo: float, hi: float) -> bool:
    """Squares and roots, which the tests prove: to the last bit, with the same claims."""
    if softmax.f not in ("t**2", "1/sqrt(t)"):
        return False
    ours = softmax_for(softmax.f, lo, hi, 1.0)
    same = all(torch.equal(part, ours.tensors[name]) for name, part in softmax.tensors.items())
    return same and softmax.facts == ours.facts
