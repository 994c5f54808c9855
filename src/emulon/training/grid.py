"""A grid of runs: every combination of what varies, each trained in a folder of its own, here or on Slurm."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError, WorkFailed, unknown
from emulon.core.files import locked, make_folder, write_json
from emulon.training import PRESETS, BadConfig, RunFolder, TrainConfig, resume, train
from emulon.training.configuration import Option, option_named, recipe_values
from emulon.training.fit import Stopped

CURVE = "curve.json"


class BadGrid(BadConfig):
    """A grid that cannot be read, is empty, contradicts itself, or names what no run has.

    Cure: write `--vary name=value,value` with names that `emulon train --help` lists.
    """


class NoCluster(EmulonError):
    """There is no Slurm here that could run the jobs as asked.

    Cure: leave `--slurm` out, or install `emulon[cluster]` where Slurm is.
    """


@dataclass(frozen=True)
class Run:
    """One combination: what it has of what varies, the whole configuration, and where it is kept."""

    values: Mapping[str, Any]
    config: TrainConfig
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def finished(self) -> bool:
        """The curve is the last thing that a run writes."""
        return (self.folder / CURVE).is_file()

    def __call__(self) -> str:
        """Train from the newest checkpoint to the end; returns the reason where it had to stop, "" otherwise."""
        try:
            with locked(make_folder(self.folder) / ".lock"):  # another process may train the same run
                if not self.finished:
                    begun = RunFolder(self.folder).config_file.exists()
                    trained = resume(self.folder) if begun else train(self.config, self.folder)
                    write_json(self.folder / CURVE, trained.record())
        except EmulonError as error:
            return str(error)
        return ""

    def checkpoint(self) -> Any:
        """What submitit starts again after a preemption: the same run, as its folder has its state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def runs_of(base: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], out: Path) -> tuple[Run, ...]:
    """Every combination, the last to be named varying fastest.

    Args:
        base: What all runs have, by the options' names; a preset may stand among them.
        vary: The values that each run has one of. A recipe's values are filled in run by run, so that recipes and
            models can vary.
        out: The folder for the runs' folders.
    Raises:
        BadGrid: An option does not exist, nothing varies, or a run makes no sense.
    """
    if not vary or not all(vary.values()):
        empty = next((f"no value of {name}" for name, values in vary.items() if not values), "nothing")
        raise BadGrid(f"{empty} is given to vary; a grid needs at least one value of each: --vary seed=0,1")
    for name, values in vary.items():
        if name in base:
            raise BadGrid(f"{name} is both fixed ({base[name]}) and varied; take it out of one of them")
        if len(set(values)) < len(values):
            raise BadGrid(f"a value of {name} is given twice: {', '.join(map(str, values))}")
    runs = []
    for combination in product(*vary.values()):
        chosen = dict(zip(vary, combination, strict=True))
        name = re.sub(r"[^\w.,=+-]", "-", ",".join(f"{name}={value}" for name, value in chosen.items()))
        runs.append(Run(chosen, _config({**base, **chosen}), out / name))
        _require_sense(runs[-1])
    return tuple(runs)


def _config(chosen: Mapping[str, Any]) -> TrainConfig:
    chosen = {"model": "standard"} | dict(chosen)
    preset = chosen.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise BadGrid(unknown("preset", preset, PRESETS))
    start = TrainConfig() if preset is None else PRESETS[preset]
    recipe = recipe_values(chosen["recipe"], chosen["model"]) if "recipe" in chosen else {}
    # the grid reports for all its runs
    return start.changed(**recipe | chosen | {"quiet": True})


def read_words(words: Sequence[str]) -> dict[str, list[Any]]:
    """`seed=0,1,2` and the like, what varies."""
    vary: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.replace(" ", "").partition("=")
        name = name.replace("-", "_")
        if name in vary:
            raise BadGrid(f"{name} varies twice; give all its values at once: --vary {name}=0,1,2")
        option = Option("preset", "", (str,)) if name == "preset" else option_named(name)
        vary[name] = [option.read(value) for value in values.split(",") if value]
    return vary


