"""Linear probes: is a quantity a linear function of the hidden state, at which layer and which position?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.errors import BadShape
from emulon.interrogate.hidden_states import HiddenStates

# Shrinks the probe's weights a little, so that constant and repeated features do no harm.
SHRINK = 1e-4


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
    return target[torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))]


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
    gram = seen.mT @ seen + SHRINK * half * torch.eye(seen.shape[-1], dtype=seen.dtype)
    weights = torch.linalg.solve(gram, seen.mT @ (target[:half].double() - centre))
    return explained(unseen @ weights + centre, target[half:].double())


def explained(guess: Float[Tensor, "... datasets size"], truth: Float[Tensor, "datasets size"]) -> Float[Tensor, ...]:
    """R²: 1 − (squared error)/(squared deviation from the mean)."""
    left = (guess - truth).square().sum(dim=(-2, -1))
    return 1 - left / (truth - truth.mean(dim=0)).square().sum()
