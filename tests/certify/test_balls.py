"""Balls hold the truth: every operation, against exact fractions and Arb, at ordinary and at awkward magnitudes."""

import math
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx, fmpq

from emulon.certify.balls import Ball, Factor, FloatBall, product
from emulon.certify.error_free import LOG_2

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


def as_fractions(values: torch.Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.flatten().tolist()]


OPERATIONS = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "square of the sum": lambda a, b: (a + b) * (a + b),
    "quotient of quotients": lambda a, b: (a / b) / (b / a + b * b / a),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic_is_enclosed_to_twice_the_precision(name):
    a, b = draws(1), draws(2)
    operation = OPERATIONS[name]
    ball = operation(Ball.of(a), Ball.of(b))
    exact = [operation(x, y) for x, y in zip(as_fractions(a), as_fractions(b), strict=True)]
    for (error, radius), true in zip(off(ball, exact), exact, strict=True):
        assert error <= radius <= abs(true) * Fraction(1, 10**28) + Fraction(1, 10**20)


def test_radii_of_the_operands_are_carried():
    a, b, room = draws(3), draws(4), draws(5).abs() * 1e-9
    for name, operation in OPERATIONS.items():
        ball = operation(Ball.of(a).widened(room), Ball.of(b))
        for sign in (-1, 1):
            moved = [x + sign * r for x, r in zip(as_fractions(a), as_fractions(room), strict=True)]
            exact = [operation(x, y) for x, y in zip(moved, as_fractions(b), strict=True)]
            pairs = off(ball, exact)
            assert len(pairs) > 100 and all(error <= radius for error, radius in pairs), name


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


def test_a_ball_times_a_matrix_is_enclosed():
    a, b, matrix = draws(6, 12), draws(7, 12), draws(8, 36).reshape(12, 3)
    ball = (Ball.of(a) * Ball.of(b)).apply(lambda part: part.unsqueeze(0)).matmul(matrix)
    exact = [
        sum(Fraction(x) * Fraction(y) * Fraction(m) for x, y, m in zip(*columns, strict=True))
        for columns in ((a.tolist(), b.tolist(), matrix[:, k].tolist()) for k in range(3))
    ]
    assert all(error <= radius for error, radius in off(ball, exact))


def test_sums_are_enclosed_to_twice_the_precision():
    a, b = draws(9, 700).reshape(100, 7), draws(10, 700).reshape(100, 7)
    pairs = off((Ball.of(a) * Ball.of(b)).sum(), [dot(x, y) for x, y in zip(a, b, strict=True)])
    most = Fraction((a * b).abs().max().item())
    assert all(error <= radius <= most * Fraction(1, 10**28) for error, radius in pairs)


def dot(a, b):
    return sum(x * y for x, y in zip(as_fractions(a), as_fractions(b), strict=True))


SINGLE = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: 1 - (a - b),
    "product": lambda a, b: a * b,
    "product with a number": lambda a, b: 3 * a * b * 2,
    "quotient": lambda a, b: a / b,
    "one over": lambda a, b: 1 / (b * 4),
    "square over sum": lambda a, b: a * a / (a + b),
}


@pytest.mark.parametrize("name", SINGLE)
def test_balls_of_single_precision_hold_what_their_operands_may_be(name):
    a, b, operation = draws(11), draws(12), SINGLE[name]
    rooms = draws(13).abs() * 1e-9 * a.abs(), draws(14).abs() * 1e-9 * b.abs()
    ball = operation(FloatBall(a, rooms[0]), FloatBall(b, rooms[1]))
    for sign in (-1, 0, 1):
        moved = [
            [x + sign * r for x, r in zip(as_fractions(part), as_fractions(room), strict=True)]
            for part, room in zip((a, b), rooms, strict=True)
        ]
        exact = [operation(x, y) for x, y in zip(*moved, strict=True)]
        whole = Ball(ball.high, torch.zeros_like(ball.high), ball.radius)
        pairs = off(whole, exact)
        assert len(pairs) > 150 and all(error <= radius for error, radius in pairs)


