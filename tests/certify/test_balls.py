"""Balls hold the truth, and their radii are what docstrings grant: exact fractions and Arb are the judges.

The worst case of rounding is met by no data, so that every radius is compared with what is granted, from both sides.
"""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product as pairs_of

import pytest
import torch
from flint import arb, ctx, fmpq
from torch import Tensor

from emulon.certify import balls
from emulon.certify.balls import Ball, Factor, FloatBall, product, rounded_product
from emulon.certify.rounding import LOG_2, power_of_two

f64 = torch.float64
U = Fraction(1, 2**53)
KINDS = pytest.mark.parametrize("kind", [Ball, FloatBall])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def signs(seed: int, *shape: int) -> Tensor:
    return 2.0 * torch.randint(0, 2, shape, generator=generator(seed)).double() - 1


def numbers(seed: int, *shape: int, size: float = 1.0) -> Tensor:
    return size * (torch.rand(*shape, dtype=f64, generator=generator(seed)) + 0.5) * signs(seed + 1, *shape)


def drawn(kind: type, seed: int, count: int, wide: float) -> Ball | FloatBall:
    """Balls with second parts, and radii up to a part `wide` of themselves."""
    high = numbers(seed, count)
    parts = torch.rand(2, count, dtype=f64, generator=generator(seed + 2))
    low, radius = high * 2.0**-54 * (2 * parts[0] - 1), high.abs() * parts[1] * wide
    return Ball(high, low, radius) if kind is Ball else FloatBall(high, radius)


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.flatten().tolist()]


def middles(ball: Ball | FloatBall) -> list[Fraction]:
    parts = [fractions(part) for name, part in vars(ball).items() if name != "radius"]
    return [sum(each) for each in zip(*parts, strict=True)]


def radii(ball: Ball | FloatBall) -> list[Fraction]:
    return fractions(ball.radius)


def ends(ball: Ball | FloatBall) -> list[tuple[Fraction, Fraction]]:
    return [(mid - r, mid + r) for mid, r in zip(middles(ball), radii(ball), strict=True)]


def exactly(value: Fraction | float) -> arb:
    value = Fraction(value)
    return arb(fmpq(value.numerator, value.denominator))


def granted(found: Tensor | list[Fraction], wanted: list[Fraction], room: float) -> bool:
    """Whether bounds are at least what is wanted, and above it by no more than a part `room`."""
    found = found if isinstance(found, list) else fractions(found)
    return all(least <= bound <= least * (1 + Fraction(room)) for bound, least in zip(found, wanted, strict=True))


def test_constants_are_what_docstrings_say() -> None:
    assert (balls.U, balls.ROUNDED, balls.LIFT, balls.UNDERFLOW) == (2.0**-53, 2.0**-102, 1 + 2.0**-40, 1e-300)
    with ctx.workprec(300):
        assert abs(arb(2).log() - exactly(Fraction(LOG_2))) < arb("1e-59")
    asked = torch.tensor([-1200.0, -1000, -999, -1, 0, 1, 999, 1000, 1200], dtype=f64)
    assert power_of_two(asked).tolist() == [2.0 ** max(-1000, min(1000, int(k))) for k in asked.tolist()]


# In units of U² (Joldes, Muller and Popescu, with some room) of balls, and of U of single floats.
OPERATIONS = {
    "sum": (lambda a, b: a + b, 15, 17),
    "difference": (lambda a, b: a - b, 15, 17),
    "product": (lambda a, b: a * b, 15, 17),
    "quotient": (lambda a, b: a / b, 10, 60),
    "tensor added": (lambda a, b: a + b, 15, 17),
    "tensor subtracted": (lambda a, b: a - b, 15, 17),
    "subtracted from a tensor": (lambda a, b: b - a, 15, 17),
    **{f"{n} times": (lambda a, b, n=n: a * (n if b is None else b), 15, 17) for n in (3, -0.3, 0.25, -4)},
    "times -0.3": (lambda a, b: (-0.3 if b is None else b) * a, 15, 17),
}


