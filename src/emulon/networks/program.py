"""A network as a program for the interpreter: phases, one after the other, and a run of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from emulon.attention import Trace
from emulon.certify import Certificate
from emulon.certify.balls import Ball
from emulon.certify.domain import require_finite
from emulon.certify.result import Run
from emulon.certify.rounding import EXP_ASSUMED
from emulon.core.arrays import ArrayFormat, accepts_arraylike, as_tensor, own_copy
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.core.progress import Progress, silent
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.exactly import away_from_exact
from emulon.networks.layers import Box, Layer, Linear
from emulon.networks.phase import NetworkPhase, Prompt, answered
from emulon.networks.planning import layers_to_phases
from emulon.networks.ranges import computed, from_box, from_data, reading, states
from emulon.networks.travel import VOID, Travel

f64 = torch.float64
RANGES = "every layer's numbers lie in the ranges that data showed, which a run checks"
# An enclosure wider than this part of what it says is made again, with more bits.
TELLS = 0.1
# Rows of the input that are audited together.
AUDITED = 64
Source = Literal["domain", "data"]


@dataclass(frozen=True, eq=False)
class NetworkProgram:
    """Phase i reads the registers that its layer names and writes register i + 1; register 0 is the input.

    Inside the interpreter's attention: linear maps with their biases and residual sums, activations, normalisations,
    attention between positions. Outside: putting registers into prompts, times constants, and writing answers back.
    `source` says whether ranges were computed for every input of the `box`, or seen on data.
    """

    name: str
    phases: tuple[NetworkPhase, ...]
    box: Box
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    tolerance: float
    source: Source
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
        """What an interpreter must have to run this."""
        return reduce(Capacity.__or__, (phase.capacity for phase in self.phases))

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits; `Interpreter.certificate` is for another."""
        return self.certificate_on(identity_grid(self.capacity.reach))

    def certificate_on(self, line: IdentityGrid) -> Certificate:
        """For every input whose numbers stay in range, layer by layer: what each adds to the output's error.

        A term is by how much the bound grows when this layer errs, too, and those before it. It is infinite from where
        a bound is no longer small beside the range it is in, and a function is applied: nothing is known there, until
        a norm says how large its answers are, whatever it is given.
        """
        grown = self.errors(line)[-1].amax(dim=-1).tolist()
        terms, before = dict[str, float](), 0.0
        for phase, after in zip(self.phases, grown[1:], strict=True):
            terms[phase.layer.name] = after - before if math.isfinite(after) else math.inf * math.isfinite(before)
            before = after
        terms = {name: 0.0 if math.isnan(term) else max(term, 0.0) for name, term in terms.items()}
        assumes = (EXP_ASSUMED, RANGES) if self.source == "data" else (EXP_ASSUMED,)
        return Certificate(terms, f64, proved=all(phase.proved for phase in self.phases), assumes=assumes)

    def errors(self, line: IdentityGrid, before: float | Tensor = 0.0) -> list[Float64[Tensor, "erring features"]]:
        """Of every register, when the first 0, 1, …, all layers err: (phases + 1, features).

        `before` is how far the input is off already.
        """
        return [off.each for off in self._travel(line).all(before)]

    def _travel(self, line: IdentityGrid) -> Travel:
        boxes = (self.box, *(phase.known.output for phase in self.phases))
        return Travel(self.phases, boxes, [phase.own_error(line) for phase in self.phases], VOID[self.source])

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
        if data is not None:
            known = from_data(layers, self.prepared(as_tensor(data, "data"))[0], margin)
        else:
            known = from_box(layers, self.box) if self.source == "domain" else [phase.known for phase in self.phases]
        return replace(self, phases=layers_to_phases(layers, known, self.tolerance, self.box, self.positions))

    def with_low_rank(self, layer: str, left: Any, right: Any, **options: Any) -> NetworkProgram:
        """Θ + left·rightᵀ in a linear layer: left (out, rank), right (features, rank)."""
        old: Any = self.layers[self._find(layer, {"weight": left})]
        left, right = (as_tensor(part, name).detach().to(f64) for part, name in ((left, "left"), (right, "right")))
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise BadShape(f"left {tuple(left.shape)} and right {tuple(right.shape)} are not (out, rank), (in, rank)")
        update = left @ right.T
        if update.shape != old.weight.shape:
            raise BadShape(f"{old.name} is {tuple(old.weight.shape)}, and the update {tuple(update.shape)}")
        return self.with_weights(layer, weight=old.weight + update, **options)

    def _find(self, name: str, parts: Mapping[str, Any]) -> int:
        """The number of the one layer of this name, or at this place, that has such parts."""
        able = [(k, layer) for k, layer in enumerate(self.layers) if parts and all(hasattr(layer, p) for p in parts)]
        exact = [k for k, layer in able if layer.name == name]
        found = exact or [k for k, layer in able if layer.name.split(" ")[1] == name]
        if len(found) != 1:
            names = [layer.name for _, layer in able]
            many = "several layers" if found else "no layer"
            raise EmulonError(
                f"{many} of {self.name} at {name!r} with {', '.join(parts)}; there are {', '.join(names)}"
            )
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
        register = self.passed(interpreter, inputs, mode, self.rooms(interpreter.identity), report_progress)
        hashes = (before, interpreter.sha256)
        inputs = own_copy(inputs)
        return NetworkRun(self, inputs, register, lead, certificate, interpreter, hashes, mode, ArrayFormat.of(x))

    def rooms(self, line: IdentityGrid) -> list[Float64[Tensor, " features"]]:
        """How far from every register the exact one may be, and so how far from the edges of its range it must stay.

        Nothing where that is too far to be made sure of.
        """
        return self._travel(line).rooms()

    def passed(
        self,
        interpreter: Interpreter,
        x: Tensor,
        mode: Mode,
        rooms: Sequence[Tensor],
        report_progress: Progress = silent,
    ) -> Float64[Tensor, "rows positions out"]:
        """The last register, all phases having run on this first one, every register in its range."""

        def compute(number: int, inputs: Tensor) -> Tensor:
            phase = self.phases[number]
            report_progress(phase.layer.name, number / len(self.phases))
            try:
                register = phase.run(interpreter, inputs, mode)
            except OutOfDomain as error:
                raise OutOfDomain(f"{phase.layer.name}: {error}") from None
            _require_in_range(phase, register, rooms[number + 1])
            return register

        *_, register = computed(self.layers, x, compute)
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
        low, high = inputs.flatten(0, 1).amin(dim=0), inputs.flatten(0, 1).amax(dim=0)
        if bool(((low < self.box.lo) | (high > self.box.hi)).any()):
            lo, hi = self.box.ends
            raise OutOfDomain(
                f"x reaches from {low.min().item():.6g} to {high.max().item():.6g}, outside of what {self.name} was "
                f"compiled for, about ({lo:.6g}, {hi:.6g}); compile for a wider domain or more data"
            )
        return inputs, x.shape[: x.ndim - own]

    @accepts_arraylike("x", like="x")
    def exact(self, x: Tensor) -> Tensor:
        """The network itself, in plain float64 and without attention by prompt."""
        inputs, lead = self.prepared(x)
        *_, register = states(self.layers, inputs)
        return self.answers(register, lead)

    def answers(self, register: Tensor, lead: torch.Size) -> Tensor:
        last = (register.shape[-2], *self.out_shape[1:]) if self.is_sequence else self.out_shape
        return register.reshape(*lead, *last)


