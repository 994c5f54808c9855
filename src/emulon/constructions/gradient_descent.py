"""Gradient descent in context: the step of Corollary 3.1.2, its result written back into the prompt, T times."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.algorithms import Algorithm
from emulon.algorithms import GradientDescent as ExactDescent
from emulon.algorithms.loss import Loss
from emulon.algorithms.losses import as_loss
from emulon.certify import Domain
from emulon.certify.composition import accumulated, step_lipschitz
from emulon.certify.spectrum import eigenvalues, smallest_eigenvalue
from emulon.constructions.accuracy import Accuracy, Way, promised
from emulon.constructions.batches import aligned
from emulon.constructions.covering import covering
from emulon.constructions.curvature import Slopes
from emulon.constructions.gradient_step import GradientStep, domain_step_size
from emulon.errors import EmulonError, OutOfDomain
from emulon.expression import parse

# Eigenvalues and step sizes are known to within this part; the certificate grants it.
SLACK = 1e-9


class GradientDescent(nn.Module):
    """(x, y) ↦ the weights after `steps` steps of (proximal) gradient descent from zero.

    Claim: within `certificate.bound` of the exact iterate, for data in the domain, as the dtype stores them, with
    η·(curvature·λmax(XᵀX/n) + l2) ≤ 2; both are checked, the domain at every step.
    Proof: each step errs by at most √d·ε in the 2-norm; the exact step is 1-Lipschitz there (Lemma D.4), or ρ-Lipschitz
    with ρ = 1 − η·(l2 + strong) for the squared loss on data with λmin(XᵀX/n) ≥ strong (checked; η ≤ 1/L is then asked
    for); soft thresholds are 1-Lipschitz. So the error after T steps is at most √d·ε·(1 + ρ + … + ρ^{T−1}).
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
        loss = as_loss(loss)
        step_size = domain_step_size(loss, domain, l2) if step_size is None else float(step_size)
        _require_sense(loss, steps, step_size, l2, strong)
        self.steps, self.strong = steps, float(strong)
        # ‖error‖∞ ≤ ‖error‖₂ ≤ √d·(sup-norm error of a step)·(sum of the Lipschitz constants' powers)
        growth = max(math.sqrt(domain.features) * self._accumulation(step_size, l2), 1.0)

        options: dict[str, Any] = {"step_size": step_size, "l2": l2, "l1": l1}
        options |= {"points": points, "grid": grid, "dtype": dtype}

        def build(asked: Accuracy) -> GradientStep:
            return asked.part(1 / growth, lambda one: GradientStep(loss, domain, one.tolerance, **options))

        what = f"{steps} steps of gradient descent on the {loss.name} loss"
        self.step = promised(build, Accuracy(tolerance, points, grid, dtype), what)
        one = self.step.certificate
        # Our path keeps within the domain; the exact one, by the claim, not far from it.
        self.slopes = Slopes(parse(loss.derivative))
        doubt = min(domain.features * domain.x * one.bound * growth, domain.residual)
        self._require_convex(domain.residual + doubt)
        self.certificate = replace(one, terms={name: value * growth for name, value in one.terms.items()})

    def _accumulation(self, step_size: float, l2: float) -> float:
        """1 + ρ + … + ρ^{T−1}, with ρ as `_require_gentle` and `_require_strong` leave it."""
        smoothest = self._most * (1 + 2 * SLACK) / step_size
        strong = max(0.0, self.strong * (1 - 2 * SLACK) - 1e-12 / step_size) if self.strong else 0.0
        return accumulated(1.0, self.steps, step_lipschitz(step_size, smoothest, (l2 + strong) if strong else 0.0))

    @property
    def _most(self) -> int:
        """η·L may be 2 at most; where contraction is promised, 1."""
        return 1 if self.strong else 2

    @classmethod
    def of(
        cls, algorithm: Algorithm, x: Tensor, y: Tensor, tolerance: float, *, room: float = 1.5, **options: Any
    ) -> GradientDescent:
        """The construction of this algorithm for this data: its step size, and a domain with room around its path."""
        descent = getattr(algorithm, "descent", None)
        if not isinstance(descent, ExactDescent) or descent.momentum:
            raise EmulonError(
                f"{type(algorithm).__name__} is not plain gradient descent; only that is constructed here"
            )
        x, y = x.double(), y.double()
        sizes = descent.resolved_step_size(x, y)
        if (sizes.max() > sizes.min() * (1 + SLACK)).item():
            raise EmulonError("the datasets of this batch have different step sizes; give the algorithm a step_size")
        strong = 0.0
        if descent.loss.derivative == "t":
            strong = smallest_eigenvalue(x).min().item()
        options |= {"l2": descent.l2, "l1": descent.l1, "strong": strong, "steps": descent.steps}
        return cls(descent.loss, covering(descent, x, y, room), tolerance, step_size=sizes.min().item(), **options)

    def forward(self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"]) -> Float[Tensor, "... d"]:
        return self.iterates(x, y)[..., -1, :]

    def iterates(self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"]) -> Float[Tensor, "... iterates d"]:
        """All weights, the initial zero included: steps + 1 of them."""
        x, y = self._data(x, y)
        w = x.new_zeros(*x.shape[:-2], x.shape[-1])
        path = [w]
        inner_x, inner_y, _ = self.step.loss.effective(x.double(), y.double())
        spectrum = eigenvalues(inner_x)
        self._require_strong(spectrum)
        for number in range(self.steps):
            self._require_gentle(spectrum, inner_x, inner_y, w)
            try:
                w = self.step(x, y, w)
            except OutOfDomain as error:
                raise OutOfDomain(f"{error} (before step {number + 1})") from None
            path.append(w)
        return torch.stack(path, dim=-2)

    def entered_band(self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"]) -> bool:
        """Whether a residual came so close to a jump of ℓ′ that the promise does not cover this run."""
        path = self.iterates(x, y)[..., :-1, :].double()
        inner_x, inner_y, _ = self.step.loss.effective(*(part.double() for part in self._data(x, y)))
        return self.certificate.leaves_out(path, inner_x, inner_y)

    def _data(self, x: Tensor, y: Tensor) -> list[Tensor]:
        n, d = self.step.domain.samples, self.step.domain.features
        return aligned(self.step.head.w_k.dtype, x=(x, (n, d)), y=(y, (n,)))

    def _doubt(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n"]:
        """How far a residual on the exact path may be from ours."""
        return self.certificate.bound * x.abs().sum(dim=-1) * (1 + SLACK)

    def _require_convex(self, reach: float) -> None:
        lowest, highest = self.slopes.between(-reach, reach)
        if lowest < -SLACK * highest:
            raise EmulonError(
                f"the loss {self.step.loss.name} is not convex on residuals up to {reach:.4g}: errors of its steps can "
                "grow without bound; use GradientStep, whose promise is for one step"
            )

    def _require_strong(self, spectrum: Tensor) -> None:
        flattest = spectrum[..., 0].min().item() if self.strong else math.inf
        if flattest < self.strong * (1 - SLACK):
            raise OutOfDomain(f"λmin(XᵀX/n) is {flattest:.4g}, below the promised strong={self.strong:.4g}; lower it")

    def _require_gentle(self, spectrum: Tensor, x: Tensor, y: Tensor, w: Tensor) -> None:
        """η ≤ 2/L on this data; where the curvature has no global bound (Poisson), between these weights and the exact
        ones.
        """
        step = self.step
        curvature = step.loss.curvature
        if math.isinf(curvature):
            s, doubt = (x @ w.double().unsqueeze(-1)).squeeze(-1) - y, self._doubt(x)
            lo, hi = (s - doubt).min().item(), (s + doubt).max().item()
            curvature = self.slopes.between(lo, hi)[1] if math.isfinite(hi - lo) else math.inf
        steepest = curvature * spectrum[..., -1].max().item() + step.l2
        if step.step_size * steepest > self._most * (1 + SLACK):
            raise OutOfDomain(
                f"step_size {step.step_size:.4g} is too long for this data: at most {self._most}/L = "
                f"{self._most / steepest:.4g}; give a smaller step_size"
            )


def _require_sense(loss: Loss, steps: int, step_size: float, l2: float, strong: float) -> None:
    """Refuse what no bound over several steps could hold for."""
    if steps < 0:
        raise EmulonError(f"steps must be 0 or more, got {steps}")
    if not 0 < step_size < math.inf or step_size * l2 > 2:
        raise EmulonError(f"step_size must be positive, and step_size·l2 at most 2, got {step_size:g} and l2={l2:g}")
    if strong < 0 or (strong and loss.derivative != "t"):
        raise EmulonError(f"strong={strong:g} is promised for the squared loss alone; leave it out for {loss.name}")
