"""Functions of t: what is read, what is refused, where they break, and that balls enclose them."""

import math

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulon.core.errors import BadExpression
from emulon.expressions.evaluation import SMOOTH
from emulon.expressions.expression import NAMED, parse

T = sympy.Symbol("t", real=True)
KINKED = [
    "Abs(t)",
    "Max(t, 0)",
    "Min(t, 1/2)",
    "Max(t, -t, t**2)",
    "Min(1, Max(-1, t))",
    "sign(t)",
    "sign(t - 1)*t",
    "Heaviside(t)",
    "Heaviside(t - 1, 1)",
    "Heaviside(-t, 0)",
    "sign(t)*Max(Abs(t) - 0.25, 0)",
    "Piecewise((t, t < 0), (t**2, t <= 1), (1, True))",
    "Piecewise((0, t <= 0), (1, t > 1), (Abs(t - 0.5), True))",
    "Max(Abs(t) - 1, sin(t))",
    "Abs(Abs(t) - 1)",
]


PARSED = {text: parse(text) for text in KINKED if "sin" not in text}


def at(f, *s: float) -> list[float]:
    return parse(f)(torch.tensor(s, dtype=torch.float64)).tolist()


@pytest.mark.parametrize("text", KINKED)
def test_switches_are_the_kinked_functions_they_stand_for(text: str) -> None:
    ties = [-1.0, -0.25, 0.0, 0.25, 0.5, 1.0]
    s = [*np.random.default_rng(0).uniform(-3, 3, 12).tolist(), *ties]
    expression = sympy.sympify(text, {"t": T})
    want = [float(expression.subs(T, sympy.Rational(point))) for point in s]
    assert at(text, *s) == pytest.approx(want, rel=1e-13, abs=1e-13)


