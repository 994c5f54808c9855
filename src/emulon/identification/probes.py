"""States of a learner at every position of its stream, and probes: whether a quantity can be read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import Algorithm
from emulon.core.errors import BadShape
from emulon.core.predictor import NotAPredictor
from emulon.identification.sampling import Inputs, Targets

# Hidden states of every layer, and what a probe looks for in them.
Stream = Float[Tensor, "layers datasets tokens width"]
Quantity = Float[Tensor, "datasets size"]


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of a model, layer by layer.

    Attributes:
        states: `states[0]` is the embedding and `states[l]` the residual stream after layer l.
        tokens: Names of the positions.
        registers: Groups of features by name, where the model has names for them.
    """

    states: Stream
    tokens: tuple[str, ...]
    registers: Mapping[str, slice] = field(default_factory=dict)

    def of(self, register: str) -> HiddenStates:
        """What one register holds."""
        return HiddenStates(self.states[..., self.registers[register]], self.tokens)


def hidden_states(model: Any, xs: Inputs, ys: Targets) -> HiddenStates:
    """Run a model and keep its residual stream.

    Args:
        model: A compiled register machine, or anything with `hidden_states(xs, ys)`, such as a learner.
        xs: Points.
        ys: Targets.
    Raises:
        NotAPredictor: The model is neither.
    """
    if hasattr(model, "hidden_states"):
        states = model.hidden_states(xs, ys)
        return states if isinstance(states, HiddenStates) else HiddenStates(states, interleaved(states.shape[2]))
    if not hasattr(model, "program") or not hasattr(model, "blocks"):
        raise NotAPredictor(
            f"{type(model).__name__} cannot be looked into: it needs hidden_states(xs, ys), (layers, datasets, tokens, "
            "width), or to be a compiled register machine"
        )
    with torch.no_grad():
        stream = model.embed(**model.program.prompt.fill(xs, ys)) + model.positions
        streams = [stream]
        for block in model.blocks:
            stream = block(stream)
            streams.append(stream)
    slots = model.layout.slots
    registers = {name: slots[name] for name in model.program.registers}
    states = torch.stack(streams)
    return HiddenStates(states, ("start", *interleaved(states.shape[2] - 1)), registers)


def interleaved(count: int) -> tuple[str, ...]:
    """x1, y1, x2, y2, …"""
    return tuple(f"{'xy'[i % 2]}{i // 2 + 1}" for i in range(count))


def moments(xs: Inputs, ys: Targets) -> Float[Tensor, "datasets prefixes features"]:
    """Xᵀy of the first 0, 1, 2, … examples.

    Args:
        xs, ys: Points and targets.
    """
    sums = (xs * ys.unsqueeze(-1)).cumsum(dim=1)
    return torch.cat([torch.zeros_like(sums[:, :1]), sums], dim=1)


def prefix_weights(algorithm: Algorithm, xs: Inputs, ys: Targets) -> Float[Tensor, "datasets prefixes features"]:
    """An algorithm's weights on the first 0, 1, 2, … examples (zero on none).

    Args:
        algorithm, xs, ys: What is run, points and targets.
    """
    solved = [algorithm.run(xs[:, :n], ys[:, :n]) for n in range(1, xs.shape[1] + 1)]
    return torch.stack([torch.zeros_like(solved[0]), *solved], dim=1)


# Shrinks a linear probe's weights a little, so that constant and repeated features do no harm.
SHRINK = 1e-4


@dataclass(frozen=True)
class ProbeScores:
    """R² on held-out datasets for every layer and position, beside a control.

    The control asks the same probe for the target of another dataset: what it scores there it has from its size, not
    from what is encoded. Both can be negative: worse than saying the mean.

    Attributes:
        score: By layer and position.
        control: The same of the control task.
        tokens: Names of the positions.
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


def linear_probe(hidden: HiddenStates, target: Quantity, *, seed: int = 0) -> ProbeScores:
    """One least-squares probe for each layer and position, fitted on half of the datasets and scored on the others.

    Args:
        hidden: Hidden states.
        target: What is to be read off them.
        seed: Of the control task.
    """
    score, control = (held_out_score(hidden.states, one) for one in (target, shuffled(target, seed)))
    return ProbeScores(score, control, hidden.tokens)


def shuffled(target: Quantity, seed: int) -> Quantity:
    """The control task: every dataset gets another's target."""
    return target[torch.randperm(len(target), generator=torch.Generator().manual_seed(seed), device="cpu")]


def held_out_score(states: Stream, target: Quantity) -> Float[Tensor, "layers tokens"]:
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


def explained(guess: Float[Tensor, "*layers datasets size"], truth: Quantity) -> Float[Tensor, "*layers"]:
    """R²: 1 − (squared error)/(squared deviation from the mean)."""
    return 1 - (guess - truth).square().sum(dim=(-2, -1)) / (truth - truth.mean(dim=0)).square().sum()
