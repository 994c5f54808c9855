"""A check that cannot fail checks nothing: for each, an object that breaks that promise."""

import pytest
from broken import ALGORITHMS, PREDICTORS, Mean

from emulon import testing
from emulon.algorithms import LinearRegression
from emulon.core.errors import EmulonError
from emulon.testing import ContractBroken, algorithm_checks, check_algorithm, check_predictor, predictor_checks


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


@pytest.mark.parametrize("promise", ALGORITHMS)
def test_a_broken_algorithm_is_caught(promise):
    assert promise.partition(" ")[0] in broken_by(algorithm_checks(ALGORITHMS[promise]()))


@pytest.mark.parametrize("promise", PREDICTORS)
def test_a_broken_predictor_is_caught(promise):
    assert promise in broken_by(predictor_checks(PREDICTORS[promise](), invariances=("order", "rotation", "scale")))


def test_every_check_has_an_object_that_breaks_it():
    def names(checks):
        return {check.__name__ for check in checks}

    steps = {"steps_are_counted", "objective_never_increases"}
    assert names(testing.ALGORITHM_CHECKS) | steps == {promise.partition(" ")[0] for promise in ALGORITHMS}
    optional = {
        "several_queries_are_answered_as_each_alone",
        "prefixes_are_answered_as_each_alone",
        "other_numbers_of_examples_are_refused",
    }
    assert names(testing.PREDICTOR_CHECKS) | names(testing.INVARIANCES.values()) | optional == set(PREDICTORS)


def test_the_sound_objects_that_are_broken_above_pass():
    check_algorithm(LinearRegression(steps=5))
    check_predictor(Mean(), invariances=("order", "rotation", "scale"))


def test_the_first_broken_promise_is_raised_by_name():
    with pytest.raises(ContractBroken, match=r"\Asteps_are_counted: "):
        check_algorithm(ALGORITHMS["steps_are_counted"]())


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(EmulonError, match="there is no invariance 'odrer'; did you mean order"):
        check_predictor(Mean(), invariances=("odrer",))
