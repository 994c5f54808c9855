"""Tasks: distributions over in-context datasets, sampled whole batches at a time."""

from emulon.tasks.linear import LaplaceLinear, Linear, RidgeMixture, SparseLinear, TaskSet
from emulon.tasks.nonlinear import AutoRegression, ChainOfThought, DecisionTree, ReluNetwork, Representation
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
    "AutoRegression",
    "ChainOfThought",
    "Datasets",
    "DecisionTree",
    "LaplaceLinear",
    "Linear",
    "Prompts",
    "RegressionTask",
    "ReluNetwork",
    "Representation",
    "RidgeMixture",
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
