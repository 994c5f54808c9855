"""The training loop: `fit` keeps everything in memory, `train` and `resume` in a run folder."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core import Progress, silent
from emulon.core.errors import OutOfMemory, TrainingDiverged
from emulon.core.files import provenance, write_json
from emulon.models import Learner
from emulon.tasks import Prompts, Task
from emulon.training.configuration import TrainConfig
from emulon.training.run_folder import (
    BEST,
    Reporter,
    RunFolder,
    best_of,
    checkpoints,
    copy_into,
    read_checkpoint,
    weights_of,
    write_checkpoint,
)
from emulon.training.step import TrainStep

# Prompts that are evaluated at once: memory, not errors, depends on it.
PART = 256


class Evaluation:
    """A fixed set of datasets that training never sees, with the errors of learners and baselines on it.

    Args:
        task: Where the datasets come from.
        seed: Of the datasets.
        batch: How many.
        device: Where learners are asked.
    """

    def __init__(self, task: Task, seed: int, batch: int, device: torch.device) -> None:
        prompts = task.held_out_prompts(seed, batch)
        self.task, self._drawn = task, prompts
        self.prompts = Prompts(*(part.to(device) for part in (prompts.tokens, prompts.targets, prompts.truth)))

    @cached_property
    def baselines(self) -> dict[str, list[float]]:
        """Curves of the task's own predictors; on thousands of datasets they take longer than a minute."""
        return {name: curve.tolist() for name, curve in self.task.baselines(self._drawn).items()}

    @torch.no_grad()
    def curve(self, learner: Learner) -> Float[Tensor, " curve"]:
        """Squared error of a learner after 0, 1, 2, … examples against the noise-free truth, or cross entropy of texts;
        without dropout."""
        training = learner.training
        learner.eval()
        parts = zip(self.prompts.tokens.split(PART), self.prompts.truth.split(PART), strict=True)
        errors = [self.task.error_of(self.task.asked(learner(tokens)), truth) for tokens, truth in parts]
        learner.train(training)
        return self.task.curve(torch.cat(errors))


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        learner: In eval mode, with its last weights, or its best where the run may stop early.
        config: Its configuration.
        steps: How many steps it has had.
        curve: Its error after 0, 1, 2, … examples on the evaluation's datasets.
        evaluation: Those datasets.
        history: Every evaluation: steps, seconds of training until then, curve.
        start: The step at which this part of the run began.
        seconds: Of training alone, without building and evaluation.
        build_seconds: Of compilation and capture.
        cpu_seconds: Of everything.
    """

    learner: Learner
    config: TrainConfig
    steps: int
    curve: list[float]
    evaluation: Evaluation
    history: list[dict[str, Any]]
    start: int = 0
    seconds: float = 0.0
    build_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def baselines(self) -> dict[str, list[float]]:
        """The curves of the task's own predictors."""
        return self.evaluation.baselines

    def record(self) -> dict[str, Any]:
        """The curve.json of a finished run: its error beside the baselines', and what it took."""
        return provenance(next(self.learner.parameters()).device) | {
            "config": self.config.options(),
            "steps": self.steps,
            "from_step": self.start,  # a resumed run's seconds are of its last part alone
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "measure": self.evaluation.task.measure,
            "curve": self.curve,
            "history": [{"step": each["step"], "error": fmean(each["curve"])} for each in self.history],
            "baselines": self.baselines,
        }


@dataclass
class Patience:
    """Early stopping: the best error, and how many evaluations ago it was. It is stored in the checkpoint."""

    best: float = math.inf
    waited: int = 0

    def over(self, patience: int) -> bool:
        return 0 < patience <= self.waited


class Stopped(KeyboardInterrupt):
    """A run in a folder that was interrupted (SIGINT, SIGTERM) after it had written a checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message, number)  # both, or it could not be sent from one process to another
        self.message, self.signal = message, number

    def __str__(self) -> str:
        return self.message


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list that receives SIGINT or SIGTERM instead of the process; a second one acts as usual.

    Signals that the program already handles by itself are left to it, as are all of them outside the main thread.
    """
    asked: list[int] = []
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in usual if main and signal.getsignal(number) == usual[number]]

    def restore() -> None:
        for number in ours:
            signal.signal(number, usual[number])

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        restore()
        os.write(2, b"stopping after this step, with a checkpoint; a second signal stops at once\n")

    for number in ours:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        restore()


