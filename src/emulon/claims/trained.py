"""A learner trained for a claim: no run folder, the same step as `emulon train`."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.models import FrozenAttention
from emulon.progress import Progress, silent
from emulon.tasks import Prompts, Task, at_step
from emulon.training import TrainConfig, TrainStep

# The evaluation's stream: no training seed comes near it.
EVALUATION = 1_000_003


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
    progress: Progress = silent,
    what: str = "training",
) -> FrozenAttention:
    """One multi-head module, trained on the task (Adam, cosine) and then frozen: its weights are buffers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = TrainConfig(model="frozen", steps=steps, seed=seed, batch=batch, lr=lr, schedule="cosine")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = (task.width_in, task.width_out, task.tokens)
        learner = FrozenAttention(*sizes, width=width, heads=heads, assemble=assemble)
    step = TrainStep(learner, task, config, device)
    for k in range(steps):
        step(k)
        if k % 50 == 0:
            progress(what, k / steps)
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
