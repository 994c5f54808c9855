"""Errors of steps, added up: never less than the worst case, and the worst case exists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulon.certify.composition import accumulated, accumulated_with_momentum, step_lipschitz


@given(step_error=st.floats(1e-12, 1), steps=st.integers(1, 200), rho=st.floats(0, 1.2))
def test_it_is_the_worst_case_of_a_lipschitz_map(step_error: float, steps: int, rho: float) -> None:
    """w ↦ ρw errs by ε upwards in every step."""
    off = 0.0
    for _ in range(steps):
        off = rho * off + step_error
    assert accumulated(step_error, steps, rho) == pytest.approx(off, rel=1e-9)


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 60), share=st.floats(0.05, 1.0))
def test_no_gradient_descent_with_wrong_steps_strays_further(seed: int, steps: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    curvatures = rng.uniform(0.2, 3.0, size=4)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    hessian = rotation @ np.diag(curvatures) @ rotation.T
    step_size = share * 2 / curvatures.max()
    exact = wrong = rng.normal(size=4)
    for _ in range(steps):
        exact = exact - step_size * hessian @ exact
        wrong = wrong - step_size * hessian @ wrong
        push = wrong - exact if np.linalg.norm(wrong - exact) > 0 else rng.normal(size=4)
        # Away from the exact iterate, turned over where the step overshoots.
        turn = rng.choice([-1.0, 1.0])
        wrong = wrong + 1e-3 * turn * push / np.linalg.norm(push)
    rho = step_lipschitz(step_size, curvatures.max(), curvatures.min())
    assert np.linalg.norm(wrong - exact) <= accumulated(1e-3, steps, rho) * (1 + 1e-12)


def test_contraction_keeps_it_below_the_geometric_limit() -> None:
    assert accumulated(1.0, 10**6, 0.9) == pytest.approx(10.0)
    assert accumulated(1.0, 0, 0.9) == 0.0


@pytest.mark.parametrize("rho", [1 - 1e-9, 1 - 1e-16, 1.0, 1 + 1e-15, 1 + 1e-9])
def test_close_to_one_it_is_still_the_number_of_steps(rho: float) -> None:
    assert accumulated(1.0, 100, rho) == pytest.approx(100.0, rel=1e-6)


def test_a_diverging_map_promises_nothing() -> None:
    assert accumulated(1e-9, 10_000, 1.5) == math.inf


@given(step_size=st.floats(0, 2), weak=st.floats(0, 1), strong=st.floats(0, 1))
def test_the_lipschitz_constant_is_the_larger_end_of_the_spectrum(step_size: float, weak: float, strong: float) -> None:
    low, high = sorted((weak, strong))
    inside = np.abs(1 - step_size * np.linspace(low, high, 33)).max()
    assert step_lipschitz(step_size, high, low) == pytest.approx(inside)


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 60), share=st.floats(0.05, 1.9), momentum=st.floats(0.01, 0.95))
def test_no_heavy_ball_with_wrong_steps_strays_further(seed: int, steps: int, share: float, momentum: float) -> None:
    """Every error's sign is the one that moves the end furthest, on each eigenvalue."""
    eigenvalues = np.random.default_rng(seed).uniform(0.0, 1.0, size=5)
    part = [np.ones(5), 1 + momentum - share * eigenvalues]
    for _ in range(steps):
        part.append(part[1] * part[-1] - momentum * part[-2])
    worst = np.abs(part[:steps]).sum(axis=0).max()
    spread = np.abs(1 + momentum - share * eigenvalues).max()
    assert worst <= accumulated_with_momentum(1.0, steps, spread, momentum)


@given(steps=st.integers(1, 400), momentum=st.floats(0.05, 0.95), beyond=st.floats(0.0, 0.2))
def test_the_worst_of_heavy_ball_exists(steps: int, momentum: float, beyond: float) -> None:
    """At the eigenvalue where `spread` is reached, above 2√m, errors of one sign do add up to the bound."""
    spread = 2 * math.sqrt(momentum) + beyond
    off = before = 0.0
    for _ in range(steps):
        off, before = spread * off - momentum * before + 1.0, off
    assert accumulated_with_momentum(1.0, steps, spread, momentum) == pytest.approx(off, rel=1e-6)
