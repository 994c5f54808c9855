"""Tasks: distributions over in-context datasets, sampled whole batches at a time from (seed, step)."""

import dataclasses

from emulon.tasks.auto_regression import AutoRegression
from emulon.tasks.chain_of_thought import ChainOfThought
from emulon.tasks.decision_tree import DecisionTree
from emulon.tasks.head_emulation import HeadEmulation
from emulon.tasks.linear import Linear, RidgeMixture, SparseLinear
from emulon.tasks.prompts import Prompts, deinterleave, interleave
from emulon.tasks.randomness import at_step, stream_seed
from emulon.tasks.relu_network import ReluNetwork
from emulon.tasks.representation import Representation
from emulon.tasks.statistical import Statistical
from emulon.tasks.task import RegressionTask, Task

TASKS: dict[str, type[Task]] = {
    "linear": Linear,
    "sparse": SparseLinear,
    "mixture": RidgeMixture,
    "representation": Representation,
    "auto_regression": AutoRegression,
    "chain_of_thought": ChainOfThought,
    "relu_network": ReluNetwork,
    "decision_tree": DecisionTree,
    "head": HeadEmulation,
    "statistical": Statistical,
}


def task_options(name: str) -> tuple[str, ...]:
    """The parameters a task takes."""
    return tuple(field.name for field in dataclasses.fields(TASKS[name]))  # type: ignore[arg-type]


__all__ = [
    "TASKS",
    "AutoRegression",
    "ChainOfThought",
    "DecisionTree",
    "HeadEmulation",
    "Linear",
    "Prompts",
    "RegressionTask",
    "ReluNetwork",
    "Representation",
    "RidgeMixture",
    "SparseLinear",
    "Statistical",
    "Task",
    "at_step",
    "deinterleave",
    "interleave",
    "stream_seed",
    "task_options",
]
