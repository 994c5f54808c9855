"""`emulon train`: a transformer that has to find an algorithm itself, or one for every point of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from emulon.cli.options import BadUsage, Command, CommandOptions, Count, shown
from emulon.core.errors import EmulonError, WorkFailed, unknown
from emulon.core.files import make_folder, provenance, read_json, write_json
from emulon.models import Learner
from emulon.report.learners import keep_curve, write_run
from emulon.report.terminal import progress, say, table
from emulon.tasks import TASKS
from emulon.training import PRESETS, BadConfig, NoRun, RunFolder, TrainConfig, Trained, resume, train
from emulon.training.configuration import (
    OPTIONS,
    DeviceConfig,
    EvaluationConfig,
    ModelConfig,
    OptimiserConfig,
    ScheduleConfig,
    TaskConfig,
    recipe_values,
)
from emulon.training.grid import CURVE, Processes, Run, read_words, runs_of, slurm_executor, train_all

GRID = ("--vary", "--jobs", "--slurm")
# Squared errors after d and 2d examples, d the number of features, over d, and after as many as there are; texts have
# neither examples nor features.
TEXT = "cross_entropy"
ERRORS = {"after_d": "after d examples", "after_2d": "after 2d examples", "last": "after all examples"}
ERRORS[TEXT] = "cross entropy"
EXAMPLES = """examples:
  emulon train standard --task linear --features 20 --points 41 --steps 10000
  emulon train standard --preset small         a few minutes on a CPU; other options change it
  emulon train looped --recipe fast --features 20
  emulon train --resume runs/standard          go on where it stopped
  emulon train standard --preset small --vary seed=0,1,2 --vary layers=1,2,4 --jobs 2   nine learners
  emulon train standard --vary seed=0,1,2 --slurm partition=gpu,gpus_per_node=1,timeout_min=600
A grid that is started again leaves alone what is finished, and goes on from the last checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Options(DeviceConfig, EvaluationConfig, ScheduleConfig, OptimiserConfig, ModelConfig, TaskConfig, CommandOptions):
    """Train a transformer that has to find an algorithm itself, and show its errors beside the baselines'; or train
    every run of a grid, some at a time, and show their errors over what varies."""

    model: Positional[Annotated[str, arg(help=", ".join(Learner.registry)), shown("MODEL")]] = ""
    task: Annotated[str, arg(help=f"{', '.join(TASKS)}; with options that have no flag, as sparse:nonzero=3")] = (
        "linear"
    )
    seed: int = 0
    """of the initial weights, the data and dropout"""
    recipe: str = "paper"
    """paper: Adam as the sources have it; fast: Muon and all that goes with it. Other options change a recipe"""
    preset: Annotated[str | None, shown("NAME")] = None
    """start from a named configuration: small"""
    out: Annotated[Path | None, shown("DIR")] = None
    """the run's folder (default runs/MODEL), or the grid's (runs/sweep)"""
    resume: Annotated[Path | None, shown("RUN")] = None
    """go on with the run of this folder; its configuration is there, so that no other option is taken"""
    report: Annotated[Path | None, shown("DIR")] = None
    """write the run's page there when it is finished: curves, and its algorithm at every checkpoint that was kept"""
    vary: UseAppendAction[Annotated[tuple[str, ...], shown("NAME=VALUES")]] = ()
    """train a grid: what varies, as seed=0,1,2; once for each"""
    jobs: Count = 1
    """of a grid: processes of this machine that train runs at the same time, each with a GPU where there are some"""
    slurm: Annotated[str, shown("NAME=VALUE,…")] = ""
    """of a grid: train on Slurm, with these settings of a job"""

    def defaults(self) -> CommandOptions | None:
        if self.preset is not None and self.preset not in PRESETS:
            raise BadConfig(unknown("preset", self.preset, PRESETS))
        start = TrainConfig() if self.preset is None else PRESETS[self.preset]
        # the recipe that nobody asked for leaves a preset its own
        changes = {} if self.recipe == "paper" else recipe_values(self.recipe, self.model)
        if self.preset is None and not changes:
            return None
        return type(self)(**start.options() | changes | {"model": ""})

    @property
    def config(self) -> TrainConfig:
        return TrainConfig.of(**{name: getattr(self, name) for name in OPTIONS})

    @property
    def changes(self) -> dict[str, Any]:
        """What was given beyond the defaults of the preset and the recipe, and these two."""
        start, preset = self.defaults() or type(self)(), {} if self.preset is None else {"preset": self.preset}
        return {name: getattr(self, name) for name in OPTIONS if getattr(self, name) != getattr(start, name)} | preset


