"""Errors of steps, added up: never less than the worst case, which exists, and lifted over it for rounding alone."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulon.certify.rounding import (
    accumulated,
    accumulated_ahead,
    accumulated_ahead_on_quadratics,
    accumulated_with_momentum,
    momentum_gains,
    step_lipschitz,
)


def above(found: float, exact: Fraction, least: float, most: float) -> bool:
    """Whether the lift over the exact number lies between these."""
    return 1 + Fraction(least) <= Fraction(found) / exact <= 1 + Fraction(most)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9, 0.99, 1 - 1e-9, 1 - 2.0**-53, 1 + 2.0**-52, 1 + 1e-9, 1.01, 1.1])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 60])
def test_errors_of_a_lipschitz_map_add_up_to_a_geometric_sum(rho: float, steps: int) -> None:
    """w ↦ ρw errs by ε upwards in every step: ε·(1 + ρ + … + ρ^{T−1}), in exact fractions."""
    exact = Fraction(1e-3) * sum(Fraction(rho) ** k for k in range(steps))
    assert above(accumulated(1e-3, steps, rho), exact, 5e-13, 2e-12)
    assert accumulated(1e-3, 0, rho) == 0 and accumulated(1e-3, steps, 1.0) == 1e-3 * steps


def test_growth_is_followed_up_to_what_a_float_can_hold() -> None:
    assert accumulated(1.0, 6990, math.exp(0.1)) == pytest.approx(math.exp(699) / math.expm1(0.1), rel=1e-9, abs=0.0)
    assert accumulated(1.0, 7010, math.exp(0.1)) == accumulated(1e-9, 10_000, 1.5) == math.inf


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
        wrong = wrong + 1e-3 * rng.choice([-1.0, 1.0]) * push / np.linalg.norm(push)
    rho = step_lipschitz(step_size, curvatures.max(), curvatures.min())
    assert np.linalg.norm(wrong - exact) <= accumulated(1e-3, steps, rho) * (1 + 1e-12)


@given(step_size=st.floats(0, 2), weak=st.floats(0, 1), strong=st.floats(0, 1))
def test_the_lipschitz_constant_is_the_larger_end_of_the_spectrum(step_size: float, weak: float, strong: float) -> None:
    low, high = sorted((weak, strong))
    inside = np.abs(1 - step_size * np.linspace(low, high, 33)).max()
    assert step_lipschitz(step_size, high, low) == pytest.approx(inside)
    assert (step_lipschitz(0.25, 2.0, 1.0), step_lipschitz(0.125, 24.0, 8.0)) == (0.75, 2.0)


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


@pytest.mark.parametrize("spread, momentum", [(1.125, 0.25), (2.0, 1.0), (0.5, 0.0), (0.5, 0.25)])
def test_the_worst_of_heavy_ball_exists_and_is_lifted_step_by_step(spread: float, momentum: float) -> None:
    """At the eigenvalue where `spread` is reached, but no less than 2√m, errors of one sign add up: in fractions."""
    a = max(Fraction(spread), 2 * Fraction(math.sqrt(momentum)))
    exact = [Fraction(1), a]
    while len(exact) < 40:
        exact.append(a * exact[-1] - Fraction(momentum) * exact[-2])
    gains = momentum_gains(40, spread, momentum)
    assert gains[:2] == [1.0, float(a) * (1 + 2e-15)]
    for k, (gain, each) in enumerate(zip(gains, exact, strict=True)):
        assert above(gain, each, 1.5e-15 * k, 4e-15 * k * (k + 3))
    if momentum:  # the ratio is lifted, too
        assert above(gains[2], exact[2], 5.6e-15 * (momentum == 1.0), 1e-12) and gains[39] > exact[39] * (1 + 1e-13)
    total = Fraction(1e-3) * sum(exact[:3])
    assert above(accumulated_with_momentum(1e-3, 3, spread, momentum), total, 0.99e-9, 1.01e-9)


def ahead(steps: int, made: int, z: np.ndarray) -> np.ndarray:
    """What an error of 1, made in step `made`, has become after all of them, on the eigenspaces of z/η."""
    before, p = np.zeros_like(z), np.ones_like(z)
    for number in range(made, steps):
        before, p = p, (1 - z) * (p + number / (number + 3) * (p - before))
    return np.abs(p)


@given(steps=st.integers(1, 80), beyond=st.sampled_from([0.0, 1e-6, 0.01]))
def test_no_accelerated_quadratic_with_wrong_steps_strays_further(steps: int, beyond: float) -> None:
    z = np.linspace(0, 1 + beyond, 65) ** 2
    worst = sum(ahead(steps, made, z[z <= 1 + beyond]) for made in range(1, steps + 1)).max()
    assert worst <= accumulated_ahead_on_quadratics(1.0, steps, beyond)
    assert accumulated_ahead_on_quadratics(0.5, steps, beyond) <= accumulated_ahead(0.5, steps, 1.0) * 3


def test_sums_that_are_thrown_ahead_are_their_formulas_and_lifted() -> None:
    """A step may turn an error round each time: then (1 + β)·e + β·e_before is what becomes of it.

    On quadratics, of five steps 0.01 beyond: ten times √2·1.05³, and the first error as it is.
    """
    off = before = Fraction(0)
    for number in range(30):
        beta = Fraction(number, number + 3)
        off, before = Fraction(0.9) * ((1 + beta) * off + beta * before) + 2, off
        assert above(accumulated_ahead(2.0, number + 1, 0.9), off, 8e-16, 1.2e-15 * (number + 1) * 2)
    found = accumulated_ahead_on_quadratics(0.5, 5, 0.01)
    assert 0.7e-12 < (found / 0.5 - 5) / (math.sqrt(2) * 1.157625 * 10) - 1 < 1.3e-12
    assert accumulated_ahead_on_quadratics(3.0, 1, 0.5) == 3.0
    # Errors that add up in a quadratic come to a sixth of the bound.
    worst = sum(ahead(40, made, np.linspace(0, 0.1, 200)) for made in range(1, 41)).max()
    assert worst >= accumulated_ahead_on_quadratics(1.0, 40, 0.0) / 6
