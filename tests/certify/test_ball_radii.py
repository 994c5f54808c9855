"""Radii: every part of one where it rules, held against exact fractions from below and from above."""

import math
from fractions import Fraction
from itertools import product as pairs_of

import pytest
import torch
from flint import arb, ctx
from torch import Tensor

from emulon.certify import balls
from emulon.certify.balls import Ball, Factor, FloatBall, product, rounded_product
from emulon.certify.rounding import power_of_two

f64 = torch.float64
U = Fraction(1, 2**53)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(seed: int, *shape: int, size: float = 1.0) -> Tensor:
    return size * (torch.rand(*shape, dtype=f64, generator=generator(seed)) + 0.5) * signs(seed + 1, *shape)


def signs(seed: int, *shape: int) -> Tensor:
    return 2.0 * torch.randint(0, 2, shape, generator=generator(seed)).double() - 1


def drawn(seed: int, count: int, wide: float) -> Ball:
    """Balls with second parts, and radii up to a part `wide` of themselves."""
    high = numbers(seed, count)
    parts = torch.rand(2, count, dtype=f64, generator=generator(seed + 2))
    return Ball(high, high * 2.0**-54 * (2 * parts[0] - 1), high.abs() * parts[1] * wide)


def drawn_single(seed: int, count: int, wide: float) -> FloatBall:
    ball = drawn(seed, count, wide)
    return FloatBall(ball.high, ball.radius)


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.flatten().tolist()]


def middles(ball: Ball | FloatBall) -> list[Fraction]:
    if isinstance(ball, FloatBall):
        return fractions(ball.high)
    return [high + low for high, low in zip(fractions(ball.high), fractions(ball.low), strict=True)]


def ends(ball: Ball | FloatBall) -> list[tuple[Fraction, Fraction]]:
    return [(mid - r, mid + r) for mid, r in zip(middles(ball), fractions(ball.radius), strict=True)]


OPERATIONS = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
}


@pytest.mark.parametrize("draw", [drawn, drawn_single])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("wide", [1e-9, 1e-2])
def test_a_radius_is_what_the_operands_may_do_from_above_by_next_to_nothing(name, draw, wide) -> None:
    """The worst of four corners; a radius rounded down in its last place would be below it half of the time."""
    a, b, operation = draw(1, 60, wide), draw(4, 60, wide), OPERATIONS[name]
    found = operation(a, b)
    for mid, radius, *sides in zip(middles(found), fractions(found.radius), ends(a), ends(b), strict=True):
        worst = max(abs(operation(*corner) - mid) for corner in pairs_of(*sides))
        assert worst <= radius <= worst * (1 + Fraction(wide) * 3) * (1 + Fraction(1, 10**6))


@pytest.mark.parametrize("draw", [drawn, drawn_single])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [1.0, 1e-157])
def test_what_an_operation_rounds_is_counted(name, draw, size) -> None:
    """Joldes, Muller and Popescu: sums to 2u², products to 5u², quotients to 9.8u², and some room; of one float, u.

    At 1e-157 products lose what is below the smallest numbers: no part of the result, but less than 1e-299.
    """
    operation = OPERATIONS[name]
    a, b = (draw(seed, 60, 0.0).apply(lambda part: part * size) for seed in (7, 10))
    found = operation(a, b)
    least, most = {"quotient": (10, 60)}.get(name, (15, 17)) if draw is drawn else (1 / U, (1 + Fraction(1, 10**9)) / U)
    lost = Fraction(1e-299) if size < 1 else 0
    exact = [operation(x, y) for x, y in zip(middles(a), middles(b), strict=True)]
    for mid, radius, true in zip(middles(found), fractions(found.radius), exact, strict=True):
        rounded = U**2 * abs(true if draw is drawn else mid)
        assert abs(mid - true) <= radius and least * rounded < radius <= most * rounded + lost


