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
from emulon.interpreter import Interpreter, compile
from emulon.interpreter.audit import GRADES, PathError, audited
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


def exact_ridge(x, y, steps, step_size, l2, momentum=0.0):
    rows = [[Fraction(v) for v in row] for row in x.tolist()]
    y, eta, l2, momentum = [Fraction(v) for v in y.tolist()], Fraction(step_size), Fraction(l2), Fraction(momentum)
    w = before = [Fraction(0)] * len(rows[0])
    for _ in range(steps):
        s = [sum(a * b for a, b in zip(row, w, strict=True)) - t for row, t in zip(rows, y, strict=True)]
        g = [sum(r * row[k] for r, row in zip(s, rows, strict=True)) / len(rows) for k in range(len(w))]
        moved = [(1 - eta * l2) * a - eta * b + momentum * (a - c) for a, b, c in zip(w, g, before, strict=True)]
        # Fractions would double in length at every step: 200 digits are exact enough.
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
    exact = exact_ridge(x, y, 60, program.step_size, 0.1, momentum)
    found = max(abs(Fraction(a) - b) for a, b in zip(path[-1].tolist(), exact, strict=True))
    assert 0 < found <= Fraction(bound) < 1e-13
    # The same holds for a path with a fault in its middle.
    path = path.clone()
    path[30:] += 1e-3 * 0.9 ** torch.arange(31, dtype=f64).unsqueeze(-1)
    found = max(abs(Fraction(a) - b) for a, b in zip(path[-1].tolist(), exact, strict=True))
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
