"""From layers and where their numbers are to phases: each activation's share of the tolerance, and its softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from emulon.certify.domain import require_scale
from emulon.core.errors import OutOfDomain
from emulon.networks.attention import AttentionPhase
from emulon.networks.function import FunctionPhase
from emulon.networks.gate import KINK, GatePhase
from emulon.networks.layers import Attention, Box, Constant, Elementwise, Known, Layer, Linear
from emulon.networks.linear import LinearPhase
from emulon.networks.phase import ConstantPhase, NetworkPhase
from emulon.networks.ranges import reading
from emulon.networks.softmaxes import softmax_for

f64 = torch.float64
# Of the numbers in a register, the part that its interpolation is never asked to be below: about float64's own.
FINEST = 2.0**-44
# How gains are measured: errors so small that their squares do not matter.
TINY = 1e-12
# Gates are not asked to be sharper than this: the number line would not reach.
SHARPEST = 2.0**40


def layers_to_phases(
    layers: Sequence[Layer], known: Sequence[Known], tolerance: float, box: Box, positions: int
) -> tuple[NetworkPhase, ...]:
    """Every activation gets an equal share of the tolerance, divided by what follows makes of its error."""
    gains = gains_of(layers, known, len(box.lo))
    count = max(1, sum(isinstance(layer, Elementwise) for layer in layers))
    phases = []
    for layer, where, gain in zip(layers, known, gains, strict=True):
        share = max(tolerance / (count * max(gain, 1e-300)), FINEST * max(where.output.size, 1e-300))
        phases.append(layer_to_phase(layer, where, share, positions))
    return tuple(phases)


def layer_to_phase(layer: Layer, known: Known, tolerance: float, positions: int) -> NetworkPhase:
    require_scale(**{f"numbers of {layer.name}": max(known.inputs.size, known.output.size)})
    if isinstance(layer, Linear):
        return LinearPhase(layer, known)
    if isinstance(layer, Attention):
        return AttentionPhase(layer, known, positions)
    if isinstance(layer, Constant):
        return ConstantPhase(layer, known)
    assert isinstance(layer, Elementwise)
    if known.inputs.ends[1] > layer.most:
        raise OutOfDomain(
            f"{layer.name} is {layer.f} up to {layer.most:g} only, and its numbers may reach "
            f"{known.inputs.ends[1]:.4g}; give a smaller domain, or write it as an Expression"
        )
    if layer.gated is None:
        return FunctionPhase(layer, known, softmax_for(layer.f, *known.inputs.ends, tolerance))
    low, kinked = layer.gated.low, layer.gated.kinked
    sharpest = SHARPEST / max(known.inputs.size, 1.0)
    wanted = (1 - low) * KINK / tolerance if kinked else 1.0
    sharpness = 2.0 ** math.ceil(math.log2(min(max(wanted, 1.0), sharpest)))
    return GatePhase(layer, known, low, sharpness if kinked else 1.0, kinked)


def gains_of(layers: Sequence[Layer], known: Sequence[Known], features: int) -> list[float]:
    """How far an error of every layer's output can move the network's, per unit: Lipschitz constants, sup to sup."""
    count = len(layers)
    found = [torch.zeros(count, features, dtype=f64, device="cpu")]
    for number, (layer, where) in enumerate(zip(layers, known, strict=True)):
        errors = layer.carried(reading(layer, found), where)
        errors[number] += TINY
        found.append(errors)
    # An error of zero times a slope without a bound says nothing.
    return (found[-1].nan_to_num(nan=math.inf).amax(dim=-1) / TINY).tolist()