def main(options: Options) -> int:
    if options.resume is None and options.model and options.vary:
        return _train_grid(options)
    if options.model and (others := [name for name in options.changed() if name in GRID]):
        raise BadUsage(f"{others[0]} is for grids; say with --vary NAME=VALUES what varies")
    if options.resume is not None and options.changed("resume", "report"):
        raise BadUsage("--resume takes a run's folder and nothing else: its configuration is in the folder")
    if options.resume is None and not options.model:
        raise BadUsage(f"say which model to train: {', '.join(Learner.registry)}; or --resume RUN")
    out = options.resume or options.out or Path("runs") / options.model
    try:
        trained = train(options.config, out) if options.resume is None else resume(out)
    except (BadConfig, NoRun):
        raise
    except EmulonError as error:
        raise WorkFailed(str(error)) from error
    say(summary(trained))
    keep_curve(out, trained)
    if options.report is not None:
        with progress() as report_progress:
            page, _ = write_run(out, options.report, report_progress=report_progress)
        say(f"report {page}")
    return options.finish({"folder": str(out)} | trained.record())


def summary(trained: Trained) -> str:
    """Errors at a few numbers of in-context samples, the learner's beside the baselines'; of texts one number each."""
    measure = trained.evaluation.task.measure
    last = len(trained.curve) - 1
    columns = sorted({0, last // 4, last // 2, 3 * last // 4, last})
    rows = {"learner": trained.curve, **trained.baselines}
    lines = [f"after {trained.steps} steps, {measure}" + (" by in-context samples" if last else "")]
    if last:
        lines.append(" " * 12 + "".join(f"{column:>10}" for column in columns))
    for name, curve in rows.items():
        lines.append(f"{name:<12}" + "".join(f"{curve[column]:>10.4g}" for column in columns))
    return "\n".join(lines)


def _train_grid(options: Options) -> int:
    out = options.out or Path("runs/sweep")
    if options.jobs != 1 and options.slurm:
        raise BadUsage("--jobs is for processes of this machine, and --slurm for a cluster")
    runs = runs_of(options.changes, read_words(options.vary), out)
    make_folder(out)
    with progress() as report_progress:
        executor = slurm_executor(out, _slurm_settings(options.slurm)) if options.slurm else None
        with nullcontext(executor) if options.jobs == 1 else Processes(options.jobs) as executor:
            reasons = train_all(runs, executor, report_progress)
    rows = [_row(run) | ({"failed": reasons[run.name]} if run.name in reasons else {}) for run in runs]
    varies = {name: list(dict.fromkeys(run.values[name] for run in runs)) for name in runs[0].values}
    record = provenance() | {"varies": varies, "runs": rows}
    write_json(out / "sweep.json", record)
    say(errors_table(record), f"written to {out}: sweep.json, and a folder for each run")
    if reasons:
        first = next(iter(reasons))
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise WorkFailed(f"{first} is not finished{more}: {reasons[first]}")
    return options.finish(record)


def _slurm_settings(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise BadUsage(f"--slurm: cannot read {part!r}; write partition=gpu,gpus_per_node=1")
        settings[name.strip()] = int(value) if value.isdigit() else value.strip()
    return settings


def _row(run: Run) -> dict[str, Any]:
    """A run's line in sweep.json; without errors where it is not finished."""
    row: dict[str, Any] = {"name": run.name, "values": dict(run.values)}
    if not run.finished:
        return row | {"steps": max(RunFolder(run.folder).kept_steps(), default=0)}
    record = read_json(run.folder / CURVE)
    d, curve = run.config.task.features, record["curve"]
    errors = {"after_d": d, "after_2d": 2 * d, "last": len(curve) - 1}
    if record.get("measure", "").startswith(ERRORS[TEXT]):
        row[TEXT] = curve[-1]
    else:
        row |= {name: curve[n] / d for name, n in errors.items() if n < len(curve)}
    taken = ("steps", "from_step", "seconds", "machine", "torch", "commit", "time")
    return row | {name: record[name] for name in taken}


def errors_table(record: Mapping[str, Any]) -> Any:
    """A row for each run of a grid."""
    measured = [name for name in ERRORS if any(name in row for row in record["runs"])]
    rows = []
    for row in record["runs"]:
        errors = [f"{row[name]:.4g}" if name in row else "" for name in measured]
        values = [str(value) for value in row["values"].values()]
        state = "not finished" if "failed" in row else ""
        rows.append((*values, str(row["steps"]), f"{row['seconds']:.1f}" if "seconds" in row else "", *errors, state))
    columns = (*record["varies"], "steps", "seconds", *(ERRORS[name] for name in measured), "")
    caption = "" if TEXT in measured else "squared errors over the number of features d"
    return table(columns, rows, caption=caption)


COMMANDS = {"train": Command(Options, main, EXAMPLES)}
