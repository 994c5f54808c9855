"""What is written is what is proved: parts that do not exist somewhere, and texts that nobody could compute."""

import time
from functools import reduce

import pytest
import torch

from emulon.algorithms import Loss
from emulon.certify.interpolation import Interpolation, holds, prove, require_smooth
from emulon.core.errors import BadExpression
from emulon.expressions import parse
from emulon.softmax import approximate

# On (−1, 1) each has a part that does not exist somewhere; sympy simplifies it away in all but the last few.
UNDEFINED = [
    "exp(log(t))",
    "exp(2*log(t))",
    "sqrt(t)**2",
    "(t**0.5)**4",
    "Abs(sqrt(t))",
    "sqrt(t)*sqrt(t)",
    "t/t",
    "t**2/t",
    "t**-1*t",
    "(4*t**2 - 1)/(2*t - 1)",
    "0*log(t)",
    "log(t) - log(t)",
    "0/t",
    "tan(2*t)*0",
    "sin(asin(3*t))",
    "cos(acos(t - 1/2))",
    "t**t/t**t",
    "2**log(t)",
    "Max(t, sqrt(t)**2)",
    "Piecewise((exp(log(t)), t > -0.5), (0, True))",
    "Piecewise((0, log(t) > 0), (1, True))",
    "1/t",
    "log(t)",
]
DEFINED = [
    ("sqrt(t)**2", 0.0, 1.0),
    ("exp(log(t))", 1e-9, 1.0),
    ("t/t", 0.5, 1.0),
    ("log(exp(t))", -1.0, 1.0),
    ("sqrt(t**2)", -1.0, 1.0),
    ("sqrt(Abs(t - 0.3))**4", -1.0, 1.0),
    ("1/(1 + t**2)", -1.0, 1.0),
    ("sin(asin(t))", -1.0, 1.0),
    ("Piecewise((exp(log(t)), t > 0.5), (t, True))", -1.0, 1.0),
    ("Piecewise((t, t < 0.5), (exp(log(t)), True))", -1.0, 1.0),
]


@pytest.mark.parametrize("text", UNDEFINED)
def test_nothing_is_proved_where_a_part_of_what_is_written_does_not_exist(text: str) -> None:
    with pytest.raises(BadExpression, match=r"not finite and smooth at t = .*choose an interval") as refusal:
        require_smooth(parse(text), -1.0, 1.0)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text, lo, hi", DEFINED)
def test_it_is_read_as_before_where_all_of_it_exists(text: str, lo: float, hi: float) -> None:
    require_smooth(parse(text), lo, hi)


def test_neither_a_proof_nor_a_claim_passes_where_the_function_does_not_exist() -> None:
    keys = approximate("t", (-1, 1), tolerance=1e-3).grid.numbers
    with pytest.raises(BadExpression, match=r"where log\(t\) does not exist"):
        prove(keys, parse("exp(log(t))"), -1.0, 1.0)
    generous = Interpolation(1.0, 0.0, 99.0, 9.0)
    assert holds(keys, parse("t"), -1.0, 1.0, generous)
    assert not holds(keys, parse("exp(log(t))"), -1.0, 1.0, generous)