def other_operand(name: str, kind: type, a: Ball | FloatBall, wide: float, size: float):
    """The second operand, as it is handed over, and as intervals."""
    if "times" in name:
        number = Fraction(float(name.replace("times", "")))
        return None, [(number, number)] * len(a.high)
    other = drawn(kind, 4, len(a.high), wide).apply(lambda part: part * size)
    if name != "product" and name != "quotient":
        other.high[::2] = -a.high[::2] * (1 + 2.0**-20)  # nearly all of a sum is lost
    return (other.high, [(x, x) for x in fractions(other.high)]) if "tensor" in name else (other, ends(other))


@KINDS
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("wide", "size"), [(0.0, 1.0), (0.0, 1e-157), (1e-9, 1.0), (1e-2, 1.0)])
def test_a_radius_is_the_worst_corner_and_what_is_rounded(name: str, kind: type, wide: float, size: float) -> None:
    """At 1e-157 products lose what is below the smallest numbers: no part of the result, but less than 1e-299."""
    operation, least, most = OPERATIONS[name]
    a = drawn(kind, 1, 60, wide).apply(lambda part: part * size)
    b, sides = other_operand(name, kind, a, wide, size)
    found = operation(a, b)
    least, most, unit = (least, most, U**2) if kind is Ball else (1, 1 + Fraction(1, 10**9), U)
    if name in ("0.25 times", "-4 times"):
        least = most = 0
    lost = Fraction(1e-299) if size < 1 or "times" in name else 0
    for mid, radius, left, right in zip(middles(found), radii(found), ends(a), sides, strict=True):
        true = operation(sum(left) / 2, sum(right) / 2)
        spread = max(abs(operation(*corner) - true) for corner in pairs_of(left, right))
        rounded = unit * abs(true if kind is Ball else mid)
        assert abs(mid - true) + spread <= radius and spread + least * rounded <= radius
        assert radius <= (spread * (1 + Fraction(wide) * 3) + most * rounded) * (1 + Fraction(1, 10**9)) + lost
        assert radius > 0


@KINDS
def test_sizes_distances_and_widened_and_shortened_balls_are_above_the_ends(kind: type) -> None:
    ball, other = drawn(kind, 28, 60, 1e-9), numbers(31, 60)
    more, lows, highs = other.abs() * 1e-9, *zip(*ends(ball), strict=True)
    away = [max(abs(low - x), abs(high - x)) for low, high, x in zip(lows, highs, fractions(other), strict=True)]
    assert granted(ball.distance_from(other), away, 1e-11)
    wider = [r + by for r, by in zip(radii(ball), fractions(more), strict=True)]
    assert granted(ball.widened(more).radius, wider, 1e-11)
    short = ball.shortened()
    assert all(a <= low and high <= b for (a, b), low, high in zip(ends(short), lows, highs, strict=True))
    assert short.shortened() is short and ball.lengthened().high is ball.high
    if kind is Ball:
        assert granted(ball.size, [max(abs(low), abs(high)) for low, high in zip(lows, highs, strict=True)], 1e-11)
        second = [abs(x) + r for x, r in zip(fractions(ball.low), radii(ball), strict=True)]
        assert granted(short.radius, second, 1e-11) and ball.lengthened() is ball
        small = Ball(*(torch.tensor(part, dtype=f64) for part in (1e-20, 1e-6, 0.0)))
        assert small.size.item() >= 1e-6
    else:
        assert not ball.lengthened().low.any() and ball.lengthened().radius is ball.radius


def test_a_fraction_is_held_to_twice_the_precision() -> None:
    ((low, high),) = ends(Ball.of(Fraction(1, 3)))
    assert low <= Fraction(1, 3) <= high and high - low < 4 * U**2


@KINDS
def test_parts_views_and_signs_are_of_all_numbers(kind: type) -> None:
    ball, by = drawn(kind, 34, 6, 1e-9), signs(37, 6)
    assert ends(ball[2:4]) == ends(ball)[2:4]
    view = ball.apply(lambda one: one.reshape(2, 3))
    assert all(part.shape == (2, 3) for part in vars(view).values()) and ends(view) == ends(ball)
    for turned, factors in ((ball.signed(by), by), (-ball, -torch.ones(6))):
        assert middles(turned) == [x * int(s) for x, s in zip(middles(ball), factors.tolist(), strict=True)]
        assert turned.radius.equal(ball.radius)


