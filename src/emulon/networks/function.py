"""A scalar function of every feature by prompt: the grid of a softmax as tokens, numbers asking.

Token r holds the key (slope_r, intercept_r) and value_r; as many numbers as there are grid points ask in one prompt,
each as the query (s, 1): the answer is Σ_r softmax_r(slope_r·s + intercept_r)·value_r.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.attention import Slots, attend
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.networks.layers import Elementwise
from emulon.networks.phase import NetworkPhase, Prompt, read
from emulon.networks.softmaxes import Softmax

SLOTS = Slots(key_x=1, key_bias=1, value=1, query_x=1, query_bias=1)
W_K, W_Q, W_V = SLOTS.select("key_x", "key_bias"), SLOTS.select("query_x", "query_bias"), SLOTS.select("value")


@dataclass(frozen=True, eq=False)
class FunctionPhase(NetworkPhase):
    """Claim: every entry within own_error of f. Cost: K tokens of 5 features for every K numbers."""

    kind = "function"
    layer: Elementwise
    softmax: Softmax

    @property
    def proved(self) -> bool:
        return self.softmax.proved

    @property
    def capacity(self) -> Capacity:
        return Capacity(SLOTS.width, len(self.softmax.grid), 2, self.softmax.reach)

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        made, grid = self.softmax, self.softmax.grid
        numbers = x.flatten() / made.key
        count = len(grid)
        asked = torch.nn.functional.pad(numbers, (0, -len(numbers) % count)).reshape(-1, count, 1)
        fixed = SLOTS.pack(
            key_x=grid.slopes[:, None] * made.key,
            key_bias=grid.intercepts[:, None] * made.bias,
            value=grid.values[:, None] / made.value,
            query_bias=1 / made.bias,
        )
        tokens = fixed.expand(len(asked), -1, -1).clone()
        tokens[..., SLOTS["query_x"]] = asked
        yield Prompt(tokens, W_K, W_Q, W_V, count)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return (answers[0].flatten()[: shape.numel()] * self.softmax.value).reshape(shape)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        made, grid = self.softmax, self.softmax.grid
        keys = torch.stack([grid.slopes * made.key, grid.intercepts * made.bias], dim=-1)
        values, one = grid.values / made.value, x.new_tensor([1 / made.bias])
        keys, values, one = (read(interpreter, part) for part in (keys, values, one))
        asked = read(interpreter, x.flatten() / made.key)
        queries = torch.stack([asked, one.expand_as(asked)], dim=-1)
        parts = [attend(part, keys, values.unsqueeze(-1), name="layer 2") for part in queries.split(1 << 16)]
        return (torch.cat(parts) * made.value).reshape(x.shape)

    def own_error(self, line: IdentityGrid) -> float:
        return self.softmax.own_error(line)

    def shown(self) -> str:
        grid = self.softmax.grid
        return f"{len(grid)} keys of {self.layer.f} on ({grid.lo:.4g}, {grid.hi:.4g}), as tokens; numbers ask"
