"""Probes with attention over positions, as Akyürek et al. 2022 train them for their Figure 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.identification.probes import Stream, explained

Kind = Literal["linear", "mlp"]


@dataclass(frozen=True)
class ProbeTraining:
    """How probes with attention are trained: AdamW on three quarters of the datasets; each probe keeps the weights
    that did best on the last quarter.

    Attributes:
        steps: Of the optimiser.
        rate: Learning rate.
        decay: Weight decay, against overfitting.
        one_cycle: The rate rises to twice `rate` and falls to zero; otherwise it is constant.
        inner: H' of Akyürek et al. 2022, App. C.8; 0 for as few as the target needs, or for an MLP twice that or 32.
        batch: Datasets a step; 0 for all.
        measurements: How often the last quarter is asked.
    """

    steps: int = 300
    rate: float = 0.02
    decay: float = 0.1
    one_cycle: bool = True
    inner: int = 0
    batch: int = 0
    measurements: int = 30


class AttentionProbe(nn.Module):
    """The probe with example-attention of Akyürek et al. 2022, Eq. 20–22, which finds the position too.

    α = softmax(W_pᵀh) over positions, u = W_v Σ α_i h_i, t̂ = FF(u): `probes` of them for each layer, side by side.
    """

    def __init__(self, layers: int, probes: int, width: int, inner: int, size: int, kind: Kind, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def matrix(rows: int, columns: int) -> nn.Parameter:
            drawn = torch.randn(layers, probes, rows, columns, generator=generator, device="cpu")
            return nn.Parameter(drawn / rows**0.5)

        self.asks = nn.Parameter(torch.zeros(layers, probes, width, device="cpu"))
        self.values, self.out = matrix(width, inner), matrix(inner, size)
        self.hidden = matrix(inner, inner) if kind == "mlp" else None
        self.bias = nn.Parameter(torch.zeros(layers, probes, 1, size, device="cpu"))

    def attention(self, states: Stream) -> Float[Tensor, "layers probes datasets tokens"]:
        return torch.einsum("lbtw,lpw->lpbt", states, self.asks).softmax(dim=-1)

    def forward(self, states: Stream) -> Float[Tensor, "layers probes datasets size"]:
        u = torch.einsum("lpbt,lbtw->lpbw", self.attention(states), states) @ self.values
        if self.hidden is not None:
            u = nn.functional.gelu(u @ self.hidden)
        return u @ self.out + self.bias


@dataclass(frozen=True)
class ManyScores:
    """Held-out R² and mean attention of every probe at every layer; `halfway` is R² on the datasets that choose the
    weights, after half of the training and at its end."""

    score: Float[Tensor, "layers probes"]
    attention: Float[Tensor, "layers probes tokens"]
    halfway: tuple[Float[Tensor, "layers probes"], Float[Tensor, "layers probes"]]


def attention_probes(
    states: Stream,
    targets: Float[Tensor, "probes datasets size"],
    *,
    kind: Kind = "linear",
    training: ProbeTraining | None = None,
    seed: int = 0,
) -> ManyScores:
    """Train one probe for every layer and target on half of the datasets, and score it on the others.

    Args:
        states: As `standardised` gives them, in any float dtype; probes are trained on their device.
        targets: What each probe is to recover.
        kind: FF of Eq. 22: linear, or an MLP of one hidden layer.
        training: Optimiser, sizes and steps.
        seed: Of the probes' first weights.
    Returns:
        Scores for every layer and target.
    """
    training = training or ProbeTraining()
    half, size = targets.shape[1] // 2, targets.shape[2]
    goals = torch.stack([_unit(target) for target in targets]).to(states.device)
    inner = training.inner or (max(2 * size, 32) if kind == "mlp" else size)
    with torch.enable_grad():
        probe = AttentionProbe(len(states), len(targets), states.shape[-1], inner, size, kind, seed).to(states.device)
        halfway = _train(probe, states[:, :half], goals[:, :half], training)
    with torch.no_grad():
        parts = [slice(start, start + PART) for start in range(half, len(targets[0]), PART)]
        guess = torch.cat([probe(states[:, part].float()) for part in parts], dim=2)
        looked = sum(probe.attention(states[:, part].float()).sum(dim=2) for part in parts)
        scores = torch.stack([explained(guess[:, k], goals[k, half:]) for k in range(len(targets))], dim=1)
    assert isinstance(looked, Tensor)
    attention = looked / (targets.shape[1] - half)
    return ManyScores(scores.double().cpu(), attention.double().cpu(), halfway)


# Datasets that are evaluated at once: memory, not scores, depends on it.
PART = 1024


def _train(
    probe: AttentionProbe, states: Tensor, goals: Tensor, training: ProbeTraining
) -> tuple[Float[Tensor, "layers probes"], Float[Tensor, "layers probes"]]:
    """R² on the last quarter, after half of the steps and at the end."""
    seen, steps = 3 * states.shape[1] // 4, training.steps
    fused = states.device.type == "cuda"
    optimiser = torch.optim.AdamW(probe.parameters(), lr=training.rate, weight_decay=training.decay, fused=fused)
    cycle: torch.optim.lr_scheduler.LRScheduler
    if training.one_cycle:
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2 * training.rate, total_steps=steps + 1)
    else:
        cycle = torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)
    best = goals.new_full(probe.asks.shape[:2], torch.inf)
    kept = [one.detach().clone() for one in probe.parameters()]
    batch, every = min(training.batch or seen, seen), max(steps // training.measurements, 1)
    after_half = best
    for step in range(steps):
        start = step * batch % (seen - batch + 1)
        rows = slice(start, start + batch)
        optimiser.zero_grad()
        (probe(states[:, rows].float()) - goals[:, rows]).square().mean(dim=(2, 3)).sum().backward()
        optimiser.step()
        cycle.step()
        if step % every == every - 1 or step == steps - 1:
            loss = _loss(probe, states[:, seen:], goals[:, seen:])
            better, best = loss < best, torch.minimum(loss, best)
            for one, old in zip(probe.parameters(), kept, strict=True):
                old[better] = one.detach()[better]
        if 2 * (step + 1) <= steps:
            after_half = best
    with torch.no_grad():
        for one, old in zip(probe.parameters(), kept, strict=True):
            one.copy_(old)
    variance = (goals[:, seen:] - goals[:, seen:].mean(dim=1, keepdim=True)).square().mean(dim=(1, 2))
    first, last = (1 - loss.detach() / variance for loss in (after_half, best))
    return first.double().cpu(), last.double().cpu()


@torch.no_grad()
def _loss(probe: AttentionProbe, states: Tensor, goals: Tensor) -> Float[Tensor, "layers probes"]:
    """The mean squared error, a part of the datasets at a time."""
    parts = zip(states.split(PART, dim=1), goals.split(PART, dim=1), strict=True)
    total = sum((probe(some.float()) - wanted).square().mean(dim=3).sum(dim=2) for some, wanted in parts)
    assert isinstance(total, Tensor)
    return total / goals.shape[1]


def statistics_of(states: Stream) -> tuple[Float[Tensor, "layers 1 1 width"], Float[Tensor, "layers 1 1 width"]]:
    """Mean and deviation of every feature of a layer over datasets and positions; the deviation of a constant is ∞.

    Args:
        states: Hidden states.
    """
    double = states.double()
    mean, deviation = double.mean(dim=(1, 2), keepdim=True), double.std(dim=(1, 2), keepdim=True)
    return mean, torch.where(deviation > 1e-9 * (1 + mean.abs()), deviation, torch.inf)


def standardised(states: Stream, statistics: tuple[Tensor, Tensor] | None = None) -> Stream:
    """Every feature with mean 0 and deviation 1; constants are 0.

    Args:
        states: Hidden states.
        statistics: Means and deviations; by default the states' own.
    """
    mean, deviation = statistics or statistics_of(states)
    return ((states - mean) / deviation).float()


def _unit(target: Tensor) -> Tensor:
    target = target.double()
    return ((target - target.mean(dim=0)) / target.std().clamp(min=1e-12)).float()
