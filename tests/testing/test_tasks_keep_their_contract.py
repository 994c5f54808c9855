"""Every registered task passes `task_checks`, and so does the one that is made of a program's domain."""

import pytest

from emulon.algorithms import Ridge
from emulon.identification.loading import DomainTask
from emulon.interpreter import compile
from emulon.tasks import TASKS, Linear, RegressionTask
from emulon.testing import task_checks
from emulon.testing.task import CHECKS


def small(name):
    noise = {"noise": 0.25} if "noise" in TASKS[name].__dataclass_fields__ else {}
    return TASKS[name](features=4, points=7, **noise)


# Those over text need a corpus, and keep what of the contract is about them in tests/reproduce/test_text_tasks.py.
CASES = {name: small(name) for name, task in TASKS.items() if not task.reads_words}


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, id=f"{case}-{name}") for case, task in CASES.items() for name, check in task_checks(task)],
)
def test_task(check):
    check()


def test_data_of_a_program():
    xs, ys = Linear(3, noise=0.5).held_out(7, 1, 24).pairs
    task = DomainTask(compile(Ridge(penalty=0.2, steps=20), data=(xs[0], ys[0]), tolerance=1e-6))
    checks = dict(task_checks(task))
    assert set(checks) > {check.__name__ for check in CHECKS} and isinstance(task, RegressionTask)
    for check in checks.values():
        check()