@pytest.mark.parametrize("wide", [0.0, 1e-9])
@pytest.mark.parametrize("number", [0.25, -4, 3, -0.3])
def test_a_number_moves_a_ball_as_a_ball_of_its_own_would(number, wide) -> None:
    for draw in (drawn, drawn_single):
        ball = draw(13, 40, wide)
        room = 0 if number in (0.25, -4) else 20 * U**2 if draw is drawn else U
        for found in (ball * number, number * ball):
            own = fractions(ball.radius)
            for mid, radius, side, given in zip(middles(found), fractions(found.radius), ends(ball), own, strict=True):
                worst = max(abs(end * Fraction(number) - mid) for end in side)
                most = (worst + room * abs(mid)) * (1 + Fraction(1, 10**9)) + Fraction(1, 10**299)
                assert worst <= radius <= most and radius > 0
                assert draw is drawn or radius >= given * abs(Fraction(number)) + room * abs(mid)


@pytest.mark.parametrize("draw, rounded", [(drawn, 16 * U**2), (drawn_single, U)])
@pytest.mark.parametrize("wide", [0.0, 1e-9])
def test_a_tensor_is_added_as_a_ball_of_one_float_would_be(draw, rounded, wide) -> None:
    ball, other = draw(16, 40, wide), numbers(19, 40)
    other[::2] = -ball.high[::2] * (1 + 2.0**-20)  # nearly all of it is lost
    for found, sign in ((ball + other, 1), (ball - other, -1), (other - ball, None)):
        given = (middles(found), fractions(found.radius), ends(ball), fractions(other), fractions(ball.radius))
        for mid, radius, side, one, own in zip(*given, strict=True):
            worst = max(abs((end + sign * one if sign else one - end) - mid) for end in side)
            assert worst <= radius <= (worst + rounded * abs(mid)) * (1 + Fraction(1, 10**9))
            assert radius >= own + rounded * abs(mid) * (1 - U if draw is drawn else 1)


@pytest.mark.parametrize("wide", [0.0, 1e-9])
def test_size_widening_and_distance_are_above_the_ends(wide) -> None:
    ball, other = drawn(28, 60, wide), numbers(31, 60)
    more = ball.widened(other.abs() * 1e-9)
    single, short = FloatBall(ball.high, ball.radius), ball.shortened()
    for k, (low, high) in enumerate(ends(ball)):
        most = max(abs(low), abs(high))
        assert most <= Fraction(ball.size[k].item()) <= most * (1 + Fraction(1, 10**11))
        wanted = Fraction(ball.radius[k].item()) + Fraction((other.abs() * 1e-9)[k].item())
        assert wanted <= Fraction(more.radius[k].item()) <= wanted * (1 + Fraction(1, 10**11))
        assert wanted <= Fraction(single.widened(other.abs() * 1e-9).radius[k].item())
        away = max(abs(low - Fraction(other[k].item())), abs(high - Fraction(other[k].item())))
        assert away <= Fraction(ball.distance_from(other)[k].item()) <= away * (1 + Fraction(1, 10**11))
        apart = max(abs(end - Fraction(other[k].item())) for end in ends(single)[k])
        assert apart <= Fraction(single.distance_from(other)[k].item()) <= apart * (1 + Fraction(1, 10**11))
        assert abs(low - Fraction(short.high[k].item())) <= Fraction(short.radius[k].item())
        assert abs(high - Fraction(short.high[k].item())) <= Fraction(short.radius[k].item())


def test_parts_views_and_signs_are_of_all_three_numbers() -> None:
    ball = drawn(34, 6, 1e-9)
    by = signs(37, 6)
    turned, part, view = ball.signed(by), ball[2:4], ball.apply(lambda one: one.reshape(2, 3))
    assert middles(turned) == [x * int(s) for x, s in zip(middles(ball), by.tolist(), strict=True)]
    assert turned.radius.equal(ball.radius)
    assert middles(part) == middles(ball)[2:4] and part.radius.equal(ball.radius[2:4])
    assert view.high.shape == view.low.shape == view.radius.shape == (2, 3) and middles(view) == middles(ball)
    single = FloatBall(ball.high, ball.radius)
    assert single[2:4].high.equal(ball.high[2:4]) and single[2:4].radius.equal(ball.radius[2:4])
    assert single.apply(torch.neg).high.equal(-ball.high) and single.apply(torch.neg).radius.equal(-ball.radius)
    assert single.signed(by).high.equal(ball.high * by) and single.signed(by).radius.equal(ball.radius)
    assert (-ball).radius.equal(ball.radius) and middles(-ball) == [-x for x in middles(ball)]
    assert single.clamped(1.0).high.equal(ball.high.clamp(-1, 1)) and single.clamped(1.0).radius.equal(ball.radius)


