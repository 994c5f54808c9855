"""Tasks: distributions over in-context datasets, sampled whole batches at a time."""

from emulon.tasks.regressions import DecisionTree, Linear, ReluNetwork, SparseLinear, TaskSet
from emulon.tasks.task import (
    TASKS,
    Datasets,
    Prompts,
    RegressionTask,
    Task,
    at_step,
    deinterleave,
    interleave,
    normal,
    read_task,
    stream_seed,
    task_options,
    uniform,
)

__all__ = [
    "TASKS",
    "Datasets",
    "DecisionTree",
    "Linear",
    "Prompts",
    "RegressionTask",
    "ReluNetwork",
    "SparseLinear",
    "Task",
    "TaskSet",
    "at_step",
    "deinterleave",
    "interleave",
    "normal",
    "read_task",
    "stream_seed",
    "task_options",
    "uniform",
]