def _require_sense(run: Run) -> None:
    """Its configuration makes sense, the learner can be built, and its folder holds nothing else."""
    try:
        task = run.config.check().make_task()
        run.config.make_learner(task, "meta")
        folder = RunFolder(run.folder)
        there = folder.config().options() if folder.config_file.exists() else {}
    except EmulonError as error:
        raise BadGrid(f"{run.name}: {error}") from error
    for name, theirs in there.items():
        if (mine := run.config.options()[name]) != theirs:
            raise BadGrid(
                f"{run.folder} holds a run whose {name} is {theirs}, and here it is {mine}; choose another --out"
            )


def train_all(runs: Sequence[Run], executor: Any = None, report_progress: Progress = silent) -> dict[str, str]:
    """Finish every run; what is finished is left alone.

    Args:
        runs: As `runs_of` gives them.
        executor: Has `submit`, as those of concurrent.futures and submitit have; by default runs are trained in this
            process, one after the other.
        report_progress: Called with what is done and the share of it.
    Returns:
        The reason for each run that is not finished.
    """
    left, reasons = [run for run in runs if not run.finished], {}
    try:
        jobs = [executor.submit(run).result if executor else run for run in left]
    except RuntimeError as error:  # what sbatch said
        raise WorkFailed(f"the job was not taken: {error}; started again, the grid goes on") from error
    for run, job in zip(left, jobs, strict=True):
        done = sum(each.finished for each in runs)
        report_progress(f"{done} of {len(runs)} runs finished", done / len(runs))
        try:
            reason = job()
        except Exception as error:  # a process died, or a bug: the other runs go on
            reason = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
        if reason:
            reasons[run.name] = reason
    return reasons


class Processes(ProcessPoolExecutor):
    """So many processes of this machine, each with a GPU of its own where there are some; stopped by hand they write a
    checkpoint each."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        gpus, named = context.SimpleQueue(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        visible = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
        for k in range(count if torch.cuda.is_available() else 0):
            gpus.put(visible[k % len(visible)])
        super().__init__(count, context, _begin_process, (gpus,))

    def submit(self, run: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        return super().submit(_unless_stopped, run)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self.shutdown(cancel_futures=True)


_stopped: list[Stopped] = []


def _unless_stopped(run: Callable[[], str]) -> str:
    """In a process of the pool, which hands on a run more than there are processes, and cannot take it back."""
    if _stopped:
        return str(_stopped[0])
    try:
        return run()
    except Stopped as stopped:
        _stopped.append(stopped)
        raise


def _begin_process(gpus: Any) -> None:
    """In a new process, which leaves Ctrl-C to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not gpus.empty():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus.get()


def slurm_executor(folder: Path, settings: Mapping[str, Any]) -> Any:
    """submitit's executor; it queues a preempted run again by itself.

    Args:
        folder: Its logs go to a new folder in here.
        settings: Names are submitit's (gpus_per_node, timeout_min, …) or Slurm's own.
    Raises:
        NoCluster: There is no Slurm, submitit is not installed, or it refuses the settings.
    """
    if shutil.which("sbatch") is None:
        raise NoCluster("there is no Slurm here: sbatch is not found; leave --slurm out")
    try:
        import submitit
    except ImportError as error:
        raise NoCluster("submitit is not installed: pip install 'emulon[cluster]', or leave --slurm out") from error
    logs = tempfile.mkdtemp(dir=make_folder(folder / "jobs"))  # numbers of jobs may come again, and old answers
    executor = submitit.AutoExecutor(folder=logs, cluster="slurm")
    any_cluster = ("nodes", "mem_gb", "timeout_min", "gpus_per_node", "cpus_per_task", "tasks_per_node")
    named = {name if name in any_cluster else f"slurm_{name}": value for name, value in settings.items()}
    try:
        executor.update_parameters(name="emulon", **named)
    except (NameError, AssertionError) as error:
        raise NoCluster(f"submitit refuses these settings of Slurm: {str(error).splitlines()[0]}") from error
    return executor
