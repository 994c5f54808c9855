"""The step is exactly the one stated: shrink and descend, add momentum, then soften."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.algorithms import (
    MARGIN,
    RATE,
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
from emulon.core.errors import EmulonError

ALL = [squared(), huber(), log_cosh(), quantile(), logistic(), squared_hinge(), perceptron(), poisson()]
CONVEX = [squared(), huber(0.5), log_cosh(), logistic(), squared_hinge(), poisson()]


def dataset(loss: Loss, seed: int, samples: int = 12, features: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    y = torch.randn(samples, generator=generator, dtype=torch.float64)
    return x, {"residual": y, "margin": y.sign(), "rate": (4 * y.abs()).floor()}[loss.link.name]


@pytest.mark.parametrize("loss", [squared(), poisson()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("options", [{"momentum": 0.4}, {"accelerated": True}, {"batch": 5}, {"batch": 99}], ids=str)
def test_steps_follow_the_stated_formula_one_sample_at_a_time(loss: Loss, options: dict):
    """Plain numpy, sample by sample, entry by entry: nothing in common with the batched code.

    Batches are taken in order, and the last is filled up with the first samples.
    """
    x, y = dataset(loss, seed=0)
    rows = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 0, 1, 2]] if options.get("batch") == 5 else [range(12)]
    algorithm = GradientDescent(loss, steps=7, step_size=0.1, l2=0.2, l1=0.1, **options)
    w = before = np.zeros(3)
    expected, starts = [w], []
    for k in range(7):
        start, part = w + k / (k + 3) * (w - before) if "accelerated" in options else w, rows[k % len(rows)]
        starts.append(start)
        scores = {i: np.exp(x[i].numpy() @ start) if loss.link == RATE else x[i].numpy() @ start for i in part}
        gradient = sum((scores[i] - y[i].item()) * x[i].numpy() for i in part) / len(part)
        v = (1 - 0.1 * 0.2) * start - 0.1 * gradient + options.get("momentum", 0.0) * (w - before)
        w, before = np.array([np.sign(v_k) * max(abs(v_k) - 0.1 * 0.1, 0.0) for v_k in v]), w
        expected.append(w)
    iterates = algorithm.iterates(x, y)
    np.testing.assert_allclose(iterates.numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(algorithm.starts(iterates)[:-1].numpy(), starts, atol=1e-14)


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


@settings(max_examples=50)
@given(v=st.lists(st.floats(-10, 10), min_size=1, max_size=5), threshold=st.floats(0, 5), candidate=st.floats(-10, 10))
def test_soft_threshold_is_the_proximal_map_of_the_l1_norm(v: list[float], threshold: float, candidate: float):
    point = torch.tensor(v, dtype=torch.float64)

    def cost(w: torch.Tensor) -> torch.Tensor:
        return (w - point).square() / 2 + threshold * w.abs()

    found = soft_threshold(point, torch.tensor([threshold], dtype=torch.float64))
    assert (cost(found) <= cost(torch.full_like(point, candidate)) + 1e-12).all()


@pytest.mark.parametrize(("loss", "l1"), [(squared(), 0.0), (huber(0.5), 0.05), (logistic(), 0.05)])
def test_accelerated_the_objective_is_as_near_to_its_minimum_as_theory_says(loss, l1):
    x, y = dataset(loss, seed=1)
    x = x * torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)  # far from round: descent is slow
    minimum = GradientDescent(loss, steps=1500, l2=1e-3, l1=l1, accelerated=True)
    best = minimum.run(x, y)
    step, lowest = minimum.resolved_step_size(x, y), minimum.objective(x, y, best)
    for steps in (1, 5, 30):
        weights = GradientDescent(loss, steps, l2=1e-3, l1=l1, accelerated=True, step_size=step.item()).run(x, y)
        off = minimum.objective(x, y, weights) - lowest
        assert off <= 2 * best.square().sum() / (step * (steps + 1) ** 2) + 1e-12


def test_batches_of_one_are_scikit_learns_stochastic_descent():
    from sklearn.linear_model import SGDRegressor

    x, y = dataset(squared(), seed=3)
    theirs = SGDRegressor(alpha=0.2, learning_rate="constant", eta0=0.05, shuffle=False, fit_intercept=False)
    for _ in range(2):
        theirs.partial_fit(x.numpy(), y.numpy())
    ours = GradientDescent(squared(), steps=24, step_size=0.05, l2=0.2, batch=1).run(x, y)
    np.testing.assert_allclose(ours.numpy(), theirs.coef_, atol=1e-13)


def test_kinds_of_steps_that_do_not_go_together_are_refused():
    for options in ({"momentum": 0.5, "accelerated": True}, {"accelerated": True, "batch": 3}):
        with pytest.raises(EmulonError, match="do not go together; choose one"):
            GradientDescent(squared(), **options)
    with pytest.raises(EmulonError, match="at least one sample, not 0"):
        GradientDescent(squared(), batch=0)
