"""Three ways to compute a step of a program on an interpreter: one answer."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.algorithms.link import TemplateData
from emulon.certify.domain import require_within
from emulon.core.errors import EmulonError
from emulon.core.progress import Progress, silent
from emulon.interpreter.cached_phase import CachedPhase, needed_bytes
from emulon.interpreter.module import Interpreter
from emulon.interpreter.phase import Carried, Phase
from emulon.interpreter.plan import Plan

# Rounds after which libraries have made what they need, and recording meets nothing new.
WARM = 3


class Faithful:
    """Every token, head and score of the two layers, at every step."""

    @staticmethod
    def needed_bytes(phase: Phase, x: Tensor) -> int:
        """Every sample's query meets every token, twice: as a score, and as a weight."""
        datasets, tokens = x.shape[:-2].numel(), x.shape[-2] * len(phase.grid)
        return datasets * tokens * (2 * x.shape[-2] + 8 * phase.slots.width) * x.element_size()

    def __init__(
        self, interpreter: Interpreter, plan: Plan, gradient: Phase, proximal: Phase | None, data: TemplateData
    ) -> None:
        self.interpreter, self.plan, self.data = interpreter, plan, data
        self.gradient, self.proximal = gradient, proximal

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        """The state after w, `before` being the one before it."""
        plan = self.plan
        w = self._apply(self.gradient, self.data, w, before, held_by(plan))
        if self.proximal is not None:
            require_within(self.proximal.domain.w, w=w)
            w = self._apply(self.proximal, unit_vectors(w), w, w, held_by_penalty(self.proximal))
        return w

    def _apply(self, phase: Phase, data: TemplateData, w: Tensor, before: Tensor, held: Carried) -> Tensor:
        lead = torch.broadcast_shapes(data.x.shape[:-2], w.shape[:-1])
        rows = {name: part.expand(*lead, *part.shape[-3:]) for name, part in phase.data_rows(*data).items()}
        prompt = phase.prompt(rows, w, state=w, before=before)
        weights = phase.weights(held, w.device)
        return phase.read_out(self.interpreter(prompt, *weights, queries=phase.domain.samples), held)


class Fast:
    """Keys and values of the data once; per step only the w-columns, and only one's own sample's tokens."""

    needed_bytes = staticmethod(needed_bytes)

    def __init__(
        self,
        interpreter: Interpreter,
        plan: Plan,
        gradient: Phase,
        proximal: Phase | None,
        data: TemplateData,
        report_progress: Progress = silent,
    ) -> None:
        self.plan = plan
        self.gradient = CachedPhase(interpreter, gradient, data, held_by(plan), report_progress)
        units = unit_vectors(data.x[..., 0, :])
        self.proximal = None
        if proximal is not None:
            self.proximal = CachedPhase(interpreter, proximal, units, held_by_penalty(proximal))

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        w = self._descended(w, before)
        self._require_reached(w)
        return self._shrunk(w)

    def _descended(self, w: Tensor, before: Tensor) -> Tensor:
        momentum = self.plan.momentum
        return self.gradient.apply(w, (self.plan.shrink + momentum) * w - momentum * before)

    def _require_reached(self, w: Tensor) -> None:
        if self.proximal is not None:
            require_within(self.proximal.phase.domain.w, w=w)

    def _shrunk(self, w: Tensor) -> Tensor:
        return w if self.proximal is None else self.proximal.apply(w, self.proximal.held.shrink * w)


class Captured(Fast):
    """The fast path on a GPU, its step recorded once as a CUDA graph: then a step is one launch, where it was fifty."""

    graph: torch.cuda.CUDAGraph | None = None

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        if self.graph is None:
            self._capture(w, before)
            assert self.graph is not None
        self.given[0].copy_(w)
        self.given[1].copy_(before)
        self.graph.replay()
        self._require_reached(self.descended)
        return self.out.clone()

    def _capture(self, w: Tensor, before: Tensor) -> None:
        """What is recorded must not ask the host for anything, and has run before, on a stream of its own."""
        if w.device.type != "cuda":
            raise EmulonError("a step is recorded on a GPU; give device='cuda', or take mode fast")
        self.given = w.clone(), before.clone()
        aside = torch.cuda.Stream(w.device)
        aside.wait_stream(torch.cuda.current_stream(w.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self._shrunk(self._descended(*self.given))
        torch.cuda.current_stream(w.device).wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.descended = self._descended(*self.given)
            self.out = self._shrunk(self.descended)


def held_by(plan: Plan) -> Carried:
    """By W_V, in the gradient phase."""
    return Carried(plan.step_size, plan.shrink, plan.momentum, plan.fixed)


def held_by_penalty(phase: Phase) -> Carried:
    """In the proximal phase: f of the state alone, or the state less f of it."""
    return Carried(-1.0) if phase.readout == "sum" else Carried(1.0, shrink=1.0)


def unit_vectors(w: Tensor) -> TemplateData:
    """The proximal phase's data: x = e_k, y = 0."""
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return TemplateData(eye, eye.new_zeros(len(eye)), None)
