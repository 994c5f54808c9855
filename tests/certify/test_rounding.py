"""Rounding bounds against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb
from hypothesis import given
from hypothesis import strategies as st

from emulon.certify import rounding
from emulon.expressions.evaluation import ball_arithmetic

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def exactly(tensor: torch.Tensor) -> list[Fraction]:
    return [Fraction(value) for value in tensor.double().tolist()]


@DTYPES
def test_the_unit_roundoff_is_half_the_spacing_at_one(dtype: torch.dtype) -> None:
    one, u = torch.ones((), dtype=dtype), rounding.unit(dtype)
    assert one + 2 * u > one and one + u == one


@DTYPES
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60))
def test_gamma_bounds_any_number_of_roundings(dtype: torch.dtype, seed: int, count: int) -> None:
    factors = (0.5 + torch.rand(count + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).to(
        dtype
    )
    product, exact = factors[0], Fraction(factors[0].item())
    for factor in factors[1:]:
        product, exact = product * factor, exact * Fraction(factor.item())
    assert abs(Fraction(product.item()) / exact - 1) <= Fraction(rounding.gamma(count, dtype))


def test_gamma_gives_up_where_the_model_does() -> None:
    assert rounding.gamma(2**24, torch.float32) == float("inf")
    assert rounding.gamma(0, torch.float32) == 0.0


@DTYPES
@given(seed=st.integers(0, 10**6), length=st.integers(1, 200), decades=st.integers(0, 6))
def test_dot_bounds_torch_matmul(dtype: torch.dtype, seed: int, length: int, decades: int) -> None:
    g = torch.Generator().manual_seed(seed)
    scale = 10 ** (decades * torch.rand(length, dtype=torch.float64, generator=g))
    a, b = ((torch.randn(length, dtype=torch.float64, generator=g) * scale).to(dtype) for _ in range(2))
    # The worst for a sum is one that cancels.
    a, b = torch.cat([a, -a[: length // 2]]), torch.cat([b, b[: length // 2]])
    terms = [x * y for x, y in zip(exactly(a), exactly(b), strict=True)]
    error = abs(Fraction((a @ b).item()) - sum(terms))
    assert error <= Fraction(rounding.dot(len(a), float(sum(map(abs, terms))) * (1 + 1e-15), dtype))


@DTYPES
@given(seed=st.integers(0, 10**6), terms=st.integers(1, 64), decades=st.integers(0, 8))
def test_average_bounds_the_weighted_mean_softmax_computes(
    dtype: torch.dtype, seed: int, terms: int, decades: int
) -> None:
    """With the exponentials taken as computed: dividing by their sum, and summing weight times value."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(terms, dtype=torch.float64, generator=g).to(dtype) + 2.0**-20
    values = (torch.randn(terms, dtype=torch.float64, generator=g) * 10.0**decades).to(dtype)
    computed = Fraction(((weights / weights.sum()) @ values).item())
    w, v = exactly(weights), exactly(values)
    exact = sum(map(Fraction.__mul__, w, v)) / sum(w)
    magnitude = sum(a * abs(b) for a, b in zip(w, v, strict=True)) / sum(w)
    assert abs(computed - exact) <= Fraction(rounding.average(terms, float(magnitude) * (1 + 1e-15), dtype))


@DTYPES
@pytest.mark.parametrize("width", [2, 3, 8, 16, 33])
def test_softmax_weights_bounds_what_torch_softmax_does(dtype: torch.dtype, width: int) -> None:
    """Log-ratios of the computed weights are the differences of the scores, to within twice the bound each."""
    g = torch.Generator().manual_seed(width)
    scores = (-64 * torch.rand(20_000, width, dtype=torch.float64, generator=g)).to(dtype)
    weights = torch.softmax(scores, dim=-1).double().numpy().astype(np.longdouble)
    exact = scores.double().numpy().astype(np.longdouble)
    first = exact.argmax(axis=1)[:, None]
    logs = np.log(weights) - np.log(np.take_along_axis(weights, first, 1))
    off = np.abs(logs - (exact - np.take_along_axis(exact, first, 1)))
    assert off.max() <= rounding.softmax_weights(0.0, 64.0, dtype)
    # Near the top, where it counts, the bound is close: exp and the division, not the score's own size.
    near = off[exact > np.take_along_axis(exact, first, 1) - 1]
    assert near.max() <= rounding.softmax_weights(0.0, 1.0, dtype)


@DTYPES
def test_torchs_exp_is_measured_within_half_of_what_is_assumed(dtype: torch.dtype) -> None:
    """Assumed, not proved: `Certificate.assumes` says so. The scores of a softmax are not positive."""
    s = -(10 ** torch.linspace(-8, 1.8, 4000, dtype=torch.float64)).to(dtype)
    found = torch.exp(s).double().tolist()
    with ball_arithmetic(120):
        exact = [arb(x).exp() for x in s.double().tolist()]
        worst = max(float(abs(arb(y) / x - 1)) for y, x in zip(found, exact, strict=True))
    assert worst <= rounding.EXP_ROUNDINGS / 2 * rounding.unit(dtype)


@pytest.mark.parametrize("dtype, digits", [(torch.float32, 24), (torch.float64, 53)], ids=["float32", "float64"])
def test_the_bounds_are_the_formulas_of_the_standard_model(dtype: torch.dtype, digits: int) -> None:
    """γ_k = ku/(1 − ku), to the last place: the worst case of rounding is never met, so that no data would tell."""
    u = Fraction(1, 2**digits)
    steps = 2**20 if digits == 24 else 2**49
    assert rounding.gamma(steps, dtype) == float(steps * u / (1 - steps * u))
    assert rounding.dot(3, 5.0, dtype) == pytest.approx(float(5 * 3 * u / (1 - 3 * u)), rel=1e-15, abs=0.0)
    assert rounding.average(3, 7.0, dtype) == pytest.approx(float(7 * 2 * 5 * u / (1 - 5 * u)), rel=1e-15, abs=0.0)
    assert rounding.softmax_weights(float(u), 8.0, dtype) == pytest.approx(float(13 * u), rel=1e-15, abs=0.0)


def test_exp_is_granted_four_roundings() -> None:
    assert rounding.EXP_ROUNDINGS == 4
