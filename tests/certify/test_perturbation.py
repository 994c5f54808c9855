"""How far a softmax average can move: the bounds hold against an adversary, and he comes close to them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulon.certify.rounding import shifted_average, total_variation

DELTAS = [1e-9, 1e-3, 0.1, 1.0, 4.0]


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


@pytest.mark.parametrize("delta", DELTAS)
def test_the_bound_by_the_spread_is_attained(delta: float) -> None:
    """Two tokens whose log-odds go from −δ to δ."""
    moved = adversary(np.array([delta / 2, -delta / 2]), np.array([0.0, 1.0]), delta)
    assert moved == pytest.approx(shifted_average(delta, 1.0), rel=0.01)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_the_bound_by_the_deviation_is_attained_for_small_shifts(delta: float) -> None:
    """Half the deviation lies on either side of the mean: raise one half, lower the other."""
    scores, values = np.array([8.0, 0.0, 0.0]), np.array([0.0, 1.0, -1.0])
    weights = softmax(scores)
    deviation = float(weights @ np.abs(values))
    moved = adversary(scores, values, delta)
    assert moved == pytest.approx(shifted_average(delta, 2.0, deviation), rel=0.01)
    assert moved < 0.01 * shifted_average(delta, 2.0)


@pytest.mark.parametrize("delta", [0.0, 1e-300, 30.0, 299.0, 301.0, 1e6, math.inf])
def test_extreme_shifts_neither_overflow_nor_pass_the_spread(delta: float) -> None:
    bound = shifted_average(delta, 2.0, 0.5)
    assert 0.0 <= bound <= 2.0 and (delta < 30 or bound == pytest.approx(2.0))


def test_nothing_moves_when_no_score_does_and_all_of_the_spread_when_scores_may_be_anything() -> None:
    assert shifted_average(0.0, 1.0, math.inf) == 0.0
    assert shifted_average(1e-320, math.inf, 1.0) == pytest.approx(0.0, abs=1e-300)
    for delta in (299.0, 300.0, 301.0, 699.0, 700.0, 701.0, 1e9):
        assert total_variation(delta) == 1.0 and shifted_average(delta, 3.0, 1e-9) == 3.0


def test_both_bounds_are_their_formulas() -> None:
    assert shifted_average(1.0, math.inf, 2.0) == pytest.approx(2 * (math.exp(2) - math.e), rel=1e-14)
    assert shifted_average(1.0, 3.0) == pytest.approx(3 * math.tanh(0.5), rel=1e-14)
