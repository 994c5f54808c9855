"""What is planned: step sizes, how errors grow, and how far the loss's curvature is proved."""

import math
from dataclasses import replace

import pytest
import torch

from emulon.algorithms import GradientDescent, Lasso, Loss, QuantileRegression, Ridge, as_loss
from emulon.certify import Domain, Spectrum
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.interpreter.checks import CurvatureWatch
from emulon.interpreter.plan import Plan, domain_from_data, negative_curvature, one_step_size, step_size_for, with_proof

f64 = torch.float64
X = torch.randn(30, 3, dtype=f64, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -0.5, 0.2], dtype=f64)


def plan(algorithm, data=(X, Y)) -> Plan:
    descent = algorithm.descent
    return Plan.of("test", descent, domain_from_data(descent, *data), data)


def test_a_penalty_and_well_conditioned_data_make_errors_shrink():
    ridge = plan(Ridge(penalty=0.1, steps=500))
    ratio = 1 - ridge.step_size * (0.1 + ridge.strong_convexity)
    assert ridge.growth == pytest.approx(math.sqrt(3) / (1 - ratio), rel=1e-6)
    assert replace(ridge, strong_convexity=0.0).growth > ridge.growth


def test_a_proof_reaches_as_far_as_the_exact_path_may_go():
    made = plan(Ridge(steps=10))
    far = 100 * made.domain.residual
    assert made.proves(1e-9) and not made.proves(far)
    assert with_proof(made, far).proves(far)
    bent = plan(GradientDescent(Loss.of("t**2/2 - t**4/100000", curvature=1.0), 10))
    assert not with_proof(bent, far).proves(far)


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


# Data of which everything is known: λ between 1/2 and 2, four features, so that norms are twice the largest entry.
KNOWN = Plan(
    name="known",
    descent=GradientDescent(as_loss("squared"), 3, 0.25, l2=0.1),
    domain=Domain(5, 4, 1.5, 1.0, 0.5, residual=4.0, spectrum=Spectrum(largest=2.0)),
    rows=5,
    strong_convexity=0.5,
    negative_curvature=0.2,
    curvature_reach=6.0,
    max_step_times_smoothness=1.0,
    step_from_data=False,
)


def test_a_step_moves_a_weight_by_its_column_or_its_largest_entry_and_what_is_fixed() -> None:
    root = math.sqrt(2.0 * (1 + 2e-9))
    assert KNOWN.moved(2.0) == pytest.approx(0.25 * root * 2.0, rel=1e-13)
    counts = KNOWN.changed(loss=as_loss("poisson"))
    assert counts.fixed == 1.5 * 1.0 and counts.moved(2.0) == pytest.approx(0.25 * (root * 2.0 + 1.5), rel=1e-13)


def test_a_curvature_is_believed_only_as_far_as_it_is_proved() -> None:
    """(1 + t²)^½ bends by 1 at zero; what is said of a loss of one's own is proved where the path may go."""
    true, false = (KNOWN.changed(loss=Loss.of("sqrt(1 + t**2)", curvature=bend)) for bend in (1.0, 0.9))
    assert true.curvature(0.1) == 1.0 and false.curvature(0.1) == math.inf and false.curvature(math.inf) == 0.9
    # 1 + 3t²/100 is 1.4 at 3.65, among the residuals, and 1.6 at 4.47, in reach for bounds above 0.08.
    for bend, bound, seen in ((1.4, 0.0, False), (1.6, 0.0, True), (1.6, 0.09, False)):
        grown = KNOWN.changed(loss=Loss.of("t**2/2 + t**4/400", curvature=bend))
        assert (grown.curvature(bound) == bend) == seen, (bend, bound)


def test_what_a_domain_does_not_see_to_is_named() -> None:
    assert KNOWN.assumes == ()
    steep = KNOWN.changed(step_size=0.5, step_from_data=True)
    assert [line.split()[0] for line in steep.assumes] == ["step_size·L", "the"]
    # 3/2·(2/4 + 1/10) for logistic regression; and 0.9·(2 + 1/10) is below 2.
    assert KNOWN.changed(loss=as_loss("logistic"), step_size=1.5).assumes == ()
    assert KNOWN.changed(max_step_times_smoothness=2.0, step_size=0.9).assumes == ()
    # η·(2 + 1/10) is 1 to within what checks leave open, or it is not.
    for beyond, named in ((5e-10, 0), (2e-9, 1)):
        assert len(KNOWN.changed(step_size=(1 + beyond) / 2.1).assumes) == named


