"""Theorem 3.3: the next state of a chain of thought, its layer found in context by gradient descent."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.looped import LoopedChainOfThought
from reproduce.algoformer import iterates
from reproduce.claim import Claim, Numbers, Scale, Setting

# The query's chain is known up to its third state.
DEPTH, KNOWN, SLOPE, GAIN = 6, 3, 0.1, 1.3


def leaky(z: Tensor, slope: float) -> Tensor:
    return torch.where(z > 0, z, slope * z)


def chains(setting: Setting) -> Tensor:
    """x, s¹, …, s^depth of one network a problem, the query's chain last: (problems, samples + 1, depth + 1, size)."""
    batch, size, samples = (setting.sizes[key] for key in ("problems", "features", "samples"))
    draw = torch.Generator().manual_seed(setting.seed)
    states = [torch.randn(batch, samples + 1, size, dtype=torch.float64, generator=draw)]
    layers = GAIN * size**-0.5 * torch.randn(DEPTH, batch, size, size, dtype=torch.float64, generator=draw)
    for layer in layers:
        states.append(leaky(states[-1] @ layer.mT, SLOPE))
    return torch.stack(states, dim=2)


def run(setting: Setting) -> Numbers:
    whole = chains(setting)
    known, start = whole[:, :-1], whole[:, -1, :KNOWN]
    xs, labels, query = known[:, :, KNOWN - 1], leaky(known[:, :, KNOWN], 1 / SLOPE), start[:, -1]
    covering = Domain.covering(xs, labels, query, 1.001)
    widest = whole.abs().max().item()
    domain = replace(covering, x=widest)
    horizon = setting.sizes["loops"]
    return iterates.compare(
        setting,
        lambda tolerance: LoopedChainOfThought(domain, tolerance, depth=DEPTH, slope=SLOPE, horizon=horizon),
        lambda model, loops: model.run(known, start, loops=loops).predictions,
        lambda model, loops: leaky(iterates.descent(xs, labels, query, model.step_size, loops), SLOPE),
    )


CLAIM = Claim(
    name="algoformer-theorem-3.3",
    source="Gao et al. 2024, Theorem 3.3",
    statement="An AlgoFormer continues a chain of thought made by a leaky-ReLU MLP that it finds in context.",
    theirs="error → 0 at pre 7×2, loop 1×2, post 1×1 (layers×heads)",
    scales={
        "small": Scale(0.2, {**iterates.PROBLEM, "problems": 2}),
        "paper": Scale(1.0, {**iterates.PROBLEM, "problems": 16}),
    },
    run=run,
    judge=iterates.judge,
    figure=iterates.figure,
    differs="The leaky ReLU has slope 0.1, the weights deviation 1.3/√d, as the paper gives neither; the fourth state "
    "is asked for. Two layers find and filter the asked stage, where the theorem takes seven.",
)
