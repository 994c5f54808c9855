"""Phases: which algorithm learners of growing depth run (Figure 3 of `003_…`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emulon.interrogate.identification import Identification
from emulon.interrogate.identify import identify
from emulon.interrogate.sampling import DATASETS
from emulon.interrogate.task import Task


@dataclass(frozen=True)
class Phase:
    """One depth and what was found there."""

    depth: int
    found: Identification

    def __str__(self) -> str:
        return f"{self.depth:3d}  {self.found}"


def depth_sweep(
    learners: Iterable[tuple[int, object]],
    task: Task,
    *,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int | None = None,
) -> tuple[Phase, ...]:
    """Identify every learner on the same datasets, the shallowest first."""
    ordered = sorted(learners, key=lambda pair: pair[0])
    return tuple(
        Phase(depth, identify(one, task, seed=seed, datasets=datasets, points=points)) for depth, one in ordered
    )
