"""Transformers whose algorithm is known, because we built them, are identified as that algorithm."""

import pytest

from emulon.algorithms import Ridge
from emulon.certify import Domain
from emulon.constructions import DescentInContext
from emulon.core.predictor import as_predictor
from emulon.identification import identify
from emulon.looped import LoopedNewton
from emulon.machine.programs import sgd, sherman_morrison
from emulon.tasks import Linear

SEED, DATASETS, EXAMPLES = 3, 32, 12
TASK = Linear(3, noise=0.3)


@pytest.fixture(scope="module")
def data():
    """What identify will ask: a construction is built for it."""
    xs, ys = TASK.held_out(SEED, DATASETS, EXAMPLES + 1).pairs
    return xs[:, :-1], ys[:, :-1], xs[:, -1]


def test_ridge_by_gradient_descent_in_context_is_ridge(data):
    xs, ys, _ = data
    step_size = Ridge(penalty=0.1).resolved_step_size(xs, ys).min().item()
    module = DescentInContext.of(Ridge(penalty=0.1, steps=160, step_size=step_size), xs, ys, tolerance=1e-5)
    found = identify(module, TASK, seed=SEED, datasets=DATASETS)
    assert found.algorithm == "ridge" and found.counts == (EXAMPLES,)
    assert found.parameters["ridge"] == pytest.approx(0.1 * EXAMPLES, rel=1e-2)
    assert found.ties == ("ridge on the mean",)


@pytest.mark.parametrize(
    ("program", "name", "parameters"),
    [
        (sgd(features=3, samples=8, step_size=0.05), "sgd", {"step_size": 0.05}),
        (sherman_morrison(3, 6, ridge=0.5), "ridge", {"ridge": 0.5}),
    ],
)
def test_register_machines_are_what_they_run_at_every_number_of_examples(program, name, parameters):
    found = identify(program.compile(), Linear(3, noise=0.1), datasets=48)
    assert found.algorithm == name and found.parameters == pytest.approx(parameters, rel=1e-6)
    assert found.counts == tuple(range(1, len(found.counts) + 1)) and len(found.counts) > 4


@pytest.mark.parametrize("loops", [1, 5])
def test_algoformers_newton_is_newton_with_its_number_of_loops(data, loops: int):
    domain = Domain.covering(*data)
    looped = as_predictor(LoopedNewton(domain, horizon=5), loops=loops)
    found = identify(looped, TASK, seed=SEED, datasets=DATASETS)
    assert found.algorithm == "newton, fixed start" and found.parameters["steps"] == loops
    assert found.parameters["start"] == pytest.approx(1 / (EXAMPLES * domain.largest) ** 2, rel=1e-4)
