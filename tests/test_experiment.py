"""On real data: one interpreter, the whole library, each algorithm beside its exact self and scikit-learn's."""

import dataclasses

import pytest
import torch

from emulon.algorithms import Ridge
from emulon.core.errors import EmulonError
from emulon.interpreter import Interpreter
from emulon.run import (
    Experiment,
    algorithm_named,
    common_kind,
    interpreter_for,
    kind_of,
    program_for,
    run_experiments,
    runnable,
)
from emulon.tables.data import Data, load

KINKS = {"lasso", "fista", "elastic_net", "huber_regression", "squared_hinge"}
CONVERGE = ["heavy_ball", "ridge", "lasso", "elastic_net", "logistic_regression"]


@pytest.fixture(scope="module")
def diabetes() -> Data:
    return load("diabetes")


@pytest.fixture(scope="module")
def experiments(diabetes: Data) -> list[Experiment]:
    """The whole library, and those that converge until they have converged."""
    every = []
    for data in (diabetes, load("breast_cancer")):
        data = dataclasses.replace(data, x_train=data.x_train[:80], y_train=data.y_train[:80])
        fitting = {name: named for name, named in runnable().items() if kind_of(named) == data.kind}
        every += run_experiments([fitting[name] for name in fitting if name in CONVERGE], [data], steps=400)
        every += run_experiments([fitting[name] for name in fitting if name not in CONVERGE], [data], steps=30)
    return every


def test_one_interpreter_runs_the_whole_library_to_the_exact_weights(experiments: list[Experiment]):
    results = [(result, experiment.data) for experiment in experiments for result in experiment.results]
    assert {result.name for result, _ in results} == set(runnable()) and len(results) >= 12
    for result, _ in results:
        early = result.errors[:201].max()  # later a loss with a jump may enter the band around it
        assert early <= (1e-6 if result.name in KINKS else 1e-10), result.name
        # The float64 path that stands for the exact one rounds, too: by less than this.
        seen = result.error - 8 * torch.finfo(torch.float64).eps
        assert seen <= result.run.audit.bound, result.name
        assert seen <= result.run.certificate.bound or result.run.entered_band, result.name
    # On one interpreter for both tables: the bits that an experiment's own interpreter gives.
    serving = interpreter_for([result.run.program for result, _ in results])
    hashes = {serving.sha256}
    for result, data in results[::3]:
        program = result.run.program
        again = serving.run(program, *data.problem(program.loss))
        hashes |= set(again.sha256)
        assert torch.equal(again.weights, result.run.weights), result.name
    assert len(hashes) == 1


@pytest.mark.parametrize("name", CONVERGE)
def test_at_convergence_the_weights_are_scikit_learns(name: str, experiments: list[Experiment]):
    [result] = [result for experiment in experiments for result in experiment.results if result.name == name]
    assert result.their_distance is not None and result.their_distance <= 1e-5


def test_what_learns_numbers_and_what_learns_classes_is_not_mixed():
    ridge, logistic = algorithm_named("ridge"), algorithm_named("logistic")
    assert common_kind([ridge]) == "regression" and common_kind([logistic]) == "classification"
    assert common_kind([]) is None
    with pytest.raises(EmulonError, match="ridge wants numbers and logistic_regression classes"):
        common_kind([logistic, ridge])


def test_the_faithful_path_takes_the_shortest_line_and_gives_the_same_answer(diabetes: Data):
    program = program_for(Ridge(steps=3), diabetes, 1e-8)
    short, long = interpreter_for([program], "reference"), interpreter_for([program])
    assert short.sha256 == Interpreter.fitting(program).sha256
    assert len(short.slopes) < len(long.slopes)
    problem = diabetes.problem(program.loss)
    fast, faithful = long.run(program, *problem), short.run(program, *problem, mode="reference")
    torch.testing.assert_close(faithful.weights, fast.weights, rtol=0.0, atol=1e-12)
