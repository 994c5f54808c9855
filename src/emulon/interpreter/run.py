"""Running a program: two paths, one answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from emulon.attention import Trace, attend
from emulon.certify import Certificate
from emulon.certify.domain import require_finite, require_shape, require_within
from emulon.certify.spectrum import eigenvalues
from emulon.errors import EmulonError, OutOfDomain
from emulon.expression import parse
from emulon.interpreter.interpreter import Interpreter
from emulon.interpreter.phase import Phase
from emulon.interpreter.program import Program

Path = Literal["fast", "faithful"]


@dataclass(frozen=True)
class Run:
    """What a run gave: `iterates` (..., steps + 1, features), the promise, and the interpreter's hash around it.

    `x` and `y` are the data in the program's dtype: the promise is about the exact algorithm on these.
    """

    program: Program
    interpreter: Interpreter
    x: Tensor
    y: Tensor
    iterates: Tensor
    sha256: tuple[str, str]

    def __getstate__(self) -> dict[str, object]:
        """Without the trace: it can be made again, and is large."""
        return {name: part for name, part in vars(self).items() if name != "trace"}

    @property
    def weights(self) -> Tensor:
        return self.iterates[..., -1, :]

    @property
    def certificate(self) -> Certificate:
        return self.program.certificate_on(self.interpreter.line)

    def predict(self, x_new: Tensor) -> Tensor:
        """w·x (for Poisson exp(w·x)) for new rows (..., queries, features)."""
        scores = (x_new.to(self.weights.dtype) @ self.weights.unsqueeze(-1)).squeeze(-1)
        return self.program.loss.mean_response(scores)

    @property
    def entered_band(self) -> bool:
        """Whether a residual came so close to a jump of ℓ′ that the promise does not cover this run."""
        x, y, _ = self.program.loss.effective(self.x.double(), self.y.double())
        return self.certificate.leaves_out(self.iterates[..., :-1, :].double(), x, y)

    @cached_property
    def trace(self) -> Trace:
        """Both layers of the last step, faithfully: scores and weights of every attention, in the order they ran."""
        start, before = (self.iterates[..., max(self.iterates.shape[-2] - back, 0), :] for back in (2, 3))
        with Trace() as trace:
            _Faithful(self.interpreter, self.program, self.x, self.y).step(start, before)
        return trace


def run(interpreter: Interpreter, program: Program, x: Tensor, y: Tensor, path: Path = "fast") -> Run:
    """The program on this data, from zero weights."""
    if path not in ("fast", "faithful"):
        raise EmulonError(f"path={path!r} is unknown; choose fast or faithful")
    interpreter.require_program(program)
    x, y = x.to(program.dtype), y.to(program.dtype)
    before = interpreter.sha256
    machine = (_Fast if path == "fast" else _Faithful)(interpreter, program, x, y)
    spectrum = machine.require_data()
    w = x.new_zeros(*x.shape[:-2], x.shape[-1])
    iterates = [w]
    for number in range(program.steps):
        machine.require_state(iterates[-1], spectrum, number)
        iterates.append(machine.step(iterates[-1], iterates[max(number - 1, 0)]))
    return Run(program, interpreter, x, y, torch.stack(iterates, dim=-2), (before, interpreter.sha256))


class _Machine:
    """What both paths share: the data as f sees them, and the checks."""

    def __init__(self, interpreter: Interpreter, program: Program, x: Tensor, y: Tensor) -> None:
        self.interpreter, self.program, self.raw = interpreter, program, (x, y)
        domain = program.domain
        require_finite(x=x, y=y)
        require_shape(x, "x", domain.samples, domain.features)
        require_shape(y, "y", domain.samples)
        require_within(domain.y, y=y)
        require_within(domain.x, x=x)
        self.x, self.y, self.fixed = program.loss.effective(x, y)
        self.bound = program.certificate_on(interpreter.line).bound
        self.curvature = parse(program.loss.derivative).derivative()

    def require_data(self) -> Tensor:
        spectrum = eigenvalues(self.x)
        flattest = spectrum[..., 0].min().item()
        if self.program.strong and flattest < self.program.strong * (1 - 1e-6):
            raise OutOfDomain(f"λmin(XᵀX/n) is {flattest:.4g}, below {self.program.strong:.4g} as compiled; recompile")
        steepest, known = spectrum[..., -1].max().item(), self.program.eigenvalue
        if self.program.bend and steepest > known * (1 + 1e-6):
            raise OutOfDomain(f"λmax(XᵀX/n) is {steepest:.4g}, above {known:.4g} as compiled; recompile")
        return spectrum

    def require_state(self, w: Tensor, spectrum: Tensor, number: int) -> None:
        program, x, y, w = self.program, self.x.double(), self.y.double(), w.double()
        try:
            program.inner.check(x, y, w)
        except OutOfDomain as error:
            raise OutOfDomain(f"{error} (before step {number + 1})") from None
        curvature: Tensor | float = program.loss.curvature
        if curvature == float("inf"):
            # It is asked for between our state and the exact one, which may be off by the bound.
            room = self.bound * x.abs().sum(dim=-1)
            s = (x @ w.unsqueeze(-1)).squeeze(-1) - y
            near = torch.stack([s - room, s, s + room])
            curvature = self.curvature(near).abs().amax(dim=(0, -1)) * (1 + 1e-3)
        elif number:
            return
        steepest = (curvature * spectrum[..., -1] + program.l2).max().item()
        if program.step_size * steepest > program.ceiling * (1 + 1e-6):
            longest = program.ceiling / steepest
            raise OutOfDomain(f"step_size {program.step_size:.4g} is too long for this data: at most {longest:.4g}")


class _Faithful(_Machine):
    """Every token, head and score of the two layers, at every step."""

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        """The state after w, `before` being the one before it."""
        program = self.program
        w = self._apply(program.gradient, self.x, self.y, self.fixed, w, before, program.step_size, program.shrink)
        if program.proximal is not None:
            require_within(program.proximal.domain.w, w=w)
            eye = torch.eye(w.shape[-1], dtype=w.dtype)
            w = self._apply(program.proximal, eye, eye.new_zeros(w.shape[-1]), None, w, w, -1.0, 0.0)
        return w

    def _apply(
        self,
        phase: Phase,
        x: Tensor,
        y: Tensor,
        fixed: Tensor | None,
        w: Tensor,
        before: Tensor,
        step: float,
        shrink: float,
    ) -> Tensor:
        rows = phase.data_rows(x, y, fixed)
        lead = torch.broadcast_shapes(x.shape[:-2], w.shape[:-1])
        rows = {name: part.expand(*lead, *part.shape[-3:]) for name, part in rows.items()}
        prompt = phase.prompt(rows, w, before)
        momentum = self.program.momentum if phase is self.program.gradient else 0.0
        weights = phase.weights(w.new_tensor([step]), w.new_tensor([shrink]), momentum)
        return phase.read_out(self.interpreter(prompt, *weights, queries=phase.domain.samples))


class _Fast(_Machine):
    """Keys and values of the data once; per step only the w-columns, and only one's own sample's tokens."""

    def __init__(self, interpreter: Interpreter, program: Program, x: Tensor, y: Tensor) -> None:
        super().__init__(interpreter, program, x, y)
        self.gradient = _Cache(interpreter, program.gradient, self.x, self.y, self.fixed, program.step_size)
        self.proximal = None
        if program.proximal is not None:
            eye = torch.eye(x.shape[-1], dtype=x.dtype)
            self.proximal = _Cache(interpreter, program.proximal, eye, eye.new_zeros(len(eye)), None, -1.0)

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        momentum = self.program.momentum
        carried = (self.program.shrink + momentum) * w - momentum * before
        w = self.gradient.apply(w, carried)
        if self.proximal is None:
            return w
        require_within(self.proximal.phase.domain.w, w=w)
        return self.proximal.apply(w, torch.zeros_like(w))


class _Cache:
    """A phase's emulated keys and values, which depend on the data alone (a language model's KV cache)."""

    def __init__(
        self, interpreter: Interpreter, phase: Phase, x: Tensor, y: Tensor, fixed: Tensor | None, step: float
    ) -> None:
        self.interpreter, self.phase = interpreter, phase
        rows = phase.data_rows(x, y, fixed)
        read = interpreter.read
        bias = read(phase.scales.bias * phase.grid.intercepts)
        asks = read(x.new_tensor([-1 / phase.scales.y, 1 / phase.scales.bias]))
        # What w does not enter: y and bias rows, already multiplied with their part of the query.
        offset = read(rows["key_y"]) * asks[0] + (bias * asks[1]).unsqueeze(-1)
        self.keys = torch.cat([read(rows["key_x"]), offset], dim=-1)
        self.values = read(-step * rows["value"] + step * rows["fixed"])

    def apply(self, w: Tensor, carried: Tensor) -> Tensor:
        """One step from w; `carried` is what the value rows hold of the state."""
        phase = self.phase
        query = self.interpreter.read(w / phase.scales.x)
        # (..., samples, 1, d + 1) · (..., samples, keys, d + 1): each query against its own sample's tokens.
        query = torch.cat([query, torch.ones_like(query[..., :1])], dim=-1)[..., None, None, :]
        # The proximal phase's keys are the same for all datasets of a batch, w is not.
        lead = torch.broadcast_shapes(query.shape[:-2], self.keys.shape[:-2])
        query = query.expand(*lead, 1, self.keys.shape[-1])
        gradient = attend(query, self.keys, self.values, name="layer 2").squeeze(-2)
        if phase.readout == "sum":
            return gradient.sum(dim=-2)
        return gradient.mean(dim=-2) + self.interpreter.read(carried)
