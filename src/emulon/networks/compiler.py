"""`compile_network`: from a network and what it will be asked to a program. The passes are the functions below."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from emulon.arrays import as_tensor
from emulon.certify.domain import require_finite, require_scale
from emulon.errors import BadNetwork, BadShape, EmulonError
from emulon.networks.attention import AttentionPhase
from emulon.networks.function import FunctionPhase
from emulon.networks.gate import KINK, GatePhase
from emulon.networks.layers import Attention, Box, Constant, Elementwise, Known, Layer, Linear
from emulon.networks.linear import LinearPhase
from emulon.networks.lowering import Builder, lower
from emulon.networks.multilayer import as_module
from emulon.networks.phase import ConstantPhase, NetworkPhase
from emulon.networks.program import NetworkProgram
from emulon.networks.ranges import from_box, from_data, input_box, reading
from emulon.networks.roots import with_short_roots
from emulon.networks.softmaxes import softmax_for

f64 = torch.float64
# Of the numbers in a register, the part that its interpolation is never asked to be below: about float64's own.
FINEST = 2.0**-44
# How gains are measured: errors so small that their squares do not matter.
TINY = 1e-12
# A module and its layers, both in float64, may differ by rounding: by this part at most.
SAME = 1e-7
# Gates are not asked to be sharper than this: the number line would not reach.
SHARPEST = 2.0**40


def compile_network(
    module: Any,
    domain: float | tuple[float, float] | Box | None = None,
    tolerance: float = 1e-9,
    *,
    data: Any = None,
    margin: float = 0.25,
    shape: tuple[int, ...] | None = None,
) -> NetworkProgram:
    """A program that runs this network, its weights in the prompt, on the interpreter of `compile`.

    `module` is a `torch.nn.Module` made of parts that `emulon.networks` knows, or a fitted MLP of scikit-learn. Ranges
    of all numbers follow from a `domain` (a bound on |x|, an interval, or a `Box`) by interval arithmetic, or from
    `data`, widened by the `margin` and checked while running. `tolerance` is for the outputs in exact arithmetic:
    activations are approximated so well that together they stay within it, or as well as float64 allows.
    `shape` is that of one input, where data do not say it: (features,), (positions, features), (channels, …).
    """
    if not 0 < tolerance < math.inf or not 0 <= margin < math.inf:
        raise EmulonError(f"tolerance must be positive and margin not negative, got {tolerance} and {margin}")
    if (domain is None) == (data is None):
        raise EmulonError("compile_network needs a domain, or data=x to see ranges on, and not both")
    name, module = type(module).__name__, as_module(module)
    data = None if data is None else as_tensor(data, "data")
    builder = module_to_layers(module, shape, data)
    inputs = None if data is None else _rows(data, builder)
    box = _box(domain, builder.sizes[0]) if inputs is None else input_box(inputs, margin)

    def ranges(layers: Sequence[Layer]) -> list[Known]:
        return from_box(layers, box) if inputs is None else from_data(layers, inputs, margin)

    builder = with_short_roots(builder, ranges(builder.layers))
    layers = builder.numbered
    phases = layers_to_phases(layers, ranges(layers), tolerance, box, _positions(builder))
    shapes = (builder.given, builder.shape)
    program = NetworkProgram(name, phases, box, *shapes, tolerance, "domain" if data is None else "data")
    require_same(module, program, data)
    return program


def require_same(module: nn.Module, program: NetworkProgram, data: Tensor | None) -> None:
    """Refuse a module that does something else than its parts say: a forward of its own, hooks, weights by others."""
    generator = torch.Generator().manual_seed(0)
    if data is None:
        width = program.box.hi - program.box.lo
        draws = torch.rand(4, program.positions, len(width), dtype=f64, generator=generator)
        x = (program.box.lo + draws * width).reshape(4, *program.shape)
    else:
        x = data[:4].double()
    with torch.no_grad():
        wanted = copy.deepcopy(module).double()(x)
    found = program.exact(x)
    if not isinstance(wanted, Tensor) or wanted.shape != found.shape:
        got = tuple(wanted.shape) if isinstance(wanted, Tensor) else type(wanted).__name__
        raise BadNetwork(f"the module gives {got} where its parts give {tuple(found.shape)}; it is not what they make")
    off = (wanted - found).abs().max().item()
    if not off <= SAME * max(1.0, found.abs().max().item()):
        raise BadNetwork(f"the module is {off:.2g} away from what its parts give; has it a forward of its own?")


def module_to_layers(module: nn.Module, shape: tuple[int, ...] | None, data: Tensor | None) -> Builder:
    if data is not None:
        require_finite(data=data)
        shape = tuple(data.shape[1:]) if shape is None else shape
    if shape is None:
        first = next((part for part in module.modules() if isinstance(part, nn.Linear)), None)
        if first is None:
            raise BadNetwork("the network does not say what it reads; give shape=…, that of one input")
        shape = (first.in_features,)
    return lower(module, shape)


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
    found = [torch.zeros(count, features, dtype=f64)]
    for number, (layer, where) in enumerate(zip(layers, known, strict=True)):
        errors = layer.carried(reading(layer, found), where)
        errors[number] += TINY
        found.append(errors)
    return (found[-1].amax(dim=-1) / TINY).tolist()


def _positions(builder: Builder) -> int:
    return builder.given[0] if builder.is_sequence else 1


def _rows(data: Tensor, builder: Builder) -> Tensor:
    if data.ndim != len(builder.given) + 1 or not len(data):
        raise BadShape(f"data has shape {tuple(data.shape)}, wanted (rows, {', '.join(map(str, builder.given))})")
    return data.double().reshape(len(data), _positions(builder), -1)


def _box(domain: float | tuple[float, float] | Box | None, features: int) -> Box:
    if isinstance(domain, Box):
        if len(domain.lo) != features or not bool((domain.lo <= domain.hi).all()):
            raise BadShape(f"the box has {len(domain.lo)} features, wanted {features}, each with lo ≤ hi")
        return domain
    assert domain is not None
    lo, hi = domain if isinstance(domain, tuple) else (-domain, domain)
    if not -math.inf < lo < hi < math.inf:
        raise EmulonError(f"the domain ({lo}, {hi}) is empty or not finite; give lo < hi, or a bound on |x|")
    return Box(*(torch.full((features,), float(end), dtype=f64) for end in (lo, hi)))