def gamma(k: int) -> Fraction:
    return k * U / (1 - k * U)


@pytest.mark.parametrize("terms", [2, 9, 40])
def test_a_balls_matrix_product_counts_radii_and_second_parts(terms) -> None:
    """First parts that cancel without rounding: what is left are the second parts, n products and n sums of them."""
    high = torch.arange(1.0, terms + 1, dtype=f64)
    matrix = torch.stack([torch.arange(3.0, terms + 3, dtype=f64), 0.75 * numbers(40, terms)], dim=-1)
    matrix[-1, 0] = -(high[:-1] @ matrix[:-1, 0]) / terms if terms == 2 else matrix[-1, 0]
    low = high * 2.0**-54 * (2 * torch.rand(terms, dtype=f64, generator=generator(41)) - 1)
    for wide in (0.0, 2.0**-60, 1e-3):
        radius = wide * torch.rand(terms, dtype=f64, generator=generator(42))
        ball = Ball(high, low, radius).apply(lambda part: part.unsqueeze(0))
        found, main = ball.matmul(matrix), product(ball.high, matrix)
        for k in range(2):
            column = fractions(matrix[:, k])
            exact = sum(x * m for x, m in zip(middles(ball), column, strict=True))
            own = sum(r * abs(m) for r, m in zip(fractions(radius), column, strict=True))
            second = gamma(terms + 1) * sum(abs(x * m) for x, m in zip(fractions(low), column, strict=True))
            wanted = own + second + Fraction(main.radius[0, k].item()) + 16 * U**2 * abs(middles(found)[k])
            assert abs(exact - middles(found)[k]) + own <= Fraction(found.radius[0, k].item())
            assert wanted * (1 - U / 2) <= Fraction(found.radius[0, k].item()) <= wanted * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("terms", [1, 2, 9, 64])
def test_a_sum_counts_radii_and_what_its_last_bits_round(terms) -> None:
    for wide in (0.0, 1e-25, 1e-3):
        ball = drawn(43, 5 * terms, wide).apply(lambda part: part.reshape(5, terms))
        found = ball.apply(lambda part: part.unsqueeze(0)).sum()[0]
        for k in range(5):
            own = sum(fractions(ball.radius[k]))
            off = abs(sum(middles(ball[k])) - middles(found)[k])
            radius = Fraction(found.radius[k].item())
            assert off + own <= radius <= own * (1 + Fraction(1, 10**9)) + terms**2 * 2**7 * U**2


@pytest.mark.parametrize("terms", [1, 3, 64])
def test_sums_and_products_of_single_precision_count_every_rounding(terms) -> None:
    """γ_n of all that is added up, n products and n − 1 sums; beside them the radii."""
    matrix = numbers(46, terms, 2)
    for wide in (0.0, 1e-3):
        ball = drawn_single(49, 3 * terms, wide).apply(lambda part: part.reshape(3, terms))
        whole, total = ball.matmul(matrix), ball.sum()
        for k in range(3):
            high, room = fractions(ball.high[k]), fractions(ball.radius[k])
            for radius, column in [
                (total.radius[k], [Fraction(1)] * terms),
                *((whole.radius[k, j], fractions(matrix[:, j])) for j in range(2)),
            ]:
                wanted = sum((gamma(terms) * abs(x) + r) * abs(m) for x, r, m in zip(high, room, column, strict=True))
                assert wanted <= Fraction(radius.item()) <= wanted * (1 + Fraction(1, 10**12))


def test_a_long_sum_of_radii_counts_what_it_may_round() -> None:
    """γ_n of n = 2¹⁷ equal ones, which are added without rounding: any other order might lose as much."""
    n = 2**17
    ones, line = torch.ones(n, 1, dtype=f64), torch.ones(1, n, dtype=f64)
    zero = torch.zeros_like(line)
    lifted = 1 + gamma(n)
    for found in (Ball(zero, zero, line).sum(), Ball(zero, zero, line).matmul(ones)[:, 0]):
        assert lifted * n <= Fraction(found.radius.item()) <= lifted * n * (1 + Fraction(1, 10**11))
    for found in (FloatBall(zero, line).sum(), FloatBall(zero, line).matmul(ones)[:, 0]):
        assert lifted * n <= Fraction(found.radius.item()) <= lifted * n * (1 + Fraction(1, 10**14))
    # 18 bits of the right factor are first, and what they leave, 2^−40, is added up n times.
    found, left = product(line * 0.75, ones + 2.0**-40), n * (Fraction(1, 2**40) + (1 + Fraction(1, 2**40)) / 2**18)
    wanted = gamma(n + 3) * lifted * left
    assert wanted <= Fraction(found.radius.item()) <= wanted * (1 + Fraction(1, 10**11))


