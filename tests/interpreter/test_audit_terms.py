"""Every part of an audit where it rules: exact steps in fractions or Arb, and recursions worked out by hand."""

import math
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx

from emulon.algorithms import GradientDescent, Loss, as_loss
from emulon.certify.balls import Ball, FloatBall
from emulon.expressions import parse
from emulon.interpreter import audit
from emulon.interpreter.audit import (
    GRADES,
    PathError,
    _norm,
    audited,
    distance_to_exact,
)
from emulon.interpreter.plan import Plan, domain_from_data

f64, U = torch.float64, Fraction(1, 2**53)
X = torch.tensor([[0.7, -0.3], [1.1, 0.4], [-0.6, 0.9], [0.2, 1.3], [-1.4, 0.1]], dtype=f64)
Y = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=f64)
COUNTS = torch.tensor([1.0, 0.0, 3.0, 2.0, 1.0], dtype=f64)
# Steps that nobody would take: all of a defect is seen.
PATH = torch.tensor([[0.0, 0.0], [0.3, -0.2], [0.1, 0.4], [0.25, 0.35]], dtype=f64)


def plan_of(descent: GradientDescent, x: torch.Tensor = X, y: torch.Tensor = Y) -> Plan:
    return Plan.of("audited", descent, domain_from_data(descent, x, y), (x, y))


def number(value: Fraction) -> arb:
    return arb(value.numerator) / value.denominator


def stepped(plan: Plan, f, y: torch.Tensor, w: list[Fraction], before: list[Fraction], fixed: bool) -> list[arb]:
    """One exact step in Arb: the algorithm as its docstring says, written anew."""
    eta, l2, l1, momentum = (
        number(Fraction(value)) for value in (plan.step_size, plan.descent.l2, plan.descent.l1, plan.descent.momentum)
    )
    rows, targets = [[Fraction(v) for v in row] for row in X.tolist()], [Fraction(v) for v in y.tolist()]
    out = []
    for k in range(2):
        total = arb(0)
        for row, target in zip(rows, targets, strict=True):
            score = sum(a * b for a, b in zip(row, w, strict=True))
            slope = f(number(score)) - number(target) if fixed else f(number(score - target))
            total += slope * number(row[k])
        moved = (1 - eta * l2) * number(w[k]) - eta * total / len(rows) + momentum * number(w[k] - before[k])
        out.append((moved - eta * l1).max(arb(0)) + (moved + eta * l1).min(arb(0)))
    return out