def gamma(k: int) -> Fraction:
    return k * U / (1 - k * U)


def times(row: list[Fraction], column: list[Fraction]) -> Fraction:
    return sum(x * y for x, y in zip(row, column, strict=True))


@pytest.mark.parametrize("terms", [2, 9, 40])
def test_a_balls_matrix_product_counts_radii_and_second_parts(terms: int) -> None:
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
            size, exact = [abs(m) for m in column], times(middles(ball), column)
            own, second = times(fractions(radius), size), times(list(map(abs, fractions(low))), size)
            wanted = own + gamma(terms + 1) * second + radii(main)[k] + 16 * U**2 * abs(middles(found)[k])
            assert abs(exact - middles(found)[k]) + own <= radii(found)[k]
            assert wanted * (1 - U / 2) <= radii(found)[k] <= wanted * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("terms", [1, 2, 9, 64])
def test_a_sum_counts_radii_and_what_its_last_bits_round(terms: int) -> None:
    for wide in (0.0, 1e-25, 1e-3):
        ball = drawn(Ball, 43, 5 * terms, wide).apply(lambda part: part.reshape(5, terms))
        found = ball.apply(lambda part: part.unsqueeze(0)).sum()[0]
        for k in range(5):
            own, off = sum(radii(ball[k])), abs(sum(middles(ball[k])) - middles(found)[k])
            assert off + own <= radii(found)[k] <= own * (1 + Fraction(1, 10**9)) + terms**2 * 2**7 * U**2


@pytest.mark.parametrize("terms", [1, 3, 64])
def test_sums_and_products_of_single_precision_count_every_rounding(terms: int) -> None:
    """γ_n of all that is added up, n products and n − 1 sums; beside them the radii."""
    matrix = numbers(46, terms, 2)
    columns = [[Fraction(1)] * terms, *([abs(x) for x in fractions(matrix[:, j])] for j in range(2))]
    for wide in (0.0, 1e-3):
        ball = drawn(FloatBall, 49, 3 * terms, wide).apply(lambda part: part.reshape(3, terms))
        found = torch.cat([ball.sum().radius.unsqueeze(-1), ball.matmul(matrix).radius], dim=-1)
        sizes = [[gamma(terms) * abs(x) + r for x, r in zip(middles(row), radii(row), strict=True)] for row in ball]
        assert granted(found, [times(size, column) for size in sizes for column in columns], 1e-12)


def test_a_long_sum_of_radii_counts_what_it_may_round() -> None:
    """γ_n of n = 2¹⁷ equal ones, which are added without rounding: any other order might lose as much."""
    n = 2**17
    ones, line = torch.ones(n, 1, dtype=f64), torch.ones(1, n, dtype=f64)
    zero, lifted = torch.zeros_like(line), 1 + gamma(n)
    for ball, room in ((Ball(zero, zero, line), 1e-11), (FloatBall(zero, line), 1e-14)):
        for found in (ball.sum(), ball.matmul(ones)[:, 0]):
            assert granted(found.radius, [lifted * n], room)
    # 18 bits of the right factor are first, and what they leave, 2^−40, is added up n times.
    found, left = product(line * 0.75, ones + 2.0**-40), n * (Fraction(1, 2**40) + (1 + Fraction(1, 2**40)) / 2**18)
    assert granted(found.radius, [gamma(n + 3) * lifted * left], 1e-11)


@pytest.mark.parametrize("terms", [1, 7, 300, 2345])
def test_matrix_products_are_enclosed_and_far_below_float64(terms: int) -> None:
    a, b = 1e3 * torch.randn(2, terms, dtype=f64, generator=generator(terms)), numbers(terms, terms, 3)
    b[0] *= 1e12
    found, once = product(a, b), product(a, Factor.of(b))
    assert all(map(torch.equal, vars(found).values(), vars(once).values()))
    exact = [times(fractions(row), fractions(column)) for row in a for column in b.T]
    room = U * Fraction((a.abs() @ b.abs()).max().item()) / 100
    for true, mid, radius in zip(exact, middles(found), radii(found), strict=True):
        assert abs(true - mid) <= radius <= room
    for value, known in ((0.0, True), (1e-310, True), (1e-200, True), (1e200, False), (1e308, False)):
        extreme = torch.tensor([[value, value / 3]], dtype=f64)
        ball = product(extreme, extreme.mT)
        assert (ball.radius.item() < math.inf) == known
        assert not known or abs(times(fractions(extreme), fractions(extreme)) - middles(ball)[0]) <= radii(ball)[0]