@pytest.mark.parametrize("terms", [2, 5, 100])
def test_a_product_to_one_float_rounds_once_and_counts_the_rest_for_its_largest_column(terms) -> None:
    a, b = numbers(52, 3, terms), numbers(55, terms, 20)
    b[:, 1:] = -b[:, 1:].abs()
    found, longer = rounded_product(a, Factor.of(b)), product(a, b)
    left = gamma(2 * terms + 3) / gamma(terms + 3)
    for i, j in pairs_of(range(3), range(20)):
        exact = sum(x * y for x, y in zip(fractions(a[i]), fractions(b[:, j]), strict=True))
        high, radius = Fraction(found.high[i, j].item()), Fraction(found.radius[i, j].item())
        rest = left * Fraction(longer.radius[i].max().item())
        assert abs(exact - high) <= radius
        assert abs(high) / 2**53 + rest * (1 - Fraction(1, 10**9)) <= radius
        assert radius <= (abs(high) / 2**53 + rest) * (1 + Fraction(1, 10**9))
    nothing = rounded_product(torch.zeros(2, terms, dtype=f64), Factor.of(b))
    assert not nothing.high.any() and not nothing.radius.any()
    small = torch.full((1, terms), 1e-160, dtype=f64)
    assert balls.UNDERFLOW <= rounded_product(small, Factor.of(small.mT.clone())).radius.item() < 1e-299


@pytest.mark.parametrize("kind", (Ball, FloatBall))
@pytest.mark.parametrize("radius", (1e-302, 5e-324))
@pytest.mark.parametrize("factor", (5e-324, -1e-310, 1e-160))
def test_a_radius_that_underflows_in_a_product_is_not_dropped(kind: type, radius: float, factor: float) -> None:
    """0 ± r times f is 0 ± r·|f|, which float64 rounds to 0: a bound of 0 would be below the error."""
    zero = torch.zeros(1, 1, dtype=f64)
    around, matrix = kind.of(zero).widened(zero + radius), zero + factor
    farthest = abs(Fraction(radius) * Fraction(factor))
    for product_ in (around * kind.of(matrix), kind.of(matrix) * around, around.matmul(matrix)):
        assert product_.high.item() == 0
        assert farthest <= Fraction(product_.radius.item()) < Fraction(1e-299)


@pytest.mark.parametrize("kind", [Ball, FloatBall])
def test_a_quotient_by_what_may_be_zero_is_unknown(kind) -> None:
    high, radius = torch.tensor([1.0, -1.0, 2.0], dtype=f64), torch.tensor([1.0, 1.0, 1.0], dtype=f64)
    divisor = kind.of(high).widened(radius - 2.0**-60)
    found = kind.of(torch.ones(3, dtype=f64)) / divisor
    assert found.radius[:2].tolist() == [math.inf] * 2 and 0.5 <= found.radius[2].item() < 0.51
    # A second part may be what reaches zero.
    half = Ball(torch.ones(1, dtype=f64), torch.full((1,), -1e-3, dtype=f64), torch.full((1,), 0.9995, dtype=f64))
    assert (1 / half).radius.item() == math.inf
    sure = Ball(torch.ones(1, dtype=f64), torch.zeros(1, dtype=f64), torch.full((1,), 0.9995, dtype=f64))
    assert 1999 <= (1 / sure).radius.item() < 2001


def test_the_root_of_what_may_be_zero_is_unknown_and_otherwise_reaches_down_to_it() -> None:
    high = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0], dtype=f64)
    low = torch.tensor([0.0, 0.0, -1e-3, 0.0, 0.0], dtype=f64)
    radius = torch.tensor([1.0, 1.5, 0.9995, 0.9999, 0.0], dtype=f64)
    found = Ball(high, low, radius).sqrt()
    assert (found.radius < math.inf).tolist() == [False, False, False, True, False]
    assert 1 - 0.01 <= found.radius[3].item() < 1
    assert (FloatBall(high, radius).sqrt().radius < math.inf).tolist() == [False, False, True, True, False]
    assert FloatBall(high, radius).sqrt().radius[3].item() >= 0.99


