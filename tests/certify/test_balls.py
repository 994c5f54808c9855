"""Balls hold the truth: every operation, against exact fractions and Arb, at ordinary and at awkward magnitudes."""

import math
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx, fmpq

from emulon.certify.balls import Ball, Factor, FloatBall, product
from emulon.certify.rounding import LOG_2

f64 = torch.float64


def draws(seed: int, count: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, dtype=f64, generator=generator)
    return values * 10.0 ** torch.randint(-6, 7, (count,), generator=generator)


def off(ball: Ball, exact: list[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """|middle − exact| and the radius of every ball that claims anything."""
    parts = zip(ball.high.flatten().tolist(), ball.low.flatten().tolist(), ball.radius.flatten().tolist(), strict=True)
    return [
        (abs(Fraction(high) + Fraction(low) - true), Fraction(radius))
        for (high, low, radius), true in zip(parts, exact, strict=True)
        if radius < float("inf")
    ]


OPERATIONS = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "square of the sum": lambda a, b: (a + b) * (a + b),
    "quotient of quotients": lambda a, b: (a / b) / (b / a + b * b / a),
}


@pytest.mark.parametrize("terms", [1, 7, 300, 2345])
def test_matrix_products_are_enclosed_and_far_below_float64(terms):
    generator = torch.Generator().manual_seed(terms)
    a = torch.randn(2, terms, dtype=f64, generator=generator) * 1e3
    b = torch.randn(terms, 3, dtype=f64, generator=generator)
    b[0] *= 1e12
    ball, exact = product(a, b), []
    for row in a.tolist():
        for column in b.T.tolist():
            exact.append(sum(Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)))
    for error, radius in off(ball, exact):
        assert error <= radius <= Fraction(2.0**-53) * Fraction((a.abs() @ b.abs()).max().item()) / 100


def test_a_matrix_that_is_split_once_has_the_products_of_one_that_is_split_each_time():
    a, b = draws(17, 60).reshape(4, 15), draws(18, 45).reshape(15, 3)
    once, each = product(a, Factor.of(b)), product(a, b)
    assert all(torch.equal(one, other) for one, other in zip(vars(once).values(), vars(each).values(), strict=True))


def test_a_ball_is_shortened_by_what_its_second_part_holds():
    ball = Ball.of(Fraction(1, 3)).widened(torch.tensor(1e-20, dtype=f64))
    short = ball.shortened()
    assert short.high == ball.high and ball.low.abs() + 1e-20 <= short.radius < 1.01 * (ball.low.abs() + 1e-20)
    assert short.shortened() is short and ball.lengthened() is ball
    assert (short.lengthened().high, short.lengthened().low) == (short.high, 0.0)


def test_log_2_is_right_to_the_digits_claimed():
    digits = Fraction(LOG_2)
    with ctx.workprec(300):
        assert abs(arb(2).log() - arb(fmpq(digits.numerator, digits.denominator))) < arb("1e-59")


@pytest.mark.parametrize("value", [0.0, 1e-310, 1e-200, 1e200, 1e308])
def test_extreme_magnitudes_are_enclosed_or_said_to_be_unknown(value):
    a = torch.tensor([[value, value / 3]], dtype=f64)
    ball = product(a, a.mT)
    exact = sum(Fraction(x) ** 2 for x in a.flatten().tolist())
    assert all(error <= radius for error, radius in off(ball, [exact]))
    assert value > 1e100 or off(ball, [exact])


def test_the_size_of_a_ball_is_above_all_of_it():
    ball = Ball(*(torch.tensor(part, dtype=f64) for part in (-1.0, -1e-17, 0.5)))
    assert 1.5 < ball.size.item() < 1.5 + 1e-10
    assert Fraction(Ball.of(torch.tensor(1.0, dtype=f64)).size.item()) > 1
    low = Ball(*(torch.tensor(part, dtype=f64) for part in (1e-20, 1e-6, 0.0)))
    assert low.size.item() >= 1e-6


def test_erf_is_enclosed_to_one_float():
    near = torch.tensor([0.0, 1e-300, -1e-9, 1 / 128, -1 / 128, 6.0, 7.0, -9.0], dtype=f64)
    x = torch.cat([torch.linspace(-7, 7, 2001, dtype=f64), near])
    ball, wide = FloatBall.of(x).erf(), FloatBall.of(x).widened(torch.full_like(x, 1e-3)).erf()
    with ctx.workprec(200):
        for at, high, radius, more in zip(*(p.tolist() for p in (x, ball.high, ball.radius, wide.radius)), strict=True):
            assert abs(arb(at).erf() - arb(high)) <= arb(radius) and radius < 2.6 * 2.0**-53
            for end in (at - 1e-3, at + 1e-3):
                assert abs(arb(end).erf() - arb(high)) <= arb(more) and more < 1.2e-3
    assert FloatBall.of(torch.tensor([math.nan], dtype=f64)).erf().distance_from(x[:1]).isnan()
