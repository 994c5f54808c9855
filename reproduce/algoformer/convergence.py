"""How fast the two solvers reach least squares, inside the transformer and outside: the numbers of one figure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.looped.gradient_descent import LoopedGradientDescent
from emulon.looped.newton import LoopedNewton, start_scale


@dataclass(frozen=True)
class ConvergenceCurve:
    """|prediction − least squares'|, the worst of the batch, after 0, 1, … loops: transformer and exact iterates."""

    name: str
    transformer: tuple[float, ...]
    exact: tuple[float, ...]
    step_size: float

    def reaches(self, tolerance: float) -> tuple[int | None, int | None]:
        """The first loop at which transformer and exact iterates come within `tolerance` of least squares."""
        return _first(self.transformer, tolerance), _first(self.exact, tolerance)


def convergence(
    xs: Tensor,
    ys: Tensor,
    x_query: Tensor,
    *,
    gradient_loops: int,
    newton_loops: int,
    gradient_tolerance: float | None = None,
) -> tuple[ConvergenceCurve, ConvergenceCurve]:
    """Gradient descent's curve and Newton–Schulz's, on the same float64 problems (..., samples, features)."""
    domain = Domain.covering(xs, ys, x_query)
    descent = LoopedGradientDescent(domain, gradient_tolerance, horizon=max(gradient_loops, 1))
    newton = LoopedNewton(domain, horizon=max(newton_loops, 1))
    target = (torch.linalg.lstsq(xs, ys.unsqueeze(-1)).solution.squeeze(-1) * x_query).sum(dim=-1)

    def distance(predictions: Tensor) -> tuple[float, ...]:
        return tuple((predictions - target).abs().reshape(len(predictions), -1).amax(dim=1).tolist())

    exact = gradient_iterates(xs, ys, x_query, descent.step_size, gradient_loops)
    inverse = newton_iterates(xs, ys, x_query, start_scale(domain), newton_loops)
    return (
        ConvergenceCurve(
            "gradient descent",
            distance(descent.run(xs, ys, x_query, loops=gradient_loops).predictions),
            distance(exact),
            descent.step_size,
        ),
        ConvergenceCurve(
            "newton",
            distance(newton.run(xs, ys, x_query, loops=newton_loops).predictions),
            distance(inverse),
            start_scale(domain),
        ),
    )


def gradient_iterates(xs: Tensor, ys: Tensor, x_query: Tensor, step_size: float, loops: int) -> Tensor:
    """x_query·w_k for k = 0, …, loops; w ← w − (η/N)Xᵀ(Xw − y), no attention in it."""
    weights, out = torch.zeros_like(x_query), []
    for step in range(loops + 1):
        if step:
            residuals = (xs @ weights.unsqueeze(-1)).squeeze(-1) - ys
            weights = weights - step_size / xs.shape[-2] * (xs.mT @ residuals.unsqueeze(-1)).squeeze(-1)
        out.append((weights * x_query).sum(dim=-1))
    return torch.stack(out)


def newton_iterates(xs: Tensor, ys: Tensor, x_query: Tensor, scale: float, loops: int) -> Tensor:
    """x_query·M_k Xᵀy for k = 0, …, loops; M_0 = αS, M ← 2M − MSM, no attention in it."""
    gram = xs.mT @ xs
    inverse, target, out = scale * gram, xs.mT @ ys.unsqueeze(-1), []
    for step in range(loops + 1):
        if step:
            inverse = 2 * inverse - inverse @ gram @ inverse
        out.append((x_query.unsqueeze(-2) @ inverse @ target).squeeze(-1).squeeze(-1))
    return torch.stack(out)


def _first(errors: tuple[float, ...], tolerance: float) -> int | None:
    return next((step for step, error in enumerate(errors) if error <= tolerance), None)
