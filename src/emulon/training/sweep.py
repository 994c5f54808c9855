"""A sweep: the runs of a grid, some at a time, each in a process that may die and goes on from its last checkpoint; or
all at once, as one stack on one device, each leaving the run folder it would have left alone.

submitit starts the processes: on Slurm, or on this machine. A run's folder is all that a run is: a job that was killed
or preempted is started again on it, and a sweep that is started again leaves alone what is finished.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from emulon.core.errors import BadConfig, EmulonError, NoRun, WorkFailed
from emulon.core.files import locked, make_folder, write_json
from emulon.core.progress import Progress, silent
from emulon.training import Evaluation, RunFolder, TrainConfig, Trained, device_of, resume, train
from emulon.training.fit import Patience, Stopwatch
from emulon.training.grid import CURVE, BadGrid, Run
from emulon.training.run_folder import Reporter, read_checkpoint, write_checkpoint
from emulon.training.stack import Stack, require_stackable

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
    """Train one run from its newest checkpoint to its end; returns the reason where it had to stop, "" otherwise."""

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
        """What submitit starts again after a preemption: the same job, as the run folder has its state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def alone_in(folder: Path) -> AbstractContextManager[bool]:
    """A lock on the run: waits for another process that trains it, such as a job that outlived its sweep."""
    return locked(make_folder(folder) / ".lock")


@runtime_checkable
class Handle(Protocol):
    """A submitted job."""

    def done(self) -> bool: ...

    def outcome(self) -> str | None:
        """Empty for a finished run, the reason for one that had to stop, None for a process that died."""

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
    """Run jobs in this process, one after the other."""

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
    runs: Sequence[Run], engine: Engine, *, jobs: int = 1, restarts: int = 3, report_progress: Progress = silent
) -> dict[str, str]:
    """Finish every run, at most `jobs` at a time; a process that died is started again, up to `restarts` times. Returns
    the reason for each run that is not finished."""
    waiting = deque((run, 0) for run in runs if not run.finished)
    running: dict[int, tuple[Run, int, Handle]] = {}
    reasons: dict[str, str] = {}
    try:
        while waiting or running:
            for slot in range(jobs):
                if waiting and slot not in running:
                    run, deaths = waiting.popleft()
                    report_progress(_state(runs, running), sum(each.finished for each in runs) / len(runs))
                    running[slot] = run, deaths, engine.submit(Job(run.config, run.folder), slot)
            for slot, (run, deaths, handle) in list(running.items()):
                if not handle.done():
                    continue
                del running[slot]
                reason = handle.outcome()
                if reason is None and not run.finished and deaths < restarts:
                    waiting.appendleft((run, deaths + 1))
                elif not run.finished:
                    reasons[run.name] = reason or f"its process died {deaths + 1} times"
            report_progress(_state(runs, running), sum(each.finished for each in runs) / len(runs))
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        for _, _, handle in running.values():
            handle.cancel()
    return reasons


def _state(runs: Sequence[Run], running: dict[int, Any]) -> str:
    return f"{sum(each.finished for each in runs)} of {len(runs)} runs finished, {len(running)} at work"


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


def require_stack(runs: Sequence[Run]) -> None:
    """Refuse a grid that cannot be one stack."""
    try:
        require_stackable([run.config for run in runs])
    except BadConfig as error:
        raise BadGrid(f"--stack: {error}") from error


def sweep_stacked(runs: Sequence[Run], *, report_progress: Progress = silent) -> dict[str, str]:
    """Finish the unfinished runs, all at once; returns the reason for each that is still not finished."""
    require_stack(runs)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(alone_in(run.folder))
        left = [run for run in runs if not run.finished]
        return _train_stack(left, report_progress) if left else {}


def _train_stack(left: Sequence[Run], report_progress: Progress) -> dict[str, str]:
    stack = Stack([run.config for run in left], device_of(left[0].config))
    members = [_Member(run, k, stack) for k, run in enumerate(left)]
    start = _load(members)
    for member in members:
        member.begin(start)
    stack.build()
    _stack_steps(stack, members, start, report_progress)
    return {member.run.name: member.stopped for member in members if member.stopped}


