"""Data outside a domain are refused to the last bit, and a run is watched before every step."""

import math
from dataclasses import replace

import pytest
import torch

from emulon.algorithms import GradientDescent, Lasso, LogisticRegression, Loss, PoissonRegression, Ridge, as_loss
from emulon.certify import Domain
from emulon.constructions import DescentInContext
from emulon.core.errors import OutOfDomain
from emulon.interpreter import checks
from emulon.interpreter.checks import CurvatureWatch, require_in_domain, require_step_size, watched_path
from emulon.interpreter.plan import Plan, domain_from_data

f64 = torch.float64
X = torch.randn(30, 3, dtype=f64, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -0.5, 0.2], dtype=f64)


def test_a_residual_is_compared_exactly_where_rounding_could_decide():
    # In float64 both sums round to 1.0; the second is above it.
    domain = Domain(1, 2, 1.0, 0.0, 1.0, residual=1.0, absolute=1.5)
    x, y = torch.tensor([[1.0, 1.0]], dtype=f64), torch.zeros(1, dtype=f64)
    require_in_domain(domain, x, y, torch.tensor([1.0, -1e-20], dtype=f64))
    with pytest.raises(OutOfDomain, match="in the last place"):
        require_in_domain(domain, x, y, torch.tensor([1.0, 1e-20], dtype=f64))


def watch(algorithm, x=X, y=Y, **changes) -> CurvatureWatch:
    descent = algorithm.descent
    plan = Plan.of("test", descent, domain_from_data(descent, X, y), (X, y)).changed(**changes)
    return CurvatureWatch(plan, x, descent.loss.template_data(x, y).y, 1e-9)


def test_a_residual_clearly_outside_is_refused_with_its_size():
    domain = Domain(1, 1, 2.0, 0.0, 2.0, residual=1.0)
    with pytest.raises(OutOfDomain, match=r"\|w·x − y\| reaches 4 but the domain was built for 1"):
        require_in_domain(domain, torch.tensor([[2.0]]).double(), torch.zeros(1).double(), torch.tensor([2.0]).double())


def test_data_flatter_than_promised_are_refused():
    watch(Ridge(steps=5))
    with pytest.raises(OutOfDomain, match="λmin"):
        watch(Ridge(steps=5), x=0.5 * X)


def test_a_step_that_the_path_makes_too_long_is_refused_when_it_does():
    counts = Y.abs().round()
    gentle = watch(PoissonRegression(steps=5, step_size=0.05), y=counts)
    gentle.before_step(torch.zeros(3, dtype=f64), 0)
    long = watch(PoissonRegression(steps=5, step_size=0.05), y=counts, step_size=10.0)
    with pytest.raises(OutOfDomain, match="step_size 10 is too long for this data"):
        long.before_step(torch.zeros(3, dtype=f64), 0)


def test_a_state_that_is_not_finite_is_refused():
    with pytest.raises(OutOfDomain, match="NaN"):
        watch(Ridge(steps=5)).before_step(torch.full((3,), torch.nan, dtype=f64), 0)


def test_data_that_would_choose_another_step_are_refused():
    chosen = DescentInContext.of(Ridge(0.1, 5), X, Y, 1e-6).plan
    require_step_size(chosen, X, Y.flip(0))
    require_step_size(chosen, X * (1 + 1e-12), Y)
    with pytest.raises(OutOfDomain, match=r"would take steps of .* on this data, and was made with"):
        require_step_size(chosen, 0.999 * X, Y)
    require_step_size(DescentInContext.of(Ridge(0.1, 5, step_size=0.3), X, Y, 1e-6).plan, 0.999 * X, Y)
    # Of several datasets the one that is told is the one that is furthest off, here four times too short.
    shorter = f"{Ridge(0.1, 5).descent.resolved_step_size(2 * X, Y).item():.6g}"
    with pytest.raises(OutOfDomain, match=f"would take steps of {shorter}"):
        require_step_size(chosen, torch.stack([X, 2 * X]), torch.stack([Y, Y]))


