"""An audit bounds this run's error, and is hardly above it."""

import math
from fractions import Fraction
from functools import cache

import pytest
import torch

from emulon.algorithms import (
    ElasticNet,
    GradientDescent,
    HeavyBall,
    HuberRegression,
    Lasso,
    LinearRegression,
    LogCoshRegression,
    LogisticRegression,
    Perceptron,
    PoissonRegression,
    QuantileRegression,
    Ridge,
    SquaredHinge,
    as_loss,
)
from emulon.constructions import DescentInContext
from emulon.interpreter import Interpreter, audit, compile
from emulon.interpreter.audit import GRADES, PathError, audited, distance_to_exact
from emulon.interpreter.plan import Plan, domain_from_data

f64 = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, dtype=f64, generator=GENERATOR)
Y = X @ torch.tensor([1.0, -0.5, 0.2], dtype=f64) + 0.3 * torch.randn(30, dtype=f64, generator=GENERATOR)
REGRESSIONS = [LinearRegression, Ridge, HeavyBall, Lasso, ElasticNet, HuberRegression, LogCoshRegression]
EVERY = [*REGRESSIONS, QuantileRegression, PoissonRegression, LogisticRegression, SquaredHinge, Perceptron]


def targets(algorithm):
    link = algorithm.descent.loss.link.name
    return {"residual": Y, "margin": torch.where(Y > 0, 1.0, -1.0).double(), "rate": Y.abs().round()}[link]


def plan_of(algorithm, x=X, y=None):
    y = targets(algorithm) if y is None else y
    return Plan.of("audited", algorithm.descent, domain_from_data(algorithm.descent, x, y), (x, y))


@cache
def run_of(algorithm, dtype=f64):
    y = targets(algorithm)
    program = compile(algorithm, data=(X, y), dtype=dtype)
    return Interpreter.fitting(program).run(program, X, y)


@pytest.mark.parametrize("kind", EVERY)
def test_an_audit_holds_is_proved_and_within_a_factor_of_three(kind):
    run = run_of(kind(steps=20))
    error = run.audit.verify(run.weights, kind(steps=20, step_size=run.program.step_size).run(run.x, run.y))
    assert run.audit.proved and run.audit.scope == "run" and not run.audit.bands
    assert error <= run.audit.bound <= 3 * error + 1e-15 and run.audit.bound < run.certificate.bound


def exact(x, y, descent: GradientDescent) -> list[Fraction]:
    """The squared loss in fractions of 200 digits, as exact fractions would double in length at every step."""
    rows, ys = [[Fraction(v) for v in row] for row in x.tolist()], [Fraction(v) for v in y.tolist()]
    eta, l2, l1, momentum = map(Fraction, (descent.step_size, descent.l2, descent.l1, descent.momentum))
    size, w = descent.batch or len(rows), [Fraction(0)] * x.shape[1]
    before = w
    for k in range(descent.steps):
        ahead = Fraction(k, k + 3) if descent.accelerated else 0
        start = [a + ahead * (a - b) for a, b in zip(w, before, strict=True)]
        part = [(k * size + j) % len(rows) for j in range(size)]
        off = [sum(a * b for a, b in zip(rows[i], start, strict=True)) - ys[i] for i in part]
        slopes = [sum(r * rows[i][c] for r, i in zip(off, part, strict=True)) / size for c in range(len(w))]
        moved = [
            (1 - eta * l2) * a - eta * g + momentum * (b - c)
            for a, g, b, c in zip(start, slopes, w, before, strict=True)
        ]
        moved = [max(v - eta * l1, 0) + min(v + eta * l1, 0) for v in moved]
        w, before = [Fraction(round(v * 10**200), 10**200) for v in moved], w
    return w


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_float64s_own_error_is_bounded_by_the_path_error_against_exact_fractions(momentum, grade):
    x, y = X[:8], Y[:8]
    algorithm = GradientDescent(as_loss("squared"), 60, 0.2, l2=0.1, momentum=momentum)
    program = plan_of(algorithm, x, y)
    path = algorithm.iterates(x, y)
    bound = PathError(program, x, y, path, grade).after_all_steps().item()
    truth = exact(x, y, algorithm)
    found = max(abs(Fraction(a) - b) for a, b in zip(path[-1].tolist(), truth, strict=True))
    assert 0 < found <= Fraction(bound) < 1e-13
    # The same holds for a path with a fault in its middle.
    path = path.clone()
    path[30:] += 1e-3 * 0.9 ** torch.arange(31, dtype=f64).unsqueeze(-1)
    found = max(abs(Fraction(a) - b) for a, b in zip(path[-1].tolist(), truth, strict=True))
    assert found <= Fraction(PathError(program, x, y, path, grade).after_all_steps().item())


