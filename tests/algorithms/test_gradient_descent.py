"""The step is exactly the one stated: shrink and descend, add momentum, then soften."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.algorithms import (
    MARGIN,
    GradientDescent,
    Loss,
    huber,
    log_cosh,
    logistic,
    perceptron,
    poisson,
    quantile,
    soft_threshold,
    squared,
    squared_hinge,
)

ALL = [squared(), huber(), log_cosh(), quantile(), logistic(), squared_hinge(), perceptron(), poisson()]
CONVEX = [squared(), huber(0.5), log_cosh(), logistic(), squared_hinge(), poisson()]


def dataset(loss: Loss, seed: int, samples: int = 12, features: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    y = torch.randn(samples, generator=generator, dtype=torch.float64)
    return x, {"residual": y, "margin": y.sign(), "rate": (4 * y.abs()).floor()}[loss.link.name]


def test_steps_follow_the_stated_formula_one_sample_at_a_time():
    """Plain numpy, sample by sample, entry by entry: nothing in common with the batched code."""
    x, y = dataset(squared(), seed=0)
    algorithm = GradientDescent(squared(), steps=6, step_size=0.3, l2=0.2, l1=0.1, momentum=0.4)
    w = before = np.zeros(3)
    expected = [w]
    for _ in range(6):
        gradient = sum((x_i @ w - y_i) * x_i for x_i, y_i in zip(x.numpy(), y.numpy(), strict=True)) / len(y)
        v = (1 - 0.3 * 0.2) * w - 0.3 * gradient + 0.4 * (w - before)
        softened = [np.sign(v_k) * max(abs(v_k) - 0.3 * 0.1, 0.0) for v_k in v]
        w, before = np.array(softened), w
        expected.append(w)
    np.testing.assert_allclose(algorithm.iterates(x, y).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.name)
def test_a_step_goes_down_the_gradient_of_the_objective(loss: Loss):
    x, y = dataset(loss, seed=1)
    algorithm = GradientDescent(loss, steps=3, step_size=0.05, l2=0.1)
    before, after = algorithm.iterates(x, y)[-2:].detach().clone()
    at = before.requires_grad_()
    (gradient,) = torch.autograd.grad(algorithm.objective(x, y, at), at)
    assert gradient.norm() > 0.01
    torch.testing.assert_close((at.detach() - after) / 0.05, gradient, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("loss", CONVEX, ids=lambda loss: loss.name)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    l2=st.sampled_from([0.0, 0.3]),
    l1=st.sampled_from([0.0, 0.3]),
)
def test_the_default_step_never_increases_the_objective(loss: Loss, seed: int, scale: float, l2: float, l1: float):
    x, y = dataset(loss, seed)
    y = y if loss.link == MARGIN else y * round(10 * scale)
    algorithm = GradientDescent(loss, steps=40, l2=l2, l1=l1)
    values = algorithm.objective((x * scale).expand(41, -1, -1), y.expand(41, -1), algorithm.iterates(x * scale, y))
    rounding = 1e-13 * (1 + values.abs().max())
    assert (values.diff() <= rounding).all()
    assert values[-1] < values[0] or l1 > 0


def test_a_step_much_above_the_default_would_increase_it():
    """So that the test above can fail."""
    x, y = dataset(squared(), seed=3)
    limit = 2 * GradientDescent(squared()).resolved_step_size(x, y).item()
    algorithm = GradientDescent(squared(), steps=60, step_size=1.1 * limit)
    values = [algorithm.objective(x, y, w).item() for w in algorithm.iterates(x, y)]
    assert values[-1] > values[0]


def test_momentum_reaches_the_minimum_of_badly_scaled_least_squares_sooner():
    x, y = dataset(squared(), seed=4, samples=30)
    x = x * torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64)
    best = torch.linalg.lstsq(x, y.unsqueeze(-1)).solution.squeeze(-1)
    plain, heavy = (GradientDescent(squared(), steps=300, momentum=m).run(x, y) for m in (0.0, 0.8))
    assert (heavy - best).norm() < 1e-6 < (plain - best).norm()


@settings(max_examples=50)
@given(
    v=st.lists(st.floats(-10, 10), min_size=1, max_size=5),
    threshold=st.floats(0, 5),
    candidate=st.floats(-10, 10),
)
def test_soft_threshold_is_the_proximal_map_of_the_l1_norm(v: list[float], threshold: float, candidate: float):
    point = torch.tensor(v, dtype=torch.float64)

    def cost(w: torch.Tensor) -> torch.Tensor:
        return (w - point).square() / 2 + threshold * w.abs()

    found = soft_threshold(point, torch.tensor([threshold], dtype=torch.float64))
    assert (cost(found) <= cost(torch.full_like(point, candidate)) + 1e-12).all()