@pytest.mark.parametrize("terms", [2, 5, 100])
def test_a_product_to_one_float_rounds_once_and_counts_the_rest_for_its_largest_column(terms: int) -> None:
    a, b = numbers(52, 3, terms), numbers(55, terms, 20)
    b[:, 1:] = -b[:, 1:].abs()
    found, longer = rounded_product(a, Factor.of(b)), product(a, b)
    left = gamma(2 * terms + 3) / gamma(terms + 3)
    for i in range(3):
        rest = left * max(radii(longer[i]))
        assert granted(
            found[i].radius, [abs(high) * U + rest * (1 - Fraction(1e-9)) for high in middles(found[i])], 2e-9
        )
        for j, high in enumerate(middles(found[i])):
            assert abs(times(fractions(a[i]), fractions(b[:, j])) - high) <= radii(found[i])[j]
    nothing = rounded_product(torch.zeros(2, terms, dtype=f64), Factor.of(b))
    assert not nothing.high.any() and not nothing.radius.any()
    small = torch.full((1, terms), 1e-160, dtype=f64)
    assert balls.UNDERFLOW <= rounded_product(small, Factor.of(small.mT.clone())).radius.item() < 1e-299


@KINDS
@pytest.mark.parametrize("radius", (1e-302, 5e-324))
@pytest.mark.parametrize("factor", (5e-324, -1e-310, 1e-160))
def test_a_radius_that_underflows_in_a_product_is_not_dropped(kind: type, radius: float, factor: float) -> None:
    """0 ± r times f is 0 ± r·|f|, which float64 rounds to 0: a bound of 0 would be below the error."""
    zero = torch.zeros(1, 1, dtype=f64)
    around, matrix = kind.of(zero).widened(zero + radius), zero + factor
    for found in (around * kind.of(matrix), kind.of(matrix) * around, around.matmul(matrix)):
        assert found.high.item() == 0
        assert abs(Fraction(radius) * Fraction(factor)) <= radii(found)[0] < Fraction(1e-299)


@KINDS
def test_a_divisor_that_nearly_reaches_zero_is_looked_at_to_the_last_place(kind: type) -> None:
    a, b, least = drawn(kind, 88, 60, 0.0), drawn(kind, 91, 60, 0.0), 2.0**-22 * numbers(94, 60).abs()
    b = replace(b, radius=b.high.abs() - b.high.abs() * least)
    found = a / b
    for mid, radius, n, side in zip(middles(found), radii(found), middles(a), ends(b), strict=True):
        worst = max(abs(n / end - mid) for end in side)
        assert worst <= radius <= worst * (1 + Fraction(1, 10**4))


@KINDS
def test_what_underflows_in_quotients_and_products_is_granted(kind: type) -> None:
    tiny = numbers(58, 60, size=1e-157)
    quotient = kind.of(tiny) / (1 / tiny)
    true = [x / y for x, y in zip(fractions(tiny), fractions(1 / tiny), strict=True)]
    missed = [abs(x - y) for x, y in zip(middles(quotient), true, strict=True)]
    assert any(missed) and all(one <= r < Fraction(1e-299) for one, r in zip(missed, radii(quotient), strict=True))
    for high, radius in ((1e-200, 0.0), (-1e-200, 0.0), (0.0, 1e-200)):
        row = kind.of(torch.tensor([[0.0, high]], dtype=f64)).widened(torch.tensor([[0.0, radius]], dtype=f64))
        assert balls.UNDERFLOW <= row.matmul(torch.full((2, 1), 1e-200, dtype=f64)).radius.item() < 1e-299


def top_of(values: list[Fraction]) -> Fraction:
    """The power of two above all of these."""
    return Fraction(2) ** math.frexp(float(max(map(abs, values))))[1]


