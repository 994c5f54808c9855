"""The truth the transformers are compared with: plain float64 tensor code, no attention."""

import torch
from torch import Tensor

# A rounding of float64.
U = 2.0**-53


def gamma(count: int) -> float:
    """What so many roundings may add up to (Higham)."""
    return count * U / (1 - count * U)


def regression(samples: int, features: int, *, seed: int = 0, batch: tuple[int, ...] = (), noise: float = 0.1):
    """Gaussian inputs, Gaussian weights, a query: xs, ys, x_query."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    xs, weights, x_query = normal(samples, features), normal(features), normal(features)
    return xs, (xs @ weights.unsqueeze(-1)).squeeze(-1) + noise * normal(samples), x_query


def gradient_descent(xs: Tensor, ys: Tensor, x_query: Tensor, step_size: float, loops: int) -> Tensor:
    """A_k·x_query for k = 0, …, loops; ys is (..., samples, outputs)."""
    weights, out = torch.zeros(*xs.shape[:-2], ys.shape[-1], xs.shape[-1], dtype=torch.float64), []
    for _ in range(loops + 1):
        out.append((weights @ x_query.unsqueeze(-1)).squeeze(-1))
        weights = weights - step_size / xs.shape[-2] * (xs @ weights.mT - ys).mT @ xs
    return torch.stack(out)


def newton(xs: Tensor, ys: Tensor, x_query: Tensor, scale: float, loops: int) -> Tensor:
    """x_query·M_k Xᵀy for k = 0, …, loops; M_0 = scale·S, M ← 2M − MSM."""
    gram = xs.mT @ xs
    inverse, out = scale * gram, []
    for _ in range(loops + 1):
        out.append((x_query.unsqueeze(-2) @ inverse @ xs.mT @ ys.unsqueeze(-1)).squeeze(-1).squeeze(-1))
        inverse = 2 * inverse - inverse @ gram @ inverse
    return torch.stack(out)


def prefix_gradient_descent(
    xs: Tensor, ys: Tensor, x_query: Tensor, step_size: float, loops: int, *, printed: bool = False
) -> Tensor:
    """w^i_k·x_i at every position for k = 0, …, loops, one loop over positions; `printed` is A.5's formula with w^h."""
    points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
    weights, out = torch.zeros_like(points), []
    for _ in range(loops + 1):
        out.append((weights * points).sum(dim=-1))
        new = weights.clone()
        for i in range(1, points.shape[-2]):
            asking = weights[..., :i, :] if printed else weights[..., i : i + 1, :]
            residuals = (asking * xs[..., :i, :]).sum(dim=-1) - ys[..., :i]
            new[..., i, :] = weights[..., i, :] - step_size / i * (residuals.unsqueeze(-1) * xs[..., :i, :]).sum(dim=-2)
        weights = new
    return torch.stack(out)


def leaky(z: Tensor, slope: float) -> Tensor:
    return torch.where(z > 0, z, slope * z)


def within(audit, observed: Tensor, exact: Tensor) -> float:
    """The largest |observed − exact|, at most the audit's bound and what the float64 reference itself may round."""
    error, size = (observed.double() - exact.double()).abs().max().item(), exact.abs().max().item()
    assert error <= audit.bound + 1e-11 * max(1.0, size)
    return error
