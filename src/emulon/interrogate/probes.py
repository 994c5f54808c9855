"""Probes: at which layer and position can a quantity be read off the hidden states? A control stands beside each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.errors import BadShape
from emulon.interrogate.hidden_states import HiddenStates

# Shrinks a linear probe's weights a little, so that constant and repeated features do no harm.
SHRINK = 1e-4
# Of the probe with attention; the decay keeps it from learning its datasets by heart.
LEARNING_RATE, DECAY = 0.02, 0.1
# So often a probe in training is measured on what it is not trained on.
MEASURE_EVERY = 10

Kind = Literal["linear", "mlp"]


@dataclass(frozen=True)
class ProbeScores:
    """R² on held-out datasets for every layer and position, and R² of the control task beside it.

    The control asks the same probe for the target of another dataset: what it scores there it has from its size, not
    from what is encoded. Both can be negative: worse than saying the mean.
    """

    score: Float[Tensor, "layers tokens"]
    control: Float[Tensor, "layers tokens"]
    tokens: tuple[str, ...]

    def first_layer(self, token: str, least: float = 0.99) -> int | None:
        """The first layer from which on the target can be read at this position."""
        enough = (self.score[:, self.tokens.index(token)] >= least).tolist()
        return next((layer for layer in range(len(enough)) if all(enough[layer:])), None)

    def at(self, token: str) -> list[tuple[float, float]]:
        """(score, control) at this position, layer by layer."""
        place = self.tokens.index(token)
        return list(zip(self.score[:, place].tolist(), self.control[:, place].tolist(), strict=True))


def linear_probe(hidden: HiddenStates, target: Float[Tensor, "datasets size"], *, seed: int = 0) -> ProbeScores:
    """One least-squares probe for each layer and position, fitted on half of the datasets and scored on the others."""
    score, control = (held_out_score(hidden.states, one) for one in (target, shuffled(target, seed)))
    return ProbeScores(score, control, hidden.tokens)


def register_probe(
    hidden: HiddenStates, target: Float[Tensor, "datasets size"], *, seed: int = 0
) -> dict[str, ProbeScores]:
    """One linear probe for every register by itself: which of them holds the target?"""
    return {name: linear_probe(hidden.of(name), target, seed=seed) for name in hidden.registers}


def shuffled(target: Float[Tensor, "datasets size"], seed: int) -> Float[Tensor, "datasets size"]:
    """The control task: every dataset gets another's target."""
    return target[torch.randperm(len(target), generator=torch.Generator().manual_seed(seed), device="cpu")]


def held_out_score(
    states: Float[Tensor, "layers datasets tokens width"], target: Float[Tensor, "datasets size"]
) -> Float[Tensor, "layers tokens"]:
    """R² over all entries of the target, on the second half of the datasets."""
    datasets = states.shape[1]
    if datasets != target.shape[0] or datasets < 4:
        raise BadShape(f"{datasets} datasets of hidden states and {target.shape[0]} targets: give 4 or more of both")
    half = datasets // 2
    features = states.double().movedim(1, 2)  # (layers, tokens, datasets, width)
    seen, unseen = features[..., :half, :], features[..., half:, :]
    mean, deviation = seen.mean(dim=-2, keepdim=True), seen.std(dim=-2, keepdim=True)
    varies = deviation > 1e-9 * (1 + mean.abs())
    seen, unseen = (torch.where(varies, (part - mean) / deviation, 0.0) for part in (seen, unseen))
    centre = target[:half].double().mean(dim=0)
    gram = seen.mT @ seen + SHRINK * half * torch.eye(seen.shape[-1], dtype=seen.dtype, device="cpu")
    weights = torch.linalg.solve(gram, seen.mT @ (target[:half].double() - centre))
    return explained(unseen @ weights + centre, target[half:].double())


def explained(
    guess: Float[Tensor, "*layers datasets size"], truth: Float[Tensor, "datasets size"]
) -> Float[Tensor, "*layers"]:
    """R²: 1 − (squared error)/(squared deviation from the mean)."""
    left = (guess - truth).square().sum(dim=(-2, -1))
    return 1 - left / (truth - truth.mean(dim=0)).square().sum()


@dataclass(frozen=True)
class AttentionScores:
    """For every layer: held-out R², that of the control task, and the mean attention on each position."""

    layers: tuple[int, ...]
    score: Float[Tensor, " layers"]
    control: Float[Tensor, " layers"]
    attention: Float[Tensor, "layers tokens"]
    tokens: tuple[str, ...]

    def looks_at(self, layer: int) -> str:
        """The position that gets most of the attention."""
        return self.tokens[int(self.attention[self.layers.index(layer)].argmax())]


