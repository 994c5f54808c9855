"""A program: plan, phases and certificate for one algorithm; and a run of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms import GradientDescent
from emulon.algorithms.losses import Loss
from emulon.attention import Trace
from emulon.certify import Certificate, Domain, rounding
from emulon.certify.certificate import Run as CertifiedRun
from emulon.certify.certificate import require_answer
from emulon.certify.domain import by_target, require_finite, require_shape
from emulon.certify.rounding import EXP_ASSUMED
from emulon.core import Progress, silent
from emulon.core.arrays import ArrayFormat, accepts_arraylike, as_tensor, one_thread, own_copy, require_memory
from emulon.interpreter.audit import audited
from emulon.interpreter.checks import CurvatureWatch, require_data_in_domain, require_step_size, watched_path
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.modes import MODES, Fast, Reference
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.interpreter.phase import Phase, phase_terms
from emulon.interpreter.plan import Plan, with_proof

SAMPLED = (
    "the curvature of the loss was not enclosed wherever the exact path may go: its growth of errors is not proved"
)


@dataclass(frozen=True)
class Program:
    """An algorithm as a prompt: `steps` times the gradient phase, then the proximal one if there is an l1 penalty.

    Everything that happens to the state happens in the interpreter's attention: gradient, shrinkage, proximal step.
    What is outside: building the prompt (each column affine in its sample and in the state, with fixed coefficients),
    the readout (a mean or sum over the n answering tokens), and writing it back into the prompt's state rows.

    Attributes:
        plan: The algorithm, its domain, and how errors grow.
        gradient: The phase that takes a gradient step.
        proximal: The phase that applies the soft threshold, with an l1 penalty.

    Example:
        >>> program = emulon.compile(Ridge(steps=50), data=(x, y))
        >>> program(x, y).weights
    """

    several_queries = True

    plan: Plan
    gradient: Phase
    proximal: Phase | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def descent(self) -> GradientDescent:
        """The exact algorithm, with the program's step size."""
        return self.plan.descent

    @property
    def loss(self) -> Loss:
        return self.plan.loss

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def step_size(self) -> float:
        return self.plan.step_size

    @property
    def domain(self) -> Domain:
        return self.plan.domain

    @property
    def rows(self) -> int:
        """Samples of the data, of which a step sees a batch."""
        return self.plan.rows

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (self.gradient,) if self.proximal is None else (self.gradient, self.proximal)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.grid.dtype

    @property
    def capacity(self) -> Capacity:
        """What an interpreter must have to run this."""
        capacity = self.gradient.capacity
        return capacity if self.proximal is None else capacity | self.proximal.capacity

    @property
    def examples(self) -> tuple[int, ...]:
        """A prompt is built for one number of in-context examples."""
        return (self.rows,)

    def changed(self, **changes: Any) -> Program:
        """The same phases for a plan with these fields changed (`Plan.changed`), such as steps=10."""
        plan = self.plan.changed(**changes)
        return replace(self, plan=plan, gradient=replace(self.gradient, values=plan.value_coefficients))

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        """Response at x_query of the weights learned from (xs, ys), on the smallest interpreter that fits.

        x_query is (..., features) or (..., queries, features). Whatever chose the step size, a predictor keeps it.
        """
        run = Interpreter.fitting(self).run(self.changed(step_from_data=False), xs, ys)
        several = x_query.ndim == xs.ndim
        answers = run.predict(x_query if several else x_query.unsqueeze(-2))
        return answers if several else answers.squeeze(-1)

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits; `Interpreter.certificate` is for another."""
        return self.certificate_on(identity_grid(self.capacity.reach, self.dtype))

    def certificate_on(self, line: IdentityGrid) -> Certificate:
        """For a whole run, and every input of the domain, on an interpreter with this identity grid."""
        plan, terms = self.plan, dict[str, float]()
        for phase in self.phases:
            terms = {name: value + terms.get(name, 0.0) for name, value in phase_terms(phase, line).items()}
        terms["rounding"] += rounding.dot(4, plan.ahead, self.dtype)
        grown = plan.certified_growth
        grown_terms, assumes = {name: value * grown for name, value in terms.items()}, (EXP_ASSUMED, *plan.assumes)
        whole = Certificate(grown_terms, self.dtype, bands=self.gradient.proved.bands, assumes=assumes)
        # Every function interpolated with proof, and errors followed through a curvature that is enclosed. A coarser
        # interpreter lets the exact path go farther than was enclosed when this was compiled.
        proved = all(phase.proved.proved for phase in self.phases)
        if proved and with_proof(plan, whole.bound).proves(whole.bound):
            return whole
        return replace(whole, proved=False, note=SAMPLED)

    def __call__(self, x: Any, y: Any, mode: Mode = "fast") -> Run:
        """A run on the smallest interpreter that fits; `Interpreter.run` is for one that several programs share."""
        return Interpreter.fitting(self).run(self, x, y, mode)

    def run_on(self, interpreter: Interpreter, x: Any, y: Any, mode: Mode, report_progress: Progress = silent) -> Run:
        """From zero weights; `Interpreter.run` is the way to call it. Several targets have a row of weights each."""
        given, (x, y) = ArrayFormat.of(x), by_target(as_tensor(x, "x"), as_tensor(y, "y"))
        require_shape(x, "x", self.rows, self.domain.features)
        require_shape(y, "y", self.rows)
        device, steps = interpreter.device, MODES[mode]
        cure = "take mode fast" if mode == "reference" else "free some, or take fewer rows"
        sizes = " × ".join(f"{size:,}" for size in x.shape)
        require_memory(steps.needed_bytes(self.gradient, x), f"{self.name} on {sizes} (mode {mode})", cure, device)
        require_finite(x=x, y=y)
        x, y = own_copy(x, device, self.dtype), own_copy(y, device, self.dtype)
        if steps is not Reference:  # the others write in place
            x, y = x.detach(), y.detach()
        require_data_in_domain(replace(self.domain, samples=self.rows), x, y)
        certificate, before = interpreter.certificate(self), interpreter.sha256
        batches = self.plan.batches(self.loss.template_data(x, y))
        watches = [CurvatureWatch(self.plan, part.x, part.y, certificate.bound) for part in batches]
        require_step_size(self.plan, x, y)
        with one_thread(device) if steps is Fast else nullcontext():
            made = [self.steps_on(interpreter, part, mode, report_progress) for part in batches]
            iterates = watched_path(
                watches,
                x.new_zeros(*x.shape[:-2], x.shape[-1]),
                lambda number, w, before: made[number % len(batches)].step(w, before),
                report_progress,
            )
        hashes = (before, interpreter.sha256)
        return Run(self.plan, x, y, iterates, certificate, self, interpreter, hashes, given=given)

    def steps_on(
        self, interpreter: Interpreter, data: Any, mode: Mode, report_progress: Progress = silent
    ) -> Reference | Fast:
        """Single steps on data as the template sees them, without the checks of a run."""
        return MODES[mode](interpreter, self.plan, (self.gradient, self.proximal), data, report_progress)


@dataclass(frozen=True, eq=False, repr=False)
class DescentRun(CertifiedRun):
    """The weights after every step of descent, with certificate and audit.

    Attributes:
        plan: The algorithm, with the step size that was used, and its domain.
        x: Data (..., samples, features) in the module's dtype.
        y: Targets (..., samples).
        iterates: Weights (..., steps + 1, features).
        certificate: Bound on the error for every input of the domain, against the exact algorithm on these data.
        entered_band: Whether a residual came so close to a jump of ℓ′ that the certificate does not cover this run. Its
            bound is then infinite, and its `assumes` says why.
    """

    plan: Plan
    x: Float[Tensor, "*batch samples features"]
    y: Float[Tensor, "*batch samples"]
    iterates: Float[Tensor, "*batch iterates features"]
    certificate: Certificate
    given: ArrayFormat = field(default=ArrayFormat(), kw_only=True)
    entered_band: bool = field(init=False)

    def __post_init__(self) -> None:
        require_answer(self.iterates)
        object.__setattr__(self, "entered_band", bool(self.certificate.bands) and self._leaves_promise())
        if self.entered_band:
            object.__setattr__(self, "certificate", self.certificate.void_in_band())

    @property
    def weights(self) -> Any:
        """After the last step, (..., features): a tensor, an array, a list, or a Series named by x's columns."""
        return self.given.back(self.last, "columns")

    @property
    def last(self) -> Float[Tensor, "*batch features"]:
        return self.iterates[..., -1, :]

    @property
    def name(self) -> str:
        return self.plan.name

    def _make_audit(self) -> Certificate:
        """As `audited` claims; no band is left out of it."""
        x, y, iterates = self.x.cpu(), self.y.cpu(), self.iterates.cpu()
        with one_thread(x.device):
            return audited(self.plan, x, y, iterates)

    def _leaves_promise(self) -> bool:
        x, y, _ = self.plan.loss.template_data(self.x.double(), self.y.double())
        starts = self.plan.descent.starts(self.iterates[..., :-1, :].double())
        return self.certificate.excludes(starts, x, y)

    @accepts_arraylike("x_new", like="x_new", side="rows")
    def predict(self, x_new: Real[Tensor, "*batch queries features"]) -> Float[Tensor, "*problems queries"]:
        """The mean response to w·x (for Poisson exp(w·x)) for new rows; of several targets a row each."""
        require_finite(x_new=x_new)
        last = self.last.to(x_new.device)
        return self.plan.loss.mean_response((x_new.to(last.dtype) @ last.unsqueeze(-1)).squeeze(-1))


