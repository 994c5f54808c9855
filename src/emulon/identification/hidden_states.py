"""What probes read, hidden states layer by layer, and what they look for: quantities an algorithm must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm
from emulon.core.predictor import NotAPredictor


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of a model, layer by layer.

    Attributes:
        states: `states[0]` is the embedding and `states[l]` the residual stream after layer l.
        tokens: Names of the positions.
        registers: Groups of features by name, where the model has names for them.
    """

    states: Float[Tensor, "layers datasets tokens width"]
    tokens: tuple[str, ...]
    registers: Mapping[str, slice] = field(default_factory=dict)

    def position(self, token: str) -> int:
        return self.tokens.index(token)

    def of(self, register: str) -> HiddenStates:
        """What one register holds."""
        return HiddenStates(self.states[..., self.registers[register]], self.tokens)


def hidden_states(
    model: Any, xs: Float[Tensor, "datasets points features"], ys: Float[Tensor, "datasets points"]
) -> HiddenStates:
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


def moments(
    xs: Float[Tensor, "datasets points features"], ys: Float[Tensor, "datasets points"]
) -> Float[Tensor, "datasets prefixes features"]:
    """Xᵀy of the first 0, 1, 2, … examples.

    Args:
        xs: Points.
        ys: Targets.
    """
    sums = (xs * ys.unsqueeze(-1)).cumsum(dim=1)
    return torch.cat([torch.zeros_like(sums[:, :1]), sums], dim=1)


def prefix_weights(
    algorithm: Algorithm, xs: Float[Tensor, "datasets points features"], ys: Float[Tensor, "datasets points"]
) -> Float[Tensor, "datasets prefixes features"]:
    """An algorithm's weights on the first 0, 1, 2, … examples (zero on none).

    Args:
        algorithm: What is run.
        xs: Points.
        ys: Targets.
    """
    solved = [algorithm.run(xs[:, :n], ys[:, :n]) for n in range(1, xs.shape[1] + 1)]
    return torch.stack([torch.zeros_like(solved[0]), *solved], dim=1)
