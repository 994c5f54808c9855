"""What the checker computes from facts and claims, by numbers in which no term is lost beside another."""

import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flint import arb, arb_series

from emulon.certify import checker
from emulon.expressions.evaluation import ball_arithmetic

Numbers = dict[str, Any]


def found(rules: str, **known: Any) -> Numbers:
    """Numbers as floats, functions as functions of floats."""
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        names = checker.following(rules, **known)
        return {name: float(x[0]) if isinstance(x, arb_series) else x for name, x in names.items()}


FACTS: Numbers = {
    **{"rate": 1, "x": 2.0, "y": 3.0, "w": 2.0, "features": 4, "step_size": 0.25, "l2": 0.5, "momentum": 0.25},
    **{"accelerated": 1, "longest": 5.0, "largest": 10.0, "unknown": 0, "slack": 0.125},
    **{"max_step_times_smoothness": 1.5},
    **{"strong_convexity": 4.0, "negative_curvature": 0.125, "root": 0.5},
}


@pytest.mark.parametrize(
    ("changed", "name", "wanted"),
    [
        ({}, "fixed", 6.0),
        ({}, "carried", 1.75),  # |1 − 0.25·0.5|·2
        ({"step_size": 8.0}, "carried", 6.0),
        ({}, "state", 2.75),  # and 2·0.25·2
        ({}, "ahead", 6.0),
        ({"accelerated": 0}, "ahead", 0.0),
        ({}, "norm", 4.0),  # √4·2
        ({"longest": 3.0}, "norm", 3.0),
        ({}, "eigenvalue", 10.0),
        ({"largest": 20.0}, "eigenvalue", 20.0),
        ({"largest": 0.0, "unknown": 1}, "eigenvalue", 16.0),
        ({}, "top", 2.0625),  # 1.5·(1 + 3/8)
        ({}, "strong", 2.46875),  # 4·7/8 − 2.0625/8/0.25
        ({"strong_convexity": 0.0}, "strong", 0.0),
        ({}, "flattest", 0.375),  # 0.5 + 2.46875 − 0.125·10·(1 + 2/8) − 1.03125
        ({}, "ratio", 1.15625),  # 1.25 − 0.25·0.375
        ({"max_step_times_smoothness": 3.0}, "ratio", 2.875),  # 4.125 − 1.25
        ({"root": 2.0}, "ratio", 4.0),
    ],
)
def test_facts_alone_give(changed: Numbers, name: str, wanted: float) -> None:
    assert found(checker.FACTS, **FACTS | changed)[name] == pytest.approx(wanted, rel=1e-12, abs=0.0)


def line(slope: float, least: float) -> Callable[[Any], Any]:
    """An error that grows with the number, and need not be nothing at zero."""

    def off(size: Any) -> Any:
        value = size[0] if isinstance(size, arb_series) else size
        return arb_series([value * slope + least]) if isinstance(size, arb_series) else value * slope + least

    return off


def by(number: float) -> Callable[..., Any]:
    return lambda *_: arb_series([number])


PHASE: Numbers = {
    **{"u": 1 / 64, "smallest": 1 / 128, "slope": 0.3, "bias": 0.2, "largest": 3.0, "score": 0.1, "keys": 5},
    **{"interpolation": 0.7, "deviation": 0.4, "size": 2.0, "to": 4.0, "unseen": 0.01, "off": line(0.1, 0.01)},
    **{"scale": by(2), "fit": by(2), "features": 3, "labels": 2, "x": 0.25, "y": 0.5, "w": 0.75, "absolute": 1.5},
    **{"width": 4, "strength": 0.35, "leak": 0.125, "code": 0.6, "step": 0.4, "copies": 2, "fixed": 0.1},
    **{"carries": 3, "raised": 4, "state": 1.25, "samples": 6, "ahead": 0.9, "broken": 0.05},
}


