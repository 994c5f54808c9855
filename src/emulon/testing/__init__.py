"""The contract of everything that can be added to emulon: supply the object, inherit the suite.

`check_construction`, `check_algorithm`, `check_predictor` and `check_task` raise `ContractBroken` with the name of the
first check that fails. The same checks one by one, for pytest or anything else, are `construction_checks(…)` and its
three sisters: iterators of (name, check).
"""

from emulon.testing.algorithm import algorithm_checks, check_algorithm
from emulon.testing.construction import Input, check_construction, construction_checks
from emulon.testing.contract import ContractBroken, NamedCheck
from emulon.testing.predictor import check_predictor, predictor_checks
from emulon.testing.task import check_task, task_checks

__all__ = [
    "ContractBroken",
    "Input",
    "NamedCheck",
    "algorithm_checks",
    "check_algorithm",
    "check_construction",
    "check_predictor",
    "check_task",
    "construction_checks",
    "predictor_checks",
    "task_checks",
]
