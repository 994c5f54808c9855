"""Theorem 3.2: AR(q) with representation: copy the last q vectors, apply Φ*, fit A by gradient descent."""

from __future__ import annotations

import torch

from emulon.certify import Domain
from emulon.looped import LoopedAutoRegression, RepresentationNetwork
from emulon.tasks.nonlinear import fixed_network, leaky_network
from reproduce.algoformer import iterates
from reproduce.claim import Claim, Numbers, Setting

ORDER, DEPTH, SLOPE = 3, 3, 0.01
# Keeps a series with unit noise from exploding.
MIXING = 0.08


def run(setting: Setting) -> Numbers:
    batch, size, samples = (setting.sizes[key] for key in ("problems", "features", "samples"))
    draw = torch.Generator().manual_seed(setting.seed)
    weights = fixed_network(0, (ORDER * size, *(size,) * DEPTH), torch.device("cpu"))
    layers = tuple(weight.double() for weight in weights)
    mixing = MIXING * torch.randn(batch, size, size, dtype=torch.float64, generator=draw)
    noise = torch.randn(samples, batch, size, dtype=torch.float64, generator=draw)
    past = [torch.zeros(batch, size, dtype=torch.float64)] * ORDER
    for one in noise:
        features = leaky_network(layers, torch.cat(past[-ORDER:], dim=-1))[-1]
        past.append((mixing @ features.unsqueeze(-1)).squeeze(-1) + one)
    series = torch.stack(past[ORDER:], dim=1)
    windows = torch.stack([torch.cat(past[t : t + ORDER], dim=-1) for t in range(samples + 1)], dim=1)
    phi = RepresentationNetwork(layers, slope=SLOPE, bound=windows.abs().max().item())
    features, asked = phi(windows[:, :-1]), phi(windows[:, -1])
    domain = Domain.covering(features, series, asked, 1.001)
    horizon = setting.sizes["loops"]
    return iterates.compare(
        setting,
        lambda tolerance: LoopedAutoRegression(domain, phi, tolerance, order=ORDER, horizon=horizon),
        lambda model, loops: model.run(series, loops=loops).predictions,
        lambda model, loops: iterates.descent(features, series, asked, model.step_size, loops),
    )


CLAIM = Claim(
    name="algoformer-theorem-3.2",
    source="Gao et al. 2024, Theorem 3.2",
    statement="An AlgoFormer predicts AR(q) series: q heads copy, Φ* in the pre-transformer, descent in the loop.",
    theirs="error → 0 at pre (L+2)×q, loop 1×2, post 1×1 (layers×heads)",
    scales=iterates.SCALES,
    run=run,
    judge=iterates.judge,
    figure=iterates.figure,
    differs="The paper draws A from N(0, I) and does not give Φ*'s scale, with which the series may explode: here A's "
    "entries have deviation 0.08. A token holds its own label, so that one layer and the post-transformer are saved.",
)