@pytest.mark.parametrize("terms", [2, 5, 100])
def test_a_product_counts_what_its_later_parts_round(terms: int) -> None:
    """γ_{n+3} of what is left of the right factor below its first bits, and of the left one, by its row's power of two.

    The first bits are half of 53 − log₂ n; of a left entry at most the last of them is left.
    """
    a, b = numbers(52, 3, terms), numbers(55, terms, 20)
    found, bits = product(a, b), (53 - math.ceil(math.log2(terms))) // 2
    for i, j in pairs_of(range(3), range(20)):
        column, top = fractions(b[:, j]), top_of(fractions(a[i]))
        unit = top_of(column) / 2**bits
        left = sum(abs(y - round(y / unit) * unit) for y in column) + sum(map(abs, column)) / 2**bits
        wanted = gamma(terms + 3) * top * left * (1 + gamma(terms - 1))
        assert granted(found.radius[i, j], [wanted], 1e-9)


@KINDS
def test_what_may_be_zero_has_no_quotient_and_no_root(kind: type) -> None:
    """A second part may be what reaches zero."""
    high = torch.tensor([1.0, -1.0, 2.0, 1.0, 1.0, -1.0], dtype=f64)
    low = torch.tensor([0.0, 0.0, 0.0, -1e-3, 0.0, 0.0], dtype=f64)
    radius = torch.tensor([1.0, 1.0, 1 - 2.0**-60, 0.9995, 0.9999, 0.0], dtype=f64)
    ball = Ball(high, low, radius) if kind is Ball else FloatBall(high, radius)
    known = [False, False, True, kind is FloatBall, True]
    quotient, root = (1 / ball).radius.tolist(), ball.sqrt().radius.tolist()
    assert [r < math.inf for r in quotient] == [*known, True] and [r < math.inf for r in root] == [*known, False]
    assert (
        0.5 <= quotient[2] < 0.51 and 9998 <= quotient[4] < 10_003 and 0.98 <= root[4] < 1.1 + 99 * (kind is FloatBall)
    )


# What radii are for single floats, by their docstrings: of x ± r, with the value y.
SINGLE = {
    "sqrt": lambda x, r, y: r / (x - r).sqrt() + y * 2.0**-53,
    "exp": lambda x, r, y: y * (r + r**2 + arb(101) / 100 * 2.0**-53),
    "tanh": lambda x, r, y: r + (arb(152) / 100 + 2 / (1 + (2 * abs(x)).exp())) * 2.0**-53,
    "erf": lambda x, r, y: arb(113) / 100 * r + arb(5) / 2 * 2.0**-53,
}
FAR = torch.cat([torch.linspace(-0.001, 0.72, 1100, dtype=f64), numbers(64, 60, size=400.0)])
NEAR = torch.cat([torch.linspace(-7, 7, 301, dtype=f64), torch.tensor([0.0, 1e-300, 1 / 128, -1 / 128, 6, 20, -45])])
PLACES = {"sqrt": numbers(61, 60).abs(), "exp": FAR, "tanh": NEAR, "erf": NEAR}


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("wide", [0.0, 1e-15, 1e-9, 1e-2])
def test_functions_of_single_precision_are_enclosed_and_grant_what_their_docstrings_say(name: str, wide: float) -> None:
    x = PLACES[name]
    room = wide * torch.rand(len(x), dtype=f64, generator=generator(62)) * x.abs().clamp(max=1)
    found = getattr(FloatBall(x, room), name)()
    with ctx.workprec(300):
        for at, r, high, radius in zip(*(part.tolist() for part in (x, room, found.high, found.radius)), strict=True):
            for end in (arb(at) - arb(r), arb(at) + arb(r)):
                assert abs(getattr(end, name)() - arb(high)) <= arb(radius)
            wanted = SINGLE[name](arb(at), arb(r), arb(high))
            assert wanted * (1 - 1e-15) <= arb(radius) <= wanted * (1 + 1e-9)
    nothing = getattr(FloatBall.of(torch.tensor([math.nan], dtype=f64)), name)()
    assert nothing.distance_from(x[:1]).isnan() or nothing.radius.item() == math.inf


