"""`emulon report`: the page of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, Count, Seed, shown

EXAMPLES = """example:
  emulon train standard --preset small --keep-checkpoints 0 --out runs/small && emulon report runs/small
writes runs/small/report/index.html."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Write a training run's page: its error beside the baselines', its course, and which algorithm it ran when."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """the folder of a training run"""
    out: Annotated[Path | None, shown("DIR")] = None
    """RUN/report by default"""
    datasets: Annotated[Count, shown("COUNT")] = 64
    """on which the learner is compared with reference algorithms, at every checkpoint"""
    seed: Seed = 0
    """of the datasets"""


def main(options: Options) -> int:
    from emulon.core.files import make_folder
    from emulon.core.progress import progress_bar
    from emulon.identification import over_training
    from emulon.report.training import write
    from emulon.tasks import RegressionTask
    from emulon.training import RunFolder

    task = RunFolder(options.run).config().make_task()
    folder = make_folder(options.out or options.run / "report")
    with progress_bar() as report_progress:
        phases = (
            over_training(
                options.run, task, report_progress=report_progress, datasets=options.datasets, seed=options.seed
            )
            if isinstance(task, RegressionTask)
            else ()
        )
    for phase in phases:
        print(phase)
    print(f"report {write(options.run, phases, folder)}")
    return 0
