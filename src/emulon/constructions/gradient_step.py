"""Corollaries 3.1.1 and 3.1.2 of Hu et al. 2025: a (proximal) gradient step on any loss, by one head and a readout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import Algorithm, GradientDescent
from emulon.algorithms.losses import Loss, as_loss
from emulon.certify import Certificate, Domain, rounding
from emulon.certify.certificate import CertifiedModule
from emulon.certify.domain import SLACK, require_real, require_within
from emulon.certify.rounding import EXP_ASSUMED
from emulon.constructions.accuracy import Accuracy, Inputs, Targets, Way, Weights, aligned, promised
from emulon.constructions.residual_map import Template, admitted, template
from emulon.core.arrays import accepts_arraylike, own_copy
from emulon.core.errors import EmulonError, ToleranceTooTight
from emulon.expressions import parse
from emulon.interpreter.checks import CurvatureWatch, require_in_domain, require_step_size, watched_path
from emulon.interpreter.phase import stored
from emulon.interpreter.plan import (
    CONSTRUCTION_SHARES,
    Plan,
    descent_of,
    domain_from_data,
    negative_curvature,
    one_step_size,
    strong_convexity_of,
    with_proof,
)
from emulon.interpreter.program import DescentRun


class GradientStep(CertifiedModule):
    """(x, y, w) ↦ prox(w − η·∇(mean ℓ)(w) − η·l2·w), the prox being the soft threshold at η·l1.

    Claim: within `certificate.bound` of the exact step in every entry, for data in the domain, as the dtype stores them
    (and, for losses whose derivative jumps, residuals outside the bands).
    How: Theorem 3.1 with f = ℓ′; the value rows read −η·f(w·x_i − y_i)·x_i + (1 − η·l2)·w, as every token also carries
    the state w; the readout is the mean over samples. l1 > 0 adds a second head of the same kind (`Proximal`), with
    x = e_k, y = 0 and f the soft threshold, read out by a sum. A classifier's data enter as label·x with y = 0;
    Poisson's tokens also carry the fixed y_i·x_i.
    Corrected: Corollary 3.1.2's readout gives w − η∇ only if the values carry w.

    `head` has the plain matrices, `prompt(x, y, w)` its tokens; the answer is the mean of the first n outputs.

    Args:
        loss: A loss or its name.
        domain: Bounds on the data, the weights and the residuals.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        step_size: η; None takes 1/L for the worst data of the domain.
        l2: Ridge penalty.
        l1: Lasso penalty.
        points: Number of grid points.
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> GradientStep("huber", domain, 1e-6)(x, y, w)
    """

    def __init__(
        self,
        loss: Loss | str,
        domain: Domain,
        tolerance: float | None = None,
        *,
        step_size: float | None = None,
        l2: float = 0.0,
        l1: float = 0.0,
        points: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if min(l1, l2) < 0:
            raise EmulonError(f"penalties cannot be negative, got l1={l1} and l2={l2}; give 0 for none")
        self.loss = as_loss(loss)
        self.domain = domain
        self.step_size = domain_step_size(self.loss, domain, l2) if step_size is None else float(step_size)
        self.l2, self.l1 = float(l2), float(l1)
        # What the bounds are once data are stored, as they come and as f sees them.
        self.stored = stored(domain, dtype)
        self.inner = self.loss.link.template_domain(self.stored)
        what = f"a step of gradient descent on the {self.loss.name} loss"
        parts = promised(self._parts, Accuracy(tolerance, points, grid, dtype), what)
        self.template, self.proximal, self.certificate = parts
        self.f = self.template.f
        self.head = self.template.head("gradient", self._value_rows(dtype))

    def extra_repr(self) -> str:
        tokens, width = self.domain.samples * self.template.f.keys, self.template.slots.width
        size = f"η={self.step_size:.4g}, tokens={tokens}, width={width}"
        return f"{self.loss.name}, {size}, error {self.certificate}"

    def _parts(self, accuracy: Accuracy) -> tuple[Template, Proximal | None, Certificate]:
        f, d, step = parse(self.loss.derivative), self.domain.features, self.step_size
        shares = CONSTRUCTION_SHARES[self.l1 > 0]
        made = accuracy.part(shares[0], lambda asked: template(f, self.inner, asked, step, ("state", "fixed")))
        certificate, proximal = self._certificate(made), None
        if self.l1:
            # The proximal head sees what the first one really gives out, its error included.
            moved = step * (self.stored.x * made.f.interpolation.size + self._fixed)
            reach = (abs(1 - step * self.l2) * self.stored.w + moved) * (1 + 1e-9) + certificate.bound
            proximal = accuracy.part(shares[1], lambda asked: Proximal(step * self.l1, d, reach, asked))
            terms = {**certificate.terms, "proximal step": proximal.certificate.bound}
            certificate = replace(certificate, terms=terms)
        if accuracy.tolerance is not None and certificate.bound > accuracy.tolerance:
            # The state's own rounding does not fall with the tolerance: it must fit into what the heads leave over.
            raise ToleranceTooTight("a step", accuracy.tolerance, self._state_rounding(made) / (1 - sum(shares)))
        return made, proximal, certificate

    def _value_rows(self, dtype: torch.dtype) -> Float[Tensor, "d width"]:
        """−η·value + (1 − η·l2)·w + η·(y·x), the last two out of what every token carries."""
        value, state, fixed = (self.template.slots.select(name, dtype=dtype) for name in ("value", "state", "fixed"))
        step = self.step_size
        return -step * value + (1 - step * self.l2) * state + step * fixed

    @property
    def _fixed(self) -> float:
        """Bound on the entries of y_i·x_i, where they are carried."""
        return self.loss.link.largest_fixed(self.stored)

    def _certificate(self, made: Template) -> Certificate:
        """Of the step before the proximal one."""
        own = made.certificate(self.step_size)
        terms = dict(own.terms)
        # w is the same in all tokens and cannot leak; y_i·x_i can.
        terms["routing leak"] += 2 * made.leak * self.step_size * self._fixed
        terms["rounding"] += self._state_rounding(made)
        return replace(own, terms=terms)

    def _state_rounding(self, made: Template) -> float:
        """What rounding costs beyond the gradient head's own: the state that tokens carry, and the readout."""
        f, dtype, step = made.f, made.grid.dtype, self.step_size
        # 1 + η·l2, not |1 − η·l2|: the coefficient itself is a difference of rounded numbers.
        carried = (1 + step * self.l2) * self.stored.w + step * self._fixed
        largest = step * self.stored.x * made.grid.largest
        moved = step * self.stored.x * f.interpolation.size
        # W_V adds three products with rounded coefficients, y·x is rounded itself; the average sums the state, too; the
        # readout sums n outputs and divides.
        return (
            rounding.gamma(6, dtype) * (carried + largest)
            + rounding.average(f.keys, carried, dtype)
            + rounding.gamma(self.domain.samples + 1, dtype) * (carried + moved)
        )

    def prompt(
        self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"], w: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch tokens width"]:
        """Tokens that also carry the state w, and for Poisson y_i·x_i."""
        return self.template.prompt(self.template.data_rows(*self.loss.template_data(x, y)), w, state=w)

    def forward(self, x: Inputs, y: Targets, w: Weights) -> Weights:
        n, d = self.domain.samples, self.domain.features
        x, y, w = aligned(self.head.w_k.dtype, x=(x, (n, d)), y=(y, (n,)), w=(w, (d,)))
        require_within(self.stored.y, y=y)
        inner_x, inner_y, _ = self.loss.template_data(x.double(), y.double())
        require_in_domain(self.inner, inner_x, inner_y, w)
        prompt = self.prompt(x, y, w)
        out: Tensor = self.head(prompt, prompt[..., :n, :]).mean(dim=-2)
        if self.proximal is not None:
            out = self.proximal(out)
        return out