@pytest.mark.parametrize("kind", EVERY)
def test_a_wrong_path_is_never_called_right(kind):
    """Every step of a path disturbed: what the bound allows is at least how far it ended from the float64 path."""
    algorithm = kind(steps=12)
    y = targets(algorithm)
    program = plan_of(algorithm)
    exact = kind(steps=12, step_size=program.step_size)
    draw = torch.Generator().manual_seed(1)
    for size in (1e-12, 1e-6, 1e-3):
        path = exact.iterates(X, y)
        noise = size * torch.randn(path.shape, dtype=f64, generator=draw)
        noise[0] = 0
        for grade in GRADES:
            bound = PathError(program, X, y, path + noise, grade).after_all_steps().item()
            assert noise[-1].abs().max() <= bound


def test_a_run_is_looked_at_no_closer_than_it_must_be(monkeypatch):
    """In balls of one float; to twice the precision where these leave more open than is seen."""
    tried, exact = [], PathError.after_all_steps
    monkeypatch.setattr(PathError, "after_all_steps", lambda self: tried.append(self.kind) or exact(self))
    run = run_of(LogCoshRegression(steps=20))
    for off, grades in ((1e-4, GRADES[:1]), (1e-12, GRADES[:1]), (0.0, GRADES)):
        tried.clear()
        exact_path = run.program.descent.iterates(run.x, run.y)
        bound = audited(run.program.plan, run.x, run.y, exact_path + off).bound
        assert tried == list(grades) and off <= bound <= 2.5 * off + 1e-14


def test_float32_is_audited_in_float64():
    run = run_of(Ridge(steps=20), torch.float32)
    exact = Ridge(steps=20, step_size=run.program.step_size).run(run.x.double(), run.y.double())
    error = run.audit.verify(run.weights, exact)
    assert 1e-9 < error <= run.audit.bound < 1.001 * error


def test_data_that_require_gradients_are_audited_and_the_reference_passes_gradients_on():
    kind = HuberRegression(steps=20)
    program, x = compile(kind, data=(X, Y)), X.clone().requires_grad_()
    assert Interpreter.fitting(program).run(program, x, Y).audit.bound == run_of(kind).audit.bound
    run = Interpreter.fitting(program).run(program, x, Y, mode="reference")
    run.weights.sum().backward()
    assert run.audit.bound < 1e-7 and x.grad is not None and x.grad.abs().sum() > 1


def test_a_run_that_is_no_number_has_an_infinite_audit():
    run = run_of(Ridge(steps=3))
    run.iterates[-1, 0] = torch.nan
    assert run.audit.bound == float("inf")


def test_a_loss_that_is_not_convex_is_audited_by_what_its_slope_is_along_the_path():
    algorithm = GradientDescent(as_loss("tukey(2.0)"), 30, 0.3)
    run = run_of(algorithm)
    error = run.audit.verify(run.weights, algorithm.run(X, Y))
    assert error <= run.audit.bound <= 3 * error and run.audit.proved


