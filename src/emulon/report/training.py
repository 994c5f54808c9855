"""The page of a training run: its error beside the baselines', how it came there, and which algorithm it ran when."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulon.core.files import make_folder, write_atomically, write_json
from emulon.core.progress import Progress, silent
from emulon.identification import AlgorithmPhase, over_training
from emulon.report.chart import chart
from emulon.report.figure import Figure, Mark, Panel, Series
from emulon.report.identification import KINDS, phase_row, phases_figure
from emulon.report.page import fill, write_page
from emulon.tasks import RegressionTask
from emulon.training import RunFolder, Trained


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


def keep_curve(folder: Path, trained: Trained) -> None:
    """The learner's error beside the baselines', what it took, and the picture of it."""
    write_json(folder / "curve.json", trained.record())
    draw_curve(folder)


def draw_curve(folder: Path) -> None:
    """curve.svg, from curve.json alone."""
    record = json.loads((folder / "curve.json").read_text())
    write_atomically(folder / "curve.svg", chart(run_figure(record)))


def run_figure(record: Mapping[str, Any]) -> Figure:
    """One run's, from its curve.json: over in-context samples, or, where these are no part of it, over training."""
    if len(record["curve"]) == 1 and record.get("history"):
        steps, errors = zip(*((each["step"], each["error"]) for each in record["history"]), strict=True)
        series = [Series(record["config"]["model"], steps, errors)]
        series += [Series(name, steps, len(steps) * curve, "dashes") for name, curve in record["baselines"].items()]
        return Figure([Panel("training steps", record["measure"], series, title=record["config"]["task"])])
    learner = Series(record["config"]["model"], range(len(record["curve"])), record["curve"])
    return Figure([_panel(f"{record['config']['task']}, {record['steps']} steps", [learner], record["baselines"])])


def _panel(title: str, learners: Sequence[Series], baselines: Mapping[str, Sequence[float]]) -> Panel:
    """Baselines are cut off far from the learners: least squares explodes where samples and features are as many, and
    an oracle may be exact."""
    errors = [y for learner in learners for y in learner.y]
    low, high = min(errors) / 10, 3 * max(errors)
    dashed = [_cut(name, curve, low, high) for name, curve in baselines.items()]
    return Panel("in-context samples", "squared error", [*learners, *dashed], title=title, log_y=True)


def _cut(name: str, curve: Sequence[float], low: float, high: float) -> Series:
    beyond = [y for y in curve if not low <= y <= high]
    label = f"{name} (to {max(beyond, key=lambda y: abs(math.log(max(y, 1e-300)))):.0e})" if beyond else name
    shown = [y if low <= y <= high else math.nan for y in curve]
    return Series(label, range(len(curve)), shown, mark="dashes", of=name)
