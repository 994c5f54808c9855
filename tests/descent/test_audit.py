"""An audit bounds this run's error, and is far below what is promised for every input where there are kinks."""

import pytest
import torch

from emulon.algorithms import HeavyBall, HuberRegression, Lasso, LogisticRegression, PoissonRegression, Ridge
from emulon.errors import EmulonError
from emulon.interpreter import Interpreter, compile

f64 = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, dtype=f64, generator=GENERATOR)
Y = X @ torch.tensor([1.0, -0.5, 0.2], dtype=f64) + 0.3 * torch.randn(30, dtype=f64, generator=GENERATOR)
TARGETS = {"LogisticRegression": torch.where(Y > 0, 1.0, -1.0).double(), "PoissonRegression": Y.abs().round()}


def run_of(algorithm, dtype=f64):
    y = TARGETS.get(type(algorithm).__name__, Y)
    program = compile(algorithm, data=(X, y), tolerance=1e-6, dtype=dtype)
    return Interpreter.fitting(program).run(program, X, y)


@pytest.mark.parametrize("kind", [Ridge, Lasso, HuberRegression, LogisticRegression, PoissonRegression])
def test_an_audit_holds_and_is_sharper_than_the_promise(kind):
    run = run_of(kind(steps=20))
    error = run.audit.verify(run.weights, kind(steps=20).run(run.x, run.y))
    assert run.audit.proved and run.audit.scope == "run"
    assert error <= run.audit.bound < run.certificate.bound


def test_kinks_cost_an_audit_little():
    run = run_of(Lasso(steps=20))
    assert run.audit.bound < 1e-2 * run.certificate.bound


def test_float32_is_audited_in_float64():
    run = run_of(Ridge(steps=20), torch.float32)
    exact = Ridge(steps=20, step_size=run.program.step_size).run(run.x.double(), run.y.double())
    assert 1e-9 < run.audit.verify(run.weights, exact) <= run.audit.bound < run.certificate.bound


def test_a_wrong_step_shows():
    run = run_of(Ridge(steps=20))
    run.iterates[-1] += 1e-3
    assert run.audit.bound > 1e-3


def test_momentum_has_no_audit():
    with pytest.raises(EmulonError, match="no audit"):
        _ = run_of(HeavyBall(momentum=0.5, steps=3)).audit
