"""The checker by itself: what it imports, how it reads functions and rules, and that it proves only what is so.

That its rules as a whole derive what the library derives is tested in `tests/interpreter/test_certificate_oracle.py`.
"""

import ast
import math
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from flint import arb, arb_series

from emulon.certify import checker
from emulon.core.errors import EmulonError
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.certificate_file import _seen

Numbers = dict[str, Any]


@pytest.fixture(autouse=True)
def balls():
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        yield


def test_it_imports_flint_and_the_standard_library_alone():
    found = set()
    for node in ast.walk(ast.parse(Path(checker.__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0] if node.level == 0 else "emulon")
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    assert found - set(sys.stdlib_module_names) == {"flint"}


def series(text: str, at: Any) -> Any:
    return checker.evaluated(text, t=arb_series([at, 1]))


TEXTS = ["Max(-1.35, Min(1.35, t))", "sign(t)*Max(Abs(t) - 0.25, 0)", "-1/(1 + exp(t))", "2*Heaviside(t, 1/2) - 1"]
TEXTS += ["Piecewise((-1, t <= 0), (0, True))", "Piecewise((5, t < 2), (0, True))", "t**3 - t**(-2) + pi", "E*t"]
TEXTS += ["(1 + t**2)**(1/2)", "t**0.5 + t**(1/4) + t**(3/2)", "tanh(t) + sinh(t)/cosh(t)", "2**t", "(9 + t)**(t/2)"]
TEXTS += ["log(9 + t) + sin(t) - cos(t)*tan(t/9) + atan(t) + erf(t) + asin(t/9)*acos(t/9)", "4**(t + 1/2)"]


@pytest.mark.parametrize("text", TEXTS)
def test_functions_mean_what_they_mean_to_the_library(text):
    for t in (-5.0, -1.0, -0.5, 0.3, 1.0, 3.0, 7.5):
        wanted = parse(text)(torch.tensor(t, dtype=torch.float64)).item()
        found = series(text, arb(t))[0]
        assert math.isnan(wanted) or float(found) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("text", "at_zero"), [("2**t", 1.0), ("(2 + t)**(t/2)", 1.0), ("4**(t + 1/2)", 2.0)])
def test_an_exponent_that_varies_is_no_number_where_it_is_whole_or_a_half(text, at_zero):
    found = series(text, 0)
    assert float(found[0]) == pytest.approx(at_zero) and not found[1].contains(0)


@pytest.mark.parametrize(
    ("text", "value", "slope"),
    [
        ("Abs(t)", (-1, 1), (-1, 1)),
        ("sign(t)", (-1, 1), None),
        ("Max(t, 2*t)", (-2, 2), (1, 2)),
        ("Min(t, 2*t)", (-2, 2), (1, 2)),
        ("Heaviside(t)", (0, 1), None),
        ("Piecewise((3*t, t < 0), (t, True))", (-3, 3), None),
    ],
)
def test_on_a_ball_over_a_break_both_values_and_at_a_kink_both_slopes_are_enclosed_and_no_more(text, value, slope):
    found = series(text, arb(0, 1))
    for enclosed, ends in ((found[0], value), (found[1], slope)):
        known = ends is None or all(enclosed.contains(arb(end)) for end in ends)
        assert known and enclosed.is_finite() == (ends is not None)
    assert not any(found[k].is_finite() for k in range(2, checker.ORDER + 1))


NO_FUNCTIONS = ["__import__('os')", "t.real", "[t]", "lambda: t", "f(t)", "t if t else t", "'t'", "t + ½", "τ"]
NO_FUNCTIONS += ["t" + " + t" * 500, "Piecewise((1, t < 0), (0, t > 0))"]


@pytest.mark.parametrize("text", NO_FUNCTIONS)
def test_anything_else_is_no_function(text):
    with pytest.raises((KeyError, AttributeError, TypeError, ValueError)):
        checker.evaluated(text, t=arb_series([arb(1), 1]), τ=arb_series([arb(0), 1]))


