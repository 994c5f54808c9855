"""A network as a program for the interpreter: phases, one after the other, and a run of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from emulon.certify import Certificate
from emulon.certify.certificate import Run
from emulon.certify.domain import require_finite
from emulon.certify.functions import distance, largest
from emulon.certify.rounding import EXP_ASSUMED
from emulon.core import Progress, silent
from emulon.core.arrays import ArrayFormat, accepts_arraylike, as_tensor, own_copy
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.arithmetic import ARB, BALLS, FLOAT_BALLS, Arithmetic
from emulon.networks.layers import (
    Box,
    Layer,
    NetworkPhase,
    beside,
    computed,
    evaluated,
    joint_capacity,
    states,
)
from emulon.networks.maps import Linear
from emulon.networks.planning import SLACK, VOID, ErrorPropagation, Register, box_of, layers_to_phases, with_ranges

f64 = torch.float64
RANGES = "every layer's numbers lie in the ranges that data showed, which a run checks"
# Widest enclosure, as a part of the distance that it bounds; bits to begin with in Arb.
TIGHT, BITS = 0.1, 256
# Widest enclosure of a register, as a part of its range.
LOST = 1e-6
# Numbers of a register that are audited together, and rows of the input that statistics are of.
AUDITED, ROWS = 1 << 17, 16
Source = Literal["domain", "data"]


@dataclass(frozen=True, eq=False)
class NetworkProgram:
    """A compiled network: phase i reads the registers that its layer names and writes register i + 1.

    Inside the interpreter's attention: linear maps with their biases and residual sums, activations, normalisations,
    attention between positions. Outside: putting registers into prompts, times constants, and writing answers back.

    Attributes:
        name: The module's class.
        phases: One for each layer.
        box: Range of the inputs, which are register 0.
        shape: Shape of one input.
        out_shape: Shape of its output.
        tolerance: Largest error in exact arithmetic that was asked for.
        source: Whether ranges hold for every input of the box ("domain") or were seen on data.
        steps: How often it is applied, to its own output from the second time on.

    Example:
        >>> compile_network(module, data=x)(x).outputs
    """

    name: str
    phases: tuple[NetworkPhase, ...]
    box: Box
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    tolerance: float
    source: Source
    steps: int = 1
    several_queries = False

    @property
    def dtype(self) -> torch.dtype:
        return f64

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(phase.layer for phase in self.phases)

    @property
    def positions(self) -> int:
        """1 where rows are no sequences."""
        return self.shape[0] if self.is_sequence else 1

    @property
    def is_sequence(self) -> bool:
        return len(self.shape) == 2

    @property
    def capacity(self) -> Capacity:
        """The smallest interpreter's capacity."""
        return joint_capacity(self.phases)

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits; `Interpreter.certificate` is for another."""
        return self.certificate_on(identity_grid(self.capacity.reach))

    def certificate_on(self, line: IdentityGrid) -> Certificate:
        """For every input whose numbers stay in range, layer by layer: what each adds to the output's error.

        A term is by how much the bound grows when this layer errs, too, and those before it. It is infinite from where
        a bound is no longer small beside the range it is in, and a function is applied: nothing is known there, until
        a norm says how large its answers are, whatever it is given. Errors of several steps are one term: a step that
        does not pull states together lets it grow as a power of the steps.
        """
        if line not in self._certificates:
            self._certificates[line] = self._certified(line)
        return self._certificates[line]

    @cached_property
    def _certificates(self) -> dict[IdentityGrid, Certificate]:
        return {}

    def _certified(self, line: IdentityGrid) -> Certificate:
        assumes = (EXP_ASSUMED, RANGES) if self.source == "data" else (EXP_ASSUMED,)
        if self.steps != 1:
            return Certificate({"all steps": self._grown(line)}, f64, assumes=assumes)
        grown = self.errors(line)[-1].bound.each.amax(dim=-1).tolist()
        terms, before = dict[str, float](), 0.0
        for phase, after in zip(self.phases, grown[1:], strict=True):
            terms[phase.layer.name] = after - before if math.isfinite(after) else math.inf * math.isfinite(before)
            before = after
        terms = {name: 0.0 if math.isnan(term) else max(term, 0.0) for name, term in terms.items()}
        return Certificate(terms, f64, assumes=assumes)

    def errors(self, line: IdentityGrid, before: float | Tensor = 0.0) -> list[Register]:
        """Errors of every register, when the first 0, 1, …, all layers err; the input is off by `before` already."""
        return ErrorPropagation(line, VOID[self.source]).through(self.phases, self.box, before)

    def _grown(self, line: IdentityGrid) -> float:
        """The largest error after all steps."""
        error = torch.zeros(len(self.box.lo), dtype=f64, device="cpu")
        for _ in range(self.steps):
            error = self.errors(line, error)[-1].bound.each[-1]
            if not error.isfinite().all():
                return math.inf
        return error.max().item()

    def with_weights(self, layer: str, *, data: Any = None, margin: float = 0.25, **parts: Any) -> NetworkProgram:
        """The same network with other numbers in one layer, by changing the prompt alone.

        `layer` is its name, or its place in the module ("2", "decoder.0.widen"); `parts` are `weight` and `bias` of a
        linear layer, `w_q` … `b_v` of an attention, whose scores are q·k/√scale. Ranges seen on data stay as they are,
        unless `data` show others: what leaves them is refused by a run. A layer that was rounded from exact fractions
        becomes what is given, and the numbers beside it.
        """
        number = self._find(layer, parts)
        old, changed = self.layers[number], dict[str, Any]()
        for name, part in parts.items():
            given = as_tensor(part, name).detach().to(f64)
            if given.shape != getattr(old, name).shape:
                wanted = tuple(getattr(old, name).shape)
                raise BadShape(f"{name} of {old.name} has shape {wanted}, and is given {tuple(given.shape)}")
            require_finite(**{f"{name} of {old.name}": given})
            changed[name] = given.contiguous()
        if isinstance(old, Linear):
            changed["unrounded"] = None
        layers = [*self.layers[:number], replace(old, **changed), *self.layers[number + 1 :]]
        ranges = [phase.ranges for phase in self.phases]
        if data is not None:
            x, _ = self.prepared(as_tensor(data, "data"))
            layers, ranges = with_ranges(layers, [box_of(x).widened(margin)], margin, [x])
        elif self.source == "domain":
            layers, ranges = with_ranges(layers, [self.box], SLACK)
        return replace(self, phases=layers_to_phases(layers, ranges, self.tolerance, self.box, self.positions))

    def _find(self, name: str, parts: Mapping[str, Any]) -> int:
        """The number of the one layer of this name, or at this place, that has such parts."""
        able = {k: layer.name for k, layer in enumerate(self.layers) if parts and all(hasattr(layer, p) for p in parts)}
        exact = [k for k, own in able.items() if own == name]
        found = exact or [k for k, own in able.items() if own.split(" ")[1] == name]
        if len(found) != 1:
            many, names = "several layers" if found else "no layer", ", ".join(able.values())
            raise EmulonError(f"{many} of {self.name} at {name!r} with {', '.join(parts)}; there are {names}")
        return found[0]

    def __call__(self, x: Any, mode: Mode = "fast") -> NetworkRun:
        """A run on the smallest interpreter that fits; `Interpreter.run` is for one that several programs share."""
        return Interpreter.fitting(self).run(self, x, mode=mode)

    def run_on(
        self, interpreter: Interpreter, x: Any, y: Any, mode: Mode, report_progress: Progress = silent
    ) -> NetworkRun:
        """`Interpreter.run` is the way to call it."""
        if y is not None:
            raise EmulonError(f"{self.name} is a network: it reads x alone; leave y out")
        if mode == "cuda_graph" or interpreter.device.type != "cpu":
            raise EmulonError("networks run on the CPU, fast or in mode reference; leave the device out")
        inputs, lead = self.prepared(as_tensor(x, "x"))
        certificate, before = interpreter.certificate(self), interpreter.sha256
        register = inputs = own_copy(inputs)
        for step in range(self.steps):
            if step:  # the state of another step is an input, too
                self._require_inside(register, self.box.inner(VOID[self.source]))
            register = self._passed(interpreter, register, mode, report_progress, step)
        hashes = (before, interpreter.sha256)
        return NetworkRun(self, inputs, register, lead, certificate, interpreter, hashes, mode, ArrayFormat.of(x))

    def _passed(
        self, interpreter: Interpreter, x: Tensor, mode: Mode, report_progress: Progress, step: int
    ) -> Float64[Tensor, "rows positions out"]:
        """The last register, all phases having run on this first one, every register in its range."""

        def compute(number: int, inputs: Tensor) -> Tensor:
            phase = self.phases[number]
            report_progress(phase.layer.name, (step + number / len(self.phases)) / self.steps)
            return phase.run(interpreter, inputs, mode, VOID[self.source])

        *_, register = computed(self.layers, [x], compute)
        return register

    def prepared(self, x: Tensor) -> tuple[Float64[Tensor, "rows positions features"], torch.Size]:
        """x as (rows, positions, features), and what its leading dimensions were."""
        require_finite(x=x)
        own = len(self.shape)
        fits = x.ndim > own and tuple(x.shape[-own:]) == self.shape
        if self.is_sequence and x.ndim > own:
            fits = x.shape[-1] == self.shape[-1] and 0 < x.shape[-2] <= self.shape[0]
        if not fits:
            wanted = ", ".join(["…", *map(str, self.shape)])
            raise BadShape(f"x has shape {tuple(x.shape)}, and {self.name} reads ({wanted})")
        last = x.shape[-2:] if self.is_sequence else (1, math.prod(self.shape))
        inputs = x.double().reshape(-1, *last)
        self._require_inside(inputs, 0.0)
        return inputs, x.shape[: x.ndim - own]

    def _require_inside(self, inputs: Tensor, slack: float) -> None:
        low, high = inputs.flatten(0, 1).amin(dim=0), inputs.flatten(0, 1).amax(dim=0)
        if bool(((low - slack < self.box.lo) | (high + slack > self.box.hi)).any()):
            lo, hi = self.box.ends
            raise OutOfDomain(
                f"x reaches from {low.min().item():.6g} to {high.max().item():.6g}, outside of what {self.name} was "
                f"compiled for, about ({lo:.6g}, {hi:.6g}); compile for a wider domain or more data"
            )

    @accepts_arraylike("x", like="x")
    def exact(self, x: Tensor) -> Tensor:
        """The network itself, in plain float64 and without attention by prompt."""
        register, lead = self.prepared(x)
        for _ in range(self.steps):
            *_, register = states(self.layers, register)
        return self.answers(register, lead)

    def answers(self, register: Tensor, lead: torch.Size) -> Tensor:
        last = (register.shape[-2], *self.out_shape[1:]) if self.is_sequence else self.out_shape
        return register.reshape(*lead, *last)


@dataclass(frozen=True)
class PhaseStatistics:
    """What a phase is given, how long it takes and how far off it is.

    Attributes:
        phase: The phase.
        tokens: Tokens of all its prompts.
        keys: Tokens of one prompt, which a query may attend to.
        seconds: Time on the first rows of the run.
        distance: Bound on the distance of the register that it wrote from the exact network's on the first row, errors
            of all phases before it included; infinite where nothing is known.
    """

    phase: NetworkPhase
    tokens: int
    keys: int
    seconds: float
    distance: float


@dataclass(frozen=True, eq=False, repr=False)
class NetworkRun(Run):
    """A run of a network.

    Attributes:
        program: What was run.
        inputs: The first register (rows, positions, features).
        register: The last register.
        lead: Leading dimensions of x.
        certificate: Bound for every input whose numbers stay in range.
        interpreter: The module that ran it.
        sha256: Of the interpreter, before and after.
        mode: How it ran.
        given: The format of x, which `outputs` have, too.

    Example:
        >>> program(x).audit.bound
    """

    program: NetworkProgram
    inputs: Tensor
    register: Tensor
    lead: torch.Size
    certificate: Certificate
    interpreter: Interpreter
    sha256: tuple[str, str]
    mode: Mode
    given: ArrayFormat

    @property
    def outputs(self) -> Any:
        """What the network says of every row of x: a tensor, an array or a list."""
        return self.given.back(self.last)

    @property
    def last(self) -> Tensor:
        return self.program.answers(self.register, self.lead)

    @property
    def name(self) -> str:
        return self.program.name

    def _make_audit(self) -> Certificate:
        """The exact network on the same input, enclosed in balls.

        Claim: no output is farther from the exact one than the bound. The enclosure follows the exact network from the
        exact input, so that nothing has to be known of how errors grow; where balls of one float are too wide, those of
        twice the precision are asked, and where many layers or steps make these too wide, Arb with more bits.
        """
        # Balls that are too wide for the first row are not tried on the others.
        kinds = [FLOAT_BALLS, BALLS] if math.isfinite(self._within(slice(1), FLOAT_BALLS)[0]) else [BALLS]
        distance, radius = 0.0, 0.0
        together = max(1, AUDITED // (self.program.positions * self.program.capacity.features))
        for start in range(0, len(self.inputs), together):
            rows = slice(start, start + together)
            off, wide = self._enclosed(rows, kinds)
            distance, radius = max(distance, off), max(radius, wide)
        return Certificate({"distance to exact": distance - radius, "its enclosure": radius}, f64, scope="run")

    def _enclosed(self, rows: slice, kinds: Sequence[Arithmetic]) -> tuple[float, float]:
        """`_within` by the first of these balls that are tight enough, or by Arb."""
        for kind in kinds:
            found = self._within(rows, kind)
            if math.isfinite(found[0]):
                return found
        layers, steps = self.program.layers, self.program.steps
        return distance_by_arb(layers, self.inputs[rows], self.register[rows], BITS, steps), 0.0

    def _within(self, rows: slice, arithmetic: Arithmetic) -> tuple[float, float]:
        """How far these rows may be from the exact ones, and the radius in it; infinite where that is much of it."""
        exact = arithmetic.of(self.inputs[rows])
        for _ in range(self.program.steps):
            registers = [exact]
            for phase in self.program.phases:
                exact = phase.layer.evaluate(beside(phase.layer.reads, registers, arithmetic), arithmetic)
                if exact.radius.numel() and not exact.radius.max().item() <= LOST * phase.ranges.output.size:
                    return math.inf, math.inf  # NaN, too
                registers.append(exact)
        off, wide = (part.nan_to_num(nan=math.inf) for part in (exact.distance_from(self.register[rows]), exact.radius))
        distance, radius = (part.max().item() if part.numel() else 0.0 for part in (off, wide))
        return (distance, radius) if radius <= TIGHT * distance else (math.inf, math.inf)

    def statistics(self) -> list[PhaseStatistics]:
        """Every phase once more, in the same mode, on the first rows."""
        registers, found = [self.inputs[:ROWS]], list[PhaseStatistics]()
        with ball_arithmetic(BITS):
            exact = evaluated(self.program.layers, self.inputs[0], ARB)[1:]
            for phase, wanted in zip(self.program.phases, exact, strict=True):
                given = beside(phase.layer.reads, registers)
                sizes = [prompt.tokens.shape for prompt in phase.prompts(given)]
                tokens, keys = sum(size[0] * size[1] for size in sizes), max((size[1] for size in sizes), default=0)
                start = time.perf_counter()
                registers.append(phase.run(self.interpreter, given, self.mode, VOID[self.program.source]))
                seconds = time.perf_counter() - start
                pairs = zip(wanted.flatten(), registers[-1][0].flatten().tolist(), strict=True)
                distance = largest(abs(a - b) for a, b in pairs)
                found.append(PhaseStatistics(phase, tokens, keys, seconds, distance))
        return found


def distance_by_arb(layers: Sequence[Layer], x: Tensor, own: Tensor, bits: int = BITS, times: int = 1) -> float:
    """Bound on the distance of every row of `own` (rows, positions, out) from the exact output, with bits as needed.

    The network is applied `times` times, to its own output. Every layer multiplies a ball's radius; more bits make the
    first one smaller.
    """
    rows = zip(x, own, strict=True)
    return max(distance(partial(_last, layers, row, times), answer, bits) for row, answer in rows)


def _last(layers: Sequence[Layer], x: Tensor, times: int) -> list[Any]:
    return list(evaluated(layers, x, ARB, times)[-1].flatten())