def test_it_is_not_a_number_where_it_does_not_exist() -> None:
    s = torch.tensor([-1.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    for text, missing in (("exp(log(t))", 2), ("sqrt(t)**2", 1), ("Piecewise((t/t, t < 2), (t, True))", 0)):
        value = parse(text)(s)
        assert value.isnan()[:2].sum() == missing or (missing == 0 and value.isnan().tolist() == [0, 1, 0, 0])


@pytest.mark.parametrize(
    "text", ["exp(log(t))", "sqrt(t)**2", "t**3/t", "Piecewise((exp(log(t)), t > -0.5), (-1/2, True))"]
)
def test_a_losss_derivative_exists_only_where_the_loss_does(text: str) -> None:
    """The derivative is kept as text, and read again by programs and their files."""
    with pytest.raises(BadExpression, match="not finite and smooth"):
        require_smooth(parse(Loss.of(text).derivative), -1.0, 1.0)


NINE = " + ".join(f"Abs(t - {k}/20)" for k in range(-4, 5))


def tangents(count: int) -> list[str]:
    """Of t²/2, a tenth apart."""
    slopes = [(2 * k + 1 - count) / 20 for k in range(count)]
    return [f"({slope})*t - {slope**2 / 2!r}" for slope in slopes]


def within_a_second(text: str) -> BadExpression:
    parse("Abs(t)")  # sympy is imported once
    start = time.process_time()
    with pytest.raises(BadExpression) as refusal:
        parse(text)
    assert time.process_time() - start < 1
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400
    return refusal.value


@pytest.mark.parametrize(
    "text, limit",
    [
        ("9**9**9*t", "a power of 9 has more than 1000 digits"),
        ("2**-99999999*t", "more than 1000 digits"),
        ("9**(9**9/2)*t", "more than 1000 digits"),
        ("t**1000000", "exponent is above 1000"),
        ("t**-1000000", "exponent is above 1000"),
        ("(t**1000)**1000", "exponent comes to 1000000; at most 1000"),
        ("t**900*t**900", "exponent comes to 1800; at most 1000"),
        ("exp(1e9*log(2*t))", "exponent is above 1000"),
        ("exp(1e9*log(2))*t", "exponent is above 1000"),
        ("1e999999999*t", "exponent of 1e999999999 is above 1000"),
        ("1e-999999999*t", "exponent of 1e-999999999 is above 1000"),
        ("1e309*t", "above 1.8e308"),
        ("(1e200*t)**2", "above 1.8e308"),
        ("Abs(cos(exp(exp(20))))*t", "above 1.8e308"),
        ("7" * 200_000 + "*t", "200002 characters; at most 10000"),
        ("7" * 5_000 + "*t", "5000 digits; at most 1000"),
        ("+".join(["t"] * 4_000), "more than 5000 parts"),
        ("exp(" * 70 + "t" + ")" * 70, "nested more than 60 deep"),
        ("-" * 5_000 + "t", "nested too deep"),
        (" + ".join(f"Abs(t - {k})" for k in range(65)), "more than 64 places to switch at"),
        (f"Max({', '.join(tangents(60))})", "its Max and Min have more than 8000 parts"),
        (
            reduce(lambda inner, k: f"{('Min', 'Max')[k % 2]}(2*{inner}, {k} - t)", range(25), "t"),
            "more than 8000 parts",
        ),
    ],
)
def test_what_nobody_could_compute_is_refused_at_once_with_the_limit(text: str, limit: str) -> None:
    assert limit in str(within_a_second(text))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("t^2", "t**2, not t^2"),
        ("gamma(t)", "unknown name 'gamma'"),
        ("besselj(0, t)", "unknown name 'besselj'"),
        ("floor(t)", "unknown name 'floor'"),
        ("log(-1)*t", "log(-1) does not exist"),
        ("(-1)**t", "(-1)**t does not exist"),
        ("t/(t - t)", "a division by t - t does not exist"),
        ("Piecewise((t, t < 0))", "end it with (value, True)"),
        ("Piecewise((t, t < 0), (1, t >= 0))", "end it with (value, True)"),
        ("Piecewise((t, 0 < t < 1), (0, True))", "single comparisons"),
        ("Piecewise(t, (0, True))", "pairs (value, condition)"),
        ("Heaviside(t, t)", "second argument of Heaviside"),
        ("t // 2", "t // 2 is none of ours"),
    ],
)
def test_what_is_none_of_ours_is_refused_by_name(text: str, reason: str) -> None:
    assert reason in str(within_a_second(text))


@pytest.mark.parametrize("nested", [False, True])
def test_a_maximum_of_many_lines_takes_seconds(nested: bool) -> None:
    """One comparison after the other, what is written out doubled with every line: minutes for 16 of them."""
    lines = tangents(24)
    f = reduce(lambda inner, line: f"Max({inner}, {line})", lines) if nested else f"Max({', '.join(lines)})"
    start = time.process_time()
    assert len(parse(f).breaks(-1.4, 1.4)) == 23 and time.process_time() - start < 20
    s = torch.linspace(-1.15, 1.15, 24, dtype=torch.float64)
    assert torch.allclose(parse(f)(s), s.square() / 2, rtol=0.0, atol=1e-15)


def test_many_kinks_are_looked_at_between_their_breaks() -> None:
    """Every assignment of nine switches would be 3⁹ branches."""
    f = parse(NINE)
    start = time.process_time()
    require_smooth(f, -1.0, 1.0)
    assert len(f.breaks(-1.0, 1.0)) == 9 and time.process_time() - start < 2
