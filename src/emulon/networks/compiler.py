"""`compile_network`: from a network and what it will be asked to a program. The passes are the functions below.

`compile_iteration` is for algorithms that repeat one step, the step written as a network: the interpreter is prompted
with the layers of the step, over and over; between two steps nothing is computed.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from emulon.algorithms.algorithm import require_steps
from emulon.certify import Certificate
from emulon.certify.certificate import Run
from emulon.certify.domain import require_finite
from emulon.certify.rounding import EXP_ASSUMED
from emulon.core import Progress, silent
from emulon.core.arrays import ArrayFormat, as_tensor
from emulon.core.errors import BadNetwork, BadShape, EmulonError
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.builder import Builder, lower
from emulon.networks.layers import Box, states
from emulon.networks.modules import as_module
from emulon.networks.planning import VOID, ErrorPropagation, box_of, from_box, from_data, layers_to_phases
from emulon.networks.program import RANGES, NetworkProgram, distance_by_arb

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
        margin: Part by which ranges seen on data are widened.
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
    named = builder.numbered
    layers, ranges = from_box(named, [box]) if inputs is None else from_data(named, inputs, margin)
    phases = layers_to_phases(layers, ranges, tolerance, box, _positions(builder))
    shapes = (builder.given, builder.shape)
    program = NetworkProgram(name, phases, box, *shapes, tolerance, "domain" if data is None else "data")
    require_same(module, program, data)
    return program


def require_same(module: nn.Module, program: NetworkProgram, data: Tensor | None) -> None:
    """Compare the module with its layers at a few points: a check of ourselves, beside what lowering requires of it."""
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
    return Box(*(torch.full((features,), float(end), dtype=f64, device="cpu") for end in (lo, hi)))


# Bits of the exact steps: so many in all, and for every step.
BITS, BITS_A_STEP = 192, 4


def compile_iteration(
    step: nn.Module, start: Any, steps: int, tolerance: float = 1e-9, *, margin: float = 0.25
) -> IterationProgram:
    """Compile a step that is applied many times, the output of one being the input of the next.

    Args:
        step: Maps a state to a state of the same shape; made of parts that `compile_network` takes.
        start: (rows, …): one state, or several. Runs stay in the ranges that are seen from there.
        steps: How many.
        tolerance: Of every single step, in exact arithmetic.
        margin: Part by which the ranges seen are widened.
    Returns:
        The program.
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
    return IterationProgram(body, steps)


@dataclass(frozen=True, eq=False)
class IterationProgram:
    """A step as a program, applied many times: its last register is the first of the next step.

    Attributes:
        body: One step.
        steps: How many.

    Example:
        >>> compile_iteration(step, start, 10)(start).outputs
    """

    body: NetworkProgram
    steps: int

    @property
    def dtype(self) -> torch.dtype:
        return self.body.dtype

    @property
    def capacity(self) -> Capacity:
        return self.body.capacity

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits."""
        return self.certificate_on(identity_grid(self.capacity.reach))

    def certificate_on(self, line: IdentityGrid) -> Certificate:
        """For every start whose states stay in range: errors of all steps, through the layers' Lipschitz constants.

        A step that does not pull states together lets it grow as a power of the steps; infinite says nothing.
        """
        return Certificate({"all steps": self._grown(line)}, self.dtype, assumes=(EXP_ASSUMED, RANGES))

    def _grown(self, line: IdentityGrid) -> float:
        body, propagation = self.body, ErrorPropagation(line, VOID[self.body.source])
        error = torch.zeros(len(body.box.lo), dtype=torch.float64, device="cpu")
        for _ in range(self.steps):
            error = propagation.through(body.phases, body.box, error)[-1].bound.each[-1]
            if not error.isfinite().all():
                return math.inf
        return error.max().item()

    def __call__(self, start: Any, mode: Mode = "fast") -> IterationRun:
        """A run on the smallest interpreter that fits."""
        return Interpreter.fitting(self).run(self, start, None, mode)

    def run_on(
        self, interpreter: Interpreter, x: Any, y: Any, mode: Mode, report_progress: Progress = silent
    ) -> IterationRun:
        """`Interpreter.run` is the way to call it."""
        if y is not None:
            raise EmulonError(f"an iteration of {self.body.name} starts from x alone; leave y out")
        given, (state, lead) = ArrayFormat.of(x), self.body.prepared(as_tensor(x, "x"))
        certificate, before = interpreter.certificate(self), interpreter.sha256
        found, slacks = [state], self.body.slacks(interpreter.identity)
        for number in range(self.steps):
            report_progress("step", number / self.steps)
            found.append(self.body.passed(interpreter, found[-1], mode, slacks))
        hashes = (before, interpreter.sha256)
        return IterationRun(self, torch.stack(found, dim=1), lead, certificate, interpreter, hashes, given)

    def exact(self, start: Any) -> Tensor:
        """The last state in plain float64."""
        state, lead = self.body.prepared(as_tensor(start, "start"))
        for _ in range(self.steps):
            *_, state = states(self.body.layers, state)
        return self.body.answers(state, lead)


@dataclass(frozen=True, eq=False, repr=False)
class IterationRun(Run):
    """A run of an iteration.

    Attributes:
        program: What was run.
        states: All states, the first included: (rows, steps + 1, positions, features).
        lead: Leading dimensions of the start.
        certificate: Bound for every start whose states stay in range.
        interpreter: The module that ran it.
        sha256: Of the interpreter, before and after.
        given: The format of the start, which `outputs` have, too.

    Example:
        >>> program(start).audit.bound
    """

    program: IterationProgram
    states: Float64[Tensor, "rows states positions features"]
    lead: torch.Size
    certificate: Certificate
    interpreter: Interpreter
    sha256: tuple[str, str]
    given: ArrayFormat

    @property
    def outputs(self) -> Any:
        """The last state, as what the start came as."""
        return self.given.back(self.last)

    @property
    def last(self) -> Float[Tensor, "*state"]:
        return self.program.body.answers(self.states[:, -1], self.lead)

    @property
    def name(self) -> str:
        return self.program.body.name

    def _make_audit(self) -> Certificate:
        """All exact steps, enclosed in balls of as many bits as it takes."""
        layers, steps, bits = self.program.body.layers, self.program.steps, BITS + BITS_A_STEP * self.program.steps
        worst = distance_by_arb(layers, self.states[:, 0], self.states[:, -1], bits, steps)
        return Certificate({"distance to exact": worst}, self.program.dtype, scope="run")