def test_the_error_of_a_line_has_all_its_parts():
    u, largest, score, keys = 2.0**-20, 2.0, 9.0, 5

    def gamma(k: float) -> float:
        return k * u / (1 - k * u)

    proved = {"interpolation": 0.125, "deviation": 0.5, "size": 3.0, "to": 7.0}
    known = proved | {"u": u, "largest": largest, "score": score, "keys": keys, "unseen": 0.0625}
    delta = gamma(4) * score + (4 + 2 * score) * u
    moved = min(2 * largest * math.tanh(delta / 2), math.exp(delta) * (math.exp(delta) - 1) * 0.5)
    wanted = 0.125 + moved + 2 * gamma(keys + 2) * (3.0 + 0.5) + u * 7.0 + 0.0625
    assert float(checker.following(checker.RULES + checker.LINE, **known)["error"][0]) == pytest.approx(
        wanted, rel=1e-12
    )


def softmax(slopes: list[float], intercepts: list[float], values: list[float]) -> checker.Softmax:
    parts = {"slopes": slopes, "intercepts": intercepts, "values": values}
    return checker.Softmax({name: {"numbers": [float(x).hex() for x in part]} for name, part in parts.items()})


ANY = math.inf
TANH = ([-1 / 3, 1 / 3], [0.0, 0.0], [-3.0, 3.0])  # 3·tanh(t/3)
FALLING, HUGE = ([0.0, 4.0], [0.0, 0.0], [0.0, -1.0]), ([0.0, 3.0], [0.0, -40.0], [0.0, math.exp(40)])


def constant(value: float) -> tuple[list[float], ...]:
    return [0.0], [0.0], [value]


@pytest.mark.parametrize(
    ("keys", "f", "ends", "room"),
    [
        *((TANH, f, (0.25, 0.5), (0.12, 0.4, 0.35)) for f in ("t", "exp(2*t)", "0")),
        (TANH, "Abs(t - 3/8)", (0.25, 0.5), (0.3, 0.4, 0.35)),
        (TANH, "0", (-0.25, 0.25), (0.011, ANY, 0.011)),  # around its zero it is as large as its error says
        *((FALLING, f, (-1.0, 0.0), (ANY, ANY, 0.8)) for f in ("9", "-1/2")),  # it falls further than it rises
        (constant(-5.0), "-5", (-1.0, 1.0), (0.0, 0.0, 0.0)),
        *((constant(0.0), "1/(1.05 - t)", ends, (ANY, ANY, ANY)) for ends in ((-1.0, 1.0), (0.75, 1.0))),
        *((constant(0.0), f, (-1.0, 1.0), (0.2, ANY, ANY)) for f in ("exp(3*t)", "-exp(3*t)")),
        (HUGE, "-exp(3*t)", (-1.0, 1.0), (0.4, ANY, ANY)),  # what both leave out adds up
        # In the middle f is a constant, as far as all its derivatives go: what is behind the kink counts.
        *((constant(0.0), f, (0.0, 1.0), (1.1, ANY, ANY)) for f in ("Max(0, t - 0.8)", "t*Max(0, t - 0.8)")),
        (constant(0.0), "Max(0, 0.2 - t)", (0.0, 1.0), (1.1, ANY, ANY)),
        *((constant(value), "5 + Max(0, t - 0.8)", (0.0, 1.0), (1.1, ANY, ANY)) for value in (0.0, 5.0)),
        (constant(0.0), "-5 + Max(0, t - 0.8)", (0.0, 1.0), (1.1, ANY, ANY)),
    ],
)
def test_bounds_of_a_cell_are_above_what_is_so_and_not_by_much(keys, f, ends, room):
    """|F − f|, Σ w|v − F| and |F|, at a thousand points in float64."""
    slopes, intercepts, values = (torch.tensor(part, dtype=torch.float64) for part in keys)
    s = torch.linspace(*ends, 1001, dtype=torch.float64)
    weights = torch.softmax(s[:, None] * slopes + intercepts, dim=1)
    mean = weights @ values
    true = [(mean - parse(f)(s)).abs().max(), (weights * (values - mean[:, None]).abs()).sum(dim=1).max()]
    found, _ = softmax(*keys).cell(f, *ends)
    for bound, worst, more in zip(found, [*true, mean.abs().max()], room, strict=True):
        assert worst.item() * (1 - 1e-12) <= float(bound.upper()) <= worst.item() * (1 + 1e-12) + more
    # The last tenth below the worst is not proved.
    claim = {"interpolation": 0.9 * true[0].item(), "deviation": 1e9, "size": 1e9}
    if claim["interpolation"]:
        with pytest.raises(checker.Refused, match="claim/interpolation: not proved near t = "):
            checker.prove(softmax(*keys), f, [ends], claim, "claim")


