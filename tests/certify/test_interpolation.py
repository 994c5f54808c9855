"""The proof encloses: never below the error at any point, and not far above the worst of them."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.certify import Band, interpolation
from emulon.certify.interpolation import (
    NEGLIGIBLE,
    ORDER,
    PRECISION,
    Interpolation,
    Keys,
    _cell,
    deficits,
    holds,
    prove,
    require_smooth,
)
from emulon.core.errors import BadExpression
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.plan import Slopes
from emulon.softmax import approximate

SMOOTH = ["t", "tanh(3*t)", "exp(t)", "sin(4*t)/3 + pi", "1/(2 + t)", "t**3 - t/7", "gelu", "log(3 + t)", "2"]
KINKED = ["Max(t, 0)", "Abs(t - 1/3)", "sign(t)*Max(Abs(t) - 0.3, 0)", "Max(Min(t, 1/2), -1/2)"]
NOTHING = (math.inf, 0.0, math.inf, math.inf)


def keys_of(slopes, intercepts, values) -> Keys:
    return Keys(*(np.array(part, dtype=float) for part in (slopes, intercepts, values)))


def one(value: float) -> Keys:
    """A single key: the constant."""
    return keys_of([0], [0], [value])


def gate(at: float, sharpness: float, left: float, right: float) -> Keys:
    return keys_of([-sharpness / 2, sharpness / 2], [sharpness * at / 2, -sharpness * at / 2], [left, right])


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
    text=st.sampled_from(sorted(SMOOTH + KINKED)),
    lo=st.floats(-1, 0.5),
    width=st.floats(1e-3, 0.5),
)
def test_the_proof_encloses_for_any_keys(
    seed: int, count: int, steepness: float, text: str, lo: float, width: float
) -> None:
    """Float64, which is good to 1e-13 for these keys, at 20,001 points."""
    rng = np.random.default_rng(seed)
    keys = Keys(*(scale * rng.normal(size=count) for scale in (steepness, steepness, 2.0)))
    known = prove(keys, parse(text), lo, lo + width)
    s = np.linspace(lo, lo + width, 20_001)
    weights = keys.weights(s)
    values = weights @ keys.values
    deviation = (weights * np.abs(keys.values - values[:, None])).sum(axis=1).max()
    worst = np.abs(values - parse(text)(torch.from_numpy(s)).numpy()).max()
    assert known.attained <= known.error <= 1.5 * worst + 1e-13
    for true, proved in ((worst, known.error), (deviation, known.deviation), (np.abs(values).max(), known.size)):
        assert true <= proved * (1 + 1e-12) + 1e-13


TINY = keys_of([-1e29, 1e29], [0, 0], [-1e-29, 1e-29]), "1e-29*tanh(1e29*t) + Max(t, 0)/1000", -4e-30, 4e-30
AWKWARD = [
    # 1/3 is no float: within a last place of it either branch may hold, and at slope 1e9 that is no small matter.
    (one(0), "1e9*Max(t - 1/3, 0)", 0.0, math.nextafter(1 / 3, 1), 9.0),
    # At 1e18 the double scores of both keys coincide; exactly, the second is ahead by 64.
    (keys_of([2.0**60, 2.0**60 + 256.0], [0, 0], [0, 1]), "2*t", 0.25, 0.75, 1.5),
    (*TINY, 1.4),
    # A jump without a band costs the jump, and an isolated value is not overlooked: sign(t)² is 0 at 0.
    (gate(0.25, 1e4, 0.0, 1.0), "Heaviside(t - 1/4, 1)", -1.0, 1.0, 1.5),
    (one(1), "sign(t)**2", -1.0, 1.0, 1.5),
]
# f(1/4) = 1 belongs to the right; a gate may lie to the left, and so may the band.
AWKWARD += [(gate(0.2, 1e4, 0.0, 1.0), f"Heaviside(t - 1/4, {at})", -1.0, 1.0, 1.5, Band(0.15, 0.25)) for at in (0, 1)]
AWKWARD += [
    (gate(at, 1e4, 0.0, 1.0), f"sign(t - {at})/2 + 1/2", -1.0, 1.0, 1.01, Band(at - half, at + half))
    for at, half in ((0.25, 1e-3), (0.0, 2e-3), (0.3, 1e-3))
]


@pytest.mark.parametrize(("keys", "text", "lo", "hi", "room", "bands"), [(*case[:5], case[5:]) for case in AWKWARD])
def test_awkward_softmaxes_are_enclosed_and_bands_take_jumps_out_but_not_their_edges(
    keys, text, lo, hi, room, bands
) -> None:
    """Against 400 bits, at ends, breaks and edges too: true of all, and above the worst by a factor `room` at most."""
    f = parse(text)
    known = prove(keys, f, lo, hi, bands=bands)
    points = [*np.linspace(lo, hi, 101).tolist(), *(one.at for one in f.breaks(lo, hi))]
    points += [edge for band in bands for edge in (band.lo, band.hi)]
    points = [s for s in points if not any(band.lo < s < band.hi for band in bands)]
    worst = max(exact_error(keys, f, s) for s in points)
    assert worst * (1 - 1e-12) <= known.error <= room * worst + 1e-40 and known.attained <= known.error


def by_the_formula(keys: Keys, phi: np.ndarray, remainder: float, left: float, right: float) -> tuple[float, ...]:
    """The bounds of one cell by the module's formulas in float64; `phi` are f's coefficients in τ.

    The last key may be too far down to matter: it then enters by its weight alone.
    """
    c, radius = (left + right) / 2, (right - left) / 2
    scores = keys.slopes * c + keys.intercepts
    far = scores + np.abs(keys.slopes - keys.slopes[0]) * radius < scores[0] - NEGLIGIBLE
    e, a, v = np.exp(scores - scores[0])[~far], keys.slopes[~far], keys.values[~far]
    mean, guess = e @ a / e.sum(), e @ v / e.sum()
    v, kappa = v - guess, (a - mean) * radius
    powers = np.array([kappa**k / math.factorial(k) for k in range(ORDER + 1)])
    numerator, denominator = powers[:ORDER] @ (e * v), powers[:ORDER] @ e
    growth = np.exp(np.abs(kappa))
    tails = np.abs(e * powers[ORDER]) * growth
    rest = far.sum() * np.exp(abs(a[0] - mean) * radius + 1 - NEGLIGIBLE)
    rest += keys.others * np.exp(-NEGLIGIBLE) * ((e * growth).sum() + rest)
    largest = np.abs(np.append(keys.values, [keys.spread, -keys.spread] if keys.others else []) - guess).max()
    rest_n, rest_d = tails @ np.abs(v) + rest * largest, tails.sum() + rest
    lowest = denominator[0] - np.abs(denominator[1:]).sum() - rest_d
    highest = denominator[0] + np.abs(denominator[1:]).sum() + rest_d
    phi = phi - guess * (np.arange(ORDER) == 0)
    difference = -np.convolve(phi, denominator)
    difference[:ORDER] += numerator
    error = (np.abs(difference).sum() + rest_n + remainder * highest + np.abs(phi).sum() * rest_d) / lowest
    swing = np.abs(phi).sum() + remainder
    spread = (e * growth) @ np.abs(v) + rest * largest
    centre = abs(numerator[0] / denominator[0] - phi[0])
    return error, centre, spread / lowest + swing + error, abs(guess) + swing + error


@pytest.mark.parametrize(
    ("keys", "left", "right"),
    [
        (([0.5, -0.5], [0.25, 0.0], [1.0, -2.0]), -1.0, 3.0),  # what the exponentials' sums leave out counts
        (([0.5, -0.5, 0.0], [0.25, 0.0, -130.0], [1.0, -2.0, 1e44]), -1.0, 0.5),  # a key left out does
        (([0.5, -0.5, 0.0], [0.25, 0.0, -113.0], [1.0, -2.0, 1e44]), -1.0, 0.5),
        (([0.5, -0.5, 8.0], [0.25, 0.0, -113.0], [1.0, -2.0, 1e44]), -1.0, 0.5),  # one that comes near is not left out
        (([0.0, 16.0], [0.0, -30.5], [1.0, -2.0]), -1.0, 1.0),  # a third of the denominator is in its rest
    ],
)
@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_the_bounds_of_a_cell_are_their_formulas(keys, left, right, rate) -> None:
    """f = e^{rate·t}: what its polynomial leaves out counts where the rate is high."""
    keys = keys_of(*keys)
    keys = replace(keys, others=2, spread=1e45) if len(keys.slopes) == 2 else keys
    c, radius = (left + right) / 2, (right - left) / 2
    phi = np.array([math.exp(rate * c) * (rate * radius) ** k / math.factorial(k) for k in range(ORDER + 1)])
    wanted = by_the_formula(keys, phi[:ORDER], phi[ORDER] * math.exp(rate * radius), left, right)
    with ball_arithmetic(PRECISION, ORDER + 1):
        found = _cell(keys, parse(f"exp({rate}*t)"), left, right)
    # Radii of balls have 30 bits, which shows where the remainder counts.
    assert found == pytest.approx(wanted, rel=1e-11 if rate < 1 else 1e-7, abs=0.0)


# Two keys are the sigmoid exactly: |F − f| is t²/1000, and both deviation and size are known.
SIGMOID = keys_of([0, 1], [0, 0], [0, 1]), "1/(1 + exp(-t)) + t**2/1000", -4.0, 4.0
POLE, LINE = (one(0), "1/(1.05 - t)", -1.0, 1.0), (one(1), "1", 0.0, 1.0)
JUMPS = [(one(1), f"1 + Heaviside(t - {at!r})", at - 1024) for at in (0.0, 2.0**60)]


@pytest.mark.parametrize(
    ("case", "claim", "true"),
    [
        (SIGMOID, (0.01601, 0.55, 1.02), True),
        *((SIGMOID, less, False) for less in ((0.01599, 0.55, 1.02), (0.01601, 0.49, 1.02), (0.01601, 0.55, 0.98))),
        # In the last of eight cells the first 16 terms of 1/(1.05 − t) end at 19.91.
        *((POLE, (claimed, 45.0, 45.0), claimed > 20) for claimed in (19.95, 20.01)),
        # A part of the function does not exist.
        ((one(1), "0*exp(log(t)) + 1", -1.0, 1.0), (1.0, 1.0, 2.0), False),
        # A claim that a jump breaks is refused, not halved for ever: at 2⁶⁰ floats are 256 apart.
        *(((*case, case[2] + wide), (1e-300, 2.0, 2.0), wide < 1024) for case in JUMPS for wide in (2048, 512)),
        (LINE, (1e-40, 1e-40, 1.0 + 1e-15), True),
        *((LINE, less, False) for less in ((-1.0, 2.0, 2.0), (1.0, 2.0, 0.9))),
        *((TINY, (claimed, 1.0, 1.0), claimed > 4e-33) for claimed in (4.2e-33, 3.9e-33)),
    ],
)
def test_a_claim_holds_where_it_is_so_and_not_where_any_part_of_it_is_less(case, claim, true) -> None:
    keys, text, lo, hi = case
    error, deviation, size = claim
    assert holds(keys, parse(text), lo, hi, Interpolation(error, 0.0, deviation, size)) == true


@pytest.mark.parametrize(
    "text, lo, hi, near",
    [
        ("1/t", -1.0, 1.0, "0"),
        ("1/t", -1e-30, 1e-30, "-?.*"),
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


@pytest.mark.parametrize("text", ["0*exp(log(t)) + 1", "sqrt(Abs(t))"])
def test_nothing_is_proved_where_value_or_slope_do_not_exist(text: str) -> None:
    with pytest.raises(BadExpression, match=r"exp|is not finite and smooth at t = .*; choose an interval without it"):
        prove(one(1), parse(text), -1.0, 1.0)


@pytest.mark.parametrize(
    "text, lo, hi",
    [
        *((text, -1.0, 1.0) for text in ("1/(1e-3 + t**2)", "sqrt(1.001 + t)", "Max(t, 0)", "sign(t)", "exp(50*t)")),
        ("tan(1.5*t)", -1.0, 1.0),
        ("1/(1e-63 + t**2)", -1e-30, 1e-30),
        ("1/(1e-3 + (t - 100000000.5)**2)", 1e8, 1e8 + 1),
        ("Piecewise((log(t), t > 1), (t - 1, True))", -2.0, 2.0),  # the other branch may have a pole
    ],
)
def test_steep_kinked_and_jumping_functions_are_accepted(text: str, lo: float, hi: float) -> None:
    require_smooth(parse(text), lo, hi)


def test_claims_and_smoothness_that_take_too_many_cells_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    function, claimed = parse("1/(1e-3 + t**2)"), Interpolation(1001.0, 0.0, 2002.0, 2002.0)
    assert holds(one(0), function, -1.0, 1.0, claimed)
    monkeypatch.setattr(interpolation, "MAX_CELLS", 10)
    monkeypatch.setattr("emulon.expressions.expression.MOST_LOOKED_AT", 3)
    assert not holds(one(0), function, -1.0, 1.0, claimed)
    with pytest.raises(BadExpression, match=r"is not seen to be finite and smooth on .* with 4 cells"):
        require_smooth(function, -1.0, 1.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """What cells were asked for."""
    found, cell = [], interpolation._cell
    monkeypatch.setattr(interpolation, "_cell", lambda *given: found.append(given) or cell(*given))
    return found


def test_a_proof_of_too_many_cells_ends_and_is_true_of_all(asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    found, monkeys = [], {"HOPELESS": 1e300, "MAX_CELLS": 20}
    for name, value in monkeys.items():
        monkeypatch.setattr(interpolation, name, value)
        asked.clear()
        found.append((prove(one(0), parse("1/(1e-3 + t**2)"), -1.0, 1.0, tightness=1.0 + 1e-9).error, len(asked)))
    (tight, many), (loose, few) = found
    assert few < many and 1000.0 <= tight < 1000.001 < loose


def test_a_proof_that_would_take_for_ever_ends_at_once_and_stays_true(asked: list) -> None:
    line = keys_of([-1e-20, 1e-20], [0, 0], [-1e20, 1e20])
    assert prove(line, parse("t + cos(t)"), -1e20, 1e20).error > 1e20
    assert len(asked) < 200


def test_a_deficit_is_the_least_of_both_ends_below_one_key_that_is_on_top_at_an_end() -> None:
    """Scores 0, −8, 3 at −1 and 0, −2, −5 at 3: the second is below the first by 8 and 2, the others by nothing."""
    keys = keys_of([0.0, 1.5, -2.0], [0.0, -6.5, 1.0], [0, 0, 0])
    doubt = 2.0**-49 * (1.5 * 3 + 6.5)
    assert deficits(keys, -1.0, 3.0).tolist() == [0.0 - doubt, 2.0 - doubt, 0.0 - doubt]
    assert deficits(keys, -3.0, 1.0).tolist() == [0.0 - doubt, 5.0 - doubt, 0.0 - doubt]


def cell(keys: Keys, text: str, left: float, right: float) -> tuple[float, float, float, float]:
    with ball_arithmetic(PRECISION, ORDER + 1):
        return _cell(keys, parse(text), left, right)


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
    keys = keys_of(slopes, intercepts, [0, 1])
    rough = keys.slopes * at + keys.intercepts
    assert rough[0] - rough[1] == 256
    assert 1 / (1 + math.exp(2)) <= cell(keys, "0*t", at, at + width)[0] < 0.2


def test_the_bounds_of_a_cell_are_those_of_its_mirror_images() -> None:
    """Of −f, and of f(−t): the remainder may have any sign, and be largest at either end."""
    slopes, intercepts, values = np.array([0.4, -0.7, 0.1]), [0.9, 0.0, 0.2], np.array([1.0, -2.0, 0.5])
    wanted = pytest.approx(cell(keys_of(slopes, intercepts, values), "exp(9*t)", -1.0, 1.5), rel=1e-6)
    assert cell(keys_of(slopes, intercepts, -values), "-exp(9*t)", -1.0, 1.5) == wanted
    assert cell(keys_of(-slopes, intercepts, values), "exp(-9*t)", -1.5, 1.0) == wanted


def test_a_cell_that_cannot_be_enclosed_or_has_too_many_switches_open_says_nothing() -> None:
    for keys, text in ((keys_of([-40, 40], [0, 0], [0, 1]), "t"), (one(0), "1/t"), (one(0), "log(t)")):
        assert cell(keys, text, -1.0, 1.0) == NOTHING
    switches = " + ".join(f"Abs(t - {k}/97)" for k in range(1, 8))
    assert cell(one(0), switches, 0.0, 1.0) == NOTHING and cell(one(0), switches, 0.5, 1.0)[0] < 10
    # Over a kink the centre attains nothing for certain; beside it, it does.
    assert cell(one(0), "Abs(t) + 1", -1.0, 1.0)[1] == 0.0
    assert cell(one(0), "Abs(t) + 1", 0.5, 1.5)[1] == pytest.approx(2.0)


def test_both_ends_of_a_cell_are_covered_where_no_float_is_its_middle() -> None:
    first = math.nextafter(1.0, 2)
    for left, right, value in ((1.0, first, 1.0), (first, math.nextafter(first, 2), math.nextafter(first, 2))):
        assert cell(one(value), "t", left, right)[0] >= 2.0**-52


def test_a_second_thread_does_not_spoil_a_proof():
    """Arb's precision belongs to one thread at a time."""
    done = threading.Event()

    def meanwhile() -> None:
        while not done.is_set():
            require_smooth(parse("exp(t)*sin(9*t)"), -1.0, 1.0)
            Slopes(parse("tanh(3*t)")).between(-1.0, 1.0)
            parse("Abs(t - 1/3)").breaks(-1.0, 1.0)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        made = approximate("exp(-1e5*(t-0.11363)**2)", (-1, 1), points=1)
    finally:
        done.set()
        thread.join()
    assert made.certificate.bound >= abs(made(0.11363).item() - 1.0) > 0.5


def test_precision_and_order_are_what_they_were_and_a_proof_does_not_depend_on_them():
    before = ctx.prec, ctx.cap
    with ball_arithmetic(200, 9):
        with ball_arithmetic(300, 3):
            assert (ctx.prec, ctx.cap) == (300, 3)
        assert (ctx.prec, ctx.cap) == (200, 9)
    wanted = Slopes(parse("tanh(t)")).between(-1.0, 1.0)
    with pytest.raises(BadExpression):
        require_smooth(parse("1/t"), -1.0, 1.0)
    assert (ctx.prec, ctx.cap) == before
    try:
        ctx.prec = 10
        assert Slopes(parse("tanh(t)")).between(-1.0, 1.0) == wanted
    finally:
        ctx.prec = before[0]
