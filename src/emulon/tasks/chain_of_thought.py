"""Chain of thought with networks, `002_…` section 5.1: every layer's state of a network drawn for the dataset."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.tasks.network import leaky_network
from emulon.tasks.prompts import Prompts
from emulon.tasks.task import Task, normal


@dataclass(frozen=True)
class ChainOfThought(Task):
    """x, s₁, …, s_depth, x′, s′₁, …: each chain shows the states of one `depth`-layer leaky-ReLU network.

    The network is drawn anew for each dataset; at every token but a chain's last, the next state is asked. The curve
    averages a chain's errors.
    """

    features: int = 20
    points: int = 41
    depth: int = 6

    width_in = property(lambda self: self.features)  # type: ignore[assignment]
    width_out = property(lambda self: self.features)  # type: ignore[assignment]
    tokens = property(lambda self: self.points * (self.depth + 1))  # type: ignore[assignment]

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        chains = states.unflatten(-2, (self.points, self.depth + 1))
        return chains[..., : self.depth, :].flatten(-3, -2)

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        scale = math.sqrt(2 / self.features)
        layers = normal(generator, self.depth, batch, self.features, self.features) * scale
        x = normal(generator, batch, self.points, self.features)
        if live is not None:
            x = x * live
        states = torch.stack([x, *leaky_network(layers.unbind(dim=0), x)], dim=2)
        following = states[:, :, 1:].flatten(1, 2)
        return Prompts(states.flatten(1, 2), following, following)

    def curve(self, squared_errors: Float[Tensor, "batch asked out"]) -> Float[Tensor, " curve"]:
        return super().curve(squared_errors).unflatten(0, (self.points, self.depth)).mean(dim=1)

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        return super().baselines(prompts) | {"last": self.curve((self.asked(prompts.tokens) - prompts.truth).square())}
