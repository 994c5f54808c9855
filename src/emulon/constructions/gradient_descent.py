"""Gradient descent in context: the step of Corollary 3.1.2, its result written back into the prompt, T times."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from emulon.algorithms import Algorithm, GradientDescent
from emulon.algorithms.losses import Loss, as_loss
from emulon.certify import Domain
from emulon.certify.certificate import CertifiedModule
from emulon.certify.domain import SLACK, require_real
from emulon.certify.rounding import EXP_ASSUMED
from emulon.constructions.accuracy import Accuracy, Inputs, Targets, Way, Weights, aligned, promised
from emulon.constructions.gradient_step import GradientStep, domain_step_size
from emulon.core.arrays import accepts_arraylike, own_copy
from emulon.core.errors import EmulonError
from emulon.interpreter.checks import CurvatureWatch, require_step_size, watched_path
from emulon.interpreter.plan import (
    Plan,
    descent_of,
    domain_from_data,
    negative_curvature,
    one_step_size,
    strong_convexity_of,
    with_proof,
)
from emulon.interpreter.program import DescentRun


class DescentInContext(CertifiedModule):
    """(x, y) ↦ the weights after `steps` steps of (proximal) gradient descent from zero.

    Claim: within `certificate.bound` of the exact iterate, for data in the domain, as the dtype stores them, with
    η·(curvature·λmax(XᵀX/n) + l2) ≤ 2; both are checked, the domain at every step.
    Proof: each step errs by at most √d·ε in the 2-norm; the exact step is 1-Lipschitz there (Lemma D.4), or ρ-Lipschitz
    with ρ = 1 − η·(l2 + strong_convexity) for the squared loss on data with λmin(XᵀX/n) ≥ strong_convexity (checked;
    η ≤ 1/L is then asked for); soft thresholds are 1-Lipschitz. So the error after T steps is at most
    √d·ε·(1 + ρ + … + ρ^{T−1}), which is the plan's growth.
    Linear and ridge regression (Corollaries 3.1.3, 3.1.4) are stated by Hu et al. 2025 as one layer and proved by
    iterating: they are iterations here.
    For losses whose derivative jumps the claim holds as long as no residual enters a band; `run(x, y).entered_band`
    says whether one did.

    Args:
        loss: A loss or its name.
        domain: Bounds on the data, the weights and the residuals.
        tolerance: Largest error of the weights. Exactly one of tolerance, points.
        steps: Number of steps.
        step_size: η; None takes 1/L for the worst data of the domain.
        l2: Ridge penalty.
        l1: Lasso penalty.
        strong_convexity: Lower bound on λmin(XᵀX/n), for the squared loss.
        points: Number of grid points.
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> DescentInContext("squared", domain, 1e-6, steps=50).run(x, y).outputs
    """

    def __init__(
        self,
        loss: Loss | str,
        domain: Domain,
        tolerance: float | None = None,
        *,
        steps: int = 100,
        step_size: float | None = None,
        l2: float = 0.0,
        l1: float = 0.0,
        strong_convexity: float = 0.0,
        points: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        loss = as_loss(loss)
        step_size = domain_step_size(loss, domain, l2) if step_size is None else float(step_size)
        _require_sense(loss, steps, step_size, l2, strong_convexity)
        curvature, reach = negative_curvature(loss, 2 * loss.link.template_domain(domain).residual)
        plan = Plan(
            name=loss.name,
            descent=GradientDescent(loss, steps, step_size, l2=float(l2), l1=float(l1)),
            domain=domain,
            rows=domain.samples,
            strong_convexity=float(strong_convexity),
            negative_curvature=curvature,
            curvature_reach=reach,
            max_step_times_smoothness=1.0 if strong_convexity else 2.0,
            step_from_data=False,
        )
        _require_convex(plan)
        growth = plan.certified_growth
        options: dict[str, Any] = {"step_size": step_size, "l2": l2, "l1": l1}
        options |= {"points": points, "grid": grid, "dtype": dtype}

        def build(asked: Accuracy) -> GradientStep:
            return asked.part(1 / growth, lambda one: GradientStep(loss, domain, one.tolerance, **options))

        what = f"{steps} steps of gradient descent on the {loss.name} loss"
        self.step = promised(build, Accuracy(tolerance, points, grid, dtype), what)
        one = self.step.certificate
        terms = {name: value * growth for name, value in one.terms.items()}
        bound = math.fsum(terms.values()) * (1 + SLACK)
        self.plan = with_proof(replace(plan, domain=self.step.stored), bound)
        proved = one.proved and self.plan.proves(bound)
        self.certificate = replace(one, terms=terms, proved=proved, assumes=(EXP_ASSUMED, *self.plan.assumes))

    @classmethod
    @accepts_arraylike("x", "y", like="x")
    def of(
        cls, algorithm: Algorithm, x: Tensor, y: Tensor, tolerance: float, *, room: float = 1.5, **options: Any
    ) -> DescentInContext:
        """The construction of this algorithm for this data: its step size, and a domain wider than its path."""
        descent = descent_of(algorithm)
        if descent.momentum or descent.accelerated or descent.batch:
            raise EmulonError(
                f"{type(algorithm).__name__} is not plain gradient descent; only that is constructed here"
            )
        require_real(x=x, y=y)
        x, y = x.double(), y.double()
        strong = strong_convexity_of(descent, (x, y))
        options |= {"l2": descent.l2, "l1": descent.l1, "strong_convexity": strong, "steps": descent.steps}
        options |= {"step_size": one_step_size(descent, x, y)}
        made = cls(descent.loss, domain_from_data(descent, x, y, room), tolerance, **options)
        made.plan = replace(made.plan, step_from_data=descent.step_size is None)
        return made

    def extra_repr(self) -> str:
        return f"{self.plan.name}, {self.plan.steps} steps, error {self.certificate}"

    def forward(self, x: Inputs, y: Targets) -> Weights:
        return self.run(x, y).last

    @accepts_arraylike("x", "y", like="x")
    def run(self, x: Inputs, y: Targets) -> DescentRun:
        """All weights, the initial zero included, and their bounds."""
        n, d = self.plan.domain.samples, self.plan.domain.features
        x, y = aligned(self.step.head.w_k.dtype, x=(x, (n, d)), y=(y, (n,)))
        inner = self.plan.loss.template_data(x.double(), y.double())
        watch = CurvatureWatch(self.plan, inner.x, inner.y, self.certificate.bound)
        require_step_size(self.plan, x, y)
        path = watched_path([watch], x.new_zeros(*x.shape[:-2], d), lambda _, w, before: self.step(x, y, w))
        return DescentRun(self.plan, own_copy(x), own_copy(y), path, self.certificate)


def _require_convex(plan: Plan) -> None:
    if plan.negative_curvature or not plan.curvature_reach:
        raise EmulonError(
            f"the loss {plan.loss.name} is not convex on residuals up to {2 * plan.inner.residual:.4g}: errors of its "
            "steps can grow without bound; use GradientStep, whose promise is for one step"
        )


def _require_sense(loss: Loss, steps: int, step_size: float, l2: float, strong_convexity: float) -> None:
    """Refuse what no bound over several steps could hold for."""
    if steps < 0:
        raise EmulonError(f"steps must be 0 or more, got {steps}")
    if not 0 < step_size < math.inf or step_size * l2 > 2:
        raise EmulonError(f"step_size must be positive, and step_size·l2 at most 2, got {step_size:g} and l2={l2:g}")
    if strong_convexity < 0 or (strong_convexity and loss.derivative != "t"):
        raise EmulonError(
            f"strong_convexity={strong_convexity:g} is promised for the squared loss alone; leave it out for "
            f"{loss.name}"
        )
