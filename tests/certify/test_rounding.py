"""Rounding and composition: bounds hold in exact arithmetic, an adversary comes close to them, and no digit is lost."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb
from hypothesis import given
from hypothesis import strategies as st

from emulon.certify import rounding
from emulon.certify.rounding import (
    accumulated,
    accumulated_ahead,
    accumulated_ahead_on_quadratics,
    accumulated_with_momentum,
    momentum_gains,
    shifted_average,
    step_lipschitz,
    total_variation,
)
from emulon.expressions.evaluation import ball_arithmetic

f64 = torch.float64
DTYPES = pytest.mark.parametrize("dtype, digits", [(torch.float32, 24), (f64, 53)], ids=["float32", "float64"])


def exactly(tensor: torch.Tensor) -> list[Fraction]:
    return [Fraction(value) for value in tensor.double().tolist()]


@DTYPES
def test_the_bounds_are_the_formulas_of_the_standard_model(dtype: torch.dtype, digits: int) -> None:
    """γ_k = ku/(1 − ku), to the last place: the worst case of rounding is never met, so that no data would tell."""
    u, steps = Fraction(1, 2**digits), 2 ** (20 if digits == 24 else 49)
    assert rounding.unit(dtype) == u and rounding.EXP_ROUNDINGS == 4
    assert rounding.gamma(steps, dtype) == float(steps * u / (1 - steps * u)) and rounding.gamma(0, dtype) == 0.0
    assert rounding.gamma(2**24, torch.float32) == math.inf
    assert rounding.dot(3, 5.0, dtype) == pytest.approx(float(5 * 3 * u / (1 - 3 * u)), rel=1e-15, abs=0.0)
    assert rounding.average(3, 7.0, dtype) == pytest.approx(float(7 * 2 * 5 * u / (1 - 5 * u)), rel=1e-15, abs=0.0)
    assert rounding.softmax_weights(float(u), 8.0, dtype) == pytest.approx(float(13 * u), rel=1e-15, abs=0.0)


@DTYPES
@given(seed=st.integers(0, 10**6), terms=st.integers(1, 100), decades=st.integers(0, 8))
def test_dot_and_average_bound_what_torch_computes(
    dtype: torch.dtype, digits: int, seed: int, terms: int, decades: int
):
    """The worst for a sum is one that cancels; weights are taken as computed, divided by their sum."""
    g = torch.Generator().manual_seed(seed)
    scale = 10 ** (decades * torch.rand(terms, dtype=f64, generator=g))
    a, b = ((torch.randn(terms, dtype=f64, generator=g) * scale).to(dtype) for _ in range(2))
    a, b = torch.cat([a, -a[: terms // 2]]), torch.cat([b, b[: terms // 2]])
    products = [x * y for x, y in zip(exactly(a), exactly(b), strict=True)]
    room = rounding.dot(len(a), float(sum(map(abs, products))) * (1 + 1e-15), dtype)
    assert abs(Fraction((a @ b).item()) - sum(products)) <= Fraction(room)
    weights = torch.rand(len(b), dtype=f64, generator=g).to(dtype) + 2.0**-20
    w, v = exactly(weights), exactly(b)
    exact, size = (sum(x * y for x, y in zip(w, each, strict=True)) / sum(w) for each in (v, map(abs, v)))
    error = abs(Fraction(((weights / weights.sum()) @ b).item()) - exact)
    assert error <= Fraction(rounding.average(len(b), float(size) * (1 + 1e-15), dtype))


@DTYPES
@pytest.mark.parametrize("width", [2, 33])
def test_softmax_weights_bounds_what_torch_softmax_does(dtype: torch.dtype, digits: int, width: int) -> None:
    """Log-ratios of the computed weights are the differences of the scores, to within twice the bound each."""
    g = torch.Generator().manual_seed(width)
    scores = (-64 * torch.rand(20_000, width, dtype=f64, generator=g)).to(dtype)
    weights = torch.softmax(scores, dim=-1).double().numpy().astype(np.longdouble)
    exact = scores.double().numpy().astype(np.longdouble)
    first = exact.argmax(axis=1)[:, None]
    logs = np.log(weights) - np.log(np.take_along_axis(weights, first, 1))
    below = exact - np.take_along_axis(exact, first, 1)
    assert np.abs(logs - below).max() <= rounding.softmax_weights(0.0, 64.0, dtype)
    # Near the top, where it counts, the bound is close: exp and the division, not the score's own size.
    assert np.abs(logs - below)[below > -1].max() <= rounding.softmax_weights(0.0, 1.0, dtype)


@DTYPES
def test_torchs_exp_is_measured_within_half_of_what_is_assumed(dtype: torch.dtype, digits: int) -> None:
    """Assumed, not proved: `Certificate.assumes` says so. The scores of a softmax are not positive."""
    s = -(10 ** torch.linspace(-8, 1.8, 4000, dtype=f64)).to(dtype)
    found = torch.exp(s).double().tolist()
    with ball_arithmetic(120):
        exact = [arb(x).exp() for x in s.double().tolist()]
        worst = max(float(abs(arb(y) / x - 1)) for y, x in zip(found, exact, strict=True))
    assert worst <= rounding.EXP_ROUNDINGS / 2 * rounding.unit(dtype)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def adversary(scores: np.ndarray, values: np.ndarray, delta: float) -> float:
    """The most the average can be raised: the best shift is +δ above some value and −δ below it."""
    order = np.argsort(values)
    before = softmax(scores) @ values
    cuts = (np.where(np.arange(len(values)) >= cut, delta, -delta)[np.argsort(order)] for cut in range(len(values) + 1))
    return max(softmax(scores + shift) @ values - before for shift in cuts)


@given(seed=st.integers(0, 10**6), size=st.integers(2, 12), delta=st.floats(1e-6, 5), sharpness=st.floats(0, 20))
def test_no_shift_of_the_scores_moves_the_average_further(seed: int, size: int, delta: float, sharpness: float) -> None:
    rng = np.random.default_rng(seed)
    scores, values = sharpness * rng.normal(size=size), rng.normal(size=size)
    weights = softmax(scores)
    deviation = weights @ np.abs(values - weights @ values)
    moved = adversary(scores, values, delta)
    assert moved <= shifted_average(delta, np.ptp(values)) * (1 + 1e-12) + 1e-15
    assert moved <= shifted_average(delta, np.ptp(values), deviation) * (1 + 1e-12) + 1e-15
    drawn = softmax(scores + rng.uniform(-delta, delta, size))
    assert np.abs(drawn - weights).sum() / 2 <= total_variation(delta) + 1e-15


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3, 0.1, 1.0, 4.0])
def test_both_bounds_of_a_shift_are_their_formulas_and_attained(delta: float) -> None:
    """By two tokens whose log-odds go from −δ to δ; by half the deviation on either side of the mean, for small δ."""
    assert shifted_average(delta, 3.0) == pytest.approx(3 * math.tanh(delta / 2), rel=1e-14)
    peaked = math.exp(delta) * math.expm1(delta)
    assert shifted_average(delta, math.inf, 2.0) == pytest.approx(2 * peaked, rel=1e-14)
    moved = adversary(np.array([delta / 2, -delta / 2]), np.array([0.0, 1.0]), delta)
    assert moved == pytest.approx(shifted_average(delta, 1.0), rel=0.01)
    if delta <= 1e-3:
        scores, values = np.array([8.0, 0.0, 0.0]), np.array([0.0, 1.0, -1.0])
        moved = adversary(scores, values, delta)
        assert moved == pytest.approx(shifted_average(delta, 2.0, float(softmax(scores) @ np.abs(values))), rel=0.01)


def test_extreme_shifts_neither_overflow_nor_pass_the_spread() -> None:
    for delta in (0.0, 1e-300, 1e-320):
        assert 0.0 <= shifted_average(delta, 2.0, 0.5) < 1e-299
    assert shifted_average(0.0, 1.0, math.inf) == 0.0 and shifted_average(1e-320, math.inf, 1.0) < 1e-300
    for delta in (299.0, 300.0, 301.0, 699.0, 700.0, 701.0, 1e9, math.inf):
        assert total_variation(delta) == 1.0 and shifted_average(delta, 3.0, 1e-9) == 3.0


def above(found: float, exact: Fraction, least: float, most: float) -> bool:
    """Whether the lift over the exact number lies between these."""
    return 1 + Fraction(least) <= Fraction(found) / exact <= 1 + Fraction(most)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.99, 1 - 1e-9, 1 - 2.0**-53, 1 + 2.0**-52, 1 + 1e-9, 1.1])
@pytest.mark.parametrize("steps", [1, 3, 60])
def test_errors_of_a_lipschitz_map_add_up_to_a_geometric_sum(rho: float, steps: int) -> None:
    """w ↦ ρw errs by ε upwards in every step: ε·(1 + ρ + … + ρ^{T−1}), in exact fractions."""
    exact = Fraction(1e-3) * sum(Fraction(rho) ** k for k in range(steps))
    assert above(accumulated(1e-3, steps, rho), exact, 5e-13, 2e-12)
    assert accumulated(1e-3, 0, rho) == 0 and accumulated(1e-3, steps, 1.0) == 1e-3 * steps


def test_growth_is_followed_up_to_what_a_float_can_hold() -> None:
    assert accumulated(1.0, 6990, math.exp(0.1)) == pytest.approx(math.exp(699) / math.expm1(0.1), rel=1e-9, abs=0.0)
    assert accumulated(1.0, 7010, math.exp(0.1)) == accumulated(1e-9, 10_000, 1.5) == math.inf


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