class Proximal(CertifiedModule):
    """w ↦ sign(w)·max(|w| − threshold, 0): the residual map's template again, with x = e_k, y = 0, read out by a sum.

    Claim: within `certificate.bound` in every entry, for |w| ≤ reach.
    Proof. Query k reads F(w_k)·e_k; entry k of the sum also gets what leaks from the d − 1 other queries. QED
    """

    def __init__(self, threshold: float, features: int, reach: float, accuracy: Accuracy) -> None:
        super().__init__()
        # e_k·w is a single product: nothing but w_k enters the score.
        self.domain = Domain(features, features, 1.0, 0.0, reach, residual=reach, absolute=reach)
        f = parse(f"sign(t)*Max(Abs(t) - {threshold!r}, 0)")
        # The twentieth that is held back is for the leaks of all d queries and the sum, both of a few roundings.
        self.template = accuracy.part(0.95, lambda asked: template(f, self.domain, asked))
        self.f = self.template.f
        self.head = self.template.head("proximal")
        own = self.template.certificate()
        terms = dict(own.terms)
        terms["routing leak"] *= features
        terms["rounding"] += rounding.gamma(features, accuracy.dtype) * self.template.f.interpolation.size
        self.certificate = replace(own, terms=terms)

    def data(self, w: Float[Tensor, "*batch d"]) -> list[Tensor]:
        """(x, y, w): the unit vectors, zeros, and the weights, in one batch shape."""
        unit = torch.eye(self.domain.features, dtype=w.dtype, device=w.device)
        return admitted(self.domain, self.template.grid.dtype, unit, torch.zeros_like(unit[0]), w)

    def prompt(self, w: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch tokens width"]:
        x, y, w = self.data(w)
        return self.template.prompt(self.template.data_rows(x, y), w)

    def forward(self, w: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        prompt = self.prompt(w)
        out: Tensor = self.head(prompt, prompt[..., : self.domain.features, :])
        return out.sum(dim=-2)


def domain_step_size(loss: Loss, domain: Domain, l2: float) -> float:
    """1/L for the worst data of the domain: L = curvature·features·x² + l2."""
    if loss.curvature == float("inf"):
        raise EmulonError(f"the curvature of the loss {loss.name} has no bound; pass step_size")
    return 1 / max(loss.curvature * domain.features * domain.x**2 + l2, 1e-300)


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
        _require_sense(loss, step_size, l2, strong_convexity)
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


def _require_sense(loss: Loss, step_size: float, l2: float, strong_convexity: float) -> None:
    """Refuse what no bound over several steps could hold for."""
    if step_size * l2 > 2:
        raise EmulonError(f"step_size·l2 must be at most 2, got {step_size:g} and l2={l2:g}")
    if strong_convexity < 0 or (strong_convexity and loss.derivative != "t"):
        raise EmulonError(
            f"strong_convexity={strong_convexity:g} is promised for the squared loss alone; leave it out for "
            f"{loss.name}"
        )