class AttentionProbe(nn.Module):
    """The probe with example-attention of Akyürek et al. 2022, Eq. 20–22, which finds the position too.

    α = softmax(W_pᵀh) over positions, u = W_v Σ α_i h_i, t̂ = FF(u): many independent probes side by side.
    """

    def __init__(self, probes: int, width: int, inner: int, size: int, kind: Kind, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(probes, rows, columns, generator=generator, device="cpu") / rows**0.5)

        self.asks = nn.Parameter(torch.zeros(probes, width, device="cpu"))
        self.values, self.out = matrix(width, inner), matrix(inner, size)
        self.hidden = matrix(inner, inner) if kind == "mlp" else None
        self.bias = nn.Parameter(torch.zeros(probes, 1, size, device="cpu"))

    def attention(
        self, states: Float[Tensor, "probes datasets tokens width"]
    ) -> Float[Tensor, "probes datasets tokens"]:
        return torch.einsum("pbtw,pw->pbt", states, self.asks).softmax(dim=-1)

    def forward(self, states: Float[Tensor, "probes datasets tokens width"]) -> Float[Tensor, "probes datasets size"]:
        u = torch.einsum("pbt,pbtw->pbw", self.attention(states), states) @ self.values
        if self.hidden is not None:
            u = nn.functional.gelu(u @ self.hidden)
        return u @ self.out + self.bias


def attention_probe(
    hidden: HiddenStates,
    target: Float[Tensor, "datasets size"],
    *,
    kind: Kind = "linear",
    layers: Sequence[int] | None = None,
    steps: int = 300,
    seed: int = 0,
) -> AttentionScores:
    """For every layer a probe and one for the control task, trained on half of the datasets, scored on the others.

    On the device of the hidden states.
    """
    layers = tuple(range(len(hidden.states))) if layers is None else tuple(layers)
    states, half = _standard(hidden.states[list(layers)]), len(target) // 2
    goals = torch.stack([_unit(target), _unit(shuffled(target, seed))]).repeat_interleave(len(layers), dim=0)
    goals = goals.to(states.device)
    states = states.repeat(2, 1, 1, 1)
    inner = max(2 * target.shape[1], 32) if kind == "mlp" else target.shape[1]
    with torch.enable_grad():
        probe = AttentionProbe(len(states), states.shape[-1], inner, target.shape[1], kind, seed).to(states.device)
        _train(probe, states[:, :half], goals[:, :half], steps)
    with torch.no_grad():
        guess = probe(states[:, half:])
        scores = torch.stack([explained(g, t) for g, t in zip(guess, goals[:, half:], strict=True)])
        looked = probe.attention(states[:, half:])[: len(layers)].mean(dim=1)
    score, control = scores.double().cpu().chunk(2)
    return AttentionScores(layers, score, control, looked.double().cpu(), hidden.tokens)


def _train(probe: AttentionProbe, states: Tensor, goals: Tensor, steps: int) -> None:
    """Adam on three quarters; each probe keeps the weights that did best on the last quarter."""
    seen = 3 * states.shape[1] // 4
    optimiser = torch.optim.AdamW(probe.parameters(), lr=LEARNING_RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2 * LEARNING_RATE, total_steps=steps + 1)
    best, kept = goals.new_full((len(states),), torch.inf), [one.detach().clone() for one in probe.parameters()]
    for step in range(steps):
        optimiser.zero_grad()
        (probe(states[:, :seen]) - goals[:, :seen]).square().mean(dim=(1, 2)).sum().backward()
        optimiser.step()
        schedule.step()
        if step % MEASURE_EVERY == MEASURE_EVERY - 1:
            with torch.no_grad():
                loss = (probe(states[:, seen:]) - goals[:, seen:]).square().mean(dim=(1, 2))
            better, best = loss < best, torch.minimum(loss, best)
            for one, old in zip(probe.parameters(), kept, strict=True):
                old[better] = one.detach()[better]
    with torch.no_grad():
        for one, old in zip(probe.parameters(), kept, strict=True):
            one.copy_(old)


def _standard(states: Tensor) -> Tensor:
    """Every feature of a layer with mean 0 and deviation 1 over datasets and positions; constants are 0."""
    states = states.double()
    mean, deviation = states.mean(dim=(1, 2), keepdim=True), states.std(dim=(1, 2), keepdim=True)
    varies = deviation > 1e-9 * (1 + mean.abs())
    return torch.where(varies, (states - mean) / deviation, 0.0).float()


def _unit(target: Tensor) -> Tensor:
    target = target.double()
    return ((target - target.mean(dim=0)) / target.std().clamp(min=1e-12)).float()