def again(n: SimpleNamespace) -> Numbers:
    """Theorem by theorem: roundings by Higham's γ, moved scores by `perturbation`, products of two that are off."""
    gamma = {k: k * n.u / (1 - k * n.u) for k in range(20)}

    def moved(delta: float) -> float:
        return min(math.tanh(delta / 2) * 2 * n.largest, (math.exp(2 * delta) - math.exp(delta)) * n.deviation)

    def times(key: float, query: float) -> float:
        key, query = 2 * key, query / 2
        return (key + n.off(key)) * (query + n.off(query)) - key * query

    exponent = (4 + min(2 * n.score, 64)) * n.u
    depth = max(n.features + 2 + n.width, 2 * n.features) + 1
    scores = n.features * times(n.slope * n.x, n.w) + n.labels * times(n.slope * n.y, 1) + times(n.bias, 1)
    scores += gamma[depth] * (n.slope * n.absolute + n.bias + n.strength * 1.001)

    def rounded(delta: float) -> float:
        magnitude = min((n.size + n.deviation) * math.exp(2 * delta), n.largest)
        lost = n.keys * (2 * n.largest * math.exp(-64) + 4 * n.smallest)
        return moved(delta) + 2 * gamma[n.keys + 2] * magnitude + n.u * magnitude + lost

    codes = n.width * times(math.sqrt(n.strength) * n.code, math.sqrt(n.strength) * n.code)
    leaked = min(1, n.leak * max(1, math.exp(2 * (scores + codes) - 0.1)))
    value, all_of_it = n.step * (n.largest * n.x + n.fixed), n.state + n.step * n.fixed
    averaged = 2 * gamma[n.keys + 2] * all_of_it + gamma[n.samples + 2] * (all_of_it + n.step * n.x * n.size)
    average = 2 * gamma[n.keys + 2] * (n.size + n.deviation)
    return {
        "error": n.interpolation + moved(gamma[4] * n.score + exponent) + average + n.u * n.to + n.unseen,
        "interpolation": n.step * n.x * (n.interpolation + 2 * n.broken * n.size),
        "routing leak": n.copies * leaked * (n.step * n.x * (n.largest + n.size) + 2 * n.step * n.fixed),
        "emulated scores": n.step * n.x * (rounded(scores + exponent) - rounded(exponent)),
        "emulated values": n.copies * n.off(2 * value) / 2 + n.carries * n.off(n.raised * 2 * n.state) / (n.raised * 2),
        "rounding": n.step * n.x * rounded(exponent) + averaged + gamma[4] * n.ahead,
    }


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"deviation": 40.0, "size": 50.0},  # what a softmax may move at most, and a sum of its values at most
        {"features": 7, "width": 1, "score": 40.0},  # the widest rows are values; 64 of a score count
        {"largest": 1e27},  # weights of e⁻⁶⁴ are lost
        {"leak": 1e-9, "off": line(1e-6, 0.0), "u": 1e-9},  # nothing leaks but what does anyway
        {"leak": 1e-9},
    ],
)
def test_terms_are_their_formulas_where_every_part_of_them_counts(changed: Numbers) -> None:
    given = PHASE | changed
    wanted = again(SimpleNamespace(**given))
    rules = {name: checker.PHASES for name in checker.TERMS} | {"error": checker.LINE}
    for name, more in rules.items():
        value = found(checker.RULES + more, **given)[name]
        assert value == pytest.approx(wanted[name], rel=1e-8, abs=0.0), name


def test_errors_of_both_factors_count_at_the_sizes_they_are_scaled_to() -> None:
    """off(s) = s²: of 2 and 3, taken as 8 and 0.75, it is 64·(0.75 + 0.5625) and 0.5625·8; 2, taken as 6, has 36/3."""
    given = PHASE | {"off": lambda s: s * s, "scale": by(4), "fit": by(3)}
    names = found(checker.RULES + checker.PHASES, **given)
    with ball_arithmetic(checker.PRECISION):
        assert float(names["product"](arb_series([2]), arb_series([3]))[0]) == 88.5
        assert float(names["read"](arb_series([2]))[0]) == 12.0


def test_numbers_are_scaled_by_powers_of_two_to_about_one_size() -> None:
    with ball_arithmetic():
        pairs = ((1.0, 16.0, 4.0), (16.0, 1.0, 0.25), (3.0, 3.0, 1.0), (0.0, 5.0, 1.0), (5.0, 0.0, 1.0))
        for key, query, wanted in pairs:
            assert float(checker.scale(arb_series([key]), arb_series([query]))[0]) == wanted
        for size, wanted in ((1.5, 8.0), (12.0, 1.0), (16.5, 0.5), (1e-300, 2.0**120), (0.0, 1.0)):
            assert float(checker.fit(arb_series([size]))[0]) == wanted


