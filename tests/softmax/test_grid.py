"""What a grid knows of itself: the size of its scores, the range of its normaliser, and how much rounding costs."""

import math

import numpy as np
import pytest
import torch

from emulon.softmax import Grid

f64, U = torch.float64, 2.0**-53


def grid(slopes, intercepts, values, lo=-2.0, hi=1.0, dtype=f64, bands=()) -> Grid:
    return Grid.stored(*map(np.array, (slopes, intercepts, values)), dtype, lo, hi, "", bands)


SMALL = grid([-0.5, 0.25], [0.5, -0.125], [3.0, -5.0])


def gamma(count: int, u: float = U) -> float:
    return count * u / (1 - count * u)


@pytest.mark.parametrize(
    ("deviation", "size"), [(1e-3, 2.0), (4.0, 0.5), (0.0, 0.0)], ids=["magnitude", "deviation", "what is lost"]
)
def test_rounding_is_the_sum_of_what_moves_what_is_summed_and_what_is_lost(deviation: float, size: float) -> None:
    """δ = score's error + (4 + spread)·u; an average of 2 keys; one more rounding; weights below e⁻⁶⁴."""
    for score_error in (None, 0.0, 1e-3):
        exact = gamma(2) * 1.5 if score_error is None else score_error
        delta = exact + (4 + 3.0) * U
        moved = min(2 * 5.0 * math.tanh(delta / 2), math.exp(delta) * math.expm1(delta) * deviation)
        magnitude = min((size + deviation) * math.exp(2 * delta), 5.0)
        lost = 2 * (2 * 5.0 * math.exp(-64) + 4 * torch.finfo(f64).tiny)
        wanted = moved + 2 * gamma(4) * magnitude + U * magnitude + lost
        assert SMALL.rounding_error(deviation, size, score_error) == pytest.approx(wanted, rel=1e-13, abs=0.0)


def test_rounding_is_capped_where_weights_are_below_e_to_the_minus_64_and_where_values_end() -> None:
    wide = grid([1000.0, -1000.0], [0.0, 0.0], [1.0, -1.0])
    delta = gamma(2) * 2000.0 + (4 + 64.0) * U
    lost = 2 * (2 * math.exp(-64) + 4 * torch.finfo(f64).tiny)
    wanted = math.exp(delta) * math.expm1(delta) * 0.5 + 2 * gamma(4) * 1.0 + U * 1.0 + lost
    assert wide.rounding_error(0.5, 1e6) == pytest.approx(wanted, rel=1e-13, abs=0.0)
    assert wide.rounding_error(1.0, 1.0, 1e4) < 3.0
    # Scores that say nothing leave the whole spread of values, 2, and the rounding of an average as large as they are.
    assert wide.rounding_error(0.0, 1e-200, 1e4) - 2.0 == pytest.approx(9 * U, abs=2.1 * U)
    tiny = grid([0.0], [0.0], [1e-30], dtype=torch.float32)
    # In float32 numbers below 1.2e-38 come out as zero.
    assert tiny.rounding_error(0.0, 0.0, 0.0) == pytest.approx(2e-30 * math.exp(-64) + 4 * 2.0**-126, rel=1e-6, abs=0.0)
