"""Every named term of a construction's certificate, against what its docstring says it is made of."""

import math

import pytest
import torch

from emulon.algorithms.losses import as_loss
from emulon.certify import Domain, Spectrum
from emulon.constructions import GradientStep, ResidualMap
from emulon.constructions.accuracy import Accuracy
from emulon.constructions.gradient_step import domain_step_size
from emulon.constructions.proximal import Proximal

f64, U = torch.float64, 2.0**-53
DOMAIN = Domain(5, 3, 2.0, 1.0, 0.5)


def gamma(count: int) -> float:
    return count * U / (1 - count * U)


def test_a_residual_map_leaks_the_largest_value_and_what_it_stands_for() -> None:
    made = ResidualMap("tanh(t)", DOMAIN, 1e-6).template
    own, largest = made.f.certificate.terms, float(made.grid.values.abs().max()) + made.f.interpolation.size
    for scale in (1.0, 0.25):
        terms = made.certificate(scale).terms
        assert terms["interpolation"] == own["interpolation"] * 2.0 * scale
        assert terms["rounding"] == own["rounding"] * 2.0 * scale
        assert terms["routing leak"] == pytest.approx(made.leak * largest * 2.0 * scale, rel=1e-14, abs=0.0)


def test_a_proximal_step_leaks_from_every_query_and_rounds_their_sum() -> None:
    made = Proximal(0.25, 3, 2.0, Accuracy(1e-3, None, "auto", f64))
    own, size = made.template.certificate().terms, made.f.interpolation.size
    assert made.certificate.terms["routing leak"] == 3 * own["routing leak"] > 0
    rounding = made.certificate.terms["rounding"] - own["rounding"]
    assert rounding == pytest.approx(gamma(3) * size, rel=1e-6, abs=0.0) and size >= 1.75


@pytest.mark.parametrize("loss, fixed", [("squared", 0.0), ("poisson", 2.0)])
def test_a_gradient_step_rounds_the_state_the_values_and_the_readout(loss: str, fixed: float) -> None:
    step, l2 = 0.125, 2.0
    made = GradientStep(loss, DOMAIN, 1e-5, step_size=step, l2=l2)
    own, f = made.template.certificate(step).terms, made.template.f
    carried = (1 + step * l2) * 0.5 + step * fixed
    largest, moved = step * 2.0 * float(made.template.grid.values.abs().max()), step * 2.0 * f.interpolation.size
    state = gamma(6) * (carried + largest) + 2 * gamma(f.keys + 2) * carried + gamma(6) * (carried + moved)
    assert made.certificate.terms["rounding"] == pytest.approx(own["rounding"] + state, rel=1e-12, abs=0.0)
    leak = own["routing leak"] + 2 * made.template.leak * step * fixed
    assert made.certificate.terms["routing leak"] == pytest.approx(leak, rel=1e-12, abs=0.0)
    assert made.certificate.terms["interpolation"] == own["interpolation"]
    assert math.isclose(made._state_rounding(made.template), state, rel_tol=1e-12)


def test_a_step_with_a_penalty_adds_the_second_heads_whole_bound() -> None:
    made = GradientStep("squared", DOMAIN, 1e-2, step_size=0.125, l1=0.5, l2=2.0)
    assert made.proximal is not None
    assert made.certificate.terms["proximal step"] == made.proximal.certificate.bound > 0
    first = sum(value for name, value in made.certificate.terms.items() if name != "proximal step")
    # |1 − η·l2|·w + η·x·|F|, and what the first head errs by.
    reach = 0.75 * 0.5 + 0.125 * 2.0 * made.template.f.interpolation.size
    assert made.proximal.domain.w == pytest.approx(reach * (1 + 1e-9) + first, rel=1e-14, abs=0.0)


def test_without_a_step_size_it_is_one_over_the_worst_smoothness() -> None:
    domain = Domain(5, 3, 2.0, 1.0, 0.5, spectrum=Spectrum())
    assert domain_step_size(as_loss("squared"), domain, 0.5) == 1 / (3 * 4.0 + 0.5)
    assert domain_step_size(as_loss("logistic"), domain, 0.0) == 1 / (0.25 * 3 * 4.0)
