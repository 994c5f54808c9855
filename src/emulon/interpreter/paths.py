"""Two ways to compute a step of a program on an interpreter: one answer."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.algorithms.link import Effective
from emulon.certify.domain import require_within
from emulon.descent.plan import Plan
from emulon.interpreter.cached_phase import CachedPhase, needed_bytes
from emulon.interpreter.module import Interpreter
from emulon.interpreter.phase import Phase
from emulon.progress import Progress, silent


class Faithful:
    """Every token, head and score of the two layers, at every step."""

    @staticmethod
    def needed_bytes(phase: Phase, x: Tensor) -> int:
        """Every sample's query meets every token, twice: as a score, and as a weight."""
        datasets, tokens = x.shape[:-2].numel(), x.shape[-2] * len(phase.grid)
        return datasets * tokens * (2 * x.shape[-2] + 8 * phase.slots.width) * x.element_size()

    def __init__(
        self, interpreter: Interpreter, plan: Plan, gradient: Phase, proximal: Phase | None, data: Effective
    ) -> None:
        self.interpreter, self.plan, self.data = interpreter, plan, data
        self.gradient, self.proximal = gradient, proximal

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        """The state after w, `before` being the one before it."""
        plan = self.plan
        w = self._apply(self.gradient, self.data, w, before, (plan.step_size, plan.shrink, plan.momentum))
        if self.proximal is not None:
            require_within(self.proximal.domain.w, w=w)
            w = self._apply(self.proximal, unit_vectors(w), w, w, (-1.0, 0.0, 0.0))
        return w

    def _apply(
        self, phase: Phase, data: Effective, w: Tensor, before: Tensor, numbers: tuple[float, float, float]
    ) -> Tensor:
        lead = torch.broadcast_shapes(data.x.shape[:-2], w.shape[:-1])
        rows = {name: part.expand(*lead, *part.shape[-3:]) for name, part in phase.data_rows(*data).items()}
        prompt = phase.prompt(rows, w, state=w, before=before)
        step, shrink, momentum = numbers
        weights = phase.weights(w.new_tensor([step]), w.new_tensor([shrink]), momentum)
        return phase.read_out(self.interpreter(prompt, *weights, queries=phase.domain.samples))


class Fast:
    """Keys and values of the data once; per step only the w-columns, and only one's own sample's tokens."""

    needed_bytes = staticmethod(needed_bytes)

    def __init__(
        self,
        interpreter: Interpreter,
        plan: Plan,
        gradient: Phase,
        proximal: Phase | None,
        data: Effective,
        report_progress: Progress = silent,
    ) -> None:
        self.plan = plan
        self.gradient = CachedPhase(interpreter, gradient, data, plan.step_size, report_progress)
        units = unit_vectors(data.x[..., 0, :])
        self.proximal = None if proximal is None else CachedPhase(interpreter, proximal, units, -1.0)

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        momentum = self.plan.momentum
        carried = (self.plan.shrink + momentum) * w - momentum * before
        w = self.gradient.apply(w, carried)
        if self.proximal is None:
            return w
        require_within(self.proximal.phase.domain.w, w=w)
        return self.proximal.apply(w, torch.zeros_like(w))


def unit_vectors(w: Tensor) -> Effective:
    """The proximal phase's data: x = e_k, y = 0."""
    eye = torch.eye(w.shape[-1], dtype=w.dtype)
    return Effective(eye, eye.new_zeros(len(eye)), None)
