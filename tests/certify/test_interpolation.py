"""The proof encloses: never below the error at any point, and not far above the worst of them."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.certify import Band, interpolation
from emulon.certify.interpolation import (
    ORDER,
    PRECISION,
    Interpolation,
    Keys,
    _cell,
    _cells,
    _down,
    _narrowest,
    _up,
    deficits,
    holds,
    prove,
    require_smooth,
)
from emulon.core.errors import BadExpression
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic

SMOOTH = {
    text: parse(text)
    for text in ["t", "tanh(3*t)", "exp(t)", "sin(4*t)/3 + pi", "1/(2 + t)", "t**3 - t/7", "gelu", "log(3 + t)", "2"]
}
KINKED = {
    text: parse(text)
    for text in ["Max(t, 0)", "Abs(t - 1/3)", "sign(t)*Max(Abs(t) - 0.3, 0)", "Max(Min(t, 1/2), -1/2)"]
}


def random_keys(seed: int, count: int, steepness: float) -> Keys:
    rng = np.random.default_rng(seed)
    return Keys(*(scale * rng.normal(size=count) for scale in (steepness, steepness, 2.0)))


def soft_keys(f, count: int, softness: float, reach: float) -> Keys:
    """A spectral grid by hand on [−1, 1], with the values f(L): an interpolation with a smooth error."""
    nodes = (np.arange(count) - (count - 1) / 2) / reach
    beta = softness * reach**2
    return Keys(2 * beta * nodes, -beta * nodes**2, f(torch.tensor(nodes.clip(-1, 1))).numpy())


def errors(keys: Keys, f, s: np.ndarray) -> np.ndarray:
    """|F − f| in double precision, which is good to 1e-13 for the keys here."""
    return np.abs(keys.weights(s) @ keys.values - f(torch.from_numpy(s)).numpy())


def exact_error(keys: Keys, f, s: float) -> float:
    """|F(s) − f(s)| at 400 bits, without Taylor models or cells: an independent way to the same number."""
    with ctx.workprec(400):
        scores = [arb(a) * arb(s) + arb(b) for a, b in zip(keys.slopes.tolist(), keys.intercepts.tolist(), strict=True)]
        top = max(scores, key=float)
        weights = [(score - top).exp() for score in scores]
        total = sum((w * arb(v) for w, v in zip(weights, keys.values.tolist(), strict=True)), arb(0))
        (signs,) = f.arb_branches(s, s)
        return float(abs(total / sum(weights, arb(0)) - f.arb_series(arb(s), signs)))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 14),
    steepness=st.sampled_from([0.3, 3.0, 30.0, 300.0]),
    text=st.sampled_from(sorted(SMOOTH | KINKED)),
    lo=st.floats(-1, 0.5),
    width=st.floats(1e-3, 0.5),
)
def test_the_proof_encloses_for_any_keys(
    seed: int, count: int, steepness: float, text: str, lo: float, width: float
) -> None:
    keys, f, hi = random_keys(seed, count, steepness), (SMOOTH | KINKED)[text], lo + width
    known = prove(keys, f, lo, hi)
    s = np.linspace(lo, hi, 20_001)
    weights = keys.weights(s)
    values = weights @ keys.values
    deviation = (weights * np.abs(keys.values - values[:, None])).sum(axis=1).max()
    worst = errors(keys, f, s).max()
    assert worst <= known.error * (1 + 1e-12) + 1e-13
    assert known.error <= 1.5 * worst + 1e-13
    assert known.attained <= known.error
    assert deviation <= known.deviation * (1 + 1e-12) + 1e-13
    assert np.abs(values).max() <= known.size * (1 + 1e-12) + 1e-13


@settings(max_examples=15)
@given(
    text=st.sampled_from(["t", "tanh(3*t)", "exp(t)", "sin(4*t)/3 + pi"]),
    softness=st.floats(0.1, 0.4),
    part=st.floats(0.3, 0.5),
)
def test_near_the_floor_the_proof_holds_at_high_precision(text: str, softness: float, part: float) -> None:
    """Where double precision no longer sees the error, 400 bits still do."""
    from emulon.softmax.spectral import least_squares

    f, count = SMOOTH[text], 25
    blank = soft_keys(f, count, softness, part * count)
    nodes = np.cos(np.pi * (np.arange(80) + 0.5) / 80)
    values = least_squares(blank.weights(nodes), f(torch.from_numpy(nodes)).numpy())
    keys = Keys(blank.slopes, blank.intercepts, values)
    known = prove(keys, f, -1.0, 1.0)
    worst = max(exact_error(keys, f, s) for s in np.linspace(-1, 1, 301).tolist())
    assert worst <= known.error <= 2 * worst


def gate(at: float, sharpness: float, left: float, right: float) -> Keys:
    return Keys(
        np.array([-sharpness / 2, sharpness / 2]), np.array([1.0, -1.0]) * sharpness * at / 2, np.array([left, right])
    )


def test_a_steep_kink_between_two_floats_counts_the_doubt_where_it_is() -> None:
    """1/3 is no float: within a last place of it either branch may hold, and at slope 1e9 that is no small matter."""
    f = parse("1e9*Max(t - 1/3, 0)")
    keys = Keys(np.zeros(1), np.zeros(1), np.zeros(1))
    assert exact_error(keys, f, math.nextafter(1 / 3, 1)) > 0
    known = prove(keys, f, 0.0, math.nextafter(1 / 3, 1))
    assert known.error >= exact_error(keys, f, math.nextafter(1 / 3, 1))


def test_a_jump_without_a_band_costs_the_jump() -> None:
    known = prove(gate(0.25, 1e4, 0.0, 1.0), parse("Heaviside(t - 1/4)"), -1.0, 1.0)
    assert known.error >= 0.5


@pytest.mark.parametrize(
    "text, at", [("Heaviside(t - 1/4, 1)", 0.25), ("sign(t)/2 + 1/2", 0.0), ("Heaviside(t - 0.3)", 0.3)]
)
def test_a_band_takes_the_jump_out_and_its_edges_stay_in(text: str, at: float) -> None:
    f, keys = parse(text), gate(at, 1e4, 0.0, 1.0)
    for half in (1e-3, 2e-3):
        known = prove(keys, f, -1.0, 1.0, bands=[Band(at - half, at + half)])
        edge = max(exact_error(keys, f, at + half), exact_error(keys, f, at - half))
        assert edge <= known.error <= 1.01 * edge + 1e-30


def test_a_band_that_ends_at_an_exact_jump_keeps_the_point_itself() -> None:
    """f(1/4) = 1 belongs to the right; the gate lies to the left, and so does the band."""
    f, keys = parse("Heaviside(t - 1/4, 1)"), gate(0.2, 1e4, 0.0, 1.0)
    known = prove(keys, f, -1.0, 1.0, bands=[Band(0.15, 0.25)])
    assert exact_error(keys, f, 0.25) <= known.error < 1e-40
    other_side = parse("Heaviside(t - 1/4, 0)")
    assert prove(keys, other_side, -1.0, 1.0, bands=[Band(0.15, 0.25)]).error >= 0.5


def test_an_isolated_value_is_not_overlooked() -> None:
    """sign(t)² is 1 everywhere but at 0, where it is 0."""
    assert prove(Keys(np.zeros(1), np.zeros(1), np.ones(1)), parse("sign(t)**2"), -1.0, 1.0).error >= 1.0


def test_scores_too_large_for_double_precision_are_still_ordered_right() -> None:
    """At 1e18 the double scores of both keys coincide; exactly, the second is ahead by 64."""
    keys = Keys(np.array([2.0**60, 2.0**60 + 256.0]), np.array([0.0, 0.0]), np.array([0.0, 1.0]))
    known = prove(keys, parse("2*t"), 0.25, 0.75, tightness=1.3)
    worst = max(exact_error(keys, parse("2*t"), s) for s in np.linspace(0.25, 0.75, 101).tolist())
    assert worst <= known.error <= 1.5 * worst


def test_a_target_saves_work_but_not_truth() -> None:
    keys = soft_keys(SMOOTH["t"], 17, 0.25, 6)
    sharp, loose = (prove(keys, SMOOTH["t"], -1.0, 1.0, target=target) for target in (0.0, 0.5))
    assert sharp.error <= loose.error <= 0.5 and sharp.error <= 1.35 * sharp.attained


def test_a_claim_holds_where_it_is_so_and_not_where_any_part_of_it_is_less() -> None:
    # Two keys are the sigmoid exactly: |F − f| is t²/1000, and both deviation and size are known.
    keys = Keys(np.array([0.0, 1.0]), np.zeros(2), np.array([0.0, 1.0]))
    true = {"error": 0.01601, "attained": 0.0, "deviation": 0.55, "size": 1.02}
    function = parse("1/(1 + exp(-t)) + t**2/1000")
    assert holds(keys, function, -4.0, 4.0, Interpolation(**true))
    for name, below in (("error", 0.01599), ("error", -1.0), ("deviation", 0.49), ("size", 0.98)):
        assert not holds(keys, function, -4.0, 4.0, Interpolation(**(true | {name: below})))


def test_the_callers_precision_is_left_as_it_was() -> None:
    before = ctx.prec, ctx.cap
    prove(soft_keys(SMOOTH["t"], 5, 0.25, 2), SMOOTH["t"], -1.0, 1.0)
    require_smooth(SMOOTH["t"], -1.0, 1.0)
    with pytest.raises(BadExpression):
        require_smooth(parse("1/t"), -1.0, 1.0)
    assert (ctx.prec, ctx.cap) == before


@pytest.mark.parametrize(
    "text, lo, hi, near",
    [
        ("1/t", -1.0, 1.0, "0"),
        ("1/(t - 0.3)", -1.0, 1.0, "0.3"),
        ("sqrt(t)", 0.0, 1.0, "0"),
        ("sqrt(t)", -1.0, 0.5, "-"),
        ("log(t)", 0.0, 1.0, "0"),
        ("log(t)", -2.0, -1.0, "-"),
        ("tan(t)", 0.0, 2.0, "1.5708"),
        ("t**1.5", 0.0, 1.0, "0"),
        ("asin(t)", -1.0, 0.5, "-1"),
        ("Piecewise((1/t, t > 0), (0, True))", -1.0, 1.0, "0"),
    ],
)
def test_poles_and_branch_points_are_refused_with_their_place(text: str, lo: float, hi: float, near: str) -> None:
    with pytest.raises(BadExpression, match=rf"not finite and smooth at t = {near}.*choose an interval"):
        require_smooth(parse(text), lo, hi)


@pytest.mark.parametrize(
    "text", ["1/(1e-3 + t**2)", "sqrt(1.001 + t)", "Max(t, 0)", "sign(t)", "tan(1.5*t)", "exp(50*t)"]
)
def test_steep_kinked_and_jumping_functions_are_accepted(text: str) -> None:
    require_smooth(parse(text), -1.0, 1.0)


def test_the_other_branch_of_a_piecewise_may_have_a_pole() -> None:
    require_smooth(parse("Piecewise((log(t), t > 1), (t - 1, True))"), -2.0, 2.0)


def test_a_claim_is_judged_with_what_polynomials_leave_out() -> None:
    """In the last of eight cells the first 16 terms of 1/(1.05 − t) end at 19.91."""
    zero, function = Keys(np.zeros(1), np.zeros(1), np.zeros(1)), parse("1/(1.05 - t)")
    for claimed, true in ((19.95, False), (20.01, True)):
        assert holds(zero, function, -1.0, 1.0, Interpolation(claimed, 0.0, 45.0, 45.0)) == true


def test_nothing_is_proved_where_a_part_of_the_function_does_not_exist() -> None:
    one, function = Keys(np.zeros(1), np.zeros(1), np.ones(1)), parse("0*exp(log(t)) + 1")
    assert not holds(one, function, -1.0, 1.0, Interpolation(1.0, 0.0, 1.0, 2.0))
    with pytest.raises(BadExpression):
        prove(one, function, -1.0, 1.0)


def test_claims_and_smoothness_that_take_too_many_cells_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, function = Keys(np.zeros(1), np.zeros(1), np.zeros(1)), parse("1/(1e-3 + t**2)")
    claimed = Interpolation(1001.0, 0.0, 2002.0, 2002.0)
    assert holds(zero, function, -1.0, 1.0, claimed)
    require_smooth(function, -1.0, 1.0)
    monkeypatch.setattr(interpolation, "MAX_CELLS", 10)
    monkeypatch.setattr("emulon.expressions.expression.MOST_LOOKED_AT", 3)
    assert not holds(zero, function, -1.0, 1.0, claimed)
    with pytest.raises(BadExpression, match=r"is not seen to be finite and smooth on .* with 4 cells"):
        require_smooth(function, -1.0, 1.0)


def test_a_slope_that_is_infinite_is_refused_by_the_proof() -> None:
    with pytest.raises(BadExpression, match=r"is not finite and smooth at t = .*; choose an interval without it"):
        prove(Keys(np.zeros(1), np.zeros(1), np.zeros(1)), parse("sqrt(Abs(t))"), -1.0, 1.0)


def test_a_proof_of_too_many_cells_ends_and_is_true_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, function = Keys(np.zeros(1), np.zeros(1), np.zeros(1)), parse("1/(1e-3 + t**2)")
    asked, cell = [], interpolation._cell
    monkeypatch.setattr(interpolation, "_cell", lambda *given: asked.append(given) or cell(*given))
    monkeypatch.setattr(interpolation, "HOPELESS", 1e300)
    tight = prove(zero, function, -1.0, 1.0, tightness=1.0 + 1e-9)
    enough = len(asked)
    monkeypatch.setattr(interpolation, "MAX_CELLS", 20)
    loose = prove(zero, function, -1.0, 1.0, tightness=1.0 + 1e-9)
    assert len(asked) - enough < enough and 1000.0 <= tight.error < 1000.001 < loose.error


@pytest.mark.parametrize("reach", [1e-30, 0.3, 0.999, 1.0, 1.99, 7.0, 2.0**60])
def test_cells_are_halved_down_to_some_floats_and_no_further(reach: float) -> None:
    assert 4 * np.spacing(reach) <= _narrowest(reach) <= 19 * np.spacing(reach)


def test_smoothness_is_looked_for_in_parts_of_the_interval_whatever_its_scale_and_place() -> None:
    require_smooth(parse("1/(1e-63 + t**2)"), -1e-30, 1e-30)
    require_smooth(parse("1/(1e-3 + (t - 100000000.5)**2)"), 1e8, 1e8 + 1)
    with pytest.raises(BadExpression, match="is not finite and smooth"):
        require_smooth(parse("1/t"), -1e-30, 1e-30)
    with pytest.raises(BadExpression, match="exp"):
        require_smooth(parse("exp(log(t))"), -1.0, 1.0)


def test_a_deficit_is_the_least_of_both_ends_below_one_key_that_is_on_top_at_an_end() -> None:
    """Scores 0, −8, 3 at −1 and 0, −2, −5 at 3: the second is below the first by 8 and 2, the others by nothing."""
    keys = Keys(np.array([0.0, 1.5, -2.0]), np.array([0.0, -6.5, 1.0]), np.zeros(3))
    doubt = 2.0**-49 * (1.5 * 3 + 6.5)
    assert deficits(keys, -1.0, 3.0).tolist() == [0.0 - doubt, 2.0 - doubt, 0.0 - doubt]
    assert deficits(keys, -3.0, 1.0).tolist() == [0.0 - doubt, 5.0 - doubt, 0.0 - doubt]


@pytest.mark.parametrize(
    ("slopes", "intercepts", "at", "width"),
    [
        ([-127.0, 127.0], [2.0**61, 2.0**61 - 256], 1.0, 1e-3),
        ([2.0**61, 2.0**61 - 256], [-127.0, 127.0], 1.0, 2.0**-52),
        ([2.0**41, 2.0**41 - 2.0**-12], [-127.0, 127.0], 2.0**20, 2.0**-32),
    ],
)
def test_a_key_that_rounding_alone_puts_far_below_is_not_left_out(slopes, intercepts, at, width) -> None:
    """There the second is below by 2; in float64 its score ends 256 below, where floats are so far apart."""
    keys = Keys(np.array(slopes), np.array(intercepts), np.array([0.0, 1.0]))
    rough = keys.slopes * at + keys.intercepts
    assert rough[0] - rough[1] == 256
    with ball_arithmetic(PRECISION, ORDER + 1):
        error = _cell(keys, parse("0*t"), at, at + width)[0]
    assert 1 / (1 + math.exp(2)) <= error < 0.2


def test_the_bounds_of_a_cell_are_those_of_its_mirror_images() -> None:
    """Of −f, and of f(−t): the remainder may have any sign, and be largest at either end."""
    keys = Keys(np.array([0.4, -0.7, 0.1]), np.array([0.9, 0.0, 0.2]), np.array([1.0, -2.0, 0.5]))
    below = Keys(keys.slopes, keys.intercepts, -keys.values)
    across = Keys(-keys.slopes, keys.intercepts, keys.values)
    with ball_arithmetic(PRECISION, ORDER + 1):
        wanted = pytest.approx(_cell(keys, parse("exp(9*t)"), -1.0, 1.5), rel=1e-6)
        assert _cell(below, parse("-exp(9*t)"), -1.0, 1.5) == wanted
        assert _cell(across, parse("exp(-9*t)"), -1.5, 1.0) == wanted


def test_balls_become_floats_outside_of_them() -> None:
    with ball_arithmetic(PRECISION):
        for k in range(1, 20):
            third = arb(k) / 3
            assert Fraction(_down(third)) < Fraction(k, 3) < Fraction(_up(third))
            assert _up(third) - _down(third) < 1e-14 * k
        assert _down(arb(0, 1)) == 0.0


def test_what_is_attained_at_a_centre_is_no_rounding_of_it() -> None:
    """F is tanh, as f is: nothing is attained, though both are no floats."""
    keys = Keys(np.array([-1.0, 1.0]), np.zeros(2), np.array([-1.0, 1.0]))
    with ball_arithmetic(PRECISION, ORDER + 1):
        assert _cell(keys, parse("tanh(t)"), 0.25, 0.5)[1] == 0.0


def test_a_cell_with_too_many_switches_open_says_nothing() -> None:
    one = Keys(np.zeros(1), np.zeros(1), np.zeros(1))
    function = parse(" + ".join(f"Abs(t - {k}/97)" for k in range(1, 8)))
    with ball_arithmetic(PRECISION, ORDER + 1):
        assert _cell(one, function, 0.0, 1.0) == (math.inf, 0.0, math.inf, math.inf)
        assert _cell(one, function, 0.5, 1.0)[0] < 10


def test_both_ends_of_a_cell_are_covered_where_no_float_is_its_middle() -> None:
    ends = [1.0]
    for _ in range(2):
        ends.append(math.nextafter(ends[-1], 2))
    with ball_arithmetic(PRECISION, ORDER + 1):
        for left, right, value in ((ends[0], ends[1], ends[0]), (ends[1], ends[2], ends[2])):
            assert _cell(Keys(np.zeros(1), np.zeros(1), np.array([value])), parse("t"), left, right)[0] >= 2.0**-52


def test_a_cell_that_cannot_be_enclosed_says_nothing() -> None:
    steep = Keys(np.array([-40.0, 40.0]), np.zeros(2), np.array([0.0, 1.0]))
    one = Keys(np.zeros(1), np.zeros(1), np.zeros(1))
    with ball_arithmetic(PRECISION, ORDER + 1):
        for keys, text in ((steep, "t"), (one, "1/t"), (one, "log(t)")):
            assert _cell(keys, parse(text), -1.0, 1.0) == (math.inf, 0.0, math.inf, math.inf)
        # Over a kink the centre attains nothing for certain; beside it, it does.
        assert _cell(one, parse("Abs(t) + 1"), -1.0, 1.0)[1] == 0.0
        assert _cell(one, parse("Abs(t) + 1"), 0.5, 1.5)[1] == pytest.approx(2.0)


def test_the_first_cut_follows_the_softmax_and_keeps_to_breaks_and_bands() -> None:
    """Eight cells to a segment at least."""
    flat = Keys(np.zeros(1), np.zeros(1), np.zeros(1))
    assert _cells(flat, parse("t"), 0.0, 1.0, ()) == [(k / 8, (k + 1) / 8) for k in range(8)]
    kinked = {edge - 1 / 3 for cell in _cells(flat, parse("Abs(t - 1/3)"), -1.0, 1.0, ()) for edge in cell}
    assert {-4 / 3, 0.0, 1 - 1 / 3} <= kinked
    assert any(0 < edge < 1e-12 for edge in kinked) and any(-1e-12 < edge < 0 for edge in kinked)
    banded = _cells(flat, parse("sign(t)"), -1.0, 1.0, [Band(-0.25, 0.25), Band(0.5, 2.0)])
    assert sorted({edge for cell in banded for edge in cell})[:9] == np.linspace(-1.0, -0.25, 9).tolist()
    assert all(right <= -0.25 or (left >= 0.25 and right <= 0.5) for left, right in banded) and len(banded) == 16
    assert all(left < right for left, right in banded)


def test_claims_are_judged_in_cells_as_small_as_floats_can_tell_and_no_smaller() -> None:
    """At 2⁶⁰ floats are 256 apart: a claim that a jump breaks is refused, not halved for ever."""
    one = Keys(np.zeros(1), np.zeros(1), np.ones(1))
    nothing = Interpolation(1e-300, 0.0, 2.0, 2.0)
    for at in (0.0, 2.0**60):
        function = parse(f"1 + Heaviside(t - {at!r})")
        assert not holds(one, function, at - 1024.0, at + 1024.0, nothing)
        assert holds(one, function, at - 1024.0, at - 512.0, nothing)
    assert not holds(one, parse("1"), 0.0, 1.0, Interpolation(-1.0, 0.0, 2.0, 2.0))
    with_room = Interpolation(1e-40, 0.0, 1e-40, 1.0 + 1e-15)
    assert holds(one, parse("1"), 0.0, 1.0, with_room) and not holds(
        one, parse("1"), 0.0, 1.0, Interpolation(1.0, 0.0, 1.0, 0.9)
    )


def test_a_proof_that_would_take_for_ever_ends_at_once_and_stays_true(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, cell = [], interpolation._cell
    monkeypatch.setattr(interpolation, "_cell", lambda *given: asked.append(given) or cell(*given))
    line = Keys(np.array([-1.0, 1.0]) / 1e20, np.zeros(2), np.array([-1e20, 1e20]))
    assert prove(line, parse("t + cos(t)"), -1e20, 1e20).error > 1e20
    assert len(asked) < 200


def test_claims_about_tiny_intervals_are_halved_as_others_are() -> None:
    line = Keys(np.array([-1e29, 1e29]), np.zeros(2), np.array([-1e-29, 1e-29]))
    found = prove(line, parse("1e-29*tanh(1e29*t) + Max(t, 0)/1000"), -4e-30, 4e-30)
    assert 0.999 * 4e-33 < found.error < 1.4 * 4e-33
    assert holds(line, parse("1e-29*tanh(1e29*t) + Max(t, 0)/1000"), -4e-30, 4e-30, found)
