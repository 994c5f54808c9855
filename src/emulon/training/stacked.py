"""The runs of a grid as one stack on one device; each leaves the run folder it would have left alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from emulon.core.errors import BadConfig, NoRun
from emulon.core.files import write_json
from emulon.core.progress import Progress, silent
from emulon.training import Evaluation, RunFolder, Trained, device_of
from emulon.training.checkpoint import read_checkpoint, write_checkpoint
from emulon.training.fit import Patience, Stopwatch
from emulon.training.grid import CURVE, BadGrid, Run
from emulon.training.reporter import Reporter
from emulon.training.stack import Stack, require_stackable
from emulon.training.sweep import alone_in


def require_stack(runs: Sequence[Run]) -> None:
    """Refuse a grid that cannot be one stack."""
    try:
        require_stackable([run.config for run in runs])
    except BadConfig as error:
        raise BadGrid(f"--stack: {error}") from error


def sweep_stacked(runs: Sequence[Run], *, report_progress: Progress = silent) -> dict[str, str]:
    """Finishes the runs that are not finished, all at once. Why, of each that is not finished in the end."""
    require_stack(runs)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(alone_in(run.folder))
        left = [run for run in runs if not run.finished]
        return _train(left, report_progress) if left else {}


def _train(left: Sequence[Run], report_progress: Progress) -> dict[str, str]:
    stack = Stack([run.config for run in left], device_of(left[0].config))
    members = [_Member(run, k, stack) for k, run in enumerate(left)]
    start = _load(members)
    for member in members:
        member.begin(start)
    stack.build()
    _steps(stack, members, start, report_progress)
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
        """Whether it goes on; the others do in any case."""
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
            self.patience.hear(error)

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


def _steps(stack: Stack, members: Sequence[_Member], start: int, report_progress: Progress) -> None:
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
