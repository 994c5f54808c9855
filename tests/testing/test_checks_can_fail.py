"""A check that cannot fail checks nothing: for each, an object that breaks that promise."""

import pytest
import torch
from broken import ALGORITHMS, CONSTRUCTIONS, PREDICTORS, TASKS, Doubled, Mean, exact_double

from emulon.algorithms import LinearRegression
from emulon.core.errors import EmulonError
from emulon.tasks import Linear
from emulon.testing import (
    ContractBroken,
    algorithm_checks,
    check_algorithm,
    check_construction,
    check_predictor,
    check_task,
    construction_checks,
    predictor_checks,
    task_checks,
)
from emulon.testing import algorithm as of_algorithms
from emulon.testing import construction as of_constructions
from emulon.testing import predictor as of_predictors
from emulon.testing import task as of_tasks


def broken_by(checks):
    """The names of the checks that fail."""
    names = set()
    for name, check in checks:
        try:
            check()
        except ContractBroken as error:
            assert str(error).startswith(f"{name}: ")
            names.add(name)
    return names


@pytest.mark.parametrize("promise", CONSTRUCTIONS)
def test_a_broken_construction_is_caught(promise):
    assert promise in broken_by(construction_checks(CONSTRUCTIONS[promise](), exact_double, Doubled.inputs))


@pytest.mark.parametrize("promise", ALGORITHMS)
def test_a_broken_algorithm_is_caught(promise):
    assert promise in broken_by(algorithm_checks(ALGORITHMS[promise]()))


@pytest.mark.parametrize("promise", PREDICTORS)
def test_a_broken_predictor_is_caught(promise):
    assert promise in broken_by(predictor_checks(PREDICTORS[promise](), invariances=("order", "rotation", "scale")))


@pytest.mark.parametrize("promise", TASKS)
def test_a_broken_task_is_caught(promise, monkeypatch):
    task = TASKS[promise]()
    monkeypatch.setitem(of_tasks.TASKS, "broken", type(task))
    assert promise in broken_by(task_checks(task))


def test_every_check_has_an_object_that_breaks_it():
    def names(checks):
        return {check.__name__ for check in checks}

    assert names(of_constructions.CHECKS) == set(CONSTRUCTIONS)
    steps = {"steps_are_counted", "no_steps_leave_the_first_iterate", "objective_never_increases"}
    assert names(of_algorithms.CHECKS) | steps == set(ALGORITHMS)
    optional = {
        "several_queries_are_answered_as_each_alone",
        "prefixes_are_answered_as_each_alone",
        "other_numbers_of_examples_are_refused",
    }
    assert names(of_predictors.CHECKS) | names(of_predictors.INVARIANCES.values()) | optional == set(PREDICTORS)
    options = {"options_are_read_back_from_a_line", "options_without_sense_are_refused"}
    assert names(of_tasks.CHECKS) | names(of_tasks.REGRESSION) | options == set(TASKS)


def test_the_sound_objects_that_are_broken_above_pass():
    check_construction(Doubled(), exact_double, Doubled.inputs)
    check_algorithm(LinearRegression(steps=5))
    check_predictor(Mean(), invariances=("order", "rotation", "scale"))
    check_task(Linear(features=4, points=7, noise=0.25))


def test_the_first_broken_promise_is_raised_by_name():
    with pytest.raises(ContractBroken, match=r"\Aweights_are_frozen: it has parameters\Z"):
        check_construction(CONSTRUCTIONS["weights_are_frozen"](), exact_double, Doubled.inputs)


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ContractBroken, match="Linear has no Domain; say what its inputs are"):
        check_construction(torch.nn.Linear(1, 1), exact_double)
    with pytest.raises(EmulonError, match="there is no invariance 'odrer'; did you mean order"):
        check_predictor(Mean(), invariances=("odrer",))
