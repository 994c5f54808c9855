"""Functions on balls hold what they are there, on both sides of every break and on it, against Arb."""

import math

import pytest
import torch
from flint import arb, ctx
from torch import Tensor

from emulon.certify.balls import Ball, FloatBall
from emulon.certify.functions import Cells, ball_operations, enclosed, undecided
from emulon.expressions import parse

f64 = torch.float64
SMOOTH = ["exp(t)", "tanh(t)", "-1/(1 + exp(t))", "t/sqrt(1 + t**2)", "t*exp(-t**2)", "pi*t", "sinh(t)", "cosh(t)"]
# Breaks at ±1.35, at ±2, at 0 and at 1; the last has a pole beside its break, and one has a function Arb alone knows.
BROKEN = ["Max(-1.35, Min(1.35, t))", "t*Max(0, 1 - (t/2)**2)**2", "Piecewise((-1, t <= 0), (exp(t), True))"]
BROKEN += ["Max(0, atan(t - 1))", "Piecewise((1/(1 - t), t < 1), (t, True))"]


@pytest.mark.parametrize("text", SMOOTH)
def test_smooth_functions_are_enclosed_in_single_precision(text):
    """For every number of the ball: at its middle and at both ends."""
    f, s = parse(text), torch.linspace(-40, 40, 401, dtype=f64) + 1e-3
    room, operations = 1e-12 * torch.rand(401, dtype=f64), ball_operations(single=True)
    for given, least in ((FloatBall.of(s), 8e-16), (FloatBall(s, room), 1e-11)):
        ball = f.over(operations, given, FloatBall.sign)
        with ctx.workprec(300):
            for at, off_, high, radius in zip(
                *map(Tensor.tolist, (s, given.radius, ball.high, ball.radius)), strict=True
            ):
                for end in (-off_, 0.0, off_):
                    exact = f.arb_series(arb(at) + arb(end), ())
                    assert abs(exact - arb(high)) <= arb(radius), at
                assert radius <= least * max(abs(float(exact)), 1.0) * max(1.0, abs(at)), at


@pytest.mark.parametrize("text", SMOOTH)
def test_smooth_functions_are_enclosed_to_twice_the_precision(text):
    f, s = parse(text), torch.linspace(-40, 40, 801, dtype=f64) + 1e-3
    ball = f.over(ball_operations(), Ball.of(s), Ball.sign)
    with ctx.workprec(300):
        for at, high, low, radius in zip(
            *(part.tolist() for part in (s, ball.high, ball.low, ball.radius)), strict=True
        ):
            exact = f.arb_series(arb(at), ())
            assert abs(exact - arb(high) - arb(low)) <= arb(radius)
            assert radius <= 1e-17 * max(abs(float(exact)), 1.0), at


@pytest.mark.parametrize("text", SMOOTH)
@pytest.mark.parametrize(("lo", "hi"), [(-3.0, 5.0), (0.7, 0.7001)])
def test_a_table_holds_a_function_and_its_changes_all_over_its_range_and_to_the_last_bits(text, lo, hi) -> None:
    f, draw = parse(text), torch.Generator().manual_seed(0)
    table = Cells.of(f, lo, hi)
    assert table is not None
    high = torch.linspace(lo, hi, 301, dtype=f64)
    high = torch.cat([high, high.sub(lo).div(table.width / 2).round().mul(table.width / 2).add(lo)])  # and at edges
    low = table.width * 1e-9 * torch.randn(high.shape, dtype=f64, generator=draw)
    off = table.width * 1e-16
    first, rest, error = table.read(high, low, off)
    by = table.move * torch.tensor([-1.0, -0.3, 1e-9, 1.0], dtype=f64).unsqueeze(-1).expand(4, len(high))
    change, more = table.change(high, low, by, off)
    largest = max(abs(f(torch.tensor([lo, (lo + hi) / 2, hi], dtype=f64))).tolist())
    assert error < 1e-15 * max(largest, 0.1) and more < 1e-15 * max(largest, 0.1)
    with ctx.workprec(200):
        for k, (a, b, value, tail) in enumerate(zip(*map(Tensor.tolist, (high, low, first, rest)), strict=True)):
            for side in (-1, 0, 1):
                at = arb(a) + arb(b) + side * arb(off)
                exact = f.arb_series(at, ())
                assert abs(exact - arb(value) - arb(tail)) <= arb(error)
                for moved, found in zip(by[:, k].tolist(), change[:, k].tolist(), strict=True):
                    assert abs(f.arb_series(at + arb(moved), ()) - exact - arb(found)) <= arb(more)


