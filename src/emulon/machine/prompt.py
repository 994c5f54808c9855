"""The paper's prompt, x₁, y₁, x₂, y₂, …, x_n as separate tokens, and the timestep maps it needs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify.domain import require_shape
from emulon.errors import BadShape
from emulon.machine.where import Average, Lookup


class Interleaved:
    """x_i is token 2i − 1 and y_i token 2i (i = 1, 2, …); token 0 is the start token; y_n is never shown.

    >>> prompt = Interleaved(features=2, samples=3)
    >>> prompt.tokens, prompt.previous_example.table, prompt.own_example.table
    (5, (None, None, 2, 2, 4), (1, 1, 3, 3, 5))
    """

    def __init__(self, features: int, samples: int) -> None:
        self.features, self.samples = features, samples
        self.tokens = 2 * samples - 1
        tokens = range(1, self.tokens + 1)
        # x_i and y_i both read x_i
        self.own_example = Lookup("own example", tuple(t if t % 2 else t - 1 for t in tokens))
        # x_i and y_i both read y_{i−1}; those of the first example read zeros
        self.previous_example = Lookup("previous example", tuple((t - 1) // 2 * 2 or None for t in tokens))
        # the mean over y_1 … y_{i−1}, as seen from x_i
        self.past_examples = Average("past examples", tuple(t for t in tokens if t % 2 == 0))

    def first(self) -> Float[Tensor, "tokens 1"]:
        """1 at the tokens of the first example: where a recurrence takes its initial value."""
        flags = torch.zeros(self.tokens, 1, dtype=torch.float64)
        flags[:2] = 1.0
        return flags

    def fill(self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]) -> dict[str, Tensor]:
        """The input registers x and y, (..., tokens, size); `ys` may leave out the last target, which is not used."""
        require_shape(xs, "xs", self.samples, self.features)
        if ys.shape[:-1] != xs.shape[:-2] or ys.shape[-1] not in (self.samples, self.samples - 1):
            raise BadShape(f"ys has shape {tuple(ys.shape)}, wanted {(*xs.shape[:-2], self.samples)}")
        x = xs.new_zeros(*xs.shape[:-2], self.tokens, self.features)
        y = xs.new_zeros(*xs.shape[:-2], self.tokens, 1)
        x[..., 0::2, :] = xs
        y[..., 1::2, 0] = ys[..., : self.samples - 1].to(xs)
        return {"x": x, "y": y}

    def predictions(self, output: Float[Tensor, "... tokens 1"]) -> Float[Tensor, "... samples"]:
        """What the output register holds at x_1, …, x_n."""
        return output[..., 0::2, 0]