def test_keys_left_out_count_by_their_number_and_the_largest_value() -> None:
    """Two of e⁻¹¹⁰ at most, and both values up to 1e44: the mean moves by 2·2e44·e⁻¹¹⁰, and the deviation twice so."""
    keys = softmax([0.0, 0.0, 0.0], [0.0, -130.0, -111.0], [1e44, -1e44, 1.0])
    (error, deviation, size), matter = keys.cell(str(int(1e44)), -1.0, 1.0)
    lost = 4e44 * math.exp(-110)
    assert float(error) == pytest.approx(lost, rel=1e-9) and float(deviation) == pytest.approx(2 * lost, rel=1e-9)
    assert float(size - arb(1e44)) == pytest.approx(lost, rel=1e-6) and matter == {0}


def test_keys_matter_where_they_come_near_and_are_kept_where_they_may() -> None:
    """In log weight below the first: −100 in the middle and −40 at an end matters, −60 does not, −109 is looked at."""
    slopes, intercepts = [-25.0, 5.0, -5.0, -25.0, -55.0], [-300.0, -400.0, -400.0, -409.0, -400.0]
    (error, _, _), matter = softmax(slopes, intercepts, [0.0, 0.0, 0.0, 1e47, 0.0]).cell("0", -2.0, 2.0)
    assert matter == {0, 1, 4} and 0.9 * 1e47 * math.exp(-109) < float(error) < 1.1e47 * math.exp(-109)


def test_an_advantage_is_that_of_the_highest_end_over_a_tangent():
    """log(1 + e^s) from −1 to 2 is lowest at −1; by a tangent at 0 it is no lower than log 2 − 1/2."""
    sigmoid, ends, top = softmax([0, 1], [0, 0], [0, 1]), (arb(-1), arb(2)), math.log(1 + math.e**2)
    assert float(sigmoid.advantage(*ends, arb(0))) == pytest.approx(top - math.log(2) + 0.5)
    assert float(sigmoid.advantage(*ends, arb(-1))) == pytest.approx(top - math.log(1 + math.exp(-1)))


def proved(keys, f, edges, claim, bands=()):
    checker.prove(softmax(*keys), f, checker.cells(edges, (edges[0], edges[-1]), bands, "proofs"), claim, "claim")


@pytest.mark.parametrize("bad", [[-3.9, 4.0], [-4.0, 3.9], [-4.0, 1.0, 0.0, 4.0], [-4.0, 0.0, 0.0, 4.0], [4.0, -4.0]])
def test_cells_that_leave_something_out_are_refused(bad):
    with pytest.raises(checker.Refused, match="claim: leaves something out"):
        checker.cells(bad, (-4.0, 4.0), (), "claim")


def test_cells_are_asked_for_unless_a_band_has_all_of_them():
    asked = checker.cells([-2.0, -1.0, 0.0, 1.0, 3.0], (-2.0, 2.0), [(-1.0, 0.5), (0.5, 3.0)], "claim")
    assert list(asked) == [(-2.0, -1.0), (0.0, 1.0)]