@pytest.mark.parametrize("wide", [0.0, 1e-9, 1e-2])
@pytest.mark.parametrize("name", ["sqrt", "exp"])
def test_roots_and_exponentials_are_off_by_what_their_ends_are(name, wide) -> None:
    """Radii as the function's slope says; a little more where balls are wide, for the slope is not the same in them."""
    for draw in (drawn, drawn_single):
        ball = draw(61, 40, wide)
        ball = ball * ball if name == "sqrt" else ball * 8
        found = getattr(ball, name)()
        with ctx.workprec(300):
            for mid, radius, side in zip(middles(found), found.radius.tolist(), ends(ball), strict=True):
                at = arb(mid.numerator) / mid.denominator
                values = [getattr(arb(end.numerator) / end.denominator, name)() for end in side]
                worst = max(float(abs(value - at).upper()) for value in values)
                rounded = (2e-21 if draw is drawn else 2.3e-16) * float(mid)
                assert all(abs(value - at) <= arb(radius) for value in values)
                # √ divides by one root where the slope's own has the sum of two.
                loose = 2.0 if name == "sqrt" else 1.0
                assert radius <= loose * (1.0001 + 30 * wide) * worst + rounded
                assert wide or worst <= rounded
                assert radius >= (0.4 * rounded if name == "exp" or draw is drawn_single else 0)


@pytest.mark.parametrize("wide", [1e-15, 1e-2])
def test_of_one_float_roots_and_exponentials_grant_their_radius_and_a_rounding_to_the_last_place(wide) -> None:
    """r/√(x − r) and u of the root; e^x·(r + r² + 1.01u)."""
    ball = drawn_single(100, 60, wide)
    ball = FloatBall(ball.high.abs(), ball.radius)
    root, power = ball.sqrt(), ball.exp()
    with ctx.workprec(300):
        for k, (x, r) in enumerate(zip(ball.high.tolist(), ball.radius.tolist(), strict=True)):
            wanted = arb(r) / (arb(x) - arb(r)).sqrt() + arb(root.high[k].item()) / 2**53
            assert wanted <= arb(root.radius[k].item()) <= wanted * (1 + 1e-9)
            wanted = arb(power.high[k].item()) * (arb(r) + arb(r) ** 2 + arb(101) / 100 / 2**53)
            assert wanted <= arb(power.radius[k].item()) <= wanted * (1 + 1e-9)


def test_exponentials_are_right_at_every_place_of_the_table_and_far_out() -> None:
    s = torch.cat([torch.linspace(-0.001, 0.72, 1100, dtype=f64), numbers(64, 60, size=400.0)])
    with ctx.workprec(300):
        for ball in (Ball(s, s * 2.0**-54, torch.zeros_like(s)), FloatBall.of(s)):
            found = ball.exp()
            for at, mid, radius in zip(middles(ball), middles(found), found.radius.tolist(), strict=True):
                true = (arb(at.numerator) / at.denominator).exp()
                assert abs(true - arb(mid.numerator) / mid.denominator) <= arb(radius)
                assert radius <= float(mid) * (2e-21 if isinstance(ball, Ball) else 1.02 * 2.0**-53)


def test_a_hyperbolic_tangent_far_out_has_its_argument_and_a_rounding_and_a_half_to_the_last_place() -> None:
    room = numbers(97, 40, size=1e-9).abs()
    found = FloatBall(30 * signs(98, 40), room).tanh()
    assert found.high.abs().tolist() == [1.0] * 40 and torch.equal(found.high.sign(), signs(98, 40))
    for given, radius in zip(fractions(room), fractions(found.radius), strict=True):
        assert given + U * Fraction(1.52) <= radius <= (given + U * Fraction(1.52)) * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("kind", [Ball, FloatBall])
