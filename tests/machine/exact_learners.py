"""The algorithms that programs must reproduce, in plain tensor code (one prediction per position), and their data."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.machine.programs import batch_gradient_descent, sgd, sherman_morrison


def exact_sgd(
    xs: Tensor,
    ys: Tensor,
    step_size: float,
    ridge: float = 0.0,
    initial: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """ŷ_i from w after one step on each of the examples before i (of the last `window`, from `initial`)."""
    out = []
    for i in range(xs.shape[-2]):
        w = torch.zeros_like(xs[..., 0, :]) if initial is None else initial.to(xs).expand_as(xs[..., 0, :])
        for j in range(0 if window is None else max(0, i - window), i):
            x = xs[..., j, :]
            w = w - step_size * (x * ((w * x).sum(-1) - ys[..., j])[..., None] + 2 * ridge * w)
        out.append((w * xs[..., i, :]).sum(-1))
    return torch.stack(out, dim=-1)


def exact_ridge(xs: Tensor, ys: Tensor, ridge: float) -> Tensor:
    out = []
    for i in range(xs.shape[-2]):
        x, y = xs[..., :i, :], ys[..., :i, None]
        a = x.mT @ x + ridge * torch.eye(xs.shape[-1], dtype=xs.dtype)
        out.append((torch.linalg.solve(a, x.mT @ y)[..., 0] * xs[..., i, :]).sum(-1))
    return torch.stack(out, dim=-1)


def exact_batch(xs: Tensor, ys: Tensor, step_size: float, steps: int, ridge: float = 0.0) -> Tensor:
    out = []
    for i in range(xs.shape[-2]):
        x, y, w = xs[..., :i, :], ys[..., :i, None], torch.zeros_like(xs[..., 0, :, None])
        for _ in range(steps):
            w = w - step_size * (x.mT @ (x @ w - y) / max(i, 1) + 2 * ridge * w)
        out.append((w[..., 0] * xs[..., i, :]).sum(-1))
    return torch.stack(out, dim=-1)


def exact_moving_average(ys: Tensor, decay: float) -> Tensor:
    out = [torch.zeros_like(ys[..., 0])]
    for i in range(ys.shape[-1] - 1):
        out.append(decay * out[-1] + (1 - decay) * ys[..., i])
    return torch.stack(out, dim=-1)


# A program for 6 examples of 3 features, and what it must predict.
LEARNERS = {
    "sgd": (lambda: sgd(3, 6, 0.05, ridge=0.1), lambda xs, ys: exact_sgd(xs, ys, 0.05, 0.1)),
    "sherman_morrison": (lambda: sherman_morrison(3, 6, 0.5), lambda xs, ys: exact_ridge(xs, ys, 0.5)),
    "batch": (lambda: batch_gradient_descent(3, 6, 0.1, 4), lambda xs, ys: exact_batch(xs, ys, 0.1, 4)),
}


def gaussian_data(batch: int, samples: int, features: int) -> tuple[Tensor, Tensor]:
    """x and w standard normal, y = w·x: the paper's distribution."""
    generator = torch.Generator().manual_seed(features + 100 * samples)
    xs = torch.randn(batch, samples, features, dtype=torch.float64, generator=generator)
    w = torch.randn(batch, 1, features, dtype=torch.float64, generator=generator)
    return xs, (xs * w).sum(-1)


def unit_data(batch: int, samples: int, features: int) -> tuple[Tensor, Tensor]:
    """‖x‖ ≤ 1 and |y| ≤ 1, half of the rows and targets on the boundary."""
    generator = torch.Generator().manual_seed(features + 100 * samples)
    xs = torch.randn(batch, samples, features, dtype=torch.float64, generator=generator)
    xs = xs / xs.norm(dim=-1, keepdim=True)
    ys = 2 * torch.rand(batch, samples, dtype=torch.float64, generator=generator) - 1
    xs[::2] *= torch.rand(xs[::2].shape[:-1], dtype=torch.float64, generator=generator)[..., None]
    ys[1::2] = ys[1::2].sign()
    return xs, ys
