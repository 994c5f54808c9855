"""The tasks that learners are trained on, as interrogation needs them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.errors import EmulonError
from emulon.interrogate.task import LinearTask, Task
from emulon.tasks import TASKS, Linear, RegressionTask, at_step, deinterleave
from emulon.tasks import Task as LearningTask

# Training draws from the streams of steps 0, 1, …, its evaluation from that of −1: what is asked here is new to both.
EXAMINED = -2


@dataclass(frozen=True)
class LearnerTask:
    """Datasets of a learner's task, with as many points as asked for."""

    task: RegressionTask

    @property
    def features(self) -> int:
        return self.task.features

    def sample(
        self, seed: int, batch: int, points: int
    ) -> tuple[Float[Tensor, "batch points features"], Float[Tensor, "batch points"]]:
        task: RegressionTask = dataclasses.replace(self.task, points=points)  # type: ignore[type-var]
        prompts = task.sample(at_step(torch.Generator(), seed, EXAMINED), batch)
        xs, _ = deinterleave(prompts.tokens)
        return xs.double(), prompts.targets[..., 0].double()

    def __str__(self) -> str:
        return f"{self.task}"


def as_task(task: LearningTask) -> Task:
    """What a learner was trained on. Linear functions are drawn in float64: references are exact there."""
    if type(task) is Linear:
        return LinearTask(task.features, task.noise, task.prior)
    if isinstance(task, RegressionTask):
        return LearnerTask(task)
    raise EmulonError(
        f"{type(task).__name__} does not ask for a y from an x, so no regression algorithm can be compared with it; "
        f"train on {', '.join(regression_tasks())}"
    )


def regression_tasks() -> dict[str, type[RegressionTask]]:
    return {name: task for name, task in TASKS.items() if issubclass(task, RegressionTask)}


def read_task(text: str) -> Task:
    """`linear`, or `linear:features=8,noise=0.1,prior=1`; so every task that asks for a y from an x."""
    name, _, rest = text.partition(":")
    known = regression_tasks()
    if name not in known:
        raise EmulonError(f"unknown task {name!r}; choose from {', '.join(known)}, as linear:features=8,noise=0.1")
    kinds: dict[str, type[int] | type[float]] = {"int": int, "float": float}
    types = {one.name: str(one.type) for one in dataclasses.fields(known[name])}  # type: ignore[arg-type]
    # points are asked for when datasets are drawn
    readers = {key: kinds[kind] for key, kind in types.items() if kind in kinds and key != "points"}
    settings: dict[str, int | float] = {"features": 8}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            settings[key] = readers[key](value)
        except (KeyError, ValueError):
            raise EmulonError(f"cannot read {part!r} in --task; write {', '.join(readers)} = a number") from None
        least = 1 if key == "features" else 0
        if not least <= settings[key] < math.inf:
            raise EmulonError(f"{part!r} in --task makes no sense; {key} must be {least} or more")
    return as_task(known[name](**settings))