def test_a_ball_has_a_side_where_all_of_it_has(kind) -> None:
    high, radius = torch.tensor([[-1.0, -1.0, 1.0, 1.0, 0.0, 0.0], [0.5, 1.0, 0.5, 1.0, 0.0, 1e-9]], dtype=f64)
    ball = FloatBall(high, radius) if kind is FloatBall else Ball(high, torch.zeros_like(high), radius)
    below, above, zero = (part.tolist() for part in ball.sides())
    assert below == [True, False, False, False, False, False] and above == [False, False, True, False, False, False]
    assert zero == [False, False, False, False, True, False]
    assert not any(part.any() for part in ball[3:4].sides()) and ball[4:5].sides()[2].all()


def test_powers_of_two_are_exact_and_end_at_a_thousand() -> None:
    asked = torch.tensor([-1200.0, -1000, -999, -1, 0, 1, 999, 1000, 1200], dtype=f64)
    assert power_of_two(asked).tolist() == [2.0 ** max(-1000, min(1000, int(k))) for k in asked.tolist()]


def test_a_cut_keeps_its_second_part_inside_gives_it_up_outside_and_doubts_it_between() -> None:
    near = math.nextafter(2.0, 0)
    high = torch.tensor([1.0, -1.0, 3.0, -3.0, 2.0, near, -2.0, math.nextafter(2.0, 3)], dtype=f64)
    low = torch.tensor([1e-17, 1e-17, 1e-16, 1e-16, 2e-16, 2e-16, -2e-16, -2e-16], dtype=f64)
    cut = Ball(high, low, torch.full((8,), 1e-30, dtype=f64)).clamped(2.0)
    assert cut.high.tolist() == [1.0, -1.0, 2.0, -2.0, 2.0, near, -2.0, 2.0]
    assert cut.low.tolist() == [1e-17, 1e-17, 0.0, 0.0, 0.0, 2e-16, 0.0, 0.0]
    assert (cut.radius > 1e-20).tolist() == [False, False, False, False, True, False, True, False]
    for x, y, mid, radius in zip(fractions(high), fractions(low), middles(cut), fractions(cut.radius), strict=True):
        for end in (x + y - Fraction(1e-30), x + y + Fraction(1e-30)):
            assert abs(max(Fraction(-2), min(Fraction(2), end)) - mid) <= radius <= Fraction(3e-16)


def test_a_cut_through_a_ball_counts_its_second_part_and_its_radius_to_the_last_place() -> None:
    low, radius = -numbers(70, 40, size=1e-16).abs(), numbers(73, 40, size=1e-17).abs()
    cut = Ball(torch.full((40,), 2.0, dtype=f64), low, radius).clamped(2.0)
    for one, room, found in zip(fractions(low), fractions(radius), fractions(cut.radius), strict=True):
        assert room - one <= found <= (room - one) * (1 + Fraction(1, 10**9))


def test_a_sign_is_known_where_the_second_part_and_the_radius_leave_it() -> None:
    high = torch.tensor([1.0, 1.0, 1.0, -1.0, 0.0, 0.0], dtype=f64)
    low = torch.tensor([0.0, -0.5, -0.5, 0.5, 1e-20, 0.0], dtype=f64)
    radius = torch.tensor([1.0, 0.49, 0.5, 0.5, 0.0, 1e-20], dtype=f64)
    found = Ball(high, low, radius).sign(1.0)
    assert found.high.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert found.radius.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0] and not found.low.any()
    single = FloatBall(high, radius).sign(-1.0)
    assert single.high.tolist() == [0.0, 1.0, 1.0, -1.0, -1.0, 0.0]
    assert single.radius.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    # At the edge, whatever the sum of the two rounds to.
    low, radius = -numbers(76, 60).abs() / 8, numbers(79, 60).abs()
    edge = radius - low
    for at, one in ((edge, 0), (torch.nextafter(edge, torch.tensor(math.inf)), 1)):
        decided = Ball(at, low, radius).sign(0.0).radius == 0
        sure = [x > r - y for x, y, r in zip(*map(fractions, (at, low, radius)), strict=True)]
        assert all(truth for truth, seen in zip(sure, decided.tolist(), strict=True) if seen)
        assert decided.all() if one else not decided.any()


def test_room_for_rounding_is_what_the_docstring_says() -> None:
    assert (balls.U, balls.ROUNDED, balls.LIFT, balls.UNDERFLOW) == (2.0**-53, 2.0**-102, 1 + 2.0**-40, 1e-300)
