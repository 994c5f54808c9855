"""The page of a training run: its error beside the baselines', how it came there, and which algorithm it ran when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulon.core.files import make_folder
from emulon.core.progress import Progress, silent
from emulon.identification import AlgorithmPhase, over_training
from emulon.report.chart import chart
from emulon.report.curves import run_figure
from emulon.report.figure import Figure, Mark, Panel, Series
from emulon.report.identification import KINDS, phase_row, phases_figure
from emulon.report.page import fill, write_page
from emulon.tasks import RegressionTask
from emulon.training import RunFolder


def write_run(
    run: Path, folder: Path, datasets: int = 64, seed: int = 0, report_progress: Progress = silent
) -> tuple[Path, tuple[AlgorithmPhase, ...]]:
    """Identify a run at each of its checkpoints, and write its page.

    Returns:
        The page, and the algorithm at each checkpoint; none where the task is no regression.
    """
    task, phases = RunFolder(run).config().make_task(), tuple[AlgorithmPhase, ...]()
    make_folder(folder)
    if isinstance(task, RegressionTask):
        phases = tuple(over_training(run, task, report_progress=report_progress, datasets=datasets, seed=seed))
    return write(run, phases, folder), phases


def write(run: Path, phases: Sequence[AlgorithmPhase], folder: Path) -> Path:
    """From what the run's folder has kept, and its phases where it has any."""
    kept = RunFolder(run)
    config = kept.config()
    measured = kept.metrics() if kept.metrics_file.exists() else []
    curve = _record(run, measured)
    told = {name: value for name, value in config.options().items() if value is not None}
    return write_page(
        fill(
            "training.html",
            target=str(run),
            config=config.options(),
            told=told,
            steps=(kept.kept_steps() or [0])[-1],
            curve=None if curve is None else chart(run_figure(curve)),
            course=chart(course_figure(measured)) if measured else None,
            phases=phases_figure([phase.as_numbers() for phase in phases]) if phases else None,
            kinds=list(KINDS),
            rows=[(phase.place, *phase_row(phase)) for phase in phases],
        ),
        folder,
    )


def _record(run: Path, measured: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """curve.json of a finished run; of one that is still on its way the last that was measured."""
    if (run / "curve.json").exists():
        finished: dict[str, Any] = json.loads((run / "curve.json").read_text())
        return finished
    evaluated = [line for line in measured if "curve" in line]
    if not evaluated or not (run / "baselines.json").exists():
        return None
    config = RunFolder(run).config().options()
    baselines = json.loads((run / "baselines.json").read_text())
    last = evaluated[-1]
    return {"config": config, "steps": last["step"], "curve": last["curve"], "baselines": baselines}


def course_figure(measured: Sequence[dict[str, Any]]) -> Figure:
    """The loss while training and the error on held-out prompts, over the steps."""
    series = []
    kinds: tuple[tuple[str, str, Mark], ...] = (("training loss", "loss", "line"), ("held-out error", "error", "dots"))
    for label, name, mark in kinds:
        places = [(line["step"], line[name]) for line in measured if name in line]
        if places:
            steps, values = zip(*places, strict=True)
            series.append(Series(label, steps, values, mark))
    return Figure([Panel("training steps", "squared error", series, log_y=True)])
