"""The training loop."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from emulon.models import Learner
from emulon.training.checkpoint import read_checkpoint, write_checkpoint
from emulon.training.configuration import TrainConfig
from emulon.training.evaluation import Evaluation
from emulon.training.processes import Processes, joined
from emulon.training.refusals import OutOfMemory, TrainingDiverged
from emulon.training.reporter import Reporter
from emulon.training.run_folder import RunFolder
from emulon.training.step import TrainStep


@dataclass(frozen=True)
class Trained:
    """A finished run: the learner, its last error curve and the baselines' curves; when it began and what it took.

    Of several processes, the one that `leads` speaks and writes for all.
    """

    learner: Learner
    steps: int
    curve: list[float]
    baselines: dict[str, list[float]]
    start: int
    leads: bool
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass
class Patience:
    """Early stopping: how long ago the evaluation last got better. Travels in the checkpoint."""

    best: float = math.inf
    waited: int = 0

    def hear(self, error: float) -> None:
        better = error < self.best
        self.best, self.waited = (error, 0) if better else (self.best, self.waited + 1)

    def over(self, patience: int) -> bool:
        return 0 < patience <= self.waited


def train(config: TrainConfig, out: Path | str) -> Trained:
    """Begins a run in a new folder. `resume` continues one."""
    config.check()
    with joined(config.device) as processes:
        if processes.leads:
            RunFolder(Path(out)).begin(config)
        return _run(config, RunFolder(Path(out)), processes)


def resume(out: Path | str) -> Trained:
    """Continues the run in a folder from its newest checkpoint, to the weights it would have had without the break."""
    folder = RunFolder(Path(out))
    config = folder.config()
    with joined(config.device) as processes:
        return _run(config, folder, processes)


def _run(config: TrainConfig, folder: RunFolder, processes: Processes) -> Trained:
    began = time.perf_counter(), time.process_time()
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        trained = _build_and_train(config, folder, processes)
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU's allocator raises a plain one
        if "can't allocate memory" in str(error) or "out of memory" in str(error):
            raise _memory_refusal(config, folder) from error
        raise
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    return dataclasses.replace(trained, seconds=took[0], cpu_seconds=took[1])


def _build_and_train(config: TrainConfig, folder: RunFolder, processes: Processes) -> Trained:
    device = _device(config, processes)
    task = config.make_task()
    step = TrainStep(config.make_learner(task), task, config, device, processes)
    patience, start = Patience(), 0
    found = read_checkpoint(folder.checkpoints)
    if found is not None:
        start, tensors, notes = found
        step.load(tensors, folder.checkpoints)
        patience = Patience(**json.loads(notes["patience"]))
    if processes.leads:
        folder.rewind(start)
    evaluation = Evaluation(task, config.seed, config.evaluation_batch, device)
    reporter = Reporter(folder, config, start, silent=not processes.leads)
    try:
        if processes.leads:
            folder.write_json("baselines.json", evaluation.baselines)
        done = _steps(config, folder, step, evaluation, reporter, patience, start)
        curve = evaluation.curve(step.learner).tolist()
        return Trained(step.learner, done, curve, evaluation.baselines, start, processes.leads)
    finally:
        reporter.close()


def _steps(
    config: TrainConfig,
    folder: RunFolder,
    step: TrainStep,
    evaluation: Evaluation,
    reporter: Reporter,
    patience: Patience,
    start: int,
) -> int:
    """Steps start, …, config.steps − 1, with what happens between them. Returns how many steps the weights have had."""
    if patience.over(config.patience):  # resumed after it had stopped early
        return start
    for k in range(start, config.steps):
        loss = step(k)
        done = k + 1
        last = done == config.steps
        stop = False
        if done % config.log_every == 0 or last:
            step.synchronise()
            _require_finite(loss.item(), done, config, folder)
            reporter.record("train", done, loss=loss.item())
        if done % config.evaluate_every == 0 or last:
            step.synchronise()
            curve = evaluation.curve(step.learner)
            error = curve.mean().item()
            _require_finite(error, done, config, folder)
            reporter.record("evaluation", done, error=error, curve=curve.tolist())
            patience.hear(error)
            stop = step.processes.agree(patience.over(config.patience))
        if done % config.checkpoint_every == 0 or last or stop:
            step.synchronise()
            _require_finite(sum(p.detach().abs().sum().item() for p in step.parameters), done, config, folder)
            if step.processes.leads:
                write_checkpoint(folder.checkpoints, done, step.state(), {"patience": json.dumps(vars(patience))})
        if stop:
            return done
    return config.steps


def _device(config: TrainConfig, processes: Processes) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda", processes.local) if torch.cuda.is_available() else torch.device("cpu")
    return torch.device(config.device)


def _require_finite(value: float, done: int, config: TrainConfig, folder: RunFolder) -> None:
    if not math.isfinite(value):
        raise TrainingDiverged(
            f"the loss or a weight was no longer finite at step {done}; {_kept(folder)}. The same steps would diverge"
            f" again: start a new run with a smaller --lr (it was {config.lr:g}) or a smaller --clip ({config.clip:g})"
        )


def _memory_refusal(config: TrainConfig, folder: RunFolder) -> OutOfMemory:
    return OutOfMemory(
        f"a batch of {config.batch}, or an evaluation batch of {config.evaluation_batch}, does not fit the memory;"
        f" {_kept(folder)}. Start a new run with smaller ones, or use more processes (torchrun)"
    )


def _kept(folder: RunFolder) -> str:
    found = sorted(folder.checkpoints.glob("step-*.safetensors"))
    return f"the last good checkpoint is {found[-1]}" if found else "there was no checkpoint yet"