class _Member:
    """One run of a stack: its folder and what is measured of it."""

    def __init__(self, run: Run, k: int, stack: Stack) -> None:
        self.run, self.k, self.stack, self.folder = run, k, stack, RunFolder(run.folder)
        if not self.folder.config_file.exists():
            self.folder.begin(run.config)
        datasets = run.config.evaluation.evaluation_batch
        self.evaluation = Evaluation(stack.tasks[k], run.config.seed, datasets, stack.device)
        self.patience, self.stopped = Patience(), ""
        self.history: list[dict[str, Any]] = []

    def load(self, step: int) -> None:
        stored = read_checkpoint(self.folder.checkpoints, step)
        if stored is None:
            raise NoRun(f"{self.folder.checkpoints} has lost its checkpoint of step {step}; start the sweep again")
        self.stack.load_one(self.k, stored[1], self.folder.checkpoints)
        self.patience = Patience(**json.loads(stored[2]["patience"]))

    def begin(self, start: int) -> None:
        self.start = start
        self.folder.rewind(start)
        self.folder.write_json("baselines.json", self.evaluation.baselines)

    def finite(self, value: float, done: int) -> bool:
        """Whether a value is finite; a run with one that is not is marked as stopped, the others train on."""
        if not math.isfinite(value) and not self.stopped:
            used = self.run.config.optimiser
            rates = f"lr {used.lr:g}, muon_lr {used.muon_lr:g}"
            self.stopped = f"the loss or a weight was no longer finite at step {done}; take smaller rates ({rates})"
        return not self.stopped

    def log(self, reporter: Reporter, done: int, loss: float) -> None:
        if self.finite(loss, done):
            reporter.record("train", done, loss=loss)

    def evaluate(self, reporter: Reporter, done: int, seconds: float) -> None:
        curve = self.evaluation.curve(self.stack.learners[self.k])
        error = curve.mean().item()
        if self.finite(error, done):
            self.history.append({"step": done, "seconds": seconds, "curve": curve.tolist()})
            reporter.record("evaluation", done, error=error, curve=curve.tolist())
            self.patience.update(error)

    def checkpoint(self, done: int) -> None:
        """An ordinary one, from which the run could go on alone."""
        learner = self.stack.learners[self.k]
        if self.finite(sum(weight.detach().abs().sum().item() for weight in learner.parameters()), done):
            state = {name: tensor.clone() for name, tensor in self.stack.state_of(self.k).items()}
            notes = {"patience": json.dumps(vars(self.patience))}
            write_checkpoint(self.folder.checkpoints, done, state, notes, self.run.config.evaluation.keep_checkpoints)

    def finish(self, seconds: float, cpu_seconds: float) -> None:
        """The curve; the seconds are those of the whole stack, and how many learners shared them is beside them."""
        if self.stopped:
            return
        learner, config = self.stack.learners[self.k].eval(), self.run.config
        curve = self.evaluation.curve(learner).tolist()
        trained = Trained(
            learner,
            config,
            config.schedule.steps,
            curve,
            self.evaluation,
            self.history,
            start=self.start,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
        )
        write_json(self.run.folder / CURVE, trained.record() | {"stacked": len(self.stack.learners)})


def _load(members: Sequence[_Member]) -> int:
    """The newest step after which every run has a checkpoint, with all of them loaded from there."""
    start = max(set.intersection(*({0, *member.folder.kept_steps()} for member in members)))
    for member in members if start else []:
        member.load(start)
    return start


def _stack_steps(stack: Stack, members: Sequence[_Member], start: int, report_progress: Progress) -> None:
    total, every = stack.config.schedule.steps, stack.config.evaluation
    watch, cpu_began = Stopwatch(), time.process_time()
    with ExitStack() as open_reporters:
        reporters = [open_reporters.enter_context(Reporter(m.folder, m.run.config, start, True)) for m in members]
        for done in range(start + 1, total + 1):
            losses, last = stack(done - 1), done == total
            if done % every.log_every == 0 or last:
                stack.synchronise()
                for member, reporter, loss in zip(members, reporters, losses.tolist(), strict=True):
                    member.log(reporter, done, loss)
                report_progress(f"{len(members)} learners at once, step {done}", done / total)
            if done % every.evaluate_every == 0 or last:
                stack.synchronise()
                watch.pause()
                for member, reporter in zip(members, reporters, strict=True):
                    member.evaluate(reporter, done, watch.seconds)
                watch.go_on()
            if done % every.checkpoint_every == 0 or last:
                stack.synchronise()
                for member in members:
                    member.checkpoint(done)
    watch.pause()
    for member in members:
        member.finish(watch.seconds, time.process_time() - cpu_began)