def test_a_jump_is_proved_outside_its_band_only():
    steep = ([0.0, 1e6], [0.0, 0.0], [-1.0, 1.0])
    claim, ends = {"interpolation": 1e-9, "deviation": 1.0, "size": 1.1}, (-1.0, 1.0)
    edges, matter = _seen(softmax(*steep), "sign(t)", ends, [(-3e-5, 3e-5)], claim)
    proved(steep, "sign(t)", edges, claim, [(-3e-5, 3e-5)])
    assert matter == {0, 1}
    with pytest.raises(ValueError, match="denominator"):  # the cell across the jump is too wide for a quotient
        proved(steep, "sign(t)", edges, claim, [(-1e-6, 1e-6)])
    with pytest.raises(EmulonError, match="does not see near t = "):
        _seen(softmax(*steep), "sign(t)", ends, [(-1e-6, 1e-6)], claim)


@pytest.mark.parametrize(
    ("f", "cell", "limit", "too_low"),
    [
        # A slope within 1e-8 of itself of what is allowed is let pass.
        ("t*1", (-1.0, 1.0), 1 - 0.9e-8, 1 - 1.1e-8),
        ("100*t", (-1.0, 1.0), 100 * (1 - 0.9e-8), 99.0),
        # f″·(t − c) beside f′(c): the slope of t² on [0, 1] is 1 ± 1.
        ("t**2", (0.0, 1.0), 2.0, 1.9),
        ("t**3", (1.0, 2.0), 13.0, 11.9),
        ("Max(t, 3*t)", (-1.0, 1.0), 3.0, 2.9),  # at a kink both slopes are asked
    ],
)
def test_curvature_is_granted_a_part_of_itself_and_no_more(f, cell, limit, too_low) -> None:
    assert checker.flat(f, *cell, 0.0, limit) and not checker.flat(f, *cell, 0.0, too_low)
    assert checker.flat(f"-({f})", *cell, limit, 0.0) and not checker.flat(f"-({f})", *cell, too_low, 0.0)


@pytest.mark.parametrize(
    ("derivative", "cell", "swing", "holds"),
    [
        ("t + sign(t - 1/2)/1000", (0.0, 1.0), 1e-13, False),
        ("t + sign(t - 1/2)/1000", (0.5 - 2.0**-50, 0.5 + 2.0**-50), 1e-13, False),
        ("t - Heaviside(t - 1/2)/1000", (0.5 - 2.0**-50, 0.5 + 2.0**-50), 1e-13, False),
        ("t*sign(t)", (-(2.0**-50), 2.0**-50), 1e-13, True),  # |t|: its slopes are −1 and 1, its chord is flat
        ("t*sign(t)", (-(2.0**-50), 2.0**-50), 0, False),
        ("t*sign(t)", (-(2.0**-40), 2.0**-40), 1e-13, False),
        ("Piecewise((-1, t <= 0), (0, True))", (-0.5, 0.0), 0, True),  # the jump belongs to this side
        ("Piecewise((-1, t <= 0), (0, True))", (0.0, 0.5), 1e-13, False),
    ],
)
def test_a_loss_jumps_inside_bands_only(derivative, cell, swing, holds):
    assert checker.flat(derivative, *cell, 1.0, math.inf, arb(swing)) == holds


def lines(text: str, *names: str) -> str:
    """Of rules those that define these names."""
    return "\n".join(line for line in text.splitlines() if re.split(r"\(| =", line)[0] in names)


