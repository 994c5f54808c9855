"""The checker by itself: what it imports, how it reads functions, and that it proves only what is so."""

import ast
import math
import sys
from pathlib import Path

import pytest
from flint import arb, arb_series

from emulon.certify import checker


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
        ("tanh(t) + sinh(t)/cosh(t)", 0.3, 2 * math.tanh(0.3)),
    ],
)
def test_functions_are_read_as_they_are_written(text, t, wanted):
    with checker.arithmetic():
        values = [value[0] for _, value in checker.Expression(text).branches(arb_series([arb(t), 1]))]
    assert [float(value) for value in values] == pytest.approx([wanted])


def test_a_ball_over_a_kink_takes_both_ways_and_over_a_jump_the_tie_too():
    with checker.arithmetic():
        around = arb_series([arb(0, 1), 1])
        assert len(list(checker.Expression("Abs(t)").branches(around))) == 2
        assert sorted(float(v[0]) for _, v in checker.Expression("sign(t)").branches(around)) == [-1, 0, 1]


@pytest.mark.parametrize("text", ["__import__('os')", "t.real", "[t]", "lambda: t", "f(t)", "t if t else t", "'t'"])
def test_anything_else_is_no_function(text):
    with checker.arithmetic(), pytest.raises((KeyError, AttributeError, TypeError, ValueError)):
        checker.Expression(text).at(arb_series([arb(0), 1]), ())


def sigmoid() -> checker.Softmax:
    """Two keys: exactly 1/(1 + e^{−s})."""
    numbers = {"slopes": [0.0, 1.0], "intercepts": [0.0, 0.0], "values": [0.0, 1.0]}
    return checker.Softmax({name: {"numbers": [x.hex() for x in part]} for name, part in numbers.items()})


def test_a_claim_is_proved_where_it_holds_and_refused_where_it_does_not():
    claim = {"interpolation": "1e-30", "deviation": "0.54", "size": "1.02"}
    same, near = checker.Expression("1/(1 + exp(-t))"), checker.Expression("1/(1 + exp(-t)) + t**2/1000")
    with checker.arithmetic():
        checker.prove(sigmoid(), same, (-4.0, 4.0), (), claim, "claim")
        # sup |F − f| is 0.016, at both ends.
        checker.prove(sigmoid(), near, (-4.0, 4.0), (), claim | {"interpolation": "0.0161"}, "claim")
        with pytest.raises(checker.Refused, match="claim/interpolation: not proved near t = "):
            checker.prove(sigmoid(), near, (-4.0, 4.0), (), claim | {"interpolation": "0.01599"}, "claim")
        with pytest.raises(checker.Refused, match="claim/deviation"):
            checker.prove(sigmoid(), same, (-4.0, 4.0), (), claim | {"deviation": "0.49"}, "claim")
        with pytest.raises(checker.Refused, match="claim/size"):
            checker.prove(sigmoid(), same, (-4.0, 4.0), (), claim | {"size": "0.98"}, "claim")


def test_a_jump_is_proved_outside_its_band_only():
    steep = {"slopes": [0.0, 1e6], "intercepts": [0.0, 0.0], "values": [-1.0, 1.0]}
    softmax = checker.Softmax({name: {"numbers": [x.hex() for x in part]} for name, part in steep.items()})
    claim, sign = {"interpolation": "1e-9", "deviation": "1", "size": "1.1"}, checker.Expression("sign(t)")
    with checker.arithmetic():
        checker.prove(softmax, sign, (-1.0, 1.0), [(-3e-5, 3e-5)], claim, "claim")
        with pytest.raises(checker.Refused, match="interpolation"):
            checker.prove(softmax, sign, (-1.0, 1.0), [(-1e-6, 1e-6)], claim, "claim")


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
    with checker.arithmetic():
        if holds:
            checker.prove_curvature(checker.Expression(derivative), arb(6), arb(least), most)
        else:
            with pytest.raises(checker.Refused, match="program/facts/loss/curvature"):
                checker.prove_curvature(checker.Expression(derivative), arb(6), arb(least), most)