def test_steeper_data_are_refused_where_curvature_is_negative():
    robust = GradientDescent(as_loss("tukey"), 5, step_size=0.01)
    watch(robust)
    with pytest.raises(OutOfDomain, match="λmax"):
        watch(robust, x=2 * X)


def test_a_curvature_that_is_too_small_to_be_true_is_not_believed():
    # ℓ″ = 10: steps of 0.35 diverge, which a curvature of 1 would hide.
    understated = Loss.of("5*t**2", curvature=1.0)
    module = DescentInContext(understated, Domain(1, 1, 1.0, 0.5, 3.0), 1e-6, steps=25, step_size=0.35)
    with pytest.raises(OutOfDomain, match=r"step_size 0.35 is too long for this data: at most 2/L = 0.2"):
        module.run(torch.ones(1, 1, dtype=f64), torch.tensor([1e-10], dtype=f64))


def refusal(watched: CurvatureWatch, at: int, step) -> str:
    plan = watched.plan
    with pytest.raises(OutOfDomain) as caught:
        watched_path([watched], torch.zeros(3, dtype=f64), step)
    assert plan.steps > at
    return str(caught.value)


@pytest.mark.parametrize("at", [0, 3, 70])
def test_states_looked_at_together_are_refused_as_they_would_be_one_by_one(at):
    """The earliest of them, with its step, though the path goes on from it and leaves the domain by far more."""
    watched, out = watch(Ridge(steps=80)), torch.tensor([50.0, 0.0, 0.0], dtype=f64)
    with pytest.raises(OutOfDomain) as alone:
        watched.before_step(out, at + 1)
    path = refusal(watched, at, lambda number, w, before: out * (number - at + 1) if number >= at else w)
    assert path == str(alone.value) and f"(before step {at + 2})" in path


def test_a_step_that_refuses_its_state_is_not_what_is_told_first():
    watched, out = watch(Ridge(steps=80)), torch.tensor([50.0, 0.0, 0.0], dtype=f64)

    def step(number, w, before):
        if number == 6:
            raise OutOfDomain("the proximal phase has never seen such numbers")
        return out if number == 4 else w

    assert "(before step 6)" in refusal(watched, 4, step)


def test_a_path_that_stays_is_returned_whole_and_every_watch_has_its_turn():
    seen = {0: [], 1: []}
    watches = [watch(Ridge(steps=5)), watch(Ridge(steps=5))]
    for number, each in enumerate(watches):
        each.require = lambda path, number=number: seen[number].extend(path[:, 0].tolist())
    path = watched_path(watches, torch.zeros(3, dtype=f64), lambda number, w, before: w + 0.1)
    assert path.shape == (6, 3)
    assert seen[0] == path[[0, 2, 4], 0].tolist() and seen[1] == path[[1, 3], 0].tolist()


ONE = Plan(
    name="one",
    descent=GradientDescent(as_loss("squared"), 3, 0.1),
    domain=Domain(1, 1, 1.0, 0.5, 2.0),
    rows=1,
    strong_convexity=0.0,
    negative_curvature=0.0,
    curvature_reach=0.0,
    max_step_times_smoothness=2.0,
    step_from_data=False,
)


def watching(y: float, bound: float = 0.0, x: float = 1.0, **changes) -> CurvatureWatch:
    """A plan for one sample and one weight."""
    return CurvatureWatch(ONE.changed(**changes), torch.tensor([[x]], dtype=f64), torch.tensor([y], dtype=f64), bound)


def test_a_penalty_is_part_of_how_steep_a_loss_is():
    watching(0.5, step_size=0.6, max_step_times_smoothness=1.0, l2=0.6)
    with pytest.raises(OutOfDomain, match="too long"):
        watching(0.5, step_size=0.6, max_step_times_smoothness=1.0, l2=0.7)


