"""The exact steps in balls: right to the last bit, whatever the loss, and honest where it cannot follow."""

from fractions import Fraction

import pytest
import torch

from emulon.algorithms import GradientDescent, as_loss
from emulon.interpreter import audit
from emulon.interpreter.audit import audited, distance_to_exact
from emulon.interpreter.plan import Plan, domain_from_data

f64 = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 2, dtype=f64, generator=GENERATOR)
Y = X @ torch.tensor([1.0, -0.5], dtype=f64) + 0.3 * torch.randn(12, dtype=f64, generator=GENERATOR)


def plan_of(descent: GradientDescent, y: torch.Tensor = Y) -> Plan:
    return Plan.of("enclosed", descent, domain_from_data(descent, X, y), (X, y))


def exact(steps: int, eta: float, l2: float, l1: float, batch: int) -> list[Fraction]:
    """Accelerated without batches, in fractions."""
    rows, ys = [[Fraction(v) for v in row] for row in X.tolist()], [Fraction(v) for v in Y.tolist()]
    eta, l2, l1, w = Fraction(eta), Fraction(l2), Fraction(l1), [Fraction(0)] * 2
    before = w
    for k in range(steps):
        ahead = Fraction(k, k + 3) if batch == 12 else 0
        start = [a + ahead * (a - b) for a, b in zip(w, before, strict=True)]
        part = [(k * batch + j) % 12 for j in range(batch)]
        off = [sum(a * b for a, b in zip(rows[i], start, strict=True)) - ys[i] for i in part]
        moved = [
            (1 - eta * l2) * start[c] - eta * sum(r * rows[i][c] for r, i in zip(off, part, strict=True)) / batch
            for c in range(2)
        ]
        moved = [max(v - eta * l1, 0) + min(v + eta * l1, 0) for v in moved]
        w, before = [Fraction(round(v * 10**120), 10**120) for v in moved], w
    return w


@pytest.mark.parametrize(("batch", "l1"), [(12, 0.0), (12, 0.1), (4, 0.0), (4, 0.1)])
def test_the_distance_is_that_to_exact_fractions(batch: int, l1: float):
    kind = {"accelerated": True} if batch == 12 else {"batch": batch}
    plan = plan_of(GradientDescent(as_loss("squared"), 40, 0.2, l2=0.1, l1=l1, **kind))
    truth = exact(40, 0.2, 0.1, l1, batch)
    for off in (0.0, 1e-9):
        weights = torch.tensor([float(v) for v in truth], dtype=f64) + off
        found = max(abs(Fraction(a) - b) for a, b in zip(weights.tolist(), truth, strict=True))
        away, radius = distance_to_exact(plan, X, Y, weights)
        assert float(found) * (1 - 1e-12) <= away <= float(found) * (1 + 1e-9) + 1e-30
        assert radius <= 2.0**-80


@pytest.mark.parametrize("loss", ["logistic", "huber", "poisson", "quantile", "perceptron", "squared_hinge"])
@pytest.mark.parametrize("kind", [{"accelerated": True}, {"batch": 5}])
def test_every_loss_is_followed_as_near_as_float64_is(loss: str, kind: dict):
    loss = as_loss(loss)
    y = {"residual": Y, "margin": torch.where(Y > 0, 1.0, -1.0).double(), "rate": Y.abs().round()}[loss.link.name]
    descent = GradientDescent(loss, 12, 0.05, **kind)
    path = descent.iterates(X, y)
    audit = audited(plan_of(descent, y), X, y, path)
    assert audit.scope == "run" and audit.proved and 0 < audit.bound < 1e-13


def test_of_a_batch_the_worst_dataset_counts():
    descent = GradientDescent(as_loss("squared"), 6, 0.1, accelerated=True)
    x, y = torch.stack([X, X]), torch.stack([Y, Y])
    path = descent.iterates(x, y)
    path[1, -1, 0] += 1e-3
    plan = Plan.of("enclosed", descent, domain_from_data(descent, x, y), (x, y))
    assert audited(plan, x, y, path).bound == pytest.approx(1e-3, rel=1e-9)


def test_with_too_few_bits_the_enclosure_is_wide_and_still_holds(monkeypatch):
    monkeypatch.setattr(audit, "BITS", 24)
    monkeypatch.setattr(audit, "TRIES", 1)
    monkeypatch.setattr(audit, "BITS_A_STEP", 0)
    plan = plan_of(GradientDescent(as_loss("squared"), 40, 0.2, l2=0.1, accelerated=True))
    truth = exact(40, 0.2, 0.1, 0, 12)
    away, radius = distance_to_exact(plan, X, Y, torch.tensor([float(v) for v in truth], dtype=f64))
    assert radius > 1e-6 and away <= radius