def test_balls_of_single_precision_are_summed_and_multiplied_with_matrices():
    a, matrix = draws(15, 36).reshape(3, 12), draws(16, 24).reshape(12, 2)
    single = [FloatBall.of(a).matmul(matrix), FloatBall.of(a).sum()]
    exact = [[dot(row, column) for row in a for column in matrix.T], [sum(as_fractions(row)) for row in a]]
    for ball, true in zip(single, exact, strict=True):
        pairs = off(Ball(ball.high, torch.zeros_like(ball.high), ball.radius), true)
        assert all(error <= radius <= Fraction(1, 10**2) for error, radius in pairs)


def test_single_precision_says_where_it_knows_nothing_and_keeps_what_is_exactly_zero():
    beyond = FloatBall(
        torch.tensor([800.0, -800.0, 1.0, 1.0], dtype=f64), torch.tensor([0.0, 0.0, 2.0, 0.0], dtype=f64)
    )
    assert [value < math.inf for value in beyond.exp().radius.tolist()] == [False, True, False, True]
    assert beyond.exp().high[1] == 0 < beyond.exp().radius[1]
    assert (FloatBall(beyond.high - 1, beyond.radius).sqrt().radius < math.inf).tolist() == [True, False, False, False]
    zero = FloatBall.of(torch.zeros(1, 2, dtype=f64)).matmul(torch.ones(2, 3, dtype=f64))
    assert not zero.radius.any() and zero.sign(-1.0).high.tolist() == [[-1.0] * 3] and not zero.sign(-1.0).radius.any()
    tiny = FloatBall.of(torch.full((1, 2), 1e-200, dtype=f64)).matmul(torch.full((2, 1), 1e-200, dtype=f64))
    assert tiny.high == 0 < tiny.radius < 1e-290
    assert FloatBall.of(torch.ones(1, dtype=f64)).widened(torch.ones(1, dtype=f64)).sign(0.0).radius == 1


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


def test_signs_are_decided_tied_or_open():
    ball = Ball.of(torch.tensor([2.0, -2.0, 0.0, 0.5], dtype=f64))
    ball = ball.widened(torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=f64)).sign(-1.0)
    assert ball.high.tolist() == [1.0, -1.0, -1.0, 0.0] and ball.radius.tolist() == [0.0, 0.0, 0.0, 1.0]


def test_wide_balls_of_single_precision_reach_what_their_ends_do():
    """Radii that are no rounding: roots, exponentials and products at both ends of what the operand may be."""
    middle, room = torch.tensor([0.3, 4.0, 1e-6, 2.0], dtype=f64), torch.tensor([0.2, 3.0, 0.0, 0.9], dtype=f64)
    ball = FloatBall(middle, room)
    root, power = ball.sqrt(), ball.exp()
    with ctx.workprec(300):
        for k in range(4):
            for end in (arb(middle[k].item()) - arb(room[k].item()), arb(middle[k].item()) + arb(room[k].item())):
                assert abs(end.sqrt() - arb(root.high[k].item())) <= arb(root.radius[k].item())
                if room[k] < 1:
                    assert abs(end.exp() - arb(power.high[k].item())) <= arb(power.radius[k].item())
    assert root.radius[2] < 3e-16 * 1e-3 and root.radius[0] < 0.7 and power.radius[1] == math.inf
    assert FloatBall(torch.ones(1, dtype=f64), torch.full((1,), 2.0, dtype=f64)).sqrt().radius == math.inf
    matrix = torch.tensor([[2.0], [-1.0], [0.5], [1.0]], dtype=f64)
    whole = FloatBall(middle, room).matmul(matrix)
    assert (room @ matrix.abs()).item() <= whole.radius.item() < 1.0001 * (room @ matrix.abs()).item()
    assert FloatBall(torch.zeros(1, 2, dtype=f64), torch.ones(1, 2, dtype=f64)).matmul(matrix[:2]).radius.item() >= 3.0


def test_the_size_of_a_ball_is_above_all_of_it():
    ball = Ball(*(torch.tensor(part, dtype=f64) for part in (-1.0, -1e-17, 0.5)))
    assert 1.5 < ball.size.item() < 1.5 + 1e-10
    assert Fraction(Ball.of(torch.tensor(1.0, dtype=f64)).size.item()) > 1
    low = Ball(*(torch.tensor(part, dtype=f64) for part in (1e-20, 1e-6, 0.0)))
    assert low.size.item() >= 1e-6
