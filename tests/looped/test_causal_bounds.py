"""The bounds of causal looped descent, term by term, and its audit on problems without any rounding."""

import math

import pytest
import torch
from exact_solvers import U

from emulon.certify import Domain, Spectrum
from emulon.core.errors import OutOfDomain
from emulon.looped.causal import (
    CausalLoopedGradientDescent,
    causal_error,
    causal_stencils,
    residual_reach,
    weight_norm,
)

f64 = torch.float64
DOMAIN = Domain(4, 2, 1.25, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))


def test_weights_and_residuals_reach_as_far_as_steps_carry_them() -> None:
    """2·√(ηT)·y; steps beyond 1/‖x‖² may overshoot twice; residuals up to √N·y, or ‖w‖‖x‖ + y, and a hundredth."""
    assert weight_norm(DOMAIN, 0.25, 3) == pytest.approx(2 * math.sqrt(0.75) * 3.0, rel=1e-14)
    assert weight_norm(DOMAIN, 0.8, 3) == pytest.approx(2 * math.sqrt(2 * 2.4) * 3.0, rel=1e-14)
    assert weight_norm(DOMAIN, 0.5, 3) == pytest.approx(2 * math.sqrt(2 * 1.5) * 3.0, rel=1e-14)
    assert weight_norm(DOMAIN, 0.25, 0) == weight_norm(DOMAIN, 0.25, 1)
    assert residual_reach(DOMAIN, 0.25, 3) == pytest.approx(1.01 * 6.0, rel=1e-14)
    assert residual_reach(DOMAIN, 0.01, 1) == pytest.approx(1.01 * (0.1 * 3.0 * 1.5 + 3.0), rel=1e-14)
    step, answer = causal_stencils(DOMAIN, 0.25, 2, f64, 3)
    weight = 2 * math.sqrt(0.75) * 3.0
    assert step.reach == pytest.approx(6.06) and step.lift == pytest.approx(math.log(4))
    assert step.cauchy == pytest.approx((weight * 1.5 * (1 + 1e-9) + 3.0) / 6.06, rel=1e-13)
    assert answer.reach == pytest.approx(weight * 1.5 * (1 + 1e-9), rel=1e-14)
    assert (step.tokens, step.summed, step.width) == (10, 4, 5) and answer.tokens == 10
    # Small weights leave Σ|q·k| as large as the largest residual, and no less.
    assert causal_stencils(DOMAIN, 1e-6, 2, f64, 1)[0].cauchy == 1.0


@pytest.mark.parametrize("loops", [1, 3])
def test_errors_of_steps_add_up_and_the_answer_has_its_own(loops: int) -> None:
    step, answer = stencils = causal_stencils(DOMAIN, 0.25, 3, f64, 3)
    weight = weight_norm(DOMAIN, 0.25, loops)
    each = 0.25 * 1.25 * step.reach * step.relative + 4 * U * weight
    drift, total = causal_error(DOMAIN, 0.25, stencils, loops)
    assert drift == pytest.approx(loops * math.sqrt(2) * each * (1 + 1e-6), rel=1e-13, abs=0.0)
    assert total == pytest.approx(drift * 1.5 * (1 + 1e-9) + answer.error(1.0), rel=1e-13, abs=0.0)
    coarse = causal_stencils(DOMAIN, 0.25, 1, torch.float32, 3)
    assert causal_error(DOMAIN, 0.25, coarse, 3000) == (math.inf, math.inf)
    limit = 2 / (1.5 * (1 + 1e-9)) ** 2
    assert CausalLoopedGradientDescent(DOMAIN, 1e-3, horizon=1).step_size == pytest.approx(limit / 2, rel=1e-14)
    CausalLoopedGradientDescent(DOMAIN, 1e-3, step_size=limit * (1 - 1e-15), horizon=1)
    with pytest.raises(OutOfDomain, match="2/norm²"):
        CausalLoopedGradientDescent(DOMAIN, 1e-3, step_size=limit * (1 + 1e-12), horizon=1)
    made = CausalLoopedGradientDescent(DOMAIN, step_size=0.25, horizon=3)
    known = causal_error(DOMAIN, 0.25, causal_stencils(DOMAIN, 0.25, made.pairs, f64, 3), loops)
    assert made.promise_after(loops).bound == pytest.approx(known[1], rel=1e-12, abs=0.0)


def test_promises_end_where_residuals_may_leave_their_reach() -> None:
    """A hundredth beyond exact residuals is granted, and nine thousandths of the reach are given to errors."""
    step, _ = stencils = causal_stencils(DOMAIN, 0.25, 1, torch.float32, 10**6)

    def drift(loops: int) -> float:
        weight = 2 * math.sqrt(0.25 * loops) * 3.0
        return loops * math.sqrt(2) * (0.25 * 1.25 * 6.06 * step.relative + 4 * 2.0**-24 * weight) * (1 + 1e-6)

    last = next(loops for loops in range(1, 10**6) if drift(loops + 1) * 1.5 > 0.009 * 6.06)
    assert last > 10 and causal_error(DOMAIN, 0.25, stencils, last)[1] < math.inf
    assert causal_error(DOMAIN, 0.25, stencils, last + 1) == (math.inf, math.inf)


def test_promises_end_where_weights_may_be_twice_too_long() -> None:
    """Steps of next to nothing, so many that what they round is all there is: √2·4u of the weights at every one."""
    last = int(0.5 / (math.sqrt(2) * 4 * 2.0**-24 * (1 + 1e-6)))
    for loops, promised in ((int(0.999 * last), True), (int(1.001 * last), False)):
        stencils = causal_stencils(DOMAIN, 1e-12, 1, torch.float32, loops)
        assert (causal_error(DOMAIN, 1e-12, stencils, loops)[1] < math.inf) == promised
