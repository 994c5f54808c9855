"""One application of the interpreter inside a program: how data and state become a prompt, and how it is read out.

A phase is Theorem 3.1's template with every row of keys and queries scaled so that both factors of a product are about
equally large: what the interpreter reproduces with a small error is small numbers. The head it emulates reads its rows
with weights that are part of the prompt: W_K and W_Q select, W_V holds −η, the shrinkage and the momentum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from emulon.approximation import Grid
from emulon.attention import Slots
from emulon.certify import Domain
from emulon.constructions.codes import Codes
from emulon.interpreter.interpreter import Capacity


@dataclass(frozen=True)
class Scales:
    """What key rows are multiplied by, and query rows divided by: powers of two, so that nothing is rounded."""

    x: float
    y: float
    bias: float

    @classmethod
    def balancing(cls, grid: Grid, domain: Domain) -> Scales:
        slope, bias = float(grid.slopes.abs().max()), float(grid.intercepts.abs().max())
        return cls(_root(domain.w, slope * domain.x), _root(1.0, slope * domain.y), _root(1.0, bias))


def _root(query: float, key: float) -> float:
    """The power of two nearest to √(query/key): then key·p and query/p are about equal."""
    return 2.0 ** round(math.log2(query / key) / 2) if query > 0 and key > 0 else 1.0


@dataclass(frozen=True)
class Phase:
    """`grid` is for the scalar function on the domain's residuals; `strength` is the routing constant C."""

    name: str
    grid: Grid
    domain: Domain
    codes: Codes
    strength: float
    readout: str  # "mean" or "sum" over samples

    @cached_property
    def scales(self) -> Scales:
        return Scales.balancing(self.grid, self.domain)

    @cached_property
    def slots(self) -> Slots:
        d, k = self.domain.features, self.codes.width
        return Slots(
            key_x=d, key_y=1, key_bias=1, key_code=k,
            value=d, fixed=d, state=d, before=d,
            query_x=d, query_y=1, query_bias=1, query_code=k,
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        return self.domain.samples * len(self.grid)

    @property
    def width(self) -> int:
        """Rows of the emulated head: keys and queries need d + 2 + code, values d for gradient and state each."""
        d = self.domain.features
        return max(d + 2 + self.codes.width, 2 * d)

    @cached_property
    def root_strength(self) -> float:
        return math.sqrt(self.strength)

    def magnitudes(self, step: float, shrink: float, momentum: float, fixed: float) -> dict[str, float]:
        """The largest |θ·x| of every kind of row, for a step size and state coefficients."""
        grid, domain, scales = self.grid, self.domain, self.scales
        slope = float(grid.slopes.abs().max())
        return {
            "key_x": slope * domain.x * scales.x,
            "key_y": slope * domain.y * scales.y,
            "key_bias": float(grid.intercepts.abs().max()) * scales.bias,
            "key_code": self.root_strength * float(self.codes.vectors.abs().max()),
            "query_x": domain.w / scales.x,
            "query_y": 1 / scales.y,
            "query_bias": 1 / scales.bias,
            "value": step * (float(grid.values.abs().max()) * domain.x + fixed),
            "state": (abs(shrink) + 2 * momentum) * domain.w,
        }

    def capacity(self, magnitudes: dict[str, float]) -> Capacity:
        return Capacity(self.slots.width, self.tokens, self.width, max(magnitudes.values()))

    def data_rows(self, x: Tensor, y: Tensor, fixed: Tensor | None) -> dict[str, Tensor]:
        """The rows that the data decide, (..., samples, keys, ·): they do not change from step to step."""
        grid, scales = self.grid, self.scales
        slopes, values = grid.slopes[:, None], grid.values[:, None]
        spread = (*x.shape[:-1], len(grid))
        code = (self.root_strength * self.codes.vectors).unsqueeze(-2)
        return {
            "key_x": slopes * (scales.x * x).unsqueeze(-2),
            "key_y": slopes * (scales.y * y)[..., None, None],
            "key_bias": (scales.bias * grid.intercepts)[:, None].expand(*spread, 1),
            "key_code": code.expand(*spread, self.codes.width),
            "value": values * x.unsqueeze(-2),
            "fixed": (torch.zeros_like(x) if fixed is None else fixed).unsqueeze(-2).expand(*spread, x.shape[-1]),
        }

    def prompt(self, rows: dict[str, Tensor], w: Tensor, before: Tensor) -> Tensor:
        """The token matrix (..., samples·keys, features of a token): data rows, state rows, and n tokens that ask."""
        n, scales = self.domain.samples, self.scales
        flat = {name: part.flatten(-3, -2) for name, part in rows.items()}
        wide = (*flat["value"].shape[:-1], w.shape[-1])
        tokens = self.slots.pack(**flat, state=w.unsqueeze(-2).expand(wide), before=before.unsqueeze(-2).expand(wide))
        tokens[..., :n, self.slots["query_x"]] = (w / scales.x).unsqueeze(-2)
        tokens[..., :n, self.slots["query_y"]] = -1 / scales.y
        tokens[..., :n, self.slots["query_bias"]] = 1 / scales.bias
        tokens[..., :n, self.slots["query_code"]] = self.root_strength * self.codes.vectors
        return tokens

    def weights(self, step: Tensor, shrink: Tensor, momentum: float) -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q, W_V of the head to emulate, as they stand in the prompt; `step` and `shrink` are (..., 1)."""
        dtype = self.grid.dtype
        pick = {name: self.slots.select(name, dtype=dtype) for name in self.slots}
        w_k = torch.cat([pick[name] for name in ("key_x", "key_y", "key_bias", "key_code")])
        w_q = torch.cat([pick[name] for name in ("query_x", "query_y", "query_bias", "query_code")])
        step, shrink = step[..., None], shrink[..., None]
        gradient = -step * pick["value"] + step * pick["fixed"]
        state = (shrink + momentum) * pick["state"] - momentum * pick["before"]
        return w_k, w_q, torch.cat([gradient, state], dim=-2)

    def read_out(self, output: Tensor) -> Tensor:
        """(..., samples, 2d) ↦ (..., d): over samples, then gradient rows plus state rows."""
        d = self.domain.features
        gradient, state = output[..., :d], output[..., d : 2 * d]
        if self.readout == "mean":
            return gradient.mean(dim=-2) + state.mean(dim=-2)
        return gradient.sum(dim=-2)
