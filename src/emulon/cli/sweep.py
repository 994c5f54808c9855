"""`emulon sweep`: every run of a grid, on Slurm or on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulon.cli.names import require_known
from emulon.cli.options import BadUsage
from emulon.core.errors import WorkFailed

if TYPE_CHECKING:
    from emulon.cli.train_options import SweepOptions
    from emulon.training.grid import Grid, Run
    from emulon.training.sweep import Engine

EXAMPLES = """examples:
  emulon sweep grid.json --dry-run             the plan: runs, steps, and what they cost
  emulon sweep standard --preset small --vary seed=0,1,2 --vary layers=1,2,4 --jobs 2
  emulon sweep standard --recipe fast --vary seed=0,1,2,3 --stack
  emulon sweep grid.json --executor slurm --slurm partition=gpu,gpus_per_node=1,timeout_min=600"""


def __getattr__(name: str) -> object:
    """`Options`, when it is asked for: its fields are TrainConfig's, and training imports torch."""
    if name != "Options":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emulon.cli.train_options import SweepOptions

    return SweepOptions


def check(words: Sequence[str]) -> None:
    """What can be refused before torch is imported: the name of the model."""
    if words and not words[0].startswith("-") and not is_file(words[0]):
        require_known("model", words[0], "models")


def is_file(word: str) -> bool:
    return word.endswith(".json") or Path(word).is_file()


def main(options: SweepOptions) -> int:
    from emulon.core.files import make_folder
    from emulon.core.progress import progress_bar
    from emulon.report.sweep import keep_sweep
    from emulon.training.sweep import require_stack, sweep, sweep_stacked

    runs = grid_of(options).runs(options.out)
    if options.stack:
        require_stack(runs)
    if options.dry_run:
        print_plan(runs)
        return 0
    make_folder(options.out)
    engine, jobs = engine_of(options, runs)
    with progress_bar() as report_progress:
        if options.stack:
            reasons = sweep_stacked(runs, report_progress=report_progress)
        else:
            reasons = sweep(runs, engine, jobs=jobs, restarts=options.restarts, report_progress=report_progress)
    print_table(keep_sweep(options.out, runs, reasons))
    print(f"written to {options.out}: sweep.json, sweep.svg, and a folder for each run")
    if reasons:
        first = next(iter(reasons))
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise WorkFailed(f"{first} is not finished{more}: {reasons[first]}")
    return 0


def grid_of(options: SweepOptions) -> Grid:
    from emulon.training.grid import Grid, read_grid, read_words

    if not options.model:
        raise BadUsage("GRID is missing: a grid's file, or a model and --vary NAME=VALUES")
    if not is_file(options.model):
        return Grid(options.changes, read_words(options.vary))
    said = [f"--{name.replace('_', '-')}" for name in options.changes if name != "model"]
    if said or options.vary:
        raise BadUsage(f"the grid's file says what is trained; put {(*said, '--vary')[0]} into {options.model}")
    return read_grid(Path(options.model))


def engine_of(options: SweepOptions, runs: Sequence[Run]) -> tuple[Engine, int]:
    """What runs the jobs, and how many at a time."""
    from shutil import which

    from emulon.training.sweep import Inline, Local, Slurm, visible_gpus

    kind = options.executor
    if options.stack:
        if kind not in ("auto", "inline"):
            raise BadUsage("--stack trains all runs in this process: leave --executor out")
        kind = "inline"
    if kind == "auto":
        kind = "slurm" if which("sbatch") else "local"
    if options.slurm and kind != "slurm":
        raise BadUsage(f"--slurm is for --executor slurm, and this is {kind}")
    if kind == "inline":
        return Inline(), 1
    if kind == "local":
        return Local(options.out), options.jobs or max(1, len(visible_gpus()))
    return Slurm(options.out, slurm_settings(options.slurm), options.restarts), options.jobs or len(runs)


def slurm_settings(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise BadUsage(f"--slurm: cannot read {part!r}; write partition=gpu,gpus_per_node=1")
        settings[name.strip()] = int(value) if value.isdigit() else value.strip()
    return settings


def print_plan(runs: Sequence[Run]) -> None:
    """The runs with their sizes, what is done of each, and the operations that are left."""
    from emulon.report.terminal import console, table

    rows, left = [], 0.0
    for run in runs:
        parameters, operations = run.learner_size()
        done = run.config.schedule.steps if run.finished else run.steps_done
        cost = operations * (run.config.schedule.steps - done)
        left += cost
        state = "finished" if run.finished else f"from step {done}" if done else ""
        rows.append((run.name, f"{parameters:,}", f"{run.config.schedule.steps:,}", f"{cost / 1e15:.3g}", state))
    columns = ("run", "parameters", "steps", "PFLOP left", "")
    console().print(table(columns, rows, words=("run", ""), title=f"{len(runs)} runs"))
    steps = sum(0 if run.finished else run.config.schedule.steps - run.steps_done for run in runs)
    print(f"{steps:,} steps and {left / 1e15:.3g} PFLOP left, evaluations not counted; nothing was written")


def print_table(record: Mapping[str, Any]) -> None:
    from emulon.report.sweep import ERRORS, TEXT
    from emulon.report.terminal import console, table

    measured = [name for name in ERRORS if any(name in row for row in record["runs"])]
    rows = []
    for row in record["runs"]:
        errors = [f"{row[name]:.4g}" if name in row else "" for name in measured]
        values = [str(value) for value in row["values"].values()]
        state = "not finished" if "failed" in row else ""
        rows.append((*values, str(row["steps"]), f"{row['seconds']:.1f}" if "seconds" in row else "", *errors, state))
    columns = (*record["varies"], "steps", "seconds", *(ERRORS[name] for name in measured), "")
    caption = "" if TEXT in measured else "squared errors over the number of features d"
    console().print(table(columns, rows, caption=caption))