def fit(config: TrainConfig, *, report_progress: Progress = silent) -> Trained:
    """Train a learner in memory; nothing is written.

    Args:
        config: What is trained, on what, and how.
        report_progress: Called with what is done and the share of it.
    Returns:
        The finished run.
    Raises:
        BadConfig: The configuration makes no sense.
        TrainingDiverged: The loss or a weight is no longer finite.

    Example:
        >>> trained = fit(TrainConfig.of(features=2, width=16, layers=1, heads=2, steps=100, quiet=True))
        >>> trained.curve[-1] < trained.baselines["zero"][-1]  # doctest: +SKIP
    """
    return _Run(config.check(), None, report_progress).go()


def train(config: TrainConfig, out: Path | str) -> Trained:
    """Like `fit`, in a new folder, so that `resume` continues it.

    Args:
        config: What is trained, on what, and how.
        out: The folder.
    Returns:
        The finished run.
    Raises:
        NoRun: The folder holds a run.
    """
    _ = config.check().make_task().vocabulary  # a corpus that is not there is refused before a folder is made
    folder = RunFolder(Path(out))
    folder.begin(config)
    return _Run(config, folder).go()


def resume(out: Path | str) -> Trained:
    """Continue the run in a folder from its newest checkpoint, to the weights it would have had without the break.

    Args:
        out: The folder.
    Returns:
        The finished run.
    Raises:
        NoRun: There is no run, or its checkpoint cannot be read.
    """
    folder = RunFolder(Path(out))
    return _Run(folder.config(), folder).go()