def test_a_domain_covers_the_path_with_the_room_that_is_asked_for() -> None:
    descent = Ridge(penalty=0.1, steps=6, step_size=0.2).descent
    path = descent.iterates(X, Y)
    domain = domain_from_data(descent, X, Y, slack=2.0)
    residuals, sums = X @ path.mT - Y.unsqueeze(-1), X.abs() @ path.abs().mT + Y.abs().unsqueeze(-1)
    assert domain.w == pytest.approx(2 * path.abs().max().item(), rel=1e-14)
    assert domain.residual == pytest.approx(2 * residuals.abs().max().item() + 1e-3, rel=1e-13)
    assert domain.absolute == pytest.approx(2 * sums.max().item() + 1e-3, rel=1e-13)
    assert domain_from_data(Ridge(steps=0).descent, X, Y).w == 1e-3


def test_a_curvature_that_cannot_be_enclosed_is_sampled_with_a_twentieth_of_room_and_proves_nothing():
    """ℓ″ = ¾/√|t| − 2 is infinite at zero, and lowest at the ends of (−1, 1)."""
    found, reach = negative_curvature(Loss.of("Abs(t)*sqrt(Abs(t)) - t**2"), 1.0)
    assert reach == 0.0 and found == pytest.approx(1.05 * 1.25, rel=1e-9)


def test_a_step_size_is_one_over_the_steepest_and_no_longer_than_two() -> None:
    free = Ridge(penalty=0.5, steps=3).descent
    known = Domain(5, 4, 1.0, 1.0, 1.0, spectrum=Spectrum(largest=2.0))
    assert step_size_for(free, known, None) == 1 / 2.5
    assert step_size_for(GradientDescent(as_loss("logistic"), 3, l2=0.5), known, None) == 1 / (0.25 * 2 + 0.5)
    # Where nothing makes errors shrink, nothing is asked beyond what descent can bear.
    assert plan(GradientDescent(as_loss("log_cosh"), 3, 0.01)).max_step_times_smoothness == 2.0
    with pytest.raises(EmulonError, match="chooses its step size from the data"):
        step_size_for(free, Domain(5, 4, 1.0, 1.0, 1.0), None)
    largest = torch.linalg.eigvalsh(X.T @ X / 30)[-1].item()
    for times, top in ((0.999, 1.0), (1 + 5e-10, 1.0), (1 + 2e-9, 2.0), (1.001, 2.0), (1.999, 2.0)):
        fixed = Ridge(penalty=0.5, steps=3, step_size=times / (largest + 0.5))
        assert plan(fixed).max_step_times_smoothness == top
        assert (plan(fixed).strong_convexity > 0) == (top == 1)
    labels, gentle = torch.where(Y > 0, 1.0, -1.0).double(), 0.9 / (0.25 * largest + 0.5)
    bent = GradientDescent(as_loss("logistic"), 3, gentle, l2=0.5)
    assert plan(bent, (X, labels)).max_step_times_smoothness == 1.0
    assert plan(replace(bent, step_size=2.1 * gentle), (X, labels)).max_step_times_smoothness == 2.0
    counts = GradientDescent(as_loss("poisson"), 3, 0.01, l2=0.5)
    assert plan(counts, (X, Y.abs().round())).max_step_times_smoothness == 2.0
    assert plan(replace(counts, step_size=None), (X, Y.abs().round())).max_step_times_smoothness == 1.0
    with pytest.raises(OutOfDomain, match="is too long for this data: at most 2/L"):
        plan(Ridge(penalty=0.5, steps=3, step_size=2.001 / (largest + 0.5)))
    smallest = torch.linalg.eigvalsh(X.T @ X / 30)[0].item()
    strong = plan(Ridge(penalty=0.5, steps=3)).strong_convexity
    assert smallest * (1 - 1.1e-9) < strong < smallest * (1 - 9e-10)


def test_datasets_of_a_batch_have_one_step_size_to_within_what_checks_leave_open() -> None:
    free, y = Ridge(penalty=0.0, steps=3).descent, torch.stack([Y, Y])
    size = one_step_size(free, torch.stack([X, X * (1 + 2e-10)]), y)
    assert size == pytest.approx(free.resolved_step_size(X, Y).item(), rel=1e-9)
    with pytest.raises(EmulonError, match="have different step sizes"):
        one_step_size(free, torch.stack([X, X * (1 + 1e-9)]), y)
