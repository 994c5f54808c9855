"""What a task hands to a learner: token sequences, and what should be said at the asked positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Prompts:
    """A batch of in-context datasets.

    `targets` are what a learner is trained on (noise included), `truth` what it is judged by (noise-free).
    """

    tokens: Float[Tensor, "batch tokens width"]
    targets: Float[Tensor, "batch asked out"]
    truth: Float[Tensor, "batch asked out"]

    def rows(self, start: int, stop: int) -> Prompts:
        """Some of the datasets: a process's share of the batch."""
        return Prompts(self.tokens[start:stop], self.targets[start:stop], self.truth[start:stop])


def interleave(
    xs: Float[Tensor, "batch points features"], ys: Float[Tensor, "batch points"]
) -> Float[Tensor, "batch tokens width"]:
    """[0, x₁], [y₁, 0], …, [0, x_n]: the encoding of `003_…` section 2.3, without the last y, which nobody may see."""
    batch, points, features = xs.shape
    pairs = xs.new_zeros(batch, points, 2, features + 1)
    pairs[:, :, 0, 1:] = xs
    pairs[:, :, 1, 0] = ys
    return pairs.flatten(1, 2)[:, :-1]


def deinterleave(
    tokens: Float[Tensor, "batch tokens width"],
) -> tuple[Float[Tensor, "batch points features"], Float[Tensor, "batch answered"]]:
    """The xs, and the ys that the tokens show: one fewer."""
    return tokens[:, 0::2, 1:], tokens[:, 1::2, 0]


def row(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape 1"]:
    """Scalars as width-one outputs."""
    return torch.unsqueeze(values, -1)