@pytest.mark.parametrize("wide", [0.0, 1e-9, 1e-2])
@pytest.mark.parametrize("name", ["sqrt", "exp"])
def test_roots_and_exponentials_of_balls_are_off_by_what_their_ends_are(name: str, wide: float) -> None:
    """Radii as the function's slope says; √ divides by one root where the slope's own has the sum of two."""
    ball = drawn(Ball, 61, 40, wide) if wide else Ball(FAR, FAR * 2.0**-54, torch.zeros_like(FAR))
    ball = ball * ball if name == "sqrt" else ball * (8 if wide else 1)
    found, loose = getattr(ball, name)(), 2.0 if name == "sqrt" else 1.0
    with ctx.workprec(300):
        for mid, radius, side in zip(middles(found), found.radius.tolist(), ends(ball), strict=True):
            off = [abs(getattr(exactly(end), name)() - exactly(mid)) for end in side]
            worst, rounded = max(float(one.upper()) for one in off), 2e-21 * float(mid)
            assert all(one <= arb(radius) for one in off)
            assert radius <= loose * (1.0001 + 30 * wide) * worst + rounded and (wide or worst <= rounded)
            assert radius >= (0.4 * rounded if name == "exp" else 0)


@KINDS
def test_an_exponential_is_known_where_all_of_its_ball_is_near_enough_and_of_no_entries_nothing_is_asked(kind) -> None:
    for at, room, known in ((1.0, 0.9, True), (1.0, 1.5, False), (691.0, 0.0, True), (693.0, 0.0, False)):
        ball = kind.of(torch.tensor([at, 0.0], dtype=f64)).widened(torch.tensor([room, 0.0], dtype=f64))
        assert (ball.exp().radius < math.inf).tolist() == [known, True]
    below = kind.of(torch.tensor([-800.0], dtype=f64)).exp()
    assert below.high.item() == 0 and 0 < below.radius.item() <= 1e-300
    none = kind.of(torch.empty(0, dtype=f64))
    assert none.exp().radius.shape == (1 / none).radius.shape == (0,)


@KINDS
def test_a_ball_has_a_side_where_all_of_it_has(kind: type) -> None:
    high, radius = torch.tensor([[-1.0, -1.0, 1.0, 1.0, 0.0, 0.0], [0.5, 1.0, 0.5, 1.0, 0.0, 1e-9]], dtype=f64)
    ball = kind.of(high).widened(radius) if kind is FloatBall else Ball(high, torch.zeros_like(high), radius)
    below, above, zero = (part.tolist() for part in ball.sides())
    assert below == [True, False, False, False, False, False] and above == [False, False, True, False, False, False]
    assert zero == [False, False, False, False, True, False]
    assert not any(part.any() for part in ball[3:4].sides()) and ball[4:5].sides()[2].all()


def test_a_cut_keeps_its_second_part_inside_gives_it_up_outside_and_doubts_it_between() -> None:
    near = math.nextafter(2.0, 0)
    high = torch.tensor([1.0, -1.0, 3.0, -3.0, 2.0, near, -2.0, math.nextafter(2.0, 3)], dtype=f64)
    low = torch.tensor([1e-17, 1e-17, 1e-16, 1e-16, 2e-16, 2e-16, -2e-16, -2e-16], dtype=f64)
    radius = numbers(73, 8, size=1e-30).abs()
    cut = Ball(high, low, radius).clamped(2.0)
    assert cut.high.tolist() == [1.0, -1.0, 2.0, -2.0, 2.0, near, -2.0, 2.0]
    assert cut.low.tolist() == [1e-17, 1e-17, 0.0, 0.0, 0.0, 2e-16, 0.0, 0.0]
    doubt = [abs(y) if k in (4, 6) else 0 for k, y in enumerate(fractions(low))]
    assert granted(cut.radius, [d + r for d, r in zip(doubt, fractions(radius), strict=True)], 1e-9)
    single = FloatBall(high, radius).clamped(1.0)
    assert single.high.equal(high.clamp(-1, 1)) and single.radius.equal(radius)


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
    for at, decided in ((edge, False), (torch.nextafter(edge, torch.tensor(math.inf)), True)):
        assert (Ball(at, low, radius).sign(0.0).radius == 0).eq(decided).all()
