"""The main job on real data: one interpreter, the whole library, each beside its exact self and scikit-learn's."""

import pytest
import torch

from emulon.experiments.data import Data, load
from emulon.experiments.run import algorithm_named, interpreter_for, program_for, run_program, runnable, task_of, work
from emulon.interpreter import Interpreter

KINKS = {"lasso", "elastic_net", "huber_regression", "squared_hinge"}


@pytest.fixture(scope="module")
def diabetes() -> Data:
    return load("diabetes")


@pytest.fixture(scope="module")
def cancer() -> Data:
    return load("breast_cancer")


def test_one_interpreter_runs_the_whole_library_to_the_exact_weights(diabetes: Data, cancer: Data):
    jobs = [work([], data, steps=200) for data in (diabetes, cancer)]
    results = [(result, job.data) for job in jobs for result in job.results]
    assert {result.name for result, _ in results} == set(runnable()) and len(results) >= 12
    for result, _ in results:
        assert result.error <= (1e-6 if result.name in KINKS else 1e-10), result.name
        assert result.error <= result.bound or result.run.entered_band, result.name
    # On one interpreter for both tables: the bits that a job's own interpreter gives.
    serving = interpreter_for([result.run.program for result, _ in results])
    hashes = {serving.sha256}
    for result, data in results[::3]:
        again = run_program(serving, result.run.program, data)
        hashes |= set(again.sha256)
        assert torch.equal(again.weights, result.run.weights), result.name
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("name", "steps"),
    [("heavy_ball", 500), ("ridge", 500), ("lasso", 300), ("elastic_net", 300), ("logistic_regression", 400)],
)
def test_at_convergence_the_weights_are_scikit_learns(name: str, steps: int, diabetes: Data, cancer: Data):
    kind = algorithm_named(name)
    data = diabetes if task_of(kind) == "regression" else cancer
    [result] = work([kind], data, steps=steps).results
    assert result.their_distance is not None and result.their_distance <= 1e-5


def test_the_faithful_path_takes_the_shortest_line_and_gives_the_same_answer(diabetes: Data):
    program = program_for(algorithm_named("ridge"), diabetes, 3, 1e-8)
    short, long = interpreter_for([program], "faithful"), interpreter_for([program])
    assert short.sha256 == Interpreter.fitting(program).sha256
    assert len(short.slopes) < len(long.slopes)
    fast, faithful = run_program(long, program, diabetes), run_program(short, program, diabetes, "faithful")
    torch.testing.assert_close(faithful.weights, fast.weights, rtol=0.0, atol=1e-12)
