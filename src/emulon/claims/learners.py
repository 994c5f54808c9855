"""Trained learners for claims: those kept among the results, and those trained on the spot."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from emulon.claims.claim import CannotTest, Numbers, Setting
from emulon.files import locked, make_folder, write_json
from emulon.loading import Subject, load_subject
from emulon.models import FrozenAttention, Learner
from emulon.progress import Progress, silent
from emulon.tasks import Prompts, Task, at_step
from emulon.training import RunFolder, TrainConfig, Trained, TrainStep, fit, load_learner, save_learner

# Kept in results/learners/, with the words that trained them.
KEPT = {
    "small_learner": "standard --preset small",
    "noiseless_learner": "standard --task linear --features 3 --points 9 --noise 0 --width 64 --layers 4 --heads 4 "
    "--init 0.08 --steps 10000 --lr 0.002 --warmup 200 --schedule cosine --start-features 1 --feature-every 150",
}
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


def trained(config: TrainConfig, setting: Setting, done: float = 0.0, share: float = 1.0) -> Trained:
    """A new learner, on a GPU where there is one; it is `share` of the run's work, after `done`.

    Claims that ask for the same configuration in one process get the same learner.
    """
    if config not in _FITTED:
        told = setting.report_progress
        _FITTED[config] = fit(config, report_progress=lambda what, part: told(what, done + share * part))
    return _FITTED[config]


_FITTED: dict[TrainConfig, Trained] = {}


def trained_once(config: TrainConfig, setting: Setting) -> tuple[Learner, list[float], float]:
    """Train a learner and keep it in results/trained/, where other parts, claims and processes find it.

    Returns:
        The learner on the best device, its held-out error curve, and the seconds its training took.
    """
    name = hashlib.sha256(config.to_json().encode()).hexdigest()[:16]
    folder = make_folder(setting.results / "trained") / name
    with locked(folder.with_suffix(".lock")):
        if not (folder / "trained.json").exists():
            told = setting.report_progress
            fitted = fit(config, report_progress=lambda what, part: told(what, 0.9 * part))
            beside = folder.with_suffix(f".{os.getpid()}")
            save_learner(fitted.learner, config, fitted.steps, beside)
            write_json(beside / "trained.json", {"curve": fitted.curve, "seconds": fitted.seconds})
            beside.replace(folder)
    learner, _ = load_learner(folder)
    stored = json.loads((folder / "trained.json").read_text())
    return learner.to(best_device()), stored["curve"], stored["seconds"]


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
        learner = FrozenAttention(*sizes, width=width, heads=heads, assemble=assemble)
    step = TrainStep(learner, task, config, best_device())
    for k in range(steps):
        step(k)
        if k % 50 == 0:
            report_progress(what, k / steps)
    step.synchronise()
    return learner.freeze()


def relative_errors(asked: Mapping[str, Task], task: Task, what: str, setting: Setting, **options: Any) -> Numbers:
    """Of one frozen attention, trained on `task`, on each of the tasks asked: the mean squared error over the mean
    square of the target."""
    learner = frozen_attention(task, report_progress=setting.report_progress, what=what, **options)
    return {name: mean_squared_error(learner, each) / mean_square(each) for name, each in asked.items()}


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
