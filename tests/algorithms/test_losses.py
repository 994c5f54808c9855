"""A loss's value, slope, derivative and curvature tell one story."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.algorithms import (
    RATE,
    GradientDescent,
    Loss,
    as_loss,
    huber,
    log_cosh,
    poisson,
    squared,
)
from emulon.core.errors import BadExpression, EmulonError
from emulon.expressions import parse

# By name, so that every test makes its own.
BREAKS = {
    "squared": [],
    "huber(1.35)": [-1.35, 1.35],
    "huber(1e-05)": [-1e-5, 1e-5],
    "log_cosh": [],
    "tukey(2.0)": [-2.0, 2.0],
    "quantile(0.3)": [0.0],
    "quantile(0.9)": [0.0],
    "logistic": [],
    "squared_hinge": [1.0],
    "perceptron": [0.0],
    "poisson": [],
}


@pytest.fixture(params=BREAKS)
def loss(request) -> Loss:
    return as_loss(request.param)


def away_from(breaks: list[float], span: float = 6.0) -> torch.Tensor:
    t = torch.linspace(-span, span, 1201, dtype=torch.float64)
    for point in breaks:
        t = t[(t - point).abs() > 1e-6]
    return t


def test_slope_is_the_gradient_of_value(loss: Loss):
    t = away_from(BREAKS[loss.name]).requires_grad_()
    (gradient,) = torch.autograd.grad(loss.value(t).sum(), t)
    torch.testing.assert_close(loss.slope(t.detach()), gradient, atol=1e-14, rtol=1e-13)


def test_slope_is_what_derivative_says(loss: Loss):
    """Away from breaks, and at each of them."""
    derivative, at = parse(loss.derivative), torch.tensor([*BREAKS[loss.name], 0.0], dtype=torch.float64)
    for t, close in (
        (away_from(BREAKS[loss.name]), {"atol": 1e-14, "rtol": 1e-13}),
        (at, {"atol": 4e-16, "rtol": 0.0}),
    ):
        torch.testing.assert_close(derivative(t), loss.slope(t), **close)


def test_derivative_breaks_where_we_say_and_jumps_where_curvature_is_infinite(loss: Loss):
    breaks = parse(loss.derivative).breaks(-3.0, 3.0)
    assert [point.at for point in breaks] == pytest.approx(BREAKS[loss.name], abs=1e-12)
    if loss.link != RATE:
        assert any(point.jump for point in breaks) == math.isinf(loss.curvature)


@pytest.mark.parametrize("name", ["squared", "huber(1.35)", "log_cosh", "tukey(2.0)", "logistic", "squared_hinge"])
def test_curvature_is_the_largest_second_derivative(name: str):
    loss = as_loss(name)
    t = torch.cat([away_from([]), torch.tensor([-1e-6, 1e-6], dtype=torch.float64)]).sort().values
    # ℓ″ is a limit of chords of ℓ′, so chords never pass its supremum, and short ones come near it.
    chords = (loss.slope(t[1:]) - loss.slope(t[:-1])) / (t[1:] - t[:-1])
    assert (1 - 1e-4) * loss.curvature <= chords.abs().max().item() <= (1 + 1e-9) * loss.curvature


def test_values_stay_finite_where_exp_and_cosh_overflow(loss: Loss):
    t = torch.tensor([-800.0] if loss.link == RATE else [-800.0, 800.0], dtype=torch.float64)
    assert torch.isfinite(loss.value(t)).all() and torch.isfinite(loss.slope(t)).all()


def test_losses_compare_by_what_they_are():
    assert huber(1.35) == huber() != huber(2.0)
    assert len({squared(), squared(), log_cosh()}) == 2


def test_template_data_keep_its_precision():
    inner_x, inner_y, fixed = poisson().template_data(torch.randn(4, 2), torch.arange(4))
    assert {inner_x.dtype, inner_y.dtype, fixed.dtype} == {torch.float32}


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("t**2/2", "squared"),
        ("log(cosh(t))", "log_cosh"),
        ("Piecewise((t**2/2, Abs(t) <= 1.35), (1.35*(Abs(t) - 0.675), True))", "huber(1.35)"),
        ("Max(0, 1 - t)**2", "squared_hinge"),
        ("Max(-0.3*t, 0.7*t)", "quantile(0.3)"),
        ("Max(0, -t)", "perceptron"),
    ],
)
def test_a_loss_given_as_an_expression_is_the_built_in_one(expression: str, name: str):
    loss, builtin = as_loss(expression), as_loss(name)
    t = away_from(BREAKS[name], span=3.0)
    torch.testing.assert_close(loss.value(t), builtin.value(t))
    torch.testing.assert_close(loss.slope(t), builtin.slope(t))
    torch.testing.assert_close(parse(loss.derivative)(t), builtin.slope(t))


@settings(max_examples=8, deadline=None)
@given(knots=st.lists(st.integers(-4, 4), min_size=1, max_size=3), slope=st.integers(1, 4))
def test_the_derivative_of_any_expression_is_its_difference_quotient(knots: list[int], slope: int):
    """Nested kinks: switches that depend on switches have to be written out right."""
    expression = "t**2/8"
    for knot in knots:
        expression = f"Max(Abs({expression} - ({knot})), {slope}*t)"
    loss = Loss.of(expression)
    t = torch.linspace(-5, 5, 997, dtype=torch.float64) + 1e-4 * math.pi
    h = 1e-6
    left, right = (loss.value(t) - loss.value(t - h)) / h, (loss.value(t + h) - loss.value(t)) / h
    smooth = (left - right).abs() < 1e-4
    assert smooth.sum() > 900
    torch.testing.assert_close(loss.slope(t)[smooth], right[smooth], atol=1e-4, rtol=0.0)


def test_an_expression_without_a_curvature_asks_for_a_step_size():
    with pytest.raises(EmulonError, match=r"t\*\*4 has no known bound; pass step_size"):
        GradientDescent(Loss.of("t**4"))
    assert GradientDescent(Loss.of("log(cosh(t))", curvature=1.0)).loss.curvature == 1.0


def test_an_expression_chooses_its_slope_at_a_kink():
    """Whoever writes t <= 0 gets the left slope at 0, as the perceptron needs; Max takes the middle."""
    zero = torch.zeros(1, dtype=torch.float64)
    at_zero = {text: Loss.of(text).slope(zero).item() for text in ("Piecewise((-t, t <= 0), (0, True))", "Max(0, -t)")}
    assert list(at_zero.values()) == [-1.0, -0.5]


def test_a_loss_that_jumps_is_refused():
    with pytest.raises(BadExpression, match="jumps at t = 2"):
        Loss.of("Heaviside(t - 2)")
