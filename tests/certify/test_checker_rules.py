"""What the checker computes from facts and claims, by numbers in which no term is lost beside another."""

import math
import struct
from collections.abc import Callable
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


def test_acceleration_of_many_steps_grows_with_what_is_granted_of_their_length() -> None:
    steps = 10**6
    wanted = steps + math.sqrt(2 * math.exp((steps + 1) * math.log1p(15e-8))) * steps * (steps - 1) / 2
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate(accelerated=True, steps=steps).growth()) == pytest.approx(wanted, rel=1e-9, abs=0.0)


def test_facts_are_read_with_a_part_in_a_hundred_million_to_spare_and_momentum_by_its_root() -> None:
    with ball_arithmetic(checker.PRECISION):
        assert float(certificate().known["top"] - 1) == pytest.approx(3e-8, rel=1e-6)
        assert float(certificate(momentum=0.81, l2=1.0).known["ratio"]) == pytest.approx(1.8, rel=1e-12)