def test_relu_and_clipping_are_exact() -> None:
    """A branch is the very expression written, not (a + b + |a − b|)/2 with its roundings."""
    s = torch.randn(1000, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(parse("relu")(s), s.relu())
    assert torch.equal(parse("Min(1, Max(-1, t))")(s), s.clamp(-1, 1))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_is_its_torch_namesake(name: str) -> None:
    torch_name = {"identity": lambda s: s}.get(name) or getattr(torch.nn.functional, name, None) or getattr(torch, name)
    s = torch.linspace(-4, 4, 101, dtype=torch.float64)
    torch.testing.assert_close(parse(name)(s), torch_name(s), rtol=1e-13, atol=1e-13)


def test_strings_and_expressions_mean_the_same() -> None:
    x = sympy.Symbol("x")
    for f in ("3*t**2 + 0.5", "3*x**2 + 0.5", 3 * x**2 + sympy.Rational(1, 2)):
        assert at(f, -1.0, 0.0, 2.0) == [3.5, 0.5, 12.5]
    assert parse(parse("tanh(t)")) is not None
    with pytest.raises(BadExpression, match="a name or an expression"):
        parse(torch.tanh)


@pytest.mark.parametrize("text", ["1.e-3*t", "1e5*t", "2.5E-1*t", "E*t", "pi*t", "2**t", "t**0.5", "t**-2", "5"])
def test_numbers_are_read_in_every_spelling(text: str) -> None:
    written = text.replace("E*t", "e*t") if text == "E*t" else text
    want = eval(written, {"t": 1.7, "pi": math.pi, "e": math.e})
    assert at(text, 1.7)[0] == pytest.approx(want, rel=1e-14)


def test_what_another_branch_would_divide_by_does_not_spoil_this_one() -> None:
    text = "Piecewise((log(t), t > 1), (t - 1, True))"
    assert at(text, -2.0, 0.0, 1.0, math.e) == pytest.approx([-3.0, -1.0, 0.0, 1.0])


def test_not_a_number_stays_not_a_number() -> None:
    assert math.isnan(at("Max(t, 0)", math.nan)[0]) and math.isnan(at("sin(t)", math.nan)[0])


@pytest.mark.parametrize(
    "text, where, jumps",
    [
        ("Max(t, 0)", [0.0], [False]),
        ("sign(t)*Max(Abs(t)-0.3,0)", [-0.3, 0.3], [False, False]),
        ("sign(t)", [0.0], [True]),
        ("Heaviside(t - 0.7)", [0.7], [True]),
        ("Piecewise((t, t < 1/3), (1, True))", [1 / 3], [True]),
        ("Max(t**2 - 2, 0)", [-math.sqrt(2), math.sqrt(2)], [False, False]),
        ("Min(1, Max(-1, 3*t))", [-1 / 3, 1 / 3], [False, False]),
        ("1e6*Max(t, 0)", [0.0], [False]),
        ("sign(t)**2", [0.0], [True]),
        ("Max(t**2, 0)", [], []),
        ("tanh(t)", [], []),
    ],
)
def test_breaks_are_found_to_the_last_bit(text: str, where: list[float], jumps: list[bool]) -> None:
    found = parse(text).breaks(-2.0, 2.0)
    assert [b.jump for b in found] == jumps
    assert np.allclose([b.at for b in found], where, rtol=0, atol=5e-16)


def test_a_break_knows_its_limits_its_value_and_its_change_of_slope() -> None:
    (jump,) = parse("Piecewise((t, t < 0.5), (3 - 2*t, True))").breaks(0.0, 1.0)
    assert (jump.left, jump.right, jump.value, jump.slope_change, jump.exact) == (0.5, 2.0, 2.0, 3.0, True)
    (inexact,) = parse("Heaviside(t - 0.3)").breaks(0.0, 1.0)
    assert inexact.at == 0.3 and not inexact.exact


@pytest.mark.parametrize("text", ["tanh(3*t)", "t**3 - t", "exp(-t**2)", "gelu", "sign(t)*Max(Abs(t)-0.3,0)", "abs"])
def test_the_derivative_is_the_limit_of_differences(text: str) -> None:
    f = parse(text)
    s = torch.linspace(-1.93, 1.91, 77, dtype=torch.float64)
    slope = (f(s + 1e-6) - f(s - 1e-6)) / 2e-6
    torch.testing.assert_close(f.derivative()(s), slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", SMOOTH)
def test_balls_enclose_every_function_and_its_slope(name: str) -> None:
    from flint import arb, arb_series, ctx

    f = parse(f"{name}(0.3 + t/4)")
    with ctx.workprec(160):
        for s in np.linspace(-0.9, 0.9, 7).tolist():
            series = f.arb_series(arb_series([arb(s), 1], prec=2), ())
            point = torch.tensor(s, dtype=torch.float64)
            assert abs(float(series[0]) - f(point).item()) < 1e-15 and float(series[0].rad()) < 1e-40
            assert abs(float(series[1]) - f.derivative()(point).item()) < 1e-14
            wide = f.arb_series(arb(s, 0.05), ())
            assert all(wide.contains(f.arb_series(arb(s + step), ())) for step in (-0.049, 0.0, 0.049))


def test_constants_are_as_sharp_as_the_precision_they_meet() -> None:
    """The first evaluation, at low precision, must not decide how sharp 1/3 and π are ever after."""
    from flint import arb, ctx

    f = parse("t/3 + pi + E")
    f.arb_series(arb(1), ())
    with ctx.workprec(300):
        assert float(f.arb_series(arb(1), ()).rad()) < 1e-80


def test_constants_that_balls_do_not_know_are_refused_not_mistaken() -> None:
    from flint import arb

    with pytest.raises(BadExpression, match="GoldenRatio"):
        parse(sympy.GoldenRatio * T).arb_series(arb(1), ())


@given(left=st.floats(-2, 2), width=st.floats(0, 0.5), part=st.floats(0, 1), text=st.sampled_from(sorted(PARSED)))
def test_every_branch_that_is_taken_in_an_interval_is_among_those_named(
    left: float, width: float, part: float, text: str
) -> None:
    f = PARSED[text]
    s = min(left + part * width, left + width)
    taken = f._groups(torch.tensor([s], dtype=torch.float64))[0][0]
    assert taken in f.arb_branches(left, left + width)


def test_an_end_at_the_very_break_leaves_one_branch() -> None:
    f = parse("Piecewise((t, t < 0.5), (1, True))")
    assert f.arb_branches(0.5, 0.6) == [(1.0,)]
    assert f.arb_branches(0.4, math.nextafter(0.5, 0)) == [(-1.0,)]
    assert len(f.arb_branches(0.4, 0.5)) == 2


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "not an expression"),
        ("tanh(t", "check brackets"),
        ("2 t", "check brackets"),
        ("foo(t)", "unknown name 'foo'"),
        ("t + u", "unknown name 'u'"),
        ("t < 1", "not one number"),
        ("t == 1", "not one number"),
        ("(t, t)", "not one number"),
        ("exp", "not one number"),
        ("t = 3", "check brackets"),
        ("exp(t, t)", "check brackets"),
        ("1/0", "a division by 0 does not exist"),
        ("Piecewise((1, (t > 0) & (t < 1)), (0, True))", "single comparisons"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_that_says_why(text: str, reason: str) -> None:
    with pytest.raises(BadExpression, match=reason) as refusal:
        parse(text)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {mark}')",
        "t.__class__",
        "t. __class__",
        "(t).__class__",
        "1e5.__class__",
        "exp.__init__.__globals__",
        "t.subs(t, 1)",
        "[c for c in ().__class__.__bases__]",
        "lambda: t",
        "getattr(t, 'name')",
        "eval('t')",
        "t if t else t",
        "ｅval(t)",
    ],
)
def test_strings_are_never_run_as_python(text: str, tmp_path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(BadExpression):
        parse(text.replace("{mark}", str(mark)))
    assert not mark.exists()


def test_several_variables_and_other_objects_are_refused() -> None:
    with pytest.raises(BadExpression, match="several variables"):
        parse(sympy.Symbol("a") * sympy.Symbol("b"))
    with pytest.raises(BadExpression, match="cannot read a function from int"):
        parse(3)
