"""AlgoFormers trained during the run: what Figures 3 to 5 share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from emulon.models import AlgoFormer, Learner
from emulon.training import Evaluation, TrainConfig
from reproduce.claim import Setting, Verdict
from reproduce.learners import trained

# After the most samples an error above this share of saying zero is that of a learner that has learned too little.
UNLEARNED = 0.1
# On a CPU, and the same for all three figures, so that one training serves them in a process.
TRAINING = {"model": "algoformer", "task": "linear", "features": 2, "points": 8, "noise": 0.0, "init": 0.08}
TRAINING |= {"layers": 1, "width": 32, "heads": 4, "loops": 4, "window": 3}
TRAINING |= {"steps": 1200, "lr": 2e-3, "warmup": 100, "schedule": "cosine"}
# The paper's sizes, on a GPU.
AT_SCALE = {"recipe": "fast", "model": "algoformer", "task": "representation", "features": 20, "points": 41}
AT_SCALE |= {"layers": 1, "loops": 20, "window": 15, "steps": 10_000, "evaluate_every": 10_000, "compile": "block"}
# Figures 3 and 4 have more than twenty learners between them.
SHORTER = AT_SCALE | {"steps": 4_000}


def recipe(sizes: Mapping[str, Any]) -> str:
    """Lines of the set-up: optimiser, steps and batch."""
    return f"""optimiser | Adam, 1e-4 | Muon, 0.005, linear | does not hold
steps × batch | 500,000 × not stated | {sizes["steps"]:,} × 64 | does not hold"""


def configured(setting: Setting, **options: Any) -> TrainConfig:
    return TrainConfig.following(**setting.sizes["training"] | {"seed": setting.seed} | options)


def examined(config: TrainConfig, setting: Setting) -> tuple[Learner, Evaluation]:
    """The trained learner, and datasets that its training never saw."""
    learner = trained(config, setting).learner
    device = next(learner.parameters()).device
    return learner, Evaluation(config.make_task(), config.seed, setting.sizes["datasets"], device)


@torch.no_grad()
def by_loops(learner: AlgoFormer, evaluation: Evaluation, loops: int) -> list[float]:
    """The mean squared error after 1, …, loops turns, more than it was trained for if asked."""
    kept, learner.loops = learner.loops, loops
    try:
        said = learner.read_out(learner.states(learner.embed(evaluation.prompts.tokens), window=loops))
    finally:
        learner.loops = kept
    errors = (evaluation.task.asked(said).float() - evaluation.prompts.truth).square()
    return errors.double().mean(dim=(1, 2, 3)).tolist()


def ends(evaluation: Evaluation, curve: list[float]) -> float:
    """The error after the most samples, as a share of saying zero."""
    return curve[-1] / evaluation.baselines["zero"][-1]


def too_early(shares: dict[str, float]) -> Verdict | None:
    """Nothing can be said about learners that have not learned."""
    late = {name: share for name, share in shares.items() if share > UNLEARNED}
    if not late:
        return None
    shown = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return Verdict(
        "not tested at scale",
        f"error left of saying zero: {shown}",
        f"a training this short leaves {', '.join(late)} above {UNLEARNED} of the error of saying zero; the paper "
        "trains 500,000 steps on a GPU",
    )