class _Run:
    """One run, from its newest checkpoint to its end."""

    def __init__(self, config: TrainConfig, folder: RunFolder | None, report_progress: Progress = silent) -> None:
        self.config, self.folder, self.report_progress = config, folder, report_progress
        self.patience, self.start, self.seconds = Patience(), 0, 0.0
        self.best: dict[str, Tensor] = {}  # where a run may stop early: the weights that its best evaluation was of
        self.history: list[dict[str, Any]] = []

    def go(self) -> Trained:
        began = time.process_time()
        if self.config.device.threads:
            torch.set_num_threads(self.config.device.threads)
        try:
            self._build()
            self._since = time.perf_counter()
            requests: AbstractContextManager[list[int]] = nullcontext([]) if self.folder is None else stop_requests()
            with requests as self.asked, Reporter(self.folder, self.config, self.start) as self.reporter:
                done = self._steps()
            self.step.synchronise()
            self._pause()
            if self.best:
                copy_into(weights_of(self.step.learner), self.best, "memory")
            curve = self.evaluation.curve(self.step.learner).tolist()
        except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU's allocator raises a plain one
            if "can't allocate memory" in str(error) or "out of memory" in str(error):
                raise OutOfMemory(
                    f"a batch of {self.config.schedule.batch}, or an evaluation batch of "
                    f"{self.config.evaluation.evaluation_batch}, does not fit the memory{self._kept()}. Start a new "
                    "run with smaller ones"
                ) from error
            raise
        return Trained(
            self.step.learner.eval(),
            self.config,
            done,
            curve,
            self.evaluation,
            self.history,
            start=self.start,
            seconds=self.seconds,
            build_seconds=self.build_seconds,
            cpu_seconds=time.process_time() - began,
        )

    def _build(self) -> None:
        began = time.perf_counter()
        config, device = self.config, device_of(self.config)
        if config.on(device).device.compile != "off":
            torch._dynamo.reset()  # what earlier learners compiled counts against a limit, and is of no use to this one
        task = config.make_task()
        self.step = TrainStep(config.make_learner(task), task, config, device)
        stored = read_checkpoint(self.folder.checkpoints) if self.folder is not None else None
        if stored is not None and self.folder is not None:
            self.start, tensors, notes = stored
            self.step.load(tensors, self.folder.checkpoints)
            self.patience = Patience(**json.loads(notes["patience"]))
            self.best = {name: tensor.to(device) for name, tensor in best_of(tensors).items()}
        self.evaluation = Evaluation(task, config.seed, config.evaluation.evaluation_batch, device)
        if self.folder is not None:
            self.folder.rewind(self.start)
            task.save_data(self.folder.path)
            write_json(self.folder.path / "baselines.json", self.evaluation.baselines)
        self.step.build()
        self.build_seconds = time.perf_counter() - began

    def _steps(self) -> int:
        """Train, log, evaluate and store; returns how many steps the weights have had."""
        config, total, every = self.config, self.config.schedule.steps, self.config.evaluation
        if self.patience.over(every.patience):  # resumed after it had stopped early
            return self.start
        for k in range(self.start, total):
            loss = self.step(k)
            done = k + 1
            last, stop = done == total, False
            if done % every.log_every == 0 or last:
                self.step.synchronise()
                self._require_finite(loss.item(), done)
                self.reporter.record("train", done, loss=loss.item())
                self.report_progress(f"training {config.model.model}, step {done}", done / total)
            if done % every.evaluate_every == 0 or last:
                stop = self._evaluate(done)
            interrupted = not (last or stop) and bool(self.asked)
            if self.folder is not None and (done % every.checkpoint_every == 0 or last or stop or interrupted):
                self._checkpoint(done)
            if interrupted and self.folder is not None:
                resumed = f"emulon train --resume {shlex.quote(str(self.folder.path))}"
                raise Stopped(f"stopped after step {done} of {total}; go on with: {resumed}", self.asked[0])
            if stop:
                return done
        return total

    def _pause(self) -> None:
        self.seconds += time.perf_counter() - self._since

    def _evaluate(self, done: int) -> bool:
        """Evaluate, without counting the time as training; returns whether the run stops early."""
        self.step.synchronise()
        self._pause()
        curve = self.evaluation.curve(self.step.learner)
        error = curve.mean().item()
        self._require_finite(error, done)
        self.history.append({"step": done, "seconds": self.seconds, "curve": curve.tolist()})
        self.reporter.record("evaluation", done, error=error, curve=curve.tolist())
        better = error < self.patience.best
        self.patience = Patience(error) if better else Patience(self.patience.best, self.patience.waited + 1)
        if self.config.evaluation.patience and better:
            self.best = {name: weight.clone() for name, weight in weights_of(self.step.learner).items()}
        self._since = time.perf_counter()
        return self.patience.over(self.config.evaluation.patience)

    def _checkpoint(self, done: int) -> None:
        assert self.folder is not None
        self.step.synchronise()
        self._require_finite(sum(p.detach().abs().sum().item() for p in self.step.parameters), done)
        notes = {"patience": json.dumps(vars(self.patience))}
        best = {BEST + name: weight for name, weight in self.best.items()}
        kept = self.config.evaluation.keep_checkpoints
        write_checkpoint(self.folder.checkpoints, done, self.step.state() | best, notes, kept)

    def _require_finite(self, value: float, done: int) -> None:
        if math.isfinite(value):
            return
        used = self.config.optimiser
        rates = f"it was {used.lr:g}"
        if used.optimiser == "muon":
            rates += f", --muon-lr {used.muon_lr:g}"
        raise TrainingDiverged(
            f"the loss or a weight was no longer finite at step {done}{self._kept()}. The same steps would diverge"
            f" again: start a new run with a smaller --lr ({rates}) or a smaller --clip ({used.clip:g})"
        )

    def _kept(self) -> str:
        if self.folder is None:
            return ""
        kept = checkpoints(self.folder.checkpoints)
        return f"; the last good checkpoint is {kept[-1]}" if kept else "; there was no checkpoint yet"


def device_of(config: TrainConfig) -> torch.device:
    """The device that a configuration trains on.

    Args:
        config: Its `device.device`; auto is a GPU where there is one.
    """
    if config.device.device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return torch.device(config.device.device)