CASES = {
    "squared": (GradientDescent(as_loss("squared"), 3, 0.3, l2=0.2), lambda s: s),
    "l1": (GradientDescent(as_loss("squared"), 3, 0.3, l2=0.2, l1=0.15), lambda s: s),
    "momentum": (GradientDescent(as_loss("squared"), 3, 0.3, l2=0.2, momentum=0.6), lambda s: s),
    "log_cosh": (GradientDescent(as_loss("log_cosh"), 3, 0.3, l2=0.2), lambda s: s.tanh()),
    "poisson": (GradientDescent(as_loss("poisson"), 3, 0.1, l2=0.2), lambda s: s.exp()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grade", GRADES)
def test_a_defect_is_the_distance_to_the_exact_step(name, grade, monkeypatch) -> None:
    descent, f = CASES[name]
    y = COUNTS if name == "poisson" else Y
    monkeypatch.setattr(audit, "SLICE", 4)  # so that samples and steps are looked at in several parts
    plan = plan_of(descent, y=y)
    path = PathError(plan, X, y, PATH, grade)
    defects = path.defects
    states = [[Fraction(v) for v in row] for row in PATH.tolist()]
    with ctx.workprec(200):
        for t in range(3):
            exact = stepped(plan, f, y, states[t], states[max(t - 1, 0)], name == "poisson")
            off = [one - number(value) for one, value in zip(exact, states[t + 1], strict=True)]
            true = (off[0] * off[0] + off[1] * off[1]).sqrt()
            assert true <= arb(defects[t].item()) <= true * (1 + arb(1e-9))
    if name == "log_cosh":
        residuals = X @ PATH[:-1].mT - Y.unsqueeze(-1)
        least, most = residuals.aminmax(dim=-1)
        low, high = path.reach
        assert bool((low < least).all()) and bool((most < high).all())
        torch.testing.assert_close((low, high), (least, most), rtol=1e-9, atol=0.0)


def test_a_reach_counts_every_rounding_of_a_residual() -> None:
    """Products of d features, their sum and −y, by the magnitudes of all of them."""
    plan = plan_of(GradientDescent(as_loss("log_cosh"), 3, 0.3))
    low, high = PathError(plan, X, Y, PATH).reach
    longest = max(math.hypot(*row) for row in PATH[:-1].tolist())
    for row, target, least, most in zip(X.tolist(), Y.tolist(), low.tolist(), high.tolist(), strict=True):
        residuals = [
            sum(Fraction(a) * Fraction(b) for a, b in zip(row, w, strict=True)) - Fraction(target)
            for w in PATH[:-1].tolist()
        ]
        room = 3 * U * Fraction(math.hypot(*row) * longest + abs(target))
        for end, found in ((min(residuals), Fraction(least)), (max(residuals), Fraction(most))):
            assert room / 2 <= abs(found - end) <= 4 * room
        assert Fraction(least) < min(residuals) and max(residuals) < Fraction(most)


def test_weighted_eigenvalues_are_below_the_exact_ones_by_rounding_alone() -> None:
    weights = torch.tensor([0.3, 0.0, 1.0, 0.7, 0.1], dtype=f64)
    found = audit.weighted_smallest(X, weights).item()
    with ctx.workprec(200):
        a, b, c = (
            sum(number(Fraction(w)) * number(Fraction(p)) * number(Fraction(q)) for w, p, q in zip(*parts, strict=True))
            for parts in ((weights.tolist(), X[:, i].tolist(), X[:, j].tolist()) for i, j in ((0, 0), (0, 1), (1, 1)))
        )
        exact = ((a + c) / 2 - (((a - c) / 2) ** 2 + b * b).sqrt()) / 5
        assert exact - arb(1e-14) < arb(found) < exact - 4 * arb(float(U)) * (a + c) / 5
    assert audit.weighted_smallest(X, torch.zeros_like(weights)).item() == 0.0


@pytest.mark.parametrize("loss", ["log_cosh", "logistic", "poisson"])
@pytest.mark.parametrize("datasets", [(), (2,)])
def test_a_tabulated_loss_gives_the_same_sums_as_balls_do_and_no_wider_ones(loss, datasets, monkeypatch) -> None:
    """A path with a fault of 1e-6 in each state, long runs of it near one another: no difference but the radii."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(*datasets, 700, 3, dtype=f64, generator=draw)
    y = x.sum(dim=-1) + torch.randn(*datasets, 700, dtype=f64, generator=draw)
    y = {"log_cosh": y, "logistic": y.sign(), "poisson": y.abs().round()}[loss]
    descent = GradientDescent(as_loss(loss), 60, {"log_cosh": 0.5, "logistic": 2.0, "poisson": 0.05}[loss])
    plan, path = plan_of(descent, x, y), descent.iterates(x, y)
    path[..., 1:, :] += 1e-6 * torch.randn(path[..., 1:, :].shape, dtype=f64, generator=draw)
    truth = PathError(plan, x, y, path, Ball)._gradients[0]
    wide = PathError(plan, x, y, path, FloatBall)._gradients
    monkeypatch.setattr(audit, "WORTH", 0)
    monkeypatch.setattr(audit, "WIDE", 256)
    tabulated, off = PathError(plan, x, y, path, FloatBall)._gradients
    away = _norm((tabulated - truth).size)
    assert bool((away <= off * 1.001).all()) and bool((off < 1.2 * wide[1]).all())
    assert away.amax() > off.amin() * 1e-4  # and they are not the same computation
    assert 3 < len(list(audit._near(path[..., :-1, :], 0.01))) < 60
    monkeypatch.setattr(audit.Cells, "read", lambda cells, high, low, off: (high, low, math.inf))
    assert PathError(plan, x, y, path, FloatBall).after_all_steps().isinf().all()


def test_samples_that_stay_where_the_loss_is_curved_make_errors_shrink() -> None:
    """Huber, one sample beyond its threshold all the time and four within: ρ is that of the four."""
    x, y = torch.ones(5, 1, dtype=f64), torch.tensor([0.1, 0.2, -0.1, 0.0, 5.0], dtype=f64)
    plan = plan_of(GradientDescent(as_loss("huber(1.0)"), 40, 0.5), x, y)
    at_rest = (sum(y[:4].tolist()) + 1.0) / 4
    path = torch.full((41, 1), at_rest + 1e-4, dtype=f64)
    error = PathError(plan, x, y, path)
    defect, ratio = 0.5 * 1e-4 * 4 / 5, 1 - 0.5 * 4 / 5
    assert error.after_all_steps().item() == pytest.approx(defect / (1 - ratio), rel=1e-3)


def one_sample(
    loss: Loss | str, eta: float, path: list[float], y: float, l2: float = 0.0, x: float = 1.0, samples: int = 1
) -> PathError:
    """A path of one weight on one sample, which may be there several times."""
    x, y = torch.full((samples, 1), x, dtype=f64), torch.full((samples,), y, dtype=f64)
    plan = plan_of(GradientDescent(as_loss(loss), len(path) - 1, 1e-3, l2=l2), x, y)
    return PathError(plan.changed(step_size=eta), x, y, torch.tensor(path, dtype=f64).unsqueeze(-1))


@pytest.mark.parametrize(("eta", "l2"), [(0.5, 0.0), (0.5, 0.3), (2.5, 0.0)])
def test_an_error_goes_on_as_the_losses_slope_lets_it_wherever_paths_may_be(eta, l2) -> None:
    """log cosh, one sample: ℓ″ = sech² between the residuals, which are those of the path and a little beside."""
    off, states = 1e-4, [0.0]
    for _ in range(6):
        states.append((1 - eta * l2) * states[-1] - eta * math.tanh(states[-1] - 1.0) + off)
    error = one_sample("log_cosh", eta, states, 1.0, l2)
    residuals = [state - 1.0 for state in states[:-1]]
    slopes = [1 / math.cosh(s) ** 2 for s in residuals]
    flattest, steepest = min(slopes), 1.0 if min(residuals) < 0 < max(residuals) else max(slopes)
    ratio = max(abs(1 - eta * (l2 + flattest)), abs(1 - eta * (l2 + steepest)))
    wanted = off * sum(ratio**k for k in range(6))
    assert wanted * (1 - 1e-9) <= error.after_all_steps().item() <= 1.06 * wanted


@pytest.mark.parametrize("together", [1, 1 << 16])
def test_a_jump_that_paths_may_lie_around_is_added_at_every_such_step(together, monkeypatch) -> None:
    """Quantile, one sample: where |s| is within the error so far, ℓ′ may differ by 1, which the next state feels."""
    monkeypatch.setattr(audit, "SLICE", together)
    eta, states = 0.25, [0.0, 0.126, 0.1255, 0.1255]
    error = one_sample("quantile", eta, states, 0.125)
    f = parse(as_loss("quantile").derivative)
    exact = [state - eta * f(torch.tensor([state - 0.125], dtype=f64)).item() for state in states[:-1]]
    defects = [abs(a - b) for a, b in zip(states[1:], exact, strict=True)]
    before, undecided = 0.0, []
    for state, defect in zip(states[:-1], defects, strict=True):
        undecided.append(abs(state - 0.125) <= before)
        before += defect + eta * undecided[-1]
    assert undecided == [False, True, True]
    # What a jump may change is summed over samples, and lifted over that by a part 1e-9.
    assert before + 9e-10 * eta * sum(undecided) <= error.after_all_steps().item() <= before * 1.05


def test_slopes_are_asked_for_wherever_the_exact_path_may_be_by_then() -> None:
    """cosh with x = 8: s ← s − 4·sinh(s) leaves −1 for 3.7 and −77; the path beside it stays at the minimum.

    Between the residuals of that path alone, −1 and 0, an error would grow 5.2-fold; within the error of them itself,
    13-fold; but it is 8 times that in the residual, and has grown 21-fold.
    """
    error = one_sample(Loss.of("cosh(t)"), 4 / 64, [0.0, 0.125, 0.125], 1.0, x=8.0)
    first = -1 + 4 * math.sinh(1)
    assert error.after_all_steps().item() >= abs(first - 4 * math.sinh(first)) / 8


def test_errors_that_no_assumption_holds_are_promised_nothing() -> None:
    """As above, for three steps more: the exact path is beyond all numbers by then."""
    error = one_sample(Loss.of("cosh(t)"), 4 / 64, [0.0] + [0.125] * 5, 1.0, x=8.0)
    assert error.after_all_steps().item() == math.inf


def test_a_sample_in_doubt_has_no_slope_and_adds_all_that_it_may_change() -> None:
    """ℓ′ = t + sign t, η = 1/4, two samples alike: errors 0.025 and 0.75·0.025 + 0.155 before a step from s = 0.02.

    There e is assumed to be 2·(0.025 + 0.155) = 0.36, ℓ′ is anything between ∓1.36 and a little, and nothing shrinks.
    """
    states = [0.0, 0.4, 0.52, 0.265]
    error = one_sample(Loss.of("t**2/2 + Abs(t)"), 0.25, states, 0.5, samples=2)
    wanted = 0.75 * 0.025 + 0.155 + 0.25 * 2 * (1 + 0.36)
    assert error.after_all_steps().item() == pytest.approx(wanted, rel=1e-6)


def test_a_run_is_as_far_off_as_it_is_seen_to_be_and_float64_itself_may_be() -> None:
    descent = GradientDescent(as_loss("squared"), 3, 0.3, l2=0.2)
    plan, path = plan_of(descent), descent.iterates(X, Y)
    moved = path.clone()
    moved[-1, 1] += 0.125
    terms = audited(plan, X, Y, moved).terms
    seen = Fraction(moved[-1, 1].item()) - Fraction(path[-1, 1].item())
    assert seen < Fraction(terms["distance to float64"]) < seen * (1 + Fraction(1, 10**11))
    own = PathError(plan, X, Y, path, GRADES[0]).after_all_steps().item()
    assert terms["float64's own error"] == own and 0 < own < 1e-13
    ahead = GradientDescent(as_loss("squared"), 3, 0.3, l2=0.2, accelerated=True)
    plan, last = plan_of(ahead), ahead.iterates(X, Y)[-1]
    terms = audited(plan, X, Y, (last + 1.0).unsqueeze(0)).terms
    own = sum(map(Fraction, distance_to_exact(plan, X, Y, last)))
    assert terms["distance to float64"] == pytest.approx(1.0)
    assert 0 < own < Fraction(terms["float64's own error"]) < own * (1 + Fraction(1, 10**11))


def test_losses_that_overflow_on_the_way_are_promised_nothing() -> None:
    calm = plan_of(GradientDescent(Loss.of("exp(t**2)"), 8, 1e-3))
    found = audited(calm.changed(step_size=5.0), X, Y, torch.zeros(9, 2, dtype=f64))
    assert found.terms == {"float64 beside it": math.inf}
