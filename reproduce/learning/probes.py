"""Probes with attention over positions, as Akyürek et al. 2022 train them for their Figure 4."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.identification.probes import Stream, explained

Kind = Literal["linear", "mlp"]
# By layer and probe.
Scores = Float[Tensor, "layers probes"]
# Datasets that are evaluated at once: memory, not scores, depends on it.
PART = 1024


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


def attention_probes(
    states: Stream,
    targets: Float[Tensor, "probes datasets size"],
    kind: Kind = "linear",
    seed: int = 0,
    *,
    steps: int = 300,
    rate: float = 0.02,
    decay: float = 0.1,
    one_cycle: bool = True,
    inner: int = 0,
    batch: int = 0,
    measurements: int = 30,
) -> tuple[Scores, Float[Tensor, "layers probes tokens"], tuple[Scores, Scores]]:
    """Train one probe for every layer and target on half of the datasets, and score it on the others.

    AdamW learns from three quarters of the first half; each probe keeps the weights that did best on the last quarter.

    Args:
        states: As `standardised` gives them, in any float dtype; probes are trained on their device.
        targets: What each probe is to recover.
        kind: FF of Eq. 22: linear, or an MLP of one hidden layer.
        seed: Of the probes' first weights.
        steps: Of the optimiser.
        rate: Learning rate.
        decay: Weight decay, against overfitting.
        one_cycle: The rate rises to twice `rate` and falls to zero; otherwise it is constant.
        inner: H' of Akyürek et al. 2022, App. C.8; 0 for as few as the target needs, or for an MLP twice that or 32.
        batch: Datasets a step; 0 for all.
        measurements: How often the last quarter is asked.
    Returns:
        Held-out R² and mean attention of every probe, and R² on the last quarter, after half of the steps and at the
        end.
    """
    half, size = targets.shape[1] // 2, targets.shape[2]
    goals = torch.stack([_unit(target) for target in targets]).to(states.device)
    inner = inner or (max(2 * size, 32) if kind == "mlp" else size)
    probe = AttentionProbe(len(states), len(targets), states.shape[-1], inner, size, kind, seed).to(states.device)
    seen = 3 * half // 4
    optimiser = torch.optim.AdamW(probe.parameters(), lr=rate, weight_decay=decay, fused=states.device.type == "cuda")
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2 * rate, total_steps=steps + 1) if one_cycle else None
    best = after_half = goals.new_full(probe.asks.shape[:2], torch.inf)
    kept = [one.detach().clone() for one in probe.parameters()]
    batch, every = min(batch or seen, seen), max(steps // measurements, 1)
    for step in range(steps):
        start = step * batch % (seen - batch + 1)
        rows = slice(start, start + batch)
        with torch.enable_grad():
            (probe(states[:, rows].float()) - goals[:, rows]).square().mean(dim=(2, 3)).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        if cycle:
            cycle.step()
        if step % every == every - 1 or step == steps - 1:
            loss = _loss(probe, states[:, seen:half], goals[:, seen:half])
            better, best = loss < best, torch.minimum(loss, best)
            for one, old in zip(probe.parameters(), kept, strict=True):
                old[better] = one.detach()[better]
        if 2 * (step + 1) <= steps:
            after_half = best
    last = goals[:, seen:half]
    variance = (last - last.mean(dim=1, keepdim=True)).square().mean(dim=(1, 2))
    halfway = (1 - after_half / variance).double().cpu(), (1 - best / variance).double().cpu()
    with torch.no_grad():
        for one, old in zip(probe.parameters(), kept, strict=True):
            one.copy_(old)
        parts = states[:, half:].split(PART, dim=1)
        guess = torch.cat([probe(part.float()) for part in parts], dim=2)
        looked = torch.stack([probe.attention(part.float()).sum(dim=2) for part in parts]).sum(dim=0)
        scores = torch.stack([explained(guess[:, k], goals[k, half:]) for k in range(len(targets))], dim=1)
    return scores.double().cpu(), (looked / (targets.shape[1] - half)).double().cpu(), halfway


@torch.no_grad()
def _loss(probe: AttentionProbe, states: Tensor, goals: Tensor) -> Scores:
    """The mean squared error, a part of the datasets at a time."""
    parts = zip(states.split(PART, dim=1), goals.split(PART, dim=1), strict=True)
    squares = [(probe(some.float()) - wanted).square().mean(dim=3).sum(dim=2) for some, wanted in parts]
    return torch.stack(squares).sum(dim=0) / goals.shape[1]


def statistics_of(states: Stream) -> tuple[Float[Tensor, "layers 1 1 width"], Float[Tensor, "layers 1 1 width"]]:
    """Mean and deviation of every feature of a layer over datasets and positions; the deviation of a constant is ∞."""
    double = states.double()
    mean, deviation = double.mean(dim=(1, 2), keepdim=True), double.std(dim=(1, 2), keepdim=True)
    return mean, torch.where(deviation > 1e-9 * (1 + mean.abs()), deviation, torch.inf)


def standardised(states: Stream, statistics: tuple[Tensor, Tensor] | None = None) -> Stream:
    """Every feature with mean 0 and deviation 1, by these statistics or by the states' own; constants are 0."""
    mean, deviation = statistics or statistics_of(states)
    return ((states - mean) / deviation).float()


def _unit(target: Tensor) -> Tensor:
    target = target.double()
    return ((target - target.mean(dim=0)) / target.std().clamp(min=1e-12)).float()
