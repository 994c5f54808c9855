"""Phases: which algorithm learners of growing depth run (Figure 3 of Akyürek et al. 2022)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from emulon.errors import EmulonError
from emulon.interrogate.identify import Identification, identify
from emulon.interrogate.sampling import Sampling
from emulon.models import Learner
from emulon.progress import Progress, silent
from emulon.tasks import RegressionTask
from emulon.training import RunFolder, TrainConfig, resume, train


@dataclass(frozen=True)
class Phase:
    """One depth, and the algorithm of a learner of that depth."""

    depth: int
    identification: Identification

    def __str__(self) -> str:
        return f"{self.depth:3d}  {self.identification}"

    def as_numbers(self) -> dict[str, Any]:
        """What a figure needs: the verdict, and what every reference leaves unexplained."""
        ranking = [dataclasses.asdict(match) | {"label": str(match)} for match in self.identification.ranking]
        return {
            "depth": self.depth,
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
) -> tuple[Phase, ...]:
    """Make a predictor of every depth and identify it, the shallowest first, all on the same datasets."""
    if not depths or min(depths) < 1:
        raise EmulonError(f"a depth sweep needs depths of at least 1, got {list(depths)}")
    phases = []
    ordered = sorted(set(depths))
    for number, depth in enumerate(ordered):
        report_progress(f"depth {depth}", number / len(ordered))
        phases.append(Phase(depth, identify(make(depth), task, **sampling)))
    return tuple(phases)


def trainer(config: TrainConfig, folder: Path) -> Callable[[int], Learner]:
    """Trains this configuration at any depth, each in a run folder of its own; what is there already goes on."""

    def make(depth: int) -> Learner:
        run = folder / f"depth-{depth:02d}"
        if RunFolder(run).config_file.exists():
            return resume(run).learner
        return train(dataclasses.replace(config, layers=depth), run).learner

    return make
