"""An interpreter's program, asked inside its own domain, is identified as the algorithm that was compiled."""

import pytest

from emulon.algorithms import Lasso, LinearRegression, Ridge
from emulon.certify import Domain
from emulon.core.errors import OutOfDomain
from emulon.identification import identify
from emulon.identification.loading import DomainTask, load_subject
from emulon.interpreter import compile, save
from emulon.tasks import Linear

SAMPLES, FEATURES = 24, 3


@pytest.fixture(scope="module")
def data():
    xs, ys = Linear(FEATURES, noise=0.5).held_out(7, 1, SAMPLES).pairs
    return xs[0], ys[0]


@pytest.fixture(scope="module")
def ridge(data):
    return compile(Ridge(penalty=0.2, steps=100), data=data, tolerance=1e-8)


def test_the_ridge_program_is_ridge_with_its_penalty(ridge, tmp_path):
    save(ridge, tmp_path / "program.safetensors")
    subject = load_subject(str(tmp_path / "program.safetensors"))
    assert isinstance(subject.task, DomainTask)
    found = identify(subject.thing, subject.task, datasets=16)
    assert found.algorithm == "ridge" and found.counts == (SAMPLES,)
    assert found.parameters["ridge"] == pytest.approx(0.2 * SAMPLES, rel=1e-4)
    assert found["ridge on the mean"].parameters["penalty"] == pytest.approx(0.2, rel=1e-4)
    assert "ridge on the mean" in found.ties and found.nearest.unexplained.high < 1e-8


def test_few_steps_of_descent_are_those_steps_and_the_lasso_is_the_lasso(data):
    descent = compile(LinearRegression(steps=6), data=data)
    found = identify(descent, DomainTask(descent), datasets=16)
    assert found.algorithm.startswith("gradient descent")
    steps = found["gradient descent"]
    assert steps.parameters["steps"] == 6
    assert steps.parameters["step_size"] == pytest.approx(descent.step_size, rel=1e-3)
    lasso = compile(Lasso(penalty=0.1, steps=100), data=data, tolerance=1e-3)
    found = identify(lasso, DomainTask(lasso), datasets=16)
    assert found.algorithm == "lasso" and found.parameters["penalty"] == pytest.approx(0.1, rel=0.1)


def test_a_program_for_a_domain_without_data_can_be_asked_too():
    program = compile(Ridge(penalty=0.5, steps=60, step_size=0.4), Domain(SAMPLES, FEATURES, 3.0, 5.0, 4.0), 1e-6)
    found = identify(program, DomainTask(program), datasets=12)
    assert found.algorithm == "ridge" and found.parameters["ridge"] == pytest.approx(12, rel=1e-2)


def test_data_outside_the_domain_are_refused(ridge):
    with pytest.raises(OutOfDomain):
        identify(ridge, Linear(FEATURES, prior=100.0), datasets=8)
