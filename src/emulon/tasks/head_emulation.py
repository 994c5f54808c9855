"""Emulating an attention head, `004_…` section 5.2, with the head's weights in the prompt."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import attend
from emulon.tasks.prompts import Prompts
from emulon.tasks.task import Task, normal


@dataclass(frozen=True)
class HeadEmulation(Task):
    """Tokens x ~ 2·N(0, I) − 1, and the target softmax(QKᵀ)V of a head with Gaussian W_K, W_Q, W_V of `hidden` rows.

    With `weights_given` each dataset draws its own head, and the head's rows are tokens of the prompt: this is what
    Theorem 4.2 is about. Without, one head (from `head_seed`) serves all datasets and the learner memorises it, which
    is what the paper's code does (and it normalises over the wrong axis).
    A token is (x or a row of W, which of x, K, Q, V it is); weights are scaled by features^-½, where the paper's
    unscaled ones make scores in the hundreds and the softmax a plain argmax.
    """

    features: int = 24
    points: int = 20
    hidden: int = 24
    weights_given: bool = True
    head_seed: int = 0

    width_in = property(lambda self: self.features + 4)  # type: ignore[assignment]
    width_out = property(lambda self: self.hidden)  # type: ignore[assignment]
    tokens = property(lambda self: self.points + 3 * self.hidden * self.weights_given)  # type: ignore[assignment]

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states[..., -self.points :, :]

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        x = 2 * normal(generator, batch, self.points, self.features) - 1
        if live is not None:
            x = x * live
        head = self._heads(generator, batch)
        keys, queries, values = ((x @ part.mT) for part in head.unbind(dim=1))
        target = attend(queries * self.hidden**-0.5, keys, values)
        kinds = [(0, x)]
        if self.weights_given:
            kinds = [(1 + kind, head[:, kind]) for kind in range(3)] + kinds
        tokens = torch.cat([_labelled(rows, kind) for kind, rows in kinds], dim=1)
        return Prompts(tokens, target, target)

    def _heads(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch 3 hidden features"]:
        scale = self.features**-0.5
        if self.weights_given:
            return scale * normal(generator, batch, 3, self.hidden, self.features)
        one = fixed_head(self.head_seed, (3, self.hidden, self.features), generator.device)
        return (scale * one).expand(batch, -1, -1, -1)


@functools.cache
def fixed_head(seed: int, shape: tuple[int, int, int], device: torch.device) -> Float[Tensor, "3 hidden features"]:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _labelled(rows: Float[Tensor, "batch rows features"], kind: int) -> Float[Tensor, "batch rows width"]:
    label = torch.zeros(*rows.shape[:-1], 4, device=rows.device)
    label[..., kind] = 1.0
    return torch.cat([rows, label], dim=-1)
