"""Functions on balls hold what they are there, on both sides of every break and on it, against Arb."""

import math

import pytest
import torch
from flint import arb, ctx
from torch import Tensor

from emulon.certify.balls import Ball, FloatBall
from emulon.certify.functions import (
    BITS,
    COEFFICIENTS,
    MOVE,
    REACH,
    Cells,
    _series,
    ball_operations,
    enclosed,
    undecided,
)
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic

f64 = torch.float64
SMOOTH = ["exp(t)", "tanh(t)", "-1/(1 + exp(t))", "t/sqrt(1 + t**2)", "t*exp(-t**2)", "pi*t", "sinh(t)", "cosh(t)"]
# Breaks at ±1.35, at ±2, at 0 and at 1; the last has a pole beside its break, and one has a function Arb alone knows.
BROKEN = ["Max(-1.35, Min(1.35, t))", "t*Max(0, 1 - (t/2)**2)**2", "Piecewise((-1, t <= 0), (exp(t), True))"]
BROKEN += ["Max(0, atan(t - 1))", "Piecewise((1/(1 - t), t < 1), (t, True))"]


@pytest.mark.parametrize("text", SMOOTH)
@pytest.mark.parametrize(
    ("kind", "room", "least"), [(FloatBall, 0, 8e-16), (FloatBall, 1e-12, 1e-11), (Ball, 0, 1e-17)]
)
def test_smooth_functions_are_enclosed_and_not_by_much(text: str, kind: type, room: float, least: float) -> None:
    """For every number of the ball: at its middle and at both ends."""
    f, s = parse(text), torch.linspace(-40, 40, 401, dtype=f64) + 1e-3
    given = kind.of(s).widened(room * torch.rand(401, dtype=f64)) if room else kind.of(s)
    ball = f.over(ball_operations(single=kind is FloatBall), given, kind.sign).lengthened()
    with ctx.workprec(300):
        parts = (s, given.radius, ball.high, ball.low, ball.radius)
        for at, off, high, low, radius in zip(*map(Tensor.tolist, parts), strict=True):
            for end in (-off, 0.0, off):
                exact = f.arb_series(arb(at) + arb(end), ())
                assert abs(exact - arb(high) - arb(low)) <= arb(radius), at
            assert radius <= least * max(abs(float(exact)), 1.0) * max(1.0, abs(at)), at


@pytest.mark.parametrize("kind", [Ball, FloatBall])
@pytest.mark.parametrize("text", BROKEN)
def test_functions_with_breaks_are_enclosed_beside_them_and_across_them(text: str, kind: type) -> None:
    at = torch.tensor([-3.0, -2.0, -1.35, -1.2, 0.0, 1e-9, 0.5, 1.0, 1.0 + 1e-9, 1.35, 1.5, 2.0, 9.0], dtype=f64)
    f, open_ = parse(text), 0
    for room in (0.0, 1e-12, 1e-2):
        ball = enclosed(f, kind.of(at).widened(torch.full_like(at, room)))
        with ctx.workprec(200):
            parts = (at, ball.high, ball.shortened().radius)
            for place, middle, radius in zip(*map(Tensor.tolist, parts), strict=True):
                open_ += not radius < math.inf
                for point in (place - 0.99 * room, place - 0.4 * room, place, place + 0.99 * room):
                    if radius < math.inf:
                        (signs,) = f.arb_branches(point, point)
                        assert not abs(f.arb_series(arb(point), signs) - arb(middle)) > arb(radius), (place, point)
    assert open_ <= 3  # around the pole


@pytest.mark.parametrize("kind", [Ball, FloatBall])
@pytest.mark.parametrize("at", [5.0, -5.0])
def test_a_ball_that_no_float_but_its_middle_is_in_has_both_sides_of_a_break_there(at: float, kind: type) -> None:
    """5 ± 1e-17: both ends round to 5, and the function, which Arb alone knows, jumps there."""
    for text in (f"Piecewise((0, t < {at}), (atan(t), True))", f"Piecewise((atan(t), t <= {at}), (0, True))"):
        found = enclosed(parse(text), kind.of(torch.tensor([at], dtype=f64)).widened(torch.tensor([1e-17], dtype=f64)))
        for value in (0.0, math.atan(at)):
            assert abs(found.high.item() - value) <= found.shortened().radius.item() < 1.0


def test_what_may_be_on_either_side_of_a_break_is_told_with_how_far_that_reaches():
    f, lengths = parse("Max(-1.35, Min(1.35, t))"), torch.tensor([[1.0, 2.0, 3.0]], dtype=f64)
    s = FloatBall(torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.36, -9.0]], dtype=f64), torch.full((2, 3), 0.02, dtype=f64))
    either, apart = undecided(f, s, lengths)
    assert either.tolist() == [False, True] and apart[0] == 0
    assert 2 * 0.03 <= apart[1] < 2 * 0.1  # it is 1.34 to 1.35 there, and its ball is no larger than both ways together
    assert not undecided(parse("tanh(t)"), s, lengths)[0].any()


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


@pytest.mark.parametrize("text", ["tanh(3*t)", "exp(t)"])
def test_what_a_table_grants_is_what_its_docstring_counts(text: str) -> None:
    """Per cell, of terms of order j: what they are off, 2j + 1 roundings in a sum, r's own; 6j a term in a change."""
    f, u = parse(text), 2.0**-53
    table = Cells.of(f, -1.0, 1.0)
    assert table is not None
    reach, kept, found = REACH * table.width, len(table.coefficients), []
    for k in range(table.coefficients.shape[1]):
        with ball_arithmetic(BITS, COEFFICIENTS + 1):
            row = _series(f, (table.first + k) * table.width, reach)
        orders = [max(place - 1, 0) for place in range(len(row))]
        sizes = [(abs(value) + off) * reach**j for j, (value, off) in zip(orders, row, strict=True)]
        off = [row[place][1] * reach**j if place < kept else sizes[place] for place, j in enumerate(orders)]
        slope = sum(j * size for j, size in zip(orders, sizes, strict=True))
        summed = sum((2 * j + 1) * u * size for j, size in list(zip(orders, sizes, strict=True))[1:kept])
        often = sum(j * x + 6 * u * j**2 * size for j, x, size in zip(orders, off, sizes, strict=True))
        found.append((sum(off) + summed + 2 * u * slope, slope / reach, MOVE / REACH * often + 4 * u * slope))
    wanted = [max(column) for column in zip(*found, strict=True)]
    assert [table.error, table.steepest, table.change_error] == pytest.approx(wanted, rel=1e-9, abs=0.0)


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