@dataclass(frozen=True, eq=False, repr=False)
class Run(DescentRun):
    """A run of a program on an interpreter.

    Attributes:
        program: What ran.
        interpreter: What it ran on.
        sha256: The interpreter's hash before and after.
    """

    program: Program
    interpreter: Interpreter
    sha256: tuple[str, str]

    def __getstate__(self) -> dict[str, object]:
        """Without the trace: it can be made again, and is large."""
        return {name: part for name, part in vars(self).items() if name != "trace"}

    @property
    def _facts(self) -> list[tuple[str, str]]:
        frozen = "as" if self.sha256[0] == self.sha256[1] else "not as"
        steps = f"{self.plan.steps} steps of size {self.plan.step_size:.3g}"
        return [("ran", f"{steps}; the interpreter's sha256 is {frozen} it was before")]

    @cached_property
    def trace(self) -> Trace:
        """Both layers of the last step in mode reference: scores and weights of every attention, in order."""
        program, last = self.program, max(self.iterates.shape[-2] - 2, 0)
        start = program.descent.starts(self.iterates)[..., last, :]
        batches = program.plan.batches(program.loss.template_data(self.x, self.y))
        steps = program.steps_on(self.interpreter, batches[last % len(batches)], "reference")
        with Trace() as trace:
            steps.step(start, self.iterates[..., max(last - 1, 0), :])
        return trace
