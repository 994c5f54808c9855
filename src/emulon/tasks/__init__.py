"""Tasks: distributions over in-context datasets, sampled whole batches at a time."""

from emulon.tasks.corpus import Corpus, Split, Texts, load_corpus
from emulon.tasks.domain import DomainTask
from emulon.tasks.linear import LaplaceLinear, Linear, RidgeMixture, SparseLinear, TaskSet
from emulon.tasks.nonlinear import DecisionTree, ReluNetwork, Representation
from emulon.tasks.prompts import Datasets, Prompts, deinterleave, interleave
from emulon.tasks.randomness import at_step, normal, stream_seed, uniform
from emulon.tasks.regression import RegressionTask
from emulon.tasks.sequences import AutoRegression, ChainOfThought
from emulon.tasks.task import TASKS, Task, read_task, task_options
from emulon.tasks.text import Classification, TextTask, Translation
from emulon.tasks.tokeniser import BadText, Tokeniser

__all__ = [
    "TASKS",
    "AutoRegression",
    "BadText",
    "ChainOfThought",
    "Classification",
    "Corpus",
    "Datasets",
    "DecisionTree",
    "DomainTask",
    "LaplaceLinear",
    "Linear",
    "Prompts",
    "RegressionTask",
    "ReluNetwork",
    "Representation",
    "RidgeMixture",
    "SparseLinear",
    "Split",
    "Task",
    "TaskSet",
    "TextTask",
    "Texts",
    "Tokeniser",
    "Translation",
    "at_step",
    "deinterleave",
    "interleave",
    "load_corpus",
    "normal",
    "read_task",
    "stream_seed",
    "task_options",
    "uniform",
]
