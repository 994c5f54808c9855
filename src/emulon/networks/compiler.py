"""`compile_network`: from a network and what it will be asked to a program. The passes are the functions below.

`compile_iteration` is for algorithms that repeat one step, the step written as a network: the interpreter is prompted
with the layers of the step, over and over; between two steps nothing is computed.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from emulon.algorithms.gradient_descent import require_steps
from emulon.certify.domain import require_finite
from emulon.core.arrays import as_tensor
from emulon.core.errors import BadNetwork, BadShape, EmulonError
from emulon.networks.builder import Builder, lower
from emulon.networks.layers import Box
from emulon.networks.modules import as_module
from emulon.networks.planning import SLACK, box_of, layers_to_phases, with_ranges
from emulon.networks.program import NetworkProgram

f64 = torch.float64
# A module and its layers, both in float64, may differ by rounding: by this part at most.
SAME = 1e-7


def compile_network(
    module: Any,
    domain: float | tuple[float, float] | Box | None = None,
    tolerance: float = 1e-9,
    *,
    data: Any = None,
    margin: float = 0.25,
    shape: tuple[int, ...] | None = None,
) -> NetworkProgram:
    """Compile a network into a program for the interpreter of `compile`, its weights in the prompt.

    What is compiled is the module in float64 (`module.double()`), evaluated in exact arithmetic: its weights, buffers
    and parameters such as eps are taken as the float64 numbers that they are, everything else, 1/n and 1/√(variance +
    eps) too, as the real numbers that PyTorch's documentation writes. Audits and certificates are about that.

    Args:
        module: A `torch.nn.Module` of parts that the tutorial lists, or a fitted MLP of scikit-learn.
        domain: Ranges of all numbers follow from this by interval arithmetic: a bound on |x|, an interval, a `Box`.
        tolerance: Of the outputs in exact arithmetic: activations are approximated so well that together they stay
            within it, or as well as float64 allows.
        data: Instead of a domain: ranges as these inputs show them, checked by every run.
        margin: Part by which ranges seen on data are widened; runs keep 0.5 % of a range from its edges.
        shape: Of one input, where data do not show it: (features,), (positions, features), (channels, …).
    Returns:
        The program; calling it runs it.
    Raises:
        BadNetwork: The module has a part that is not compiled: another class than those listed in the tutorial (a
            subclass with a forward of its own, too), or one with hooks, replaced methods or reparametrised weights.
        OutOfDomain: Its numbers are not finite, or range too widely for the functions in it.

    Example:
        >>> compile_network(nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1)), data=x)
    """
    if not 0 < tolerance < math.inf or not 0 <= margin < math.inf:
        raise EmulonError(f"tolerance must be positive and margin not negative, got {tolerance} and {margin}")
    if (domain is None) == (data is None):
        raise EmulonError("compile_network needs a domain, or data=x to see ranges on, and not both")
    name, module = type(module).__name__, as_module(module)
    data = None if data is None else as_tensor(data, "data")
    builder = module_to_layers(module, shape, data)
    inputs = None if data is None else _rows(data, builder)
    box = _box(domain, builder.sizes[0]) if inputs is None else box_of(inputs).widened(margin)
    by, registers = (SLACK, None) if inputs is None else (margin, [inputs])
    layers, ranges = with_ranges(builder.layers, [box], by, registers)
    phases = layers_to_phases(layers, ranges, tolerance, box, builder.positions)
    shapes = (builder.given, builder.shape)
    program = NetworkProgram(name, phases, box, *shapes, tolerance, "domain" if data is None else "data")
    require_same(module, program, data)
    return program


def require_same(module: nn.Module, program: NetworkProgram, data: Tensor | None) -> None:
    """Compare the module with its layers at a few points: a test of the lowering itself."""
    generator = torch.Generator().manual_seed(0)
    if data is None:
        width = program.box.hi - program.box.lo
        draws = torch.rand(4, program.positions, len(width), dtype=f64, generator=generator, device="cpu")
        x = (program.box.lo + draws * width).reshape(4, *program.shape)
    else:
        x = data[:4].double()
    try:
        with torch.no_grad():
            wanted = copy.deepcopy(module).double()(x)
    except Exception as error:  # whatever somebody's forward does
        why = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        raise BadNetwork(f"the module itself fails on float64 data of shape {tuple(x.shape)} ({why})") from None
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


def _rows(data: Tensor, builder: Builder) -> Tensor:
    if data.ndim != len(builder.given) + 1 or not len(data):
        raise BadShape(f"data has shape {tuple(data.shape)}, wanted (rows, {', '.join(map(str, builder.given))})")
    return data.double().reshape(len(data), builder.positions, -1)


def _box(domain: float | tuple[float, float] | Box | None, features: int) -> Box:
    if isinstance(domain, Box):
        if len(domain.lo) != features or not bool((domain.lo <= domain.hi).all()):
            raise BadShape(f"the box has {len(domain.lo)} features, wanted {features}, each with lo ≤ hi")
        return domain
    assert domain is not None
    lo, hi = domain if isinstance(domain, tuple) else (-domain, domain)
    if not -math.inf < lo < hi < math.inf:
        raise EmulonError(f"the domain ({lo}, {hi}) is empty or not finite; give lo < hi, or a bound on |x|")
    return Box(*(torch.full((features,), float(end), dtype=f64, device="cpu") for end in (lo, hi)))


def compile_iteration(
    step: nn.Module, start: Any, steps: int, tolerance: float = 1e-9, *, margin: float = 0.25
) -> NetworkProgram:
    """Compile a step that is applied many times, the output of one being the input of the next.

    Args:
        step: Maps a state to a state of the same shape; made of parts that `compile_network` takes.
        start: (rows, …): one state, or several. Runs stay in the ranges that are seen from there.
        steps: How many.
        tolerance: Of every single step, in exact arithmetic.
        margin: Part by which the ranges seen are widened.
    Returns:
        The program; its certificate and its audits are about all steps.
    Raises:
        BadNetwork: The step changes the shape of the state, or has a part that is not compiled.

    Example:
        >>> compile_iteration(nn.Linear(4, 4), torch.ones(1, 4), 40)
    """
    require_steps(steps)
    state = as_tensor(start, "start").double()
    exact, path = copy.deepcopy(step).double(), [state]
    with torch.no_grad():
        for _ in range(steps):
            path.append(exact(path[-1]))
    if path[-1].shape != state.shape:
        raise BadNetwork(f"a step maps {tuple(state.shape)} to {tuple(path[-1].shape)}; it must keep the shape")
    body = compile_network(step, tolerance=tolerance, data=torch.cat(path), margin=margin)
    return replace(body, steps=steps)
