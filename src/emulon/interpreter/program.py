"""A program: prompt builder, readout, loop and certificate for one algorithm; and a run of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.attention import Trace
from emulon.certify import Certificate, rounding
from emulon.certify.domain import by_target, require_finite, require_shape, require_within
from emulon.certify.rounding import EXP_ASSUMED
from emulon.core.arrays import ArrayFormat, accepts_arraylike, as_tensor, own_copy
from emulon.core.errors import EmulonError
from emulon.core.memory import one_thread, require_memory
from emulon.core.progress import Progress, silent
from emulon.interpreter.checks import CurvatureWatch, require_step_size, watched_path
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.interpreter.paths import Captured, Faithful, Fast, held_by, held_by_penalty
from emulon.interpreter.phase import Phase, ProvedBounds, phase_terms
from emulon.interpreter.plan import Plan, with_proof
from emulon.interpreter.run import DescentRun

WAYS: dict[Mode, type[Fast] | type[Faithful]] = {"fast": Fast, "reference": Faithful, "cuda_graph": Captured}
SAMPLED = (
    "the curvature of the loss was not enclosed wherever the exact path may go: its growth of errors is not proved"
)


@dataclass(frozen=True)
class Program(Plan):
    """`steps` times: the gradient phase, then the proximal one if there is an l1 penalty; the result is written back.

    Everything that happens to the state happens in the interpreter's attention: gradient, shrinkage, proximal step.
    What is outside: building the prompt (each column affine in its sample and in the state, with fixed coefficients),
    the readout (a mean or sum over the n answering tokens), and writing it back into the prompt's state rows.
    """

    several_queries = True

    gradient: Phase
    gradient_bounds: ProvedBounds
    proximal: Phase | None = None
    proximal_bounds: ProvedBounds | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.grid.dtype

    @property
    def capacity(self) -> Capacity:
        """What an interpreter must have to run this."""
        capacity = self.gradient.capacity(self.gradient.magnitudes(held_by(self)))
        if self.proximal is not None:
            capacity = capacity | self.proximal.capacity(self.proximal.magnitudes(held_by_penalty(self.proximal)))
        return capacity

    @property
    def examples(self) -> tuple[int, ...]:
        """A prompt is built for one number of in-context examples."""
        return (self.rows,)

    def for_rows(self, rows: int) -> Program:
        """The same on data of so many rows: the softmaxes and what is proved of them stay, codes are made anew.

        Claim: what is promised follows again. Proof. Of all terms, the leak and the sums over samples alone know how
        many there are: codes are given the strength that the leak asks for, and the terms are computed anew. QED
        """
        if self.batch is not None:
            raise EmulonError("a program for batches has its number of rows in its steps; compile it for the other")
        phase = self.gradient.for_samples(rows, self.gradient_bounds.leak)
        return replace(self, rows=rows, domain=replace(self.domain, samples=rows), gradient=phase)

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        """What the weights that it learns from (xs, ys) say at x_query, on the smallest interpreter that fits.

        x_query is (..., features) or (..., queries, features). Whatever chose the step size, a predictor keeps it.
        """
        run = Interpreter.fitting(self).run(replace(self, step_from_data=False), xs, ys)
        several = x_query.ndim == xs.ndim
        answers = run.predict(x_query if several else x_query.unsqueeze(-2))
        return answers if several else answers.squeeze(-1)

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits; `Interpreter.certificate` is for another."""
        return self.certificate_on(identity_grid(self.capacity.reach, self.dtype))

    def certificate_on(self, line: IdentityGrid) -> Certificate:
        """For a whole run, and every input of the domain, on an interpreter with this identity grid."""
        bounds = self.gradient_bounds
        terms = phase_terms(self.gradient, bounds, line, held_by(self))
        if self.proximal is not None and self.proximal_bounds is not None:
            more = phase_terms(self.proximal, self.proximal_bounds, line, held_by_penalty(self.proximal))
            terms = {name: value + more[name] for name, value in terms.items()}
        terms["rounding"] += rounding.dot(4, self.ahead, self.dtype)
        grown = self.promised_growth
        grown_terms, assumes = {name: value * grown for name, value in terms.items()}, (EXP_ASSUMED, *self.assumes)
        whole = Certificate(grown_terms, self.dtype, bands=bounds.bands, assumes=assumes)
        return whole if self._proved(whole.bound) else replace(whole, proved=False, note=SAMPLED)

    def _proved(self, bound: float) -> bool:
        """Every function interpolated with proof, and errors followed through a curvature that is enclosed."""
        functions = [each.proved for each in (self.gradient_bounds, self.proximal_bounds) if each is not None]
        # A coarser interpreter lets the exact path go farther than was enclosed when this was compiled.
        return all(functions) and with_proof(self, bound).proves(bound)

    def __call__(self, x: Any, y: Any, mode: Mode = "fast") -> Run:
        """A run on the smallest interpreter that fits; `Interpreter.run` is for one that several programs share."""
        return Interpreter.fitting(self).run(self, x, y, mode)

    def run_on(self, interpreter: Interpreter, x: Any, y: Any, mode: Mode, report_progress: Progress = silent) -> Run:
        """From zero weights; `Interpreter.run` is the way to call it. Several targets have a row of weights each."""
        given, (x, y) = ArrayFormat.of(x), by_target(as_tensor(x, "x"), as_tensor(y, "y"))
        require_shape(x, "x", self.rows, self.domain.features)
        device, way = interpreter.device, WAYS[mode]
        cure = "take mode fast" if mode == "reference" else "free some, or take fewer rows"
        require_memory(way.needed_bytes(self.gradient, x), f"{self.name} on {_shown(x)} (mode {mode})", cure, device)
        require_finite(x=x, y=y)
        x, y = own_copy(x, device, self.dtype), own_copy(y, device, self.dtype)
        self._require_data(x, y)
        certificate, before = interpreter.certificate(self), interpreter.sha256
        batches = self.batches(self.loss.template_data(x, y))
        watches = [CurvatureWatch(self, part.x, part.y, certificate.bound) for part in batches]
        require_step_size(self, x, y)
        told: dict[str, Progress] = {} if way is Faithful else {"report_progress": report_progress}
        with one_thread(device) if way is Fast else nullcontext():
            machines = [way(interpreter, self, self.gradient, self.proximal, part, **told) for part in batches]
            iterates = watched_path(
                watches,
                x.new_zeros(*x.shape[:-2], x.shape[-1]),
                lambda number, w, before: machines[number % len(batches)].step(w, before),
                report_progress,
            )
        hashes = (before, interpreter.sha256)
        return Run(self, x, y, iterates, certificate, interpreter, hashes, given=given)

    def _require_data(self, x: Tensor, y: Tensor) -> None:
        require_finite(x=x, y=y)
        require_shape(x, "x", self.rows, self.domain.features)
        require_shape(y, "y", self.rows)
        require_within(self.domain.y, y=y)
        require_within(self.domain.x, x=x)


def _shown(x: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in x.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Run(DescentRun):
    """A run on an interpreter: `sha256` is the interpreter's hash before and after it."""

    plan: Program
    interpreter: Interpreter
    sha256: tuple[str, str]

    def __getstate__(self) -> dict[str, object]:
        """Without the trace: it can be made again, and is large."""
        return {name: part for name, part in vars(self).items() if name != "trace"}

    @property
    def program(self) -> Program:
        return self.plan

    @cached_property
    def trace(self) -> Trace:
        """Both layers of the last step, faithfully: scores and weights of every attention, in the order they ran."""
        program, last = self.program, max(self.iterates.shape[-2] - 2, 0)
        start = program.descent.starts(self.iterates)[..., last, :]
        batches = program.batches(program.loss.template_data(self.x, self.y))
        machine = Faithful(self.interpreter, program, program.gradient, program.proximal, batches[last % len(batches)])
        with Trace() as trace:
            machine.step(start, self.iterates[..., max(last - 1, 0), :])
        return trace
