"""A step written as a network, repeated on the interpreter: exact to rounding, audited, refused where it must be."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from small_networks import unchecked
from torch import nn

from emulon.algorithms import Ridge
from emulon.core.errors import BadNetwork, EmulonError, OutOfDomain
from emulon.interpreter import Interpreter, compile
from emulon.networks.compiler import compile_iteration
from emulon.networks.elementwise import Function
from emulon.networks.layers import Box
from emulon.networks.program import distance_by_arb

f64 = torch.float64
IRIS, SPECIES = load_iris(return_X_y=True)
X = torch.from_numpy((IRIS - IRIS.mean(axis=0)) / IRIS.std(axis=0))[::6]
Y = torch.from_numpy(SPECIES)[::6]
EXAMPLE = Path(__file__).parents[2] / "examples" / "softmax_regression.py"
SoftmaxRegressionStep = runpy.run_path(str(EXAMPLE))["SoftmaxRegressionStep"]


def power_step(x):
    """v ↦ Cv/‖Cv‖·√features with C = XᵀX/samples: power iteration."""
    down, up = (nn.Linear(*sizes, bias=False).double() for sizes in (x.shape[::-1], x.shape))
    down.weight.data, up.weight.data = x / len(x) ** 0.5, x.T / len(x) ** 0.5
    return nn.Sequential(down, up, nn.RMSNorm(x.shape[1], eps=0.0, elementwise_affine=False).double())


def test_power_iteration_ends_at_the_first_principal_component():
    """On an interpreter that runs a regression, too."""
    start = torch.ones(1, 4, dtype=f64)
    with unchecked():
        program, ridge = compile_iteration(power_step(X), start, 15), compile(Ridge(steps=3), data=(X, X[:, 0]))
    interpreter = Interpreter.fitting(program, ridge)
    run, other = interpreter.run(program, start, None), interpreter.run(ridge, X, X[:, 0])
    assert {*run.sha256, *other.sha256} == {interpreter.sha256}
    error = (run.last - program.exact(start)).abs().max()
    assert error <= run.audit.bound + 1e-14 < 2e-9 and run.audit.scope == "run"
    centred, component = torch.linalg.svd(X).Vh[0], run.last[0] / 2
    assert min((component - centred).abs().max(), (component + centred).abs().max()) < 1e-6


def test_softmax_regression_is_within_its_audit_and_ends_where_scikit_learn_does():
    from sklearn.linear_model import LogisticRegression

    step = SoftmaxRegressionStep(X, Y, penalty=0.5)
    program = compile_iteration(step, step.start(), 60)
    run = program(step.start())
    error = (run.last - program.exact(step.start())).abs().max()
    assert error <= run.audit.bound + 1e-14 < 1e-10  # the reference rounds, too
    theirs = LogisticRegression(C=1 / (len(X) * 0.5), fit_intercept=False, tol=1e-10, max_iter=10_000)
    ours = run.last.reshape(4, 3).T.numpy()
    np.testing.assert_allclose(ours, theirs.fit(X.numpy(), Y.numpy()).coef_, atol=1e-5)


def test_a_step_that_pulls_states_together_has_a_certificate():
    half = nn.Linear(3, 3).double()
    half.bias.data = torch.tensor([0.1, -0.2, 0.3], dtype=f64)
    half.weight.data = 0.5 * torch.eye(3, dtype=f64)
    start = torch.tensor([[1.0, -1.0, 0.5]], dtype=f64)
    program = compile_iteration(half, start.numpy(), 50)
    run = program(start.numpy())
    assert isinstance(run.outputs, np.ndarray)
    torch.testing.assert_close(run.last, 2 * half.bias.detach().expand(1, 3), rtol=0, atol=1e-12)
    error = (run.last - program.exact(start)).abs().max()
    assert error - 1e-15 <= run.audit.bound <= run.certificate.bound < 1e-10
    near = Box(*(torch.tensor([1.0, -1.0, 0.5], dtype=f64) + end for end in (-0.1, 0.1)))
    with pytest.raises(OutOfDomain, match="x reaches from"):  # with its second step
        replace(program, box=near)(start.numpy())
    away = nn.Linear(3, 3).double()
    away.weight.data = 1.5 * torch.eye(3, dtype=f64)
    assert not compile_iteration(away, start, 120).certificate.is_informative(1.5**120)


def test_what_makes_no_sense_is_refused_in_one_line():
    start = torch.ones(1, 4, dtype=f64)
    with pytest.raises(BadNetwork, match="must keep the shape"):
        compile_iteration(nn.Linear(4, 3).double(), start, 1)
    with pytest.raises(EmulonError, match="whole number"):
        compile_iteration(nn.Linear(4, 4).double(), start, -1)
    program = compile_iteration(power_step(X), start, 2)
    with pytest.raises(EmulonError, match="reads x alone"):
        Interpreter.fitting(program).run(program, start, start)
    with pytest.raises(OutOfDomain, match="outside of what"):
        program(100 * start)


def test_a_number_without_a_value_is_as_far_away_as_can_be():
    """Behind one that has a value, too: NaN must not be lost in a maximum."""
    layer = Function(name="reciprocal", reads=(0,), expression="1/t")
    own = torch.tensor([[[0.5, 0.0]]], dtype=f64)
    assert distance_by_arb([layer], torch.tensor([[[2.0, 1.0]]], dtype=f64), own) == pytest.approx(1.0, rel=1e-15)
    assert math.isinf(distance_by_arb([layer], torch.tensor([[[2.0, 0.0]]], dtype=f64), own))
