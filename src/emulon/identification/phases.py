"""Phases: which algorithm a learner runs as it gets deeper (Figure 3 of Akyürek et al. 2022), or while it trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from emulon.core.errors import EmulonError
from emulon.core.progress import Progress, silent
from emulon.identification.identify import Identification, identify
from emulon.identification.sampling import Sampling
from emulon.models import Learner
from emulon.tasks import RegressionTask
from emulon.training import NoRun, RunFolder, TrainConfig, load_learner, resume, train


@dataclass(frozen=True)
class AlgorithmPhase:
    """A learner's algorithm at one place along an axis.

    Attributes:
        axis: "layers" or "steps".
        place: How many of them.
        identification: The verdict there.
    """

    axis: str
    place: int
    identification: Identification

    def __str__(self) -> str:
        return f"{self.place:3d}  {self.identification}"

    def as_numbers(self) -> dict[str, Any]:
        """What a figure needs: the verdict, and what every reference leaves unexplained."""
        ranking = [dataclasses.asdict(match) | {"label": str(match)} for match in self.identification.ranking]
        return {
            "axis": self.axis,
            "place": self.place,
            "algorithm": self.identification.algorithm,
            "limit": self.identification.limit,
            "ranking": ranking,
        }


def depth_sweep(
    make: Callable[[int], object],
    depths: Sequence[int],
    task: RegressionTask,
    *,
    report_progress: Progress = silent,
    **sampling: Unpack[Sampling],
) -> tuple[AlgorithmPhase, ...]:
    """Identify predictors of several depths, the shallowest first, all on the same datasets.

    Args:
        make: Returns a predictor of so many layers.
        depths: Numbers of layers.
        task: Where datasets come from.
        report_progress: Called with what is done and the share of it.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    Raises:
        EmulonError: There is no depth, or one below 1.
    """
    if not depths or min(depths) < 1:
        raise EmulonError(f"a depth sweep needs depths of at least 1, got {list(depths)}")
    return _phases("layers", sorted(set(depths)), make, task, report_progress, sampling)


def over_training(
    run: Path,
    task: RegressionTask,
    *,
    report_progress: Progress = silent,
    **sampling: Unpack[Sampling],
) -> tuple[AlgorithmPhase, ...]:
    """Identify the learner at every checkpoint that its run has kept, all on the same datasets.

    Args:
        run: The run's folder.
        task: Where datasets come from.
        report_progress: Called with what is done and the share of it.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    Raises:
        NoRun: There is no checkpoint.
    """
    steps = RunFolder(run).kept_steps()
    if not steps:
        raise NoRun(f"{run} holds no checkpoint; train it first, with --keep-checkpoints 0 to keep them all")
    return _phases("steps", steps, lambda step: load_learner(run, step)[0], task, report_progress, sampling)


def _phases(
    axis: str,
    places: Sequence[int],
    make: Callable[[int], object],
    task: RegressionTask,
    report_progress: Progress,
    sampling: Sampling,
) -> tuple[AlgorithmPhase, ...]:
    phases = []
    for number, place in enumerate(places):
        report_progress(f"{axis}: {place}", number / len(places))
        phases.append(AlgorithmPhase(axis, place, identify(make(place), task, **sampling)))
    return tuple(phases)


def trainer(config: TrainConfig, folder: Path) -> Callable[[int], Learner]:
    """A function for `depth_sweep` that trains a configuration at any depth, each in a run folder of its own.

    Args:
        config: Of every run but for its layers.
        folder: Holds the runs; one that is there already goes on.
    """

    def make(depth: int) -> Learner:
        run = folder / f"depth-{depth:02d}"
        if RunFolder(run).config_file.exists():
            return resume(run).learner
        return train(config.changed(layers=depth), run).learner

    return make
