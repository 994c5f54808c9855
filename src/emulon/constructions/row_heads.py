"""Heads that compute row·x for rows written into every token: the first layer of Theorem 4.1, and Theorem D.1."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Slots, attend
from emulon.constructions.linear_layer import padded
from emulon.constructions.sharp_grid import SharpGrid
from emulon.softmax import Grid


class RowHeads(nn.Module):
    """(x, rows) ↦ x rowsᵀ. Token j of the prompt is (x_j, j·v, v, e_j), v = vec of all rows, j = 0..length−1.

    Head h for a row has keys (α·(j·row) + γ_h·row, intercept_hj), queries (x_i, 1) and values value_hj: its scores are
    (γ_h + α·j)·(row·x_i) + intercept_hj. The heads of a row are added. (What γ_h adds is the same for all tokens, and a
    softmax ignores it: it is there because the theorems have it.)
    """

    starts: Tensor
    step: Tensor
    intercepts: Tensor
    values: Tensor

    def __init__(
        self,
        sizes: tuple[int, int, int],
        starts: Float[Tensor, " heads"],
        step: Float[Tensor, ""],
        intercepts: Float[Tensor, "heads length"],
        values: Float[Tensor, "heads length"],
    ) -> None:
        super().__init__()
        self.tokens, self.features, self.rows = sizes
        self.heads, self.length = intercepts.shape
        parts = {"starts": starts, "step": step, "intercepts": intercepts, "values": values}
        for name, part in parts.items():
            self.register_buffer(name, part.clone())
        vector = self.rows * self.features
        self.slots = Slots(x=self.features, indexed=vector, vector=vector, position=self.length)

    @classmethod
    def soft(cls, sizes: tuple[int, int, int], grid: Grid) -> RowHeads:
        """One head a row, the prompt padded to as many tokens as the grid has keys. Its slopes are evenly spaced."""
        slopes, intercepts, values = padded(grid, max(sizes[0], len(grid)))
        start, step = slopes[0], (slopes[len(grid) - 1] - slopes[0]) / max(len(grid) - 1, 1)
        # j·row goes on growing in the tokens that only pad: they must stay silent all the same.
        index = torch.arange(len(slopes), dtype=grid.dtype, device="cpu")
        beyond = (start + step * index).abs() * grid.range * (index >= len(grid))
        return cls(sizes, start.unsqueeze(0), step, (intercepts - beyond).unsqueeze(0), values.unsqueeze(0))

    @classmethod
    def sharp(cls, sizes: tuple[int, int, int], grid: SharpGrid, dtype: torch.dtype) -> RowHeads:
        """The paper's: the prompt keeps its n tokens, and each row takes several heads."""
        step = torch.tensor(2 * grid.beta, dtype=torch.float64, device="cpu")
        parts = (step * grid.offsets, step, grid.intercepts, grid.values)
        return cls(sizes, *(part.to(dtype) for part in parts))

    def prompt(self, x: Float[Tensor, "*b n d"], rows: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b length width"]:
        """Token j: x_j (zero past the data), j·v, v, e_j."""
        index = torch.arange(self.length, dtype=x.dtype, device=x.device).unsqueeze(-1)
        vector = rows.flatten(-2).unsqueeze(-2)
        x = torch.nn.functional.pad(x, (0, 0, 0, self.length - self.tokens))
        position = torch.eye(self.length, dtype=x.dtype, device=x.device)
        return self.slots.pack(x=x, indexed=index * vector, vector=vector.expand(*x.shape[:-1], -1), position=position)

    def matrices(
        self, row: int, head: int = 0
    ) -> tuple[Float[Tensor, "key width"], Float[Tensor, "key width"], Float[Tensor, "1 width"]]:
        """W_K, W_Q, W_V of one head of one row. `forward` does not build these: together they are large, and sparse."""
        pick = {name: self.slots.select(name, dtype=self.step.dtype) for name in self.slots}
        own = slice(row * self.features, (row + 1) * self.features)
        slopes = self.step * pick["indexed"][own] + self.starts[head] * pick["vector"][own]
        w_k = torch.cat([slopes, self.intercepts[head, None] @ pick["position"]])
        w_q = torch.cat([pick["x"], pick["position"].sum(dim=0, keepdim=True)])
        return w_k, w_q, self.values[head, None] @ pick["position"]

    def forward(self, x: Float[Tensor, "*b n d"], rows: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b n rows"]:
        """For every row and head the attention that `matrices` describes, all at once."""
        prompt = self.prompt(x, rows)
        shape = (*prompt.shape[:-1], self.rows, self.features)
        indexed, vector = (
            prompt[..., self.slots[name]].reshape(shape).transpose(-3, -2).unsqueeze(-3)
            for name in ("indexed", "vector")
        )
        keys = self.step * indexed + self.starts[:, None, None] * vector  # (..., rows, heads, length, d)
        bias = self.intercepts.unsqueeze(-1).expand(*keys.shape[:-1], 1)
        asking = prompt[..., : self.tokens, self.slots["x"]]
        queries = torch.cat([asking, torch.ones_like(asking[..., :1])], dim=-1)[..., None, None, :, :]
        out = attend(queries, torch.cat([keys, bias], dim=-1), self.values.unsqueeze(-1), name="rows")
        return out.squeeze(-1).sum(dim=-2).mT