def holds(watched: CurvatureWatch, w: float) -> bool:
    """Whether a step may start from this weight."""
    try:
        watched.before_step(torch.tensor([w], dtype=f64), 0)
    except OutOfDomain:
        return False
    return True


def test_residuals_and_sums_are_kept_to_their_bounds_to_the_last_place():
    residual, absolute = ({"domain": replace(ONE.domain, **{name: 1.0})} for name in ("residual", "absolute"))
    for y, w, kept in ((0.5, 1.5, True), (-0.5, 0.5, True), (0.5, 1.5 + 1e-15, False), (0.5, -0.5 - 1e-15, False)):
        assert holds(watching(y, **residual), w) == kept, (y, w)
    for y, w, kept in ((0.5, 0.5, True), (-0.5, -0.5, True), (0.5, 0.5 + 1e-15, False), (-0.5, -0.5 - 1e-15, False)):
        assert holds(watching(y, **absolute), w) == kept, (y, w)
    assert holds(watching(0.5), 1.9) and not holds(watching(0.5), 2.1)


def test_all_samples_are_looked_at_however_few_at_a_time(monkeypatch):
    monkeypatch.setattr(checks, "at_a_time", lambda count, device: 1)
    x, y = torch.tensor([[0.1], [0.1], [1.0]], dtype=f64), torch.zeros(3, dtype=f64)
    plan = ONE.changed(rows=3, domain=Domain(3, 1, 1.0, 0.5, 2.0, residual=1.0))
    for place in range(3):
        watched = CurvatureWatch(plan, x.roll(place, 0), y, 0.0)
        assert holds(watched, 0.9) and not holds(watched, 1.1)


# ℓ″ = eˢ, s = 2w − ½: λmax is 4, and η·(4·eˢ + l2) ≤ 2 for eˢ ≤ 7/2 with η = 1/8 and l2 = 2.
STEEP = {
    "loss": Loss.of("exp(t)", curvature=math.inf),
    "step_size": 0.125,
    "l2": 2.0,
    "domain": replace(ONE.domain, x=2.0),
}


@pytest.mark.parametrize(("bound", "edge"), [(0.0, math.log(3.5)), (0.1, math.log(3.5) - 0.2)])
def test_steps_are_gentle_up_to_the_steepest_slope_that_the_exact_path_may_meet(bound: float, edge: float):
    # A loss that is steep on the other side has its steepest at the other end.
    turned = STEEP | {"loss": Loss.of("exp(-t)", curvature=math.inf)}
    for off, gentle in ((-0.01, True), (0.01, False)):
        assert holds(watching(0.5, bound, 2.0, **STEEP), (edge + off + 0.5) / 2) == gentle
        assert holds(watching(0.5, bound, 2.0, **turned), (0.5 - edge - off) / 2) == gentle


def test_the_flattest_direction_may_be_flatter_by_what_the_plan_grants_and_no_more():
    """λ = 1; granted are 1e-9 of what is promised and 1e-9·2/η = 2e-8."""
    watching(0.5, strong_convexity=1 + 2.05e-8)
    with pytest.raises(OutOfDomain, match="λmin"):
        watching(0.5, strong_convexity=1 + 2.15e-8)


@pytest.mark.parametrize(
    "algorithm, samples, features",
    [(Ridge, 500, 600), (Ridge, 5000, 400), (LogisticRegression, 5000, 500), (Lasso, 500, 600)],
)
def test_data_of_any_shape_may_be_run_by_the_plan_made_of_them(algorithm, samples, features):
    """Its step size, its promise of convexity and its largest eigenvalue are held to what is enclosed."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, features, generator=draw, dtype=f64)
    y, descent = x[:, 0].sign(), algorithm(steps=2).descent
    plan = Plan.of("test", descent, domain_from_data(descent, x, y), (x, y))
    inner_x, inner_y, _ = descent.loss.template_data(x, y)
    assert CurvatureWatch(plan, inner_x, inner_y, 1e-9).high > 1