@pytest.mark.parametrize("name, dtype", [("F64", torch.float64), ("F32", torch.float32)])
def test_a_dtype_is_known_by_its_last_place_and_its_smallest_number(name: str, dtype: torch.dtype) -> None:
    roundoff, smallest, letter = checker.UNIT[name]
    known = torch.finfo(dtype)
    assert (2.0**-roundoff, 2.0**-smallest) == (known.eps / 2, known.tiny)
    assert struct.calcsize(letter) * 8 == known.bits


def test_numbers_are_rounded_up_to_25_digits() -> None:
    with ball_arithmetic(checker.PRECISION):
        third = arb(1) / 3
        assert checker.above(third) == "0.3333333333333333333333334"
        assert checker.above(-third) == "-0.3333333333333333333333333"
        assert 0.75 <= float(checker.above(arb(0.5, 0.25))) < 0.75 + 1e-9 and checker.above(arb(3)) == "3"


def test_an_average_is_of_all_weights_and_the_most_is_of_all_balls() -> None:
    with ball_arithmetic():
        assert float(checker.average([arb(1), arb(3)], [arb(2), arb(6)])) == 5.0
        assert float(checker.most(map(arb, (2, 7, 5)))) == 7.0


def certificate(**facts: Any) -> checker.Certificate:
    """Of facts alone: 2 samples of 1 feature, |x| ≤ 1, |y| ≤ 0.5, |w| ≤ 0.5."""
    domain = {"samples": 2, "features": 1, "x": 1.0, "y": 0.5, "w": 0.5, "residual": 1.0, "absolute": 1.0}
    domain["spectrum"] = {"largest": 0.0, "smallest": 0.0, "norm": 0.0}
    numbers = dict.fromkeys((*checker.STEP, "l1"), 0.0) | {"step_size": 0.5, "max_step_times_smoothness": 1.0}
    loss = {"derivative": "t", "link": "residual", "curvature": 1.0}
    plain = numbers | {"loss": loss, "domain": domain, "rows": 2, "steps": 4, "proximal": None} | facts
    line = {name: {"dtype": "F64", "numbers": ["0x0p0"]} for name in ("slopes", "intercepts", "values")}
    return checker.Certificate({"claims": {}, "interpreter": line, "program": {"facts": plain}})


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({}, 4.0),  # nothing contracts: 1 + 1 + 1 + 1
        ({"l2": 1.0}, 1 + 0.5 + 0.25 + 0.125),
        ({"momentum": 0.25, "l2": 0.0}, 1 + 1.25 + 1.3125 + 1.328125),  # p⁺ = 1.25·p − 0.25·p_before
        ({"accelerated": True, "max_step_times_smoothness": 1.0}, 4 + math.sqrt(2) * 6),
        # Thrown ahead by 0, 1/4, 2/5 and 3/6 of a change: 1, 2.25, 4.55, and 4.55·1.5 + 2.25/2 + 1.
        ({"accelerated": True, "max_step_times_smoothness": 0.5}, 8.95),
        ({"accelerated": True, "rows": 3}, 8.95),
        ({"accelerated": True, "l1": 0.1}, 8.95),
        ({"accelerated": True, "l2": 1.0, "rows": 3}, 0.5 * (2.3375 * 1.5 + 1.625 / 2) + 1),
    ],
)
def test_errors_of_steps_add_up_to(facts: Numbers, wanted: float) -> None:
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate(**facts).growth()) == pytest.approx(wanted, rel=2e-6, abs=0.0)


def test_acceleration_of_many_steps_grows_with_what_is_granted_of_their_length() -> None:
    steps = 10**6
    wanted = steps + math.sqrt(2 * math.exp((steps + 1) * math.log1p(15e-8))) * steps * (steps - 1) / 2
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate(accelerated=True, steps=steps).growth()) == pytest.approx(wanted, rel=1e-9, abs=0.0)


def test_facts_are_read_with_a_part_in_a_hundred_million_to_spare_and_momentum_by_its_root() -> None:
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate().known["top"] - 1) == pytest.approx(3e-8, rel=1e-6)
        assert float(certificate(momentum=0.81, l2=1.0).known["ratio"]) == pytest.approx(1.8, rel=1e-12)
