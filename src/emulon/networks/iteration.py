"""Algorithms that repeat one step, the step written as a network: any module can be one.

The interpreter is prompted with the layers of the step, over and over; between two steps nothing is computed.
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
from emulon.certify.rounding import EXP_ASSUMED
from emulon.core.arrays import ArrayFormat, as_tensor
from emulon.core.errors import BadNetwork, EmulonError
from emulon.core.progress import Progress, silent
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.compiler import compile_network
from emulon.networks.layers import states
from emulon.networks.planning import VOID, ErrorPropagation
from emulon.networks.program import RANGES, NetworkProgram, distance_by_arb

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
        proved = all(phase.proved for phase in self.body.phases)
        assumes = (EXP_ASSUMED, RANGES)
        return Certificate({"all steps": self._grown(line)}, self.dtype, proved=proved, assumes=assumes)

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