@pytest.mark.parametrize(
    ("delta", "largest", "deviation", "size", "score"),
    [
        (0.5, 3.0, 0.4, 2.0, 0.1),
        (0.125, 3.0, 0.4, 0.5, 40.0),  # nothing is as large as its bound; 64 of a score count
        (0.5, 3.0, 40.0, 50.0, 0.1),  # what a softmax may move at most, and a sum of its values at most
        (0.5, 1e27, 0.4, 2.0, 0.1),  # weights of e⁻⁶⁴ are lost
    ],
)
def test_what_rounds_on_the_way_to_an_average(delta, largest, deviation, size, score) -> None:
    u, known = 1 / 64, {"largest": largest, "deviation": deviation, "size": size, "score": score}
    moved = min(math.tanh(delta / 2) * 2 * largest, (math.exp(2 * delta) - math.exp(delta)) * deviation)
    gamma = 7 * u / (1 - 7 * u)
    summed = (2 * gamma + u) * min((size + deviation) * math.exp(2 * delta), largest)
    lost = 5 * (2 * largest * math.exp(-64) + 4 / 128)
    rules = checker.RULES + lines(checker.PHASES, "lost", "summed", "rounded")
    found = checker.following(rules, u=u, keys=5, smallest=1 / 128, **known)
    assert float(found["rounded"](arb_series([delta]))[0]) == pytest.approx(moved + summed + lost, rel=1e-12)
    assert float(found["weights"][0]) == (4 + min(2 * score, 64)) * u


FACTS: Numbers = {
    **{"rate": 1, "x": 2.0, "y": 3.0, "w": 2.0, "features": 4, "step_size": 0.25, "l2": 0.5, "momentum": 0.25},
    **{"accelerated": 1, "longest": 5.0, "largest": 10.0, "unknown": 0, "slack": 0.125, "root": 0.5},
    **{"max_step_times_smoothness": 1.5, "strong_convexity": 4.0, "negative_curvature": 0.125},
}


@pytest.mark.parametrize(
    ("changed", "name", "wanted"),
    [
        ({"longest": 3.0}, "norm", 3.0),
        ({"largest": 0.0, "unknown": 1}, "eigenvalue", 16.0),  # (√4·2)²
        ({}, "strong", 2.46875),  # 4·7/8 − 1.5·(1 + 3/8)/8/0.25
        ({}, "flattest", 0.375),  # 0.5 + 2.46875 − 0.125·10·(1 + 2/8) − 1.03125
        ({}, "ratio", 1.15625),  # 1.25 − 0.25·0.375
        ({"max_step_times_smoothness": 3.0}, "ratio", 2.875),  # 4.125 − 1.25
        ({"root": 2.0}, "ratio", 4.0),
    ],
)
def test_facts_alone_give(changed: Numbers, name: str, wanted: float) -> None:
    (found,) = checker.following(checker.FACTS, **FACTS | changed)[name]
    assert float(found) == pytest.approx(wanted, rel=1e-12, abs=0.0)


def test_numbers_are_scaled_by_powers_of_two_to_about_one_size() -> None:
    for key, query, wanted in ((1, 16, 4.0), (16, 1, 0.25), (3, 3, 1.0), (0, 5, 1.0), (5, 0, 1.0)):
        assert float(checker.scale(arb_series([key]), arb_series([query]))[0]) == wanted
    for size, wanted in ((1.5, 8.0), (12.0, 1.0), (16.5, 0.5), (1e-300, 2.0**120), (0.0, 1.0)):
        assert float(checker.fit(arb_series([size]))[0]) == wanted


@pytest.mark.parametrize("name, dtype", [("F64", torch.float64), ("F32", torch.float32)])
def test_a_dtype_is_known_by_its_last_place_and_its_smallest_number(name: str, dtype: torch.dtype) -> None:
    roundoff, smallest, letter = checker.UNIT[name]
    known = torch.finfo(dtype)
    assert (2.0**-roundoff, 2.0**-smallest) == (known.eps / 2, known.tiny)
    assert struct.calcsize(letter) * 8 == known.bits


def test_numbers_are_rounded_up_to_25_digits_below_1e300() -> None:
    third = arb(1) / 3
    assert checker.above(third) == "0.3333333333333333333333334"
    assert checker.above(-third) == "-0.3333333333333333333333333"
    assert 0.75 <= float(checker.above(arb(0.5, 0.25))) < 0.75 + 1e-9 and checker.above(arb(3)) == "3"
    assert float(checker.above(arb(10) ** 299)) == 1e299
    with pytest.raises(checker.Refused, match="nothing is promised"):
        checker.above(arb(10) ** 300)
