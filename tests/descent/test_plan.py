"""What is planned: step sizes, how errors grow, and how far the loss's curvature is proved."""

import math
from dataclasses import replace

import pytest
import torch

from emulon.algorithms import GradientDescent, Lasso, Loss, QuantileRegression, Ridge, as_loss
from emulon.certify import Domain, Spectrum
from emulon.descent.checks import CurvatureWatch
from emulon.descent.layout import stored
from emulon.descent.plan import Plan, covering, negative_curvature, with_proof
from emulon.errors import EmulonError, OutOfDomain

f64 = torch.float64
X = torch.randn(30, 3, dtype=f64, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -0.5, 0.2], dtype=f64)


def plan(algorithm, data=(X, Y)) -> Plan:
    descent = algorithm.descent
    return Plan.of("test", descent, covering(descent, *data), data)


def test_a_penalty_and_well_conditioned_data_make_errors_shrink():
    ridge = plan(Ridge(penalty=0.1, steps=500))
    ratio = 1 - ridge.step_size * (0.1 + ridge.strong_convexity)
    assert ridge.growth == pytest.approx(math.sqrt(3) / (1 - ratio), rel=1e-6)
    assert replace(ridge, strong_convexity=0.0).growth > ridge.growth


def test_what_is_promised_grants_what_checks_leave_open():
    for algorithm in (Ridge(steps=200), GradientDescent(as_loss("log_cosh"), 200)):
        made = plan(algorithm)
        assert made.growth < made.promised_growth < made.growth * (1 + 1e-5)


@pytest.mark.parametrize("name", ["squared", "huber", "log_cosh", "logistic", "squared_hinge", "poisson", "quantile"])
def test_convex_losses_are_proved_to_be(name: str):
    assert negative_curvature(as_loss(name), 6.0) == (0.0, 6.0)


def test_negative_curvature_is_enclosed_from_above_and_not_by_much():
    found, reach = negative_curvature(as_loss("tukey(2.0)"), 3.0)
    assert 0.8 <= found <= 0.8 * 1.02 and reach == 3.0
    found, _ = negative_curvature(Loss.of("log(1 + t**2)"), 6.0)
    assert 0.25 <= found <= 0.25 * 1.02


def test_a_curvature_that_cannot_be_enclosed_is_sampled_and_proves_nothing():
    # ℓ′ = √|t|·sign t has an infinite slope at zero.
    found, reach = negative_curvature(Loss.of("Abs(t)*sqrt(Abs(t))"), 1.0)
    assert reach == 0.0 and math.isfinite(found)


def test_a_proof_reaches_as_far_as_the_exact_path_may_go():
    made = plan(Ridge(steps=10))
    far = 100 * made.domain.residual
    assert made.proves(1e-9) and not made.proves(far)
    assert with_proof(made, far).proves(far)
    bent = plan(GradientDescent(Loss.of("t**2/2 - t**4/100000", curvature=1.0), 10))
    assert not with_proof(bent, far).proves(far)


def test_a_narrow_dtype_widens_the_domain_by_what_storing_rounds():
    domain = Domain.of(X, Y, 2.0)
    narrow = replace(domain, residual=0.5 * domain.widest)
    assert stored(narrow, f64) == narrow
    wide = stored(narrow, torch.float32)
    assert X.float().double().abs().max() <= wide.x <= domain.x * (1 + 1e-6)
    assert wide.residual - narrow.residual >= torch.finfo(torch.float32).eps * narrow.absolute


def test_data_without_a_step_size_are_refused():
    """Zero targets have no size to go by: the step would be 0."""
    with pytest.raises(EmulonError, match=r"quantile.* finds no step size in these data: targets that are all zero"):
        plan(QuantileRegression(steps=3), (X, torch.zeros_like(Y)))


def test_no_step_moves_a_weight_by_more_than_is_said_and_hardly_less():
    """The residuals that are worst for a feature are its own signs: what one step from zero then makes of them."""
    lasso = plan(Lasso(penalty=0.1, steps=5))
    gradient = (X.sign() * 2.0 * X).mean(dim=0).max().item()
    assert gradient * lasso.step_size <= lasso.moved(2.0) < 2 * gradient * lasso.step_size
    assert lasso.moved(2.0) < 0.6 * lasso.step_size * lasso.domain.x * 2.0
    unknown = replace(lasso, domain=replace(lasso.domain, spectrum=Spectrum()))
    assert unknown.moved(2.0) == pytest.approx(lasso.step_size * lasso.domain.x * 2.0, rel=1e-12)


def test_data_beyond_the_spectrum_that_a_proximal_step_was_made_for_are_refused():
    lasso = plan(Lasso(penalty=0.1, steps=5, step_size=0.01))
    CurvatureWatch(lasso, X, Y, 0.0)
    with pytest.raises(OutOfDomain, match="λmax"):
        CurvatureWatch(replace(lasso, domain=replace(lasso.domain, spectrum=Spectrum(largest=0.5))), X, Y, 0.0)
