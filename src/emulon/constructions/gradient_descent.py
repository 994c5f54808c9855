"""Gradient descent in context: the step of Corollary 3.1.2, its result written back into the prompt, T times."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.algorithms import Algorithm
from emulon.algorithms.loss import Loss
from emulon.certify import Certificate, Domain
from emulon.certify.composition import accumulated, step_lipschitz
from emulon.certify.domain import require_finite
from emulon.constructions.gradient_step import GradientStep, as_loss, domain_step_size
from emulon.constructions.template import Way
from emulon.errors import EmulonError, OutOfDomain, ToleranceTooTight
from emulon.expression import parse


class GradientDescent(nn.Module):
    """(x, y) ↦ the weights after `steps` steps of (proximal) gradient descent from zero.

    Claim: within `certificate.bound` of the exact iterate, for data in the domain with η·(curvature·λmax(XᵀX/n) + l2) ≤ 2;
    both are checked, the domain at every step.
    Proof: each step errs by at most √d·ε in the 2-norm; the exact step is 1-Lipschitz there (Lemma D.4), or ρ-Lipschitz
    with ρ = 1 − η·(l2 + strong) where the data are known to make the mean loss `strong`-convex (checked; then η ≤ 1/L is
    asked for); soft thresholds are 1-Lipschitz. So the error after T steps is at most √d·ε·(1 + ρ + … + ρ^{T−1}).
    Linear and ridge regression (Corollaries 3.1.3, 3.1.4) are stated in the paper as one layer and proved by iterating:
    they are iterations here.
    For losses whose derivative jumps the claim holds as long as no residual enters a band; `entered_band` tells.
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
        strong: float = 0.0,
        points: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if steps < 0:
            raise EmulonError(f"steps must be 0 or more, got {steps}")
        loss = as_loss(loss)
        step_size = domain_step_size(loss, domain, l2) if step_size is None else float(step_size)
        if not 0 < step_size * max(l2, 0) <= 2 and l2:
            raise EmulonError(
                f"step_size·l2 = {step_size * l2:g} is above 2: the steps diverge; take a smaller step_size"
            )
        self.steps, self.strong = steps, float(strong)
        # ‖error‖∞ ≤ ‖error‖₂ ≤ √d·(sup-norm error of a step)·(sum of the Lipschitz constants' powers)
        smoothest = 2 / step_size if strong == 0 else 1 / step_size
        growth = math.sqrt(domain.features) * accumulated(1.0, steps, step_lipschitz(step_size, smoothest, l2 + strong))
        growth = max(growth, 1.0)
        share = None if tolerance is None else tolerance / growth
        try:
            self.step = GradientStep(
                loss, domain, share, step_size=step_size, l2=l2, l1=l1, points=points, grid=grid, dtype=dtype
            )
        except ToleranceTooTight as error:
            assert tolerance is not None
            what = f"{steps} steps of gradient descent on the {loss.name} loss"
            raise ToleranceTooTight(what, tolerance, error.smallest * growth, error.advice) from None
        one = self.step.certificate
        terms = {name: value * growth for name, value in one.terms.items()}
        self.certificate = Certificate(terms, one.dtype, one.proved, one.bands, one.note)

    @classmethod
    def of(
        cls, algorithm: Algorithm, x: Tensor, y: Tensor, tolerance: float, *, room: float = 1.5, **options: object
    ) -> GradientDescent:
        """The construction of this algorithm for this data: its step size, and a domain with some room around its path."""
        descent = getattr(algorithm, "descent", None)
        if descent is None or descent.momentum:
            raise EmulonError(
                f"{type(algorithm).__name__} is not plain gradient descent; only that is constructed here"
            )
        path = descent.iterates(x, y)
        inner_x, inner_y, _ = descent.loss.effective(x.double(), y.double())
        residual = (inner_x @ path.mT - inner_y.unsqueeze(-1)).abs().max().item()
        absolute = (inner_x.abs() @ path.abs().mT + inner_y.abs().unsqueeze(-1)).max().item()
        wide = Domain.of(x.double(), y.double(), max(path.abs().max().item() * room, 1e-3))
        domain = replace(wide, residual=residual * room + 1e-3, absolute=absolute * room + 1e-3)
        strong = 0.0
        if descent.loss.derivative == "t":
            strong = max(0.0, torch.linalg.eigvalsh(x.mT @ x / x.shape[-2])[..., 0].min().item() * (1 - 1e-9))
        return cls(
            descent.loss,
            domain,
            tolerance,
            steps=descent.steps,
            step_size=descent.resolved_step_size(x, y).min().item(),
            l2=descent.l2,
            l1=descent.l1,
            strong=strong,
            **options,  # type: ignore[arg-type]
        )

    def forward(self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"]) -> Float[Tensor, "... d"]:
        return self.iterates(x, y)[..., -1, :]

    def iterates(self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"]) -> Float[Tensor, "... iterates d"]:
        """All weights, the initial zero included: steps + 1 of them."""
        w = x.new_zeros(*x.shape[:-2], x.shape[-1], dtype=self.step.head.w_k.dtype)
        path = [w]
        require_finite(x=x, y=y)
        inner_x, inner_y, _ = self.step.loss.effective(x.double(), y.double())
        spectrum = torch.linalg.eigvalsh(inner_x.mT @ inner_x / x.shape[-2])
        self._require_convex(spectrum)
        for number in range(self.steps):
            self._require_gentle(spectrum, inner_x, inner_y, w)
            try:
                w = self.step(x, y, w)
            except OutOfDomain as error:
                raise OutOfDomain(f"{error} (before step {number + 1})") from None
            path.append(w)
        return torch.stack(path, dim=-2)

    def entered_band(self, x: Tensor, y: Tensor) -> bool:
        """Whether a residual came so close to a jump of the loss's derivative that the promise does not cover the run."""
        inner_x, inner_y, _ = self.step.loss.effective(x.double(), y.double())
        path = self.iterates(x, y)[..., :-1, :].double()
        residuals = inner_x @ path.mT - inner_y.unsqueeze(-1)
        # The exact path may be off ours by the bound: widen the band by what that does to a residual.
        room = torch.full((path.shape[-2],), self.certificate.bound * inner_x.abs().sum(dim=-1).max().item())
        room[0] = 0.0
        return any(bool(((residuals > b.lo - room) & (residuals < b.hi + room)).any()) for b in self.certificate.bands)

    def _require_convex(self, spectrum: Tensor) -> None:
        flattest = spectrum[..., 0].min().item()
        if self.strong and flattest < self.strong * (1 - 1e-6):
            raise OutOfDomain(f"λmin(XᵀX/n) is {flattest:.4g}, below the promised strong={self.strong:.4g}; lower it")

    def _require_gentle(self, spectrum: Tensor, x: Tensor, y: Tensor, w: Tensor) -> None:
        """η ≤ 2/L on this data; where the curvature has no global bound (Poisson), at these weights."""
        step = self.step
        if step.certificate.bands:
            return
        curvature: Tensor | float = step.loss.curvature
        if math.isinf(curvature):
            s = (x @ w.double().unsqueeze(-1)).squeeze(-1) - y
            curvature = parse(step.loss.derivative).derivative()(s).abs().amax(dim=-1) * (1 + 1e-3)
        steepest = (curvature * spectrum[..., -1] + step.l2).max().item()
        most = 1 if self.strong else 2
        if step.step_size * steepest > most * (1 + 1e-6):
            raise OutOfDomain(
                f"step_size {step.step_size:.4g} is too long for this data: at most {most}/L = {most / steepest:.4g}"
            )