def test_a_construction_is_audited_in_the_same_words():
    x, y = X[:6, :2] / 3, Y[:6] / 3
    module = DescentInContext.of(HuberRegression(steps=5), x, y, 1e-4)
    run = module.run(x, y)
    exact = HuberRegression(steps=5, step_size=module.plan.step_size).run(x, y)
    assert run.audit.verify(run.weights, exact) <= run.audit.bound < run.certificate.bound
    assert run.audit.scope == "run"


def test_a_path_that_grew_out_of_all_bounds_is_promised_nothing():
    algorithm = GradientDescent(as_loss("poisson"), 2, 0.1)
    plan = plan_of(algorithm)
    path = torch.tensor([[0.0, 0, 0], [500.0, 0, 0], [0.0, 0, 0]], dtype=f64)
    assert PathError(plan, X, targets(algorithm), path).after_all_steps().item() == math.inf


X12, Y12 = X[:12, :2], Y[:12]


@pytest.mark.parametrize(("batch", "l1"), [(12, 0.0), (12, 0.1), (4, 0.0), (4, 0.1)])
def test_the_distance_is_that_to_exact_fractions(batch: int, l1: float):
    kind = {"accelerated": True} if batch == 12 else {"batch": batch}
    descent = GradientDescent(as_loss("squared"), 40, 0.2, l2=0.1, l1=l1, **kind)
    plan, truth = plan_of(descent, X12, Y12), exact(X12, Y12, descent)
    for off in (0.0, 1e-9):
        weights = torch.tensor([float(v) for v in truth], dtype=f64) + off
        found = max(abs(Fraction(a) - b) for a, b in zip(weights.tolist(), truth, strict=True))
        away, radius = distance_to_exact(plan, X12, Y12, weights)
        assert float(found) * (1 - 1e-12) <= away <= float(found) * (1 + 1e-9) + 1e-30
        assert radius <= 2.0**-80


@pytest.mark.parametrize("loss", ["logistic", "huber", "poisson", "quantile", "perceptron", "squared_hinge"])
@pytest.mark.parametrize("kind", [{"accelerated": True}, {"batch": 5}])
def test_every_loss_is_followed_as_near_as_float64_is(loss: str, kind: dict):
    loss = as_loss(loss)
    y = {"residual": Y12, "margin": torch.where(Y12 > 0, 1.0, -1.0).double(), "rate": Y12.abs().round()}[loss.link.name]
    descent = GradientDescent(loss, 12, 0.05, **kind)
    path = descent.iterates(X12, y)
    audit = audited(plan_of(descent, X12, y), X12, y, path)
    assert audit.scope == "run" and audit.proved and 0 < audit.bound < 1e-13


def test_of_a_batch_the_worst_dataset_counts():
    descent = GradientDescent(as_loss("squared"), 6, 0.1, accelerated=True)
    x, y = torch.stack([X12, X12]), torch.stack([Y12, Y12])
    path = descent.iterates(x, y)
    path[1, -1, 0] += 1e-3
    plan = Plan.of("enclosed", descent, domain_from_data(descent, x, y), (x, y))
    assert audited(plan, x, y, path).bound == pytest.approx(1e-3, rel=1e-9)


def test_with_too_few_bits_the_enclosure_is_wide_and_still_holds(monkeypatch):
    monkeypatch.setattr(audit, "BITS", 24)
    monkeypatch.setattr(audit, "TRIES", 1)
    monkeypatch.setattr(audit, "BITS_A_STEP", 0)
    descent = GradientDescent(as_loss("squared"), 40, 0.2, l2=0.1, accelerated=True)
    plan, truth = plan_of(descent, X12, Y12), exact(X12, Y12, descent)
    away, radius = distance_to_exact(plan, X12, Y12, torch.tensor([float(v) for v in truth], dtype=f64))
    assert radius > 1e-6 and away <= radius


@pytest.mark.parametrize("kind", [Ridge, HuberRegression])
def test_no_steps_are_exact(kind):
    assert audited(plan_of(kind(steps=0)), X, Y, torch.zeros(1, 3, dtype=f64)).bound == 0
