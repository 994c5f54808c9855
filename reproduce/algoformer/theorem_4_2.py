"""Theorem 4.2: a decoder in which every position runs gradient descent on the pairs before it."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.looped import CausalLoopedGradientDescent
from reproduce.algoformer import iterates
from reproduce.algoformer.convergence import gradient_iterates
from reproduce.claim import Claim, Numbers, Scale, Setting


def prefix_iterates(xs: Tensor, ys: Tensor, query: Tensor, step_size: float, loops: int) -> Tensor:
    """w^i_k·x_i at every position i for k = 0, …, loops: one regression for each prefix.

    Rows beyond the prefix are zero, the others √(samples/i) times as large: the mean over all is that over the prefix.
    """
    samples = xs.shape[-2]
    place = torch.arange(samples + 1, dtype=torch.float64).unsqueeze(-1)
    scale = (samples / place.clamp(min=1)).sqrt() * (torch.arange(samples) < place)
    points = torch.cat([xs, query.unsqueeze(-2)], dim=-2)
    return gradient_iterates(xs.unsqueeze(-3) * scale.unsqueeze(-1), ys.unsqueeze(-2) * scale, points, step_size, loops)


def run(setting: Setting) -> Numbers:
    xs, ys, query = iterates.regression(setting)
    domain = Domain.covering(xs, ys, query)
    return iterates.compare(
        setting,
        lambda tolerance: CausalLoopedGradientDescent(domain, tolerance, horizon=setting.sizes["loops"]),
        lambda model, loops: model.run(xs, ys, query, loops=loops).predictions,
        lambda model, loops: prefix_iterates(xs, ys, query, model.step_size, loops),
    )


CLAIM = Claim(
    name="algoformer-theorem-4.2",
    source="Gao et al. 2024, Theorem 4.2",
    statement="In a decoder AlgoFormer every position predicts by gradient descent on the pairs before it.",
    theirs="error → 0 at pre 1×2, loop 1×2, post 2×2 (layers×heads)",
    scales={
        "small": Scale(0.1, {**iterates.PROBLEM, "problems": 2}),
        "paper": Scale(0.5, {**iterates.PROBLEM, "problems": 16}),
    },
    run=run,
    judge=iterates.judge,
    figure=iterates.figure,
    differs="The update uses the asking position's own w inside the sum, where A.5 prints another position's, and no "
    "position sees its own x as an example, as the paper's mask would allow.",
)