def test_a_table_says_so_where_it_does_not_reach_and_is_not_made_of_what_it_cannot_hold() -> None:
    table = Cells.of(parse("tanh(t)"), -1.0, 1.0)
    inside = torch.zeros(3, dtype=f64)
    assert table.read(inside, inside, 0.0)[2] < 1e-16
    for beyond in (1.02, -1.02, math.nan, math.inf):
        assert table.read(inside + torch.tensor([0.0, beyond, 0.0]), inside, 0.0)[2] == math.inf
    assert table.read(inside, inside, table.width)[2] == math.inf
    for text, lo, hi in (("Max(0, t)", -1, 1), ("1/t", -1, 1), ("sqrt(t)", -1, 1), ("tanh(300*t)", -9, 9)):
        assert Cells.of(parse(text), float(lo), float(hi)) is None
    for lo, hi in ((0.0, 0.0), (1.0, -1.0), (-math.inf, 1.0), (math.nan, 1.0), (1e9, 1e9 + 1e-5)):
        assert Cells.of(parse("tanh(t)"), lo, hi) is None


@pytest.mark.parametrize("kind", [Ball, FloatBall])
@pytest.mark.parametrize("text", BROKEN)
def test_functions_with_breaks_are_enclosed_beside_them_and_across_them(text: str, kind: type) -> None:
    at = torch.tensor([-3.0, -2.0, -1.35, -1.2, 0.0, 1e-9, 0.5, 1.0, 1.0 + 1e-9, 1.35, 1.5, 2.0, 9.0], dtype=f64)
    f, open_ = parse(text), 0
    for room in (0.0, 1e-12, 1e-2):
        ball = enclosed(f, kind.of(at).widened(torch.full_like(at, room)))
        with ctx.workprec(200):
            for place, middle, radius in zip(
                at.tolist(), ball.high.tolist(), ball.shortened().radius.tolist(), strict=True
            ):
                if not radius < math.inf:
                    open_ += 1
                    continue
                for point in (place - 0.99 * room, place - 0.4 * room, place, place + 0.99 * room):
                    (signs,) = f.arb_branches(point, point)
                    assert not abs(f.arb_series(arb(point), signs) - arb(middle)) > arb(radius), (place, point)
    assert open_ <= 3  # around the pole


def test_what_may_be_on_either_side_of_a_break_is_told_with_how_far_that_reaches():
    f, lengths = parse("Max(-1.35, Min(1.35, t))"), torch.tensor([[1.0, 2.0, 3.0]], dtype=f64)
    s = FloatBall(torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.36, -9.0]], dtype=f64), torch.full((2, 3), 0.02, dtype=f64))
    either, apart = undecided(f, s, lengths)
    assert either.tolist() == [False, True] and apart[0] == 0
    assert 2 * 0.03 <= apart[1] < 2 * 0.1  # it is 1.34 to 1.35 there, and its ball is no larger than both ways together
    assert not undecided(parse("tanh(t)"), s, lengths)[0].any()


def test_a_hyperbolic_tangent_grants_each_rounding_its_last_place_and_its_argument_no_more_than_it_moves():
    """1.52 + q last places, q = 2/(1 + e^{2|t|}), and the radius as it is: no slope is above 1."""
    at = torch.linspace(-45, 45, 301, dtype=f64)
    q = 2 / (1 + (2 * at.abs()).exp())
    for room in (0.0, 1e-12, 3.0):
        ball = FloatBall(at, torch.full_like(at, room)).tanh()
        granted = 2.0**-53 * (1.52 + q) + room
        assert (ball.radius >= granted).all() and (ball.radius <= granted * (1 + 1e-11)).all()
    assert FloatBall(torch.tensor([math.nan, math.inf], dtype=f64), torch.zeros(2, dtype=f64)).tanh().radius[0].isnan()


def test_an_exponential_is_known_where_all_of_its_ball_is_near_enough_and_of_no_entries_nothing_is_asked():
    for kind in (Ball, FloatBall):
        for at, room, known in ((1.0, 0.9, True), (1.0, 1.5, False), (691.0, 0.0, True), (693.0, 0.0, False)):
            ball = kind.of(torch.tensor([at, 0.0], dtype=f64)).widened(torch.tensor([room, 0.0], dtype=f64))
            assert (ball.exp().radius < math.inf).tolist() == [known, True]
        none = kind.of(torch.empty(0, dtype=f64))
        assert none.exp().radius.shape == (1 / none).radius.shape == enclosed(parse("tanh(t)"), none).high.shape == (0,)


@pytest.mark.parametrize("kind", [Ball, FloatBall])
@pytest.mark.parametrize("at", [5.0, -5.0])
def test_a_ball_that_no_float_but_its_middle_is_in_has_both_sides_of_a_break_there(at: float, kind: type) -> None:
    """5 ± 1e-17: both ends round to 5, and the function, which Arb alone knows, jumps there."""
    for text in (f"Piecewise((0, t < {at}), (atan(t), True))", f"Piecewise((atan(t), t <= {at}), (0, True))"):
        found = enclosed(parse(text), kind.of(torch.tensor([at], dtype=f64)).widened(torch.tensor([1e-17], dtype=f64)))
        for value in (0.0, math.atan(at)):
            assert abs(found.high.item() - value) <= found.shortened().radius.item() < 1.0
