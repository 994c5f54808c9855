"""A sweep: the runs of a grid, some at a time, each in a process that may die and goes on from its last checkpoint.

submitit starts the processes: on Slurm, or on this machine. A run's folder is all that a run is: a job that was killed
or preempted is started again on it, and a sweep that is started again leaves alone what is finished.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from emulon.core.errors import EmulonError, WorkFailed
from emulon.core.files import locked, make_folder, write_json
from emulon.core.progress import Progress, silent
from emulon.training import RunFolder, TrainConfig, resume, train
from emulon.training.grid import CURVE, Run

POLL_SECONDS = 0.2
# submitit stops a local job after two minutes by itself; nothing here should ever be stopped.
FOREVER_MINUTES = 10 * 365 * 24 * 60
# What submitit calls by the same name on every cluster; anything else is Slurm's own.
ANY_CLUSTER = ("nodes", "mem_gb", "timeout_min", "gpus_per_node", "cpus_per_task", "tasks_per_node")


class NoCluster(EmulonError):
    """There is nothing here that could run the jobs as asked.

    Cure: `--executor local`, or install `emulon[cluster]` where Slurm is.
    """


@dataclass(frozen=True)
class Job:
    """Trains one run from where it stands to its end; says why where it cannot."""

    config: TrainConfig
    folder: Path

    def __call__(self) -> str:
        try:
            with alone_in(self.folder):
                if not (self.folder / CURVE).is_file():
                    begun = RunFolder(self.folder).config_file.exists()
                    trained = resume(self.folder) if begun else train(self.config, self.folder)
                    write_json(self.folder / CURVE, trained.record())
        except EmulonError as error:
            return str(error)
        return ""

    def checkpoint(self) -> Any:
        """What submitit starts again after a preemption: the same, because the run folder remembers."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def alone_in(folder: Path) -> AbstractContextManager[bool]:
    """A lock on the run: waits for another process that trains it, such as a job that outlived its sweep."""
    return locked(make_folder(folder) / ".lock")


@runtime_checkable
class Handle(Protocol):
    """A job that was handed over."""

    def done(self) -> bool: ...

    def outcome(self) -> str | None:
        """Empty for a run that is finished, the reason for one that had to stop, None for a process that died."""

    def cancel(self) -> None: ...


@runtime_checkable
class Engine(Protocol):
    def submit(self, job: Job, slot: int) -> Handle: ...


@dataclass(frozen=True)
class _Answered:
    answer: str

    def done(self) -> bool:
        return True

    def outcome(self) -> str:
        return self.answer

    def cancel(self) -> None:
        pass


class Inline:
    """In this process, one after the other."""

    def submit(self, job: Job, slot: int) -> Handle:
        return _Answered(job())


class Local:
    """submitit's processes on this machine; slot k sees GPU k, or the k-th again from the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = _fresh(folder)
        self.executor = _submitit().LocalExecutor(folder=self.folder)

    def submit(self, job: Job, slot: int) -> Handle:
        gpus = visible_gpus() if job.config.device.device != "cpu" else []
        mine = gpus[slot % len(gpus)] if gpus else None
        seen = {} if mine is None else {"gpus_per_node": 1, "visible_gpus": [mine]}
        self.executor.update_parameters(timeout_min=FOREVER_MINUTES, **seen)
        with _stderr_in(self.folder / "controllers.log"):
            return _Submitted(self.executor.submit(job))


@contextmanager
def _stderr_in(log: Path) -> Iterator[None]:
    """Processes started inside write their stderr there: submitit's would print a traceback each when all are stopped
    by hand."""
    before = os.dup(2)
    try:
        with open(log, "a") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Slurm:
    """submitit's jobs on a Slurm cluster; a preempted one is queued again by itself."""

    def __init__(self, folder: Path, settings: dict[str, Any], restarts: int) -> None:
        if shutil.which("sbatch") is None:
            raise NoCluster("there is no Slurm here: sbatch is not found; use --executor local")
        submitit = _submitit()
        executor = submitit.AutoExecutor(folder=_fresh(folder), cluster="slurm", slurm_max_num_timeout=restarts)
        named = {name if name in ANY_CLUSTER else f"slurm_{name}": value for name, value in settings.items()}
        try:
            executor.update_parameters(name="emulon", **named)
        except (NameError, AssertionError) as error:
            raise NoCluster(f"submitit refuses these settings of Slurm: {str(error).splitlines()[0]}") from error
        self.executor = executor

    def submit(self, job: Job, slot: int) -> Handle:
        try:
            return _Submitted(self.executor.submit(job))
        except RuntimeError as error:  # FailedSubmissionError: what sbatch said
            raise WorkFailed(f"Slurm did not take the job: {error}; started again, the sweep goes on") from error


class _Submitted:
    def __init__(self, job: Any) -> None:
        self.job = job

    def done(self) -> bool:
        return bool(self.job.done())

    def outcome(self) -> str | None:
        if not self.job.paths.result_pickle.exists():
            return None
        error = self.job.exception()
        if error is None:
            return str(self.job.result())
        lines = [line for line in str(error).splitlines() if line and not line.startswith(("-", " ", "You can"))]
        return f"{lines[-1]} (its log is {self.job.paths.stderr})"

    def cancel(self) -> None:
        self.job.cancel()
        for _ in range(50):
            if self.done():
                return
            time.sleep(POLL_SECONDS)


def sweep(
    runs: Sequence[Run],
    engine: Engine,
    *,
    jobs: int = 1,
    restarts: int = 3,
    report_progress: Progress = silent,
) -> dict[str, str]:
    """Finishes every run, at most `jobs` at a time, and starts one that died again, `restarts` times. Why, of each run
    that is not finished in the end."""
    waiting = deque((run, 0) for run in runs if not run.finished)
    flying: dict[int, tuple[Run, int, Handle]] = {}
    reasons: dict[str, str] = {}
    try:
        while waiting or flying:
            for slot in range(jobs):
                if waiting and slot not in flying:
                    run, deaths = waiting.popleft()
                    report_progress(_state(runs, flying), sum(each.finished for each in runs) / len(runs))
                    flying[slot] = run, deaths, engine.submit(Job(run.config, run.folder), slot)
            for slot, (run, deaths, handle) in list(flying.items()):
                if not handle.done():
                    continue
                del flying[slot]
                reason = handle.outcome()
                if reason is None and not run.finished and deaths < restarts:
                    waiting.appendleft((run, deaths + 1))
                elif not run.finished:
                    reasons[run.name] = reason or f"its process died {deaths + 1} times"
            report_progress(_state(runs, flying), sum(each.finished for each in runs) / len(runs))
            if flying:
                time.sleep(POLL_SECONDS)
    finally:
        for _, _, handle in flying.values():
            handle.cancel()
    return reasons


def _state(runs: Sequence[Run], flying: dict[int, Any]) -> str:
    return f"{sum(each.finished for each in runs)} of {len(runs)} runs finished, {len(flying)} at work"


def visible_gpus() -> list[int]:
    """The GPUs this process may use, by the machine's numbers."""
    count = torch.cuda.device_count()
    named = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return [int(word) for word in named[:count]] if all(map(str.isdigit, named)) else list(range(count))


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise NoCluster(
            "submitit is not installed: pip install 'emulon[cluster]', or use --executor inline, one run at a time"
        ) from error
    return submitit


def _fresh(folder: Path) -> Path:
    """A new folder for submitit's logs: a process number may come again, and with it an old answer."""
    made = tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=make_folder(folder / "jobs"))
    return Path(made)
