"""Errors of steps, added up: never less than the worst case, and the worst case exists."""

import math

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


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0, 1.1])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_it_is_proportional_to_the_error_of_a_step(rho: float, steps: int) -> None:
    exact = 1e-3 * sum(rho**k for k in range(steps))
    assert exact <= accumulated(1e-3, steps, rho) <= exact * (1 + 2e-12)
    assert accumulated_with_momentum(1e-3, 3, 0.5, 0.04) == pytest.approx(1e-3 * (1 + 0.5 + 0.21), rel=2e-9, abs=0.0)


def test_sums_are_lifted_over_their_own_rounding() -> None:
    """Never below the exact sum, and above it by no more than the lift: where rounding would fall short, it matters."""
    from fractions import Fraction

    for rho in (0.3, 0.9, 0.99, 1.01):
        for steps in (3, 10, 60):
            exact = sum(Fraction(rho) ** k for k in range(steps))
            assert 1 + 5e-13 <= Fraction(accumulated(1.0, steps, rho)) / exact <= 1 + 2e-12
    momentum, spread = 0.25, 1.125
    gains, exact = momentum_gains(40, spread, momentum), [Fraction(1), Fraction(spread)]
    while len(exact) < 40:
        exact.append(Fraction(spread) * exact[-1] - Fraction(momentum) * exact[-2])
    lifts = [float(Fraction(gain) / each - 1) for gain, each in zip(gains, exact, strict=True)]
    assert lifts[0] == 0 and all(1.5e-15 * k <= lift <= 4e-15 * k * (k + 3) for k, lift in enumerate(lifts))
    assert lifts[39] > 1e-13, "the ratio is lifted, too"
    assert accumulated_with_momentum(1.0, 2, 0.5, 0.0) == pytest.approx(1.5 * (1 + 1e-9), rel=1e-13, abs=0.0)


def test_growth_up_to_what_a_float_can_hold_is_followed() -> None:
    assert accumulated(1.0, 6990, math.exp(0.1)) == pytest.approx(math.exp(699) / math.expm1(0.1), rel=1e-9, abs=0.0)
    assert accumulated(1.0, 7010, math.exp(0.1)) == math.inf


@pytest.mark.parametrize(
    ("step_size", "smoothness", "strong", "wanted"),
    [(0.5, 3.0, 1.0, 0.5), (0.25, 2.0, 1.0, 0.75), (0.125, 24.0, 8.0, 2.0)],
)
def test_either_end_of_the_spectrum_may_rule(step_size: float, smoothness: float, strong: float, wanted: float) -> None:
    assert step_lipschitz(step_size, smoothness, strong) == wanted


def ahead(steps: int, made: int, z: np.ndarray) -> np.ndarray:
    """What an error of 1, made in the step before step `made`, has become after `steps`, on eigenvalues z/η."""
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


def test_thrown_ahead_the_worst_error_of_an_accelerated_step_exists() -> None:
    """A step may turn an error round each time: then (1 + β)·e + β·e_before is what becomes of it."""
    off, before = 0.0, 0.0
    for number in range(30):
        beta = number / (number + 3)
        off, before = 0.9 * ((1 + beta) * off + beta * before) + 2.0, off
    assert accumulated_ahead(2.0, 30, 0.9) == pytest.approx(off, rel=1e-12)
    # Errors that add up in a quadratic come to a sixth of the bound.
    worst = sum(ahead(40, made, np.linspace(0, 0.1, 200)) for made in range(1, 41)).max()
    assert worst >= accumulated_ahead_on_quadratics(1.0, 40, 0.0) / 6


def test_ratios_of_heavy_ball_are_lifted_as_well_as_their_products() -> None:
    gains = momentum_gains(3, 2.0, 1.0)
    assert gains[1] == 2.0 * (1 + 2e-15) and gains[2] > 3.0 * (1 + 5.6e-15)


def test_sums_that_are_thrown_ahead_are_their_formulas_and_lifted() -> None:
    """Of five steps 0.01 beyond: ten times √2·1.05³; the first error as it is, by four last places."""
    found = accumulated_ahead_on_quadratics(0.5, 5, 0.01)
    assert 0.7e-12 < (found / 0.5 - 5) / (math.sqrt(2) * 1.157625 * 10) - 1 < 1.3e-12
    assert accumulated_ahead_on_quadratics(3.0, 1, 0.5) == 3.0
    assert 8e-16 < accumulated_ahead(1.0, 1, 0.5) - 1 < 1.2e-15
