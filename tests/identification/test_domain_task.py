"""Data for a compiled program lie in the domain that it was compiled for."""

import pytest
import torch

from emulon.algorithms import LogisticRegression, Ridge
from emulon.core.errors import EmulonError
from emulon.identification.loading import DomainTask
from emulon.interpreter import compile
from emulon.tasks import Linear

SAMPLES, FEATURES = 24, 3


@pytest.fixture(scope="module")
def data():
    xs, ys = Linear(FEATURES, noise=0.5).held_out(7, 1, SAMPLES).pairs
    return xs[0], ys[0]


@pytest.fixture(scope="module")
def ridge(data):
    return compile(Ridge(penalty=0.2, steps=100), data=data, tolerance=1e-8)


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
