"""Trained learners for claims: those kept among the results, and those trained on the spot."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from emulon.claims.claim import CannotTest, Setting
from emulon.interrogate import Subject, load_subject
from emulon.models import LEARNERS, FrozenAttention, Learner
from emulon.progress import Progress, silent
from emulon.tasks import Prompts, Task, at_step
from emulon.training import Evaluation, RunFolder, TrainConfig, TrainStep

# Kept in results/learners/, with the words that trained them.
KEPT = {
    "small_learner": "standard --preset small",
    "noiseless_learner": "standard --task linear --features 3 --points 9 --noise 0 --width 64 --layers 4 --heads 4 "
    "--init 0.08 --steps 10000 --lr 0.002 --warmup 200 --schedule cosine --start-features 1 --feature-every 150",
}
# How often progress is told.
EVERY = 20
# The evaluation's stream: no training seed comes near it.
EVALUATION = 1_000_003


def command(name: str) -> str:
    return f"emulon train {KEPT[name]} --out results/learners/{name}"


def committed(setting: Setting, name: str) -> Subject:
    """A learner whose run folder is kept among the results, and the task it was trained on."""
    path = setting.results / "learners" / name
    if not RunFolder(path).config_file.exists():
        raise CannotTest(
            f"needs the trained learner {path}, which is kept in the repository or made by {command(name)}"
        )
    return load_subject(str(path))


def trained(config: TrainConfig, setting: Setting, done: float = 0.0, share: float = 1.0) -> Learner:
    """A new learner, on a GPU where there is one; it is `share` of the run's work, after `done`.

    Claims that ask for the same configuration in one process get the same learner.
    """
    found = _kept(config.check())
    if not found.ready:
        found.train(lambda what, part: setting.report_progress(what, done + share * part))
    return found.learner


def held_out_evaluation(config: TrainConfig, datasets: int) -> Evaluation:
    """The same datasets for every model and seed of a task."""
    return Evaluation(config.make_task(), EVALUATION, datasets, best_device())


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class _Kept:
    """A learner and whether it has had its steps."""

    def __init__(self, config: TrainConfig) -> None:
        task = config.make_task()
        self.config, self.ready = config, False
        self.learner = config.make_learner(task)
        self.step = TrainStep(self.learner, task, config, best_device())

    def train(self, report_progress: Progress) -> None:
        config = self.config
        what = f"training {config.model}, {config.layers} layers, {config.width} wide"
        for k in range(config.steps):
            self.step(k)
            if k % EVERY == 0:
                self.step.synchronise()
                report_progress(what, k / config.steps)
        self.step.synchronise()
        self.learner.eval()
        self.ready = True


_kept = cache(_Kept)


def frozen_attention(
    task: Task,
    *,
    steps: int,
    seed: int,
    width: int,
    heads: int,
    assemble: bool = False,
    batch: int = 32,
    lr: float = 3e-3,
    report_progress: Progress = silent,
    what: str = "training",
) -> FrozenAttention:
    """One multi-head module, trained on the task (Adam, cosine) and then frozen: its weights are buffers."""
    config = TrainConfig(model="frozen", steps=steps, seed=seed, batch=batch, lr=lr, schedule="cosine")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = (task.width_in, task.width_out, task.tokens)
        learner = LEARNERS["frozen"](*sizes, width=width, heads=heads, assemble=assemble)  # type: ignore[call-arg]
    step = TrainStep(learner, task, config, best_device())
    for k in range(steps):
        step(k)
        if k % 50 == 0:
            report_progress(what, k / steps)
    step.synchronise()
    assert isinstance(learner, FrozenAttention)
    return learner.freeze()


@torch.no_grad()
def mean_squared_error(learner: FrozenAttention, task: Task, batch: int = 1024) -> float:
    """On datasets that no training saw."""
    prompts = held_out(task, batch)
    device = next(learner.buffers()).device
    said = task.asked(learner(prompts.tokens.to(device))).cpu()
    return (said - prompts.targets).double().square().mean().item()


def mean_square(task: Task, batch: int = 1024) -> float:
    """What answering 0 costs on the same datasets: errors are read against it."""
    return held_out(task, batch).targets.double().square().mean().item()


def held_out(task: Task, batch: int) -> Prompts:
    return task.sample(at_step(torch.Generator(), EVALUATION, 0), batch)


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Over seeds; the spread is one standard deviation."""
    numbers: Tensor = torch.tensor(values, dtype=torch.float64)
    return numbers.mean().item(), numbers.std(correction=0).item()
