"""An interpreter's program, asked on data of its own domain, is identified as the algorithm that was compiled."""

import pytest
import torch

from emulon.algorithms import Lasso, LinearRegression, LogisticRegression, Ridge
from emulon.certify import Domain
from emulon.core.errors import EmulonError, OutOfDomain
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


def test_the_data_fill_the_domain_and_stay_in_it(ridge):
    task = DomainTask(ridge)
    xs, ys = task.held_out(1, 40, SAMPLES + 1).pairs
    domain, (low, high) = ridge.domain, task.eigenvalues
    assert 0.8 * domain.x < xs.abs().max() <= domain.x and ys[:, :SAMPLES].abs().max() <= domain.y
    spectrum = torch.linalg.eigvalsh(xs[:, :SAMPLES].mT @ xs[:, :SAMPLES] / SAMPLES)
    assert spectrum.max() <= high and spectrum.min() >= ridge.plan.strong_convexity
    assert high / low > 1.5 and spectrum.max() > 0.5 * high
    solutions = torch.linalg.pinv(xs[:, :SAMPLES]) @ ys[:, :SAMPLES, None]
    assert 2 * solutions.norm(dim=(1, 2)).max() <= domain.w  # what descent may reach on its way there
    ridge.predict(xs[:, :SAMPLES], ys[:, :SAMPLES], xs[:, SAMPLES])  # every check of the run passes
    assert torch.equal(task.held_out(1, 40, 5).xs, xs[:, :5])
    assert "in the program's domain: 24 samples of 3 features" in str(task)


def test_datasets_of_a_program_come_in_any_dtype_and_with_all_their_features(ridge):
    task = DomainTask(ridge)
    drawn = task.datasets(torch.Generator().manual_seed(0), 2)
    assert drawn.xs.shape == (2, SAMPLES + 1, FEATURES) and drawn.ys.dtype == torch.float32
    with pytest.raises(EmulonError, match="no curriculum"):
        task.sample(torch.Generator(), 2, torch.ones(FEATURES))


def test_programs_of_classes_are_refused(data):
    logistic = compile(LogisticRegression(steps=5), data=(data[0], data[1].sign()), tolerance=1e-3)
    with pytest.raises(EmulonError, match="classes or counts"):
        DomainTask(logistic)
