"""The checker's arithmetic, and those of its rules that hardly count in real certificates, by numbers where they do.

That the rules as a whole derive what the library derives is tested in `tests/interpreter/test_certificate_oracle.py`.
"""

import math
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flint import arb, arb_series

from emulon.certify import checker
from emulon.expressions.evaluation import ball_arithmetic

Numbers = dict[str, Any]


def lines(text: str, *names: str) -> str:
    """Of rules those that define these names."""
    return "\n".join(line for line in text.splitlines() if re.split(r"\(| =", line)[0] in names)


def by(number: float) -> Callable[..., Any]:
    return lambda *_: arb_series([number])


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
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
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
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        (found,) = checker.following(checker.FACTS, **FACTS | changed)[name]
    assert float(found) == pytest.approx(wanted, rel=1e-12, abs=0.0)


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


def test_acceleration_of_many_steps_grows_with_what_is_granted_of_their_length() -> None:
    steps = 10**6
    wanted = steps + math.sqrt(2 * math.exp((steps + 1) * math.log1p(15e-8))) * steps * (steps - 1) / 2
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate(accelerated=True, steps=steps).growth()) == pytest.approx(wanted, rel=1e-9, abs=0.0)


def test_facts_are_read_with_a_part_in_a_hundred_million_to_spare_and_momentum_by_its_root() -> None:
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate().known["top"] - 1) == pytest.approx(3e-8, rel=1e-6)
        assert float(certificate(momentum=0.81, l2=1.0).known["ratio"]) == pytest.approx(1.8, rel=1e-12)
