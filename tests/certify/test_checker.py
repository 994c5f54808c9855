"""The checker by itself: what it imports, how it reads functions, and that it proves only what is so."""

import ast
import math
import sys
from pathlib import Path

import pytest
from flint import arb, arb_series

from emulon.certify import checker
from emulon.core.errors import EmulonError
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.certificate_file import _seen, divided


def balls():
    return ball_arithmetic(checker.PRECISION, checker.ORDER + 1)


def test_it_imports_flint_and_the_standard_library_alone():
    found = set()
    for node in ast.walk(ast.parse(Path(checker.__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0] if node.level == 0 else "emulon")
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    assert found - set(sys.stdlib_module_names) == {"flint"}


@pytest.mark.parametrize(
    ("text", "t", "wanted"),
    [
        ("Max(-1.35, Min(1.35, t))", 2.0, 1.35),
        ("Max(-1.35, Min(1.35, t))", -0.5, -0.5),
        ("sign(t)*Max(Abs(t) - 0.25, 0)", -1.0, -0.75),
        ("-1/(1 + exp(t))", 0.0, -0.5),
        ("Piecewise((-1, t <= 0), (0, True))", 1.0, 0.0),
        ("Piecewise((-1, t <= 0), (0, True))", -1.0, -1.0),
        ("2*Heaviside(t, 1/2) - 1", 3.0, 1.0),
        ("t**3 - t**(-2) + pi", 2.0, 7.75 + math.pi),
        ("(1 + t**2)**(1/2)", 1.0, math.sqrt(2)),
        ("t**0.5 + t**(1/4) + t**(3/2)", 16.0, 4.0 + 2.0 + 64.0),
        ("E*t", 2.0, 2 * math.e),
        ("Piecewise((5, t < 2), (0, True))", 1.0, 5.0),
        ("tanh(t) + sinh(t)/cosh(t)", 0.3, 2 * math.tanh(0.3)),
    ],
)
def test_functions_are_read_as_they_are_written(text, t, wanted):
    with balls():
        value = checker.evaluated(text, t=arb_series([arb(t), 1]))[0]
    assert float(value) == pytest.approx(wanted)


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
    with balls():
        found = checker.evaluated(text, t=arb_series([arb(0, 1), 1]))
        for enclosed, ends in ((found[0], value), (found[1], slope)):
            known = ends is None or all(enclosed.contains(arb(end)) for end in ends)
            assert known and enclosed.is_finite() == (ends is not None)
        assert not any(found[k].is_finite() for k in range(2, checker.ORDER + 1))


@pytest.mark.parametrize(
    ("condition", "below", "above"),
    [("t <= 0", True, False), ("t < 0", False, True), ("t >= 0", False, True), ("t > 0", True, False)],
)
def test_a_ball_that_ends_at_a_jump_is_decided_by_whom_the_jump_belongs_to(condition, below, above):
    """On [−1, 0] and on [0, 1]: `t <= 0` holds on the whole of the first, and is open on the second."""
    with balls():
        f = f"Piecewise((1, {condition}), (0, True))"
        for end, decided in ((-1, below), (1, above)):
            around = arb(0, 0.5)
            assert checker.evaluated(f, t=arb_series([end * around.rad() + around, 1]))[0].is_exact() == decided


def test_a_function_without_a_last_piece_is_none():
    with balls(), pytest.raises(checker.Refused, match="not defined everywhere"):
        checker.evaluated("Piecewise((1, t < 0), (0, t > 0))", t=arb_series([arb(1), 1]))


@pytest.mark.parametrize("text", ["__import__('os')", "t.real", "[t]", "lambda: t", "f(t)", "t if t else t", "'t'"])
def test_anything_else_is_no_function(text):
    with balls(), pytest.raises((KeyError, AttributeError, TypeError, ValueError)):
        checker.evaluated(text, t=arb_series([arb(0), 1]))


def sigmoid() -> checker.Softmax:
    """Two keys: exactly 1/(1 + e^{−s})."""
    numbers = {"slopes": [0.0, 1.0], "intercepts": [0.0, 0.0], "values": [0.0, 1.0]}
    return checker.Softmax({name: {"numbers": [x.hex() for x in part]} for name, part in numbers.items()})


def proved(softmax, f, edges, claim, bands=()):
    checker.prove(softmax, f, checker.cells(edges, (edges[0], edges[-1]), bands, "proofs"), claim, "claim")


def test_a_claim_is_proved_where_it_holds_and_refused_where_it_does_not():
    claim = {"interpolation": 1e-30, "deviation": 0.54, "size": 1.02}
    # sup |F − f| is 0.016, at both ends.
    same, near, loose = "1/(1 + exp(-t))", "1/(1 + exp(-t)) + t**2/1000", claim | {"interpolation": 0.0161}
    with balls():
        cells = {f: _seen(sigmoid(), f, (-4.0, 4.0), (), one)[0] for f, one in ((same, claim), (near, loose))}
        proved(sigmoid(), same, cells[same], claim)
        proved(sigmoid(), near, cells[near], loose)
        for f, field, value in ((near, "interpolation", 0.01599), (same, "deviation", 0.49), (same, "size", 0.98)):
            with pytest.raises(checker.Refused, match=f"claim/{field}: not proved near t = "):
                proved(sigmoid(), f, cells[f], loose | {field: value})
        proved(sigmoid(), same, cells[same], claim | {"matter": [0, 1]})
        with pytest.raises(checker.Refused, match="claim/matter: leaves out a key"):
            proved(sigmoid(), same, cells[same], claim | {"matter": [1]})


@pytest.mark.parametrize("bad", [[-3.9, 4.0], [-4.0, 3.9], [-4.0, 1.0, 0.0, 4.0], [-4.0, 0.0, 0.0, 4.0], [4.0, -4.0]])
def test_cells_that_leave_something_out_are_refused(bad):
    with balls(), pytest.raises(checker.Refused, match="claim: leaves something out"):
        checker.cells(bad, (-4.0, 4.0), (), "claim")


def test_cells_are_asked_for_unless_a_band_has_all_of_them():
    with balls():
        asked = checker.cells([-2.0, -1.0, 0.0, 1.0, 3.0], (-2.0, 2.0), [(-1.0, 0.5), (0.5, 3.0)], "claim")
        assert list(asked) == [(-2.0, -1.0), (0.0, 1.0)]


def test_a_jump_is_proved_outside_its_band_only():
    steep = {"slopes": [0.0, 1e6], "intercepts": [0.0, 0.0], "values": [-1.0, 1.0]}
    softmax = checker.Softmax({name: {"numbers": [x.hex() for x in part]} for name, part in steep.items()})
    claim, ends = {"interpolation": 1e-9, "deviation": 1.0, "size": 1.1}, (-1.0, 1.0)
    with balls():
        edges, matter = _seen(softmax, "sign(t)", ends, [(-3e-5, 3e-5)], claim)
        proved(softmax, "sign(t)", edges, claim, [(-3e-5, 3e-5)])
        assert matter == {0, 1}
        with pytest.raises(ValueError, match="denominator"):  # the cell across the jump is too wide for a quotient
            proved(softmax, "sign(t)", edges, claim, [(-1e-6, 1e-6)])
        with pytest.raises(EmulonError, match="does not see near t = "):
            _seen(softmax, "sign(t)", ends, [(-1e-6, 1e-6)], claim)


@pytest.mark.parametrize(
    ("f", "value", "wanted"),
    [
        ("Max(0, t - 0.8)", 0.0, 0.2),
        ("t*Max(0, t - 0.8)", 0.0, 0.2),
        ("Max(0, 0.2 - t)", 0.0, 0.2),
        ("5 + Max(0, t - 0.8)", 5.0, 0.2),
        ("5 + Max(0, t - 0.8)", 0.0, 5.2),
        ("-5 + Max(0, t - 0.8)", 0.0, 5.0),
    ],
)
def test_a_cell_across_a_kink_is_judged_by_all_of_its_values(f, value, wanted):
    """In its middle f is a constant, as far as all its derivatives go: what is behind the kink counts."""
    keys = {"slopes": 0.0, "intercepts": 0.0, "values": value}
    constant = checker.Softmax({name: {"numbers": [x.hex()]} for name, x in keys.items()})
    with balls():
        assert wanted <= float(constant.cell(f, 0.0, 1.0)[0][0].upper()) < wanted + 1.1
        with pytest.raises(checker.Refused, match="claim/interpolation: not proved near t = 0"):
            proved(constant, f, [0.0, 1.0], {"interpolation": 0.9 * wanted, "deviation": 99.0, "size": 99.0})


@pytest.mark.parametrize("text", ["t" + " + t" * 500, "t + ½", "τ"])
def test_long_functions_and_letters_of_others_are_refused(text):
    with balls(), pytest.raises(checker.Refused, match="cannot be read"):
        checker.evaluated(text, t=arb_series([arb(0), 1]), τ=arb_series([arb(0), 1]))


def test_an_advantage_is_that_of_the_highest_end_over_a_tangent():
    """log(1 + e^s) from −1 to 2 is lowest at −1; by a tangent at 0 it is no lower than log 2 − 1/2."""
    with balls():
        ends = arb(-1), arb(2)
        assert float(sigmoid().advantage(*ends, arb(0))) == pytest.approx(math.log(1 + math.e**2) - math.log(2) + 0.5)
        lowest = math.log(1 + math.e**2) - math.log(1 + math.exp(-1))
        assert float(sigmoid().advantage(*ends, arb(-1))) == pytest.approx(lowest)


@pytest.mark.parametrize(
    ("derivative", "least", "most", "holds"),
    [
        ("tanh(t)", 0.0, 1.0, True),
        ("tanh(t)", 0.0, 0.99, False),
        ("-1/(1 + exp(t))", 0.0, 0.25, True),
        ("t/sqrt(t**2 + 1)", 0.0, 1.0, True),
        ("t*Max(0, 1 - (t/4)**2)**2", 0.81, 1.0, True),
        ("t*Max(0, 1 - (t/4)**2)**2", 0.79, 1.0, False),
        ("exp(t)", 0.0, math.inf, True),
    ],
)
def test_the_curvature_of_a_loss_is_proved(derivative, least, most, holds):
    def flat(left, right):
        return checker.flat(derivative, left, right, least, most)

    with balls():
        if holds:
            assert len(divided((-6.0, 6.0), (), flat)) > 1
        else:
            with pytest.raises(EmulonError, match="does not see near t = "):
                divided((-6.0, 6.0), (), flat)


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
    with balls():
        assert checker.flat(derivative, *cell, 1.0, math.inf, arb(swing)) == holds


@pytest.mark.parametrize(("text", "at_zero"), [("2**t", 1.0), ("(2 + t)**(t/2)", 1.0), ("4**(t + 1/2)", 2.0)])
def test_an_exponent_that_varies_is_no_number_where_it_is_whole_or_a_half(text, at_zero):
    with balls():
        found = checker.evaluated(text, t=arb_series([0, 1]))
        assert float(found[0]) == pytest.approx(at_zero) and not found[1].contains(0)


def test_what_is_above_1e300_is_no_promise():
    with balls():
        assert float(checker.above(arb(10) ** 299)) == 1e299
        with pytest.raises(checker.Refused, match="nothing is promised"):
            checker.above(arb(10) ** 300)
