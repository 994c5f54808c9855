"""In-context datasets, and the token sequences that a learner reads of them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Real
from torch import Tensor

# Of texts: the word that fills a text up to the length of its batch, and a target at which nothing is asked.
PAD, NOT_ASKED = 0, -1


@dataclass(frozen=True)
class Datasets:
    """A batch of datasets, in any dtype.

    Attributes:
        xs: Points.
        ys: Their targets.
        truth: The targets without noise.
    """

    xs: Float[Tensor, "batch points features"]
    ys: Float[Tensor, "batch points"]
    truth: Float[Tensor, "batch points"]

    @property
    def pairs(self) -> tuple[Float[Tensor, "batch points features"], Float[Tensor, "batch points"]]:
        """(xs, ys): all that a predictor may be shown."""
        return self.xs, self.ys


@dataclass(frozen=True)
class Prompts:
    """A batch of token sequences; of texts all are whole numbers.

    Attributes:
        tokens: Vectors, or pairs of a word and its place.
        targets: What a learner is trained on, noise included: numbers, words or classes.
        truth: What it is judged by, noise-free.
    """

    tokens: Real[Tensor, "batch tokens width"]
    targets: Real[Tensor, "batch asked out"]
    truth: Real[Tensor, "batch asked out"]

    def rows(self, start: int, stop: int) -> Prompts:
        """Some of the datasets: a process's share of the batch."""
        return Prompts(self.tokens[start:stop], self.targets[start:stop], self.truth[start:stop])


def interleave(
    xs: Float[Tensor, "batch points features"], ys: Float[Tensor, "batch points"]
) -> Float[Tensor, "batch tokens width"]:
    """Write datasets as tokens [0, x₁], [y₁, 0], …, [0, x_n]: the encoding of Akyürek et al. 2022, section 2.3, without
    the last y, which is never shown.

    Args:
        xs: Points.
        ys: Targets, as many.
    Returns:
        (batch, 2·points − 1, features + 1).
    """
    batch, points, features = xs.shape
    pairs = xs.new_zeros(batch, points, 2, features + 1)
    pairs[:, :, 0, 1:] = xs
    pairs[:, :, 1, 0] = ys
    return pairs.flatten(1, 2)[:, :-1]


def deinterleave(
    tokens: Float[Tensor, "batch tokens width"],
) -> tuple[Float[Tensor, "batch points features"], Float[Tensor, "batch answered"]]:
    """Read tokens of `interleave` again.

    Args:
        tokens: (batch, 2·points − 1, features + 1).
    Returns:
        The points, and the targets that the tokens show: one fewer.
    """
    return tokens[:, 0::2, 1:], tokens[:, 1::2, 0]