def _require_in_range(phase: NetworkPhase, register: Tensor, room: Tensor) -> None:
    """Both the computed numbers and the exact ones, at most `room` away, must be where the phase was planned for."""
    if phase.layer.kind == "constant":
        return
    box = phase.known.output
    low, high = register.flatten(0, -2).amin(dim=0), register.flatten(0, -2).amax(dim=0)
    if bool(((low - room < box.lo) | (high + room > box.hi)).any()) or not torch.isfinite(register).all():
        lo, hi = box.ends
        raise OutOfDomain(
            f"{phase.layer.name} gives numbers from {low.min().item():.6g} to {high.max().item():.6g}, outside of its "
            f"range, about ({lo:.6g}, {hi:.6g}); compile for more data, a wider margin or a smaller domain"
        )


class PhaseTrace(NamedTuple):
    """One phase on one row of the input: what it was given, what both layers did, and what was written back."""

    phase: NetworkPhase
    prompts: list[Prompt]
    attention: Trace
    written: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class NetworkRun(Run):
    """The first register and the last, (rows, positions, features); `sha256` is the interpreter's before and after.

    `given` is what x came as, which `outputs` come back as.
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
        """The exact network on the same input, enclosed in balls of twice the precision.

        Claim: no output is farther from the exact one than the bound. The enclosure follows the exact network from the
        exact input, so that nothing has to be known of how errors grow; where many layers make it too wide, Arb
        encloses it with more bits.
        """
        away, radius = 0.0, 0.0
        layers, inputs, own = self.program.layers, self.inputs, self.register
        for rows in torch.arange(len(self.inputs), device="cpu").split(AUDITED):
            exact = enclosures(layers, inputs[rows])[-1]
            # NaN says that nothing is known.
            wide = exact.radius.nan_to_num(nan=math.inf).max().item()
            off = exact.distance_from(own[rows]).nan_to_num(nan=math.inf).max().item()
            if not (math.isfinite(off) and wide <= TELLS * off):
                wide, off = 0.0, away_from_exact(layers, inputs[rows], own[rows])
            away, radius = max(away, off), max(radius, wide)
        return Certificate({"distance to exact": away - radius, "its enclosure": radius}, f64, scope="run")

    @cached_property
    def trace(self) -> dict[str, PhaseTrace]:
        """Every phase on the first row of the input, in mode reference, by the name of its layer."""
        found, registers = {}, [self.inputs[:1]]
        for phase in self.program.phases:
            x = reading(phase.layer, registers)
            prompts = list(phase.prompts(x))
            with Trace() as attention:
                written = phase.written([answered(self.interpreter, prompt) for prompt in prompts], x.shape)
            found[phase.layer.name] = PhaseTrace(phase, prompts, attention, written)
            registers.append(written)
        return found


def enclosures(layers: Sequence[Layer], x: Float64[Tensor, "rows positions features"]) -> list[Ball]:
    """All registers of the exact network on exactly this input, in balls."""
    registers = [Ball.of(x)]
    for layer in layers:
        registers.append(layer.enclosed(_beside(layer, registers)))
    return registers


def _beside(layer: Layer, registers: Sequence[Ball]) -> Ball:
    if len(layer.reads) == 1:
        return registers[layer.reads[0]]
    if not layer.reads:
        return registers[0]
    parts = [registers[i] for i in layer.reads]
    return Ball(*(torch.cat([getattr(ball, name) for ball in parts], dim=-1) for name in ("high", "low", "radius")))
