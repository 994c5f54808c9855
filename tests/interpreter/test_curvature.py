"""Slopes of a derivative, enclosed: never inside the true range, and close to it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from emulon.algorithms import Loss, as_loss
from emulon.expressions import parse
from emulon.interpreter.plan import Slopes, curvature_holds, negative_curvature

FUNCTIONS = ["tanh(t)", "-1/(1 + exp(t))", "exp(t)", "4*t**3", "t/sqrt(1 + t**2)", "cos(t)", "Max(-1.35, Min(1.35, t))"]


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize(("lo", "hi"), [(-5.0, 5.0), (-0.3, 4.0), (1.0, 1.25)])
def test_the_enclosure_holds_every_slope_and_not_much_more(f, lo, hi):
    lowest, highest = Slopes(parse(f)).between(lo, hi)
    s = torch.linspace(lo, hi, 20001, dtype=torch.float64)
    slopes = (np.diff(parse(f)(s).numpy()) / np.diff(s.numpy())).clip(-1e9, 1e9)
    assert lowest <= slopes.min() + 1e-6 and slopes.max() - 1e-6 <= highest
    room = 0.02 * np.abs(slopes).max()
    assert slopes.min() - room <= lowest and highest <= slopes.max() + room


@pytest.mark.parametrize(("lo", "hi"), [(-3.0, 3.0), (-1.8, -1.2), (-1.5708, -1.5707), (-200.0, 1.0)])
def test_the_steepest_along_a_path_lies_between_cells_as_well_as_at_their_ends(lo, hi):
    """cos is steepest at −π/2, where it is 1; asked again for a little more, it knows what it has seen."""
    slopes = Slopes(parse("cos(t)"))
    for wider in (0.0, 0.01, 0.02):
        assert 1.0 <= slopes.steepest(lo - wider, hi) <= (1.01 if hi - lo < 10 else 1.1)
    assert math.sin(1.0) <= slopes.steepest(-1.0, -0.5) < 1.01 * math.sin(1.0)
    assert slopes.steepest(-math.inf, 0.0) == math.inf == slopes.steepest(0.0, math.inf)


def test_slopes_that_no_float_holds_are_enclosed():
    for k in (*range(1, 12), *range(1001, 1012)):
        slopes, exact = Slopes(parse(f"{k}*t/7")), Fraction(k, 7)
        lowest, highest = map(Fraction, slopes.between(-1.0, 1.0))
        assert exact * (1 - Fraction(1, 10**14)) <= lowest <= exact <= highest <= exact * (1 + Fraction(1, 10**14))
        # Sevenths are no floats, whole numbers are.
        assert (lowest < exact < highest) == bool(k % 7) and exact <= Fraction(slopes.steepest(-1.0, 1.0))


@pytest.mark.parametrize("name", ["squared", "huber", "log_cosh", "tukey", "logistic", "squared_hinge"])
@pytest.mark.parametrize("reach", [0.5, 6.0, 300.0])
def test_the_curvature_that_each_loss_states_is_proved_and_hardly_less_is_not(name: str, reach: float):
    loss = as_loss(name)
    assert curvature_holds(loss.derivative, loss.curvature, reach)
    assert not curvature_holds(loss.derivative, 0.999 * loss.curvature, max(reach, 2.0))


def test_a_spike_narrower_than_any_sampling_is_found():
    spike = "t**2/2+(0.2-0.30003)*t-1001/2*(Max(t-0.30003,0)**2-Max(t-0.30043,0)**2)"
    assert negative_curvature(Loss.of(spike), 1.0) == (pytest.approx(1000, rel=1e-9), 1.0)


@pytest.mark.parametrize(
    "loss", ["log(cosh(10*t))", "sqrt(1 + t**2)", "log(1 + exp(5*t))", "log(1 + exp(t)) + log(1 + exp(-t))"]
)
@pytest.mark.parametrize("reach", [2.0, 100.0])
def test_convex_losses_are_seen_to_be_convex_far_out(loss: str, reach: float):
    """Their second derivatives are differences of numbers that agree to many digits, or of infinities."""
    assert negative_curvature(Loss.of(loss), reach) == (0.0, reach)


def test_a_kink_is_not_halved_for_ever(monkeypatch):
    """The cell that holds it spans both slopes, however narrow: that cells beside it reach them ends the search."""
    asked, enclose = [], Slopes._enclose
    monkeypatch.setattr(Slopes, "_enclose", lambda self, *cell: asked.append(cell) or enclose(self, *cell))
    assert Slopes(parse(as_loss("huber(1.35)").derivative)).between(-5.0, 7.0) == pytest.approx((0.0, 1.0), abs=1e-9)
    assert len(asked) <= 20
