"""A linear layer by prompt (Hu et al. 2025, Remark 4.5): Θ stands in the prompt as W_V.

Every position is a prompt of one token (x, 1), whose head has W_V = [Θ b] divided by a power of two: the only token
of a prompt sees itself alone, so that the answer is its value, θ·x + b as layer 1 reads it off the number line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.networks.layers import Linear, rounded_sum
from emulon.networks.phase import NetworkPhase, Prompt, power_for, read

# Rows of Θ that one head carries: more are several heads.
ROWS = 64


@dataclass(frozen=True, eq=False)
class LinearPhase(NetworkPhase):
    """Claim: every entry within own_error of θ·x + b. Cost: one token of d + 1 features a position and 64 rows."""

    kind = "linear"
    layer: Linear

    @property
    def scale(self) -> float:
        """What rows are divided by, and answers multiplied by when they are written back."""
        return power_for(self.known.output.size)

    @property
    def capacity(self) -> Capacity:
        out, features = self.layer.weight.shape
        return Capacity(features + 1, 1, min(out, ROWS), self.known.output.size / self.scale)

    def rows(self) -> Tensor:
        """[Θ b], divided."""
        return torch.cat([self.layer.weight, self.layer.bias.unsqueeze(-1)], dim=-1) / self.scale

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        tokens = pad(x, (0, 1), value=1.0).reshape(-1, 1, x.shape[-1] + 1)
        nothing = tokens.new_zeros(1, tokens.shape[-1])
        for rows in self.rows().split(ROWS):
            yield Prompt(tokens, nothing, nothing, rows, 1)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return (torch.cat(list(answers), dim=-1) * self.scale).reshape(*shape[:-1], -1)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        rows = self.rows()
        return read(interpreter, x @ rows[:, :-1].T + rows[:, -1]) * self.scale

    def own_error(self, line: IdentityGrid) -> float:
        terms = self.layer.weight.shape[1] + 2
        absolute, size = (part / self.scale for part in (self.layer.sums(self.known.inputs), self.known.output.size))
        own = self.scale * (line.error(size, terms, absolute) + rounded_sum(terms, absolute))
        return own + self.layer.rounding(self.known.inputs)

    def shown(self) -> str:
        out, features = self.layer.weight.shape
        heads = f", {-(-out // ROWS)} heads" if out > ROWS else ""
        return f"W_V = [Θ b] ÷ {self.scale:g}, {out} × {features + 1}; 1 token (x, 1){heads}"
