"""An interpreter's program, asked inside its own domain, is identified as the algorithm that was compiled."""

import pytest
import torch

from emulon.algorithms import Lasso, LinearRegression, LogisticRegression, Ridge
from emulon.certify import Domain
from emulon.errors import EmulonError, OutOfDomain
from emulon.interpreter import compile, save
from emulon.interrogate import DomainTask, LinearTask, identify, load_subject

SAMPLES, FEATURES = 24, 3


@pytest.fixture(scope="module")
def data():
    xs, ys = LinearTask(FEATURES, noise=0.5).sample(7, 1, SAMPLES)
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


def test_the_data_fill_the_domain_and_stay_in_it(ridge):
    task = DomainTask(ridge)
    xs, ys = task.sample(1, 40, SAMPLES + 1)
    domain, (low, high) = ridge.domain, task.eigenvalues
    assert 0.8 * domain.x < xs.abs().max() <= domain.x and ys[:, :SAMPLES].abs().max() <= domain.y
    spectrum = torch.linalg.eigvalsh(xs[:, :SAMPLES].mT @ xs[:, :SAMPLES] / SAMPLES)
    assert spectrum.max() <= high and spectrum.min() >= ridge.strong_convexity
    assert high / low > 1.5 and spectrum.max() > 0.5 * high
    ridge.predict(xs[:, :SAMPLES], ys[:, :SAMPLES], xs[:, SAMPLES])  # every check of the run passes
    assert torch.equal(task.sample(1, 40, 5)[0], xs[:, :5])
    assert "in the program's domain: 24 samples of 3 features" in str(task)


def test_a_program_for_a_domain_without_data_can_be_asked_too():
    program = compile(Ridge(penalty=0.5, steps=60, step_size=0.4), Domain(SAMPLES, FEATURES, 3.0, 5.0, 4.0), 1e-6)
    found = identify(program, DomainTask(program), datasets=12)
    assert found.algorithm == "ridge" and found.parameters["ridge"] == pytest.approx(12, rel=1e-2)


def test_data_outside_the_domain_and_programs_of_classes_are_refused(ridge, data):
    with pytest.raises(OutOfDomain):
        identify(ridge, LinearTask(FEATURES, prior=100.0), datasets=8)
    logistic = compile(LogisticRegression(steps=5), data=(data[0], data[1].sign()), tolerance=1e-3)
    with pytest.raises(EmulonError, match="classes or counts"):
        DomainTask(logistic)
