"""Theorem 4.1: one frozen two-layer module emulates any attention head whose weights are written into the tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.approximation import Approximation, Grid, approximate
from emulon.attention import Head, Slots, attend
from emulon.certify import Certificate, rounding
from emulon.certify.domain import require_shape, require_within
from emulon.constructions.head_in_tokens import entry_tolerance
from emulon.constructions.linear_layer import CANCELLATION, head_certificate, padded
from emulon.constructions.template import Way
from emulon.constructions.truncated_linear import (
    paper_certificate,
    paper_levels,
    paper_offsets,
    paper_scale,
)
from emulon.errors import EmulonError, ToleranceTooTight


class HeadInEmbedding(nn.Module):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ; token j of the prompt is (x_j, j·v, v, e_j), v = vec of all three.

    Claim: within `certificate.bound` of the exact head in every entry, when |W_K x|, |W_Q x|, |W_V x| ≤ bound.
    The default pads the prompt to as many tokens as the soft grid has keys: then one head for each of the 3·width rows
    suffices, its keys slope_j·row = α·(j·row) + γ·row. With grid="paper" the prompt keeps its n tokens, and each row
    takes `heads` sharp heads of n − 2 points (Theorem D.1). `tolerance` and `certificate` are as in `HeadInTokens`.
    Corrected: the offset (h − 1)(n − 2) − 1 is applied once; (D.34) shows Q in the K block; selectors are as in D.38.
    """

    starts: Tensor
    step: Tensor
    intercepts: Tensor
    levels: Tensor

    def __init__(
        self,
        tokens: int,
        features: int,
        width: int,
        bound: float,
        tolerance: float | None = None,
        *,
        heads: int | None = None,
        points: int | None = None,
        grid: Way = "auto",
        beta: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.tokens, self.features, self.width = tokens, features, width
        self.bound, self.beta, self.paper = float(bound), float(beta), grid == "paper"
        if self.paper:
            if heads is None:
                raise EmulonError("grid='paper' needs heads=…, the number of heads per row")
            entries = self._paper_layer(heads, dtype)
        else:
            entries = self._soft_layer(tolerance, points, grid, dtype)
        n, vector = self.length, 3 * width * features
        self.slots = Slots(x=features, indexed=vector, vector=vector, position=n)
        identity = torch.eye(3 * width, dtype=dtype)
        self.assemble = Head(
            beta * identity[:width], identity[width : 2 * width], identity[2 * width :], name="assemble"
        )
        self._entries = entries
        self.certificate = self._certificate(width * self.bound, width * self.bound, self.bound)

    def extra_repr(self) -> str:
        return f"heads={len(self.offsets) * 3 * self.width}+1, tokens={self.length}, width={self.slots.width}, error {self.certificate}"

    def _soft_layer(self, tolerance: float | None, points: int | None, grid: Way, dtype: torch.dtype) -> Certificate:
        if (tolerance is None) == (points is None):
            raise EmulonError("give either tolerance=… or points=…, not both or neither")
        wanted = None if tolerance is None else entry_tolerance(tolerance, self.bound, self.width, self.beta, dtype)

        def made(entry: float | None) -> Approximation:
            # A piecewise grid's slopes are not evenly spaced, which j·row needs.
            way: Way = "spectral" if grid == "auto" else grid
            return approximate(
                "t",
                (-self.bound, self.bound),
                tolerance=entry,
                points=points,
                grid=way,
                dtype=dtype,
                rounding=self._rounding_error,
            )

        try:
            f = made(wanted)
        except ToleranceTooTight as error:
            f = made(error.smallest)
        self.f = f
        self.length = max(self.tokens, f.keys)
        slopes, intercepts, values = padded(f.grid, self.length)
        step = (slopes[f.keys - 1] - slopes[0]) / max(f.keys - 1, 1)
        # score_j = (γ + α·j)·(row·x) + intercept_j: one head, its first grid point γ and the step α.
        self.offsets = [0]
        self._store(slopes[:1], step, intercepts.expand(1, 1, -1), values.expand(1, 1, -1))
        return f.certificate

    def _paper_layer(self, heads: int, dtype: torch.dtype) -> Certificate:
        self.length = self.tokens
        lo, hi = -self.bound, self.bound
        spacing, beta = paper_scale(self.tokens, heads, lo, hi)
        self.offsets = paper_offsets(self.tokens, heads)
        levels, biases, values = paper_levels(self.offsets, self.tokens, lo, spacing, dtype)
        starts = 2 * beta * torch.tensor(self.offsets, dtype=dtype)
        self._store(starts, torch.tensor(2 * beta, dtype=dtype), -beta * biases, values)
        return paper_certificate(levels, spacing, beta, self.tokens, self.features, dtype)

    def _store(self, starts: Tensor, step: Tensor, intercepts: Tensor, values: Tensor) -> None:
        """Per head: γ, α, and rows over positions of intercepts and values."""
        for name, part in (("starts", starts), ("step", step), ("intercepts", intercepts), ("levels", values)):
            self.register_buffer(name, part.clone())

    def _rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        slope, intercept = float(grid.slopes.abs().max()), float(grid.intercepts.abs().max())
        # γ + α·j is formed in the head: |γ| + |α|·j ≤ 3·max|slope|, and two more roundings.
        error = rounding.dot(self.features + 5, 3 * slope * CANCELLATION * self.bound + intercept, grid.dtype)
        return grid.rounding_error(deviation, size, error)

    def _certificate(self, keys: float, queries: float, bound: float) -> Certificate:
        entries = self._entries
        exact = sum(value for name, value in entries.terms.items() if name != "rounding")
        plain = Certificate(
            {"interpolation": exact, "rounding": entries.terms["rounding"]}, entries.dtype, entries.proved
        )
        return head_certificate(plain, keys, queries, bound, self.width, self.tokens, self.beta)

    def certificate_for(self, x: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor) -> Certificate:
        """The bound for this head on this data: with the norms of its own K and Q, and its own largest |V|."""
        k, q, v = (x.double() @ w.double().mT for w in (w_k, w_q, w_v))
        norms = [part.abs().sum(dim=-1).max().item() for part in (k, q)]
        return self._certificate(*norms, v.abs().max().item())

    def prompt(self, x: Float[Tensor, "*b n d"], rows: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b length width"]:
        """Token j: x_j (zero past the data), j·v, v, e_j, where v holds all rows of W_K, W_Q, W_V."""
        index = torch.arange(self.length, dtype=x.dtype, device=x.device).unsqueeze(-1)
        vector = rows.flatten(-2).unsqueeze(-2)
        x = torch.nn.functional.pad(x, (0, 0, 0, self.length - self.tokens))
        position = torch.eye(self.length, dtype=x.dtype, device=x.device)
        return self.slots.pack(x=x, indexed=index * vector, vector=vector.expand(*x.shape[:-1], -1), position=position)

    def matrices(self, row: int, head: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q, W_V of the head that computes row `row` of [K; Q; V] (with grid="paper": its part of the range).

        `forward` does not build these: for all rows together they are mostly zeros, and large.
        """
        dtype, d = self.step.dtype, self.features
        pick = {name: self.slots.select(name, dtype=dtype) for name in self.slots}
        own = slice(row * d, (row + 1) * d)
        w_k = torch.cat(
            [
                self.step * pick["indexed"][own] + self.starts[head] * pick["vector"][own],
                self.intercepts[head] @ pick["position"],
            ]
        )
        w_q = torch.cat([pick["x"], pick["position"].sum(dim=0, keepdim=True)])
        return w_k, w_q, self.levels[head] @ pick["position"]

    def _rows(self, prompt: Tensor) -> Float[Tensor, "... n rows"]:
        """The first layer: for every row and head the attention that `matrices` describes, all at once."""
        shape = (*prompt.shape[:-1], 3 * self.width, self.features)
        indexed = prompt[..., self.slots["indexed"]].reshape(shape).transpose(-3, -2).unsqueeze(-3)
        vector = prompt[..., self.slots["vector"]].reshape(shape).transpose(-3, -2).unsqueeze(-3)
        keys = self.step * indexed + self.starts[:, None, None] * vector  # (..., rows, heads, length, d)
        bias = self.intercepts.mT.expand(*keys.shape[:-1], 1)
        x = prompt[..., : self.tokens, self.slots["x"]]
        queries = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)[..., None, None, :, :]
        out = attend(queries, torch.cat([keys, bias], dim=-1), self.levels.mT, name="rows")
        return out.squeeze(-1).sum(dim=-2).mT

    def forward(
        self,
        x: Float[Tensor, "... n d"],
        w_k: Float[Tensor, "... width d"],
        w_q: Float[Tensor, "... width d"],
        w_v: Float[Tensor, "... width d"],
    ) -> Float[Tensor, "... n width"]:
        x, w_k, w_q, w_v = (part.to(self.step.dtype) for part in (x, w_k, w_q, w_v))
        require_shape(x, "x", self.tokens, self.features)
        for name, w in (("W_K", w_k), ("W_Q", w_q), ("W_V", w_v)):
            require_shape(w, name, self.width, self.features)
            require_within(self.bound, **{f"{name} x": x @ w.mT})
            require_within(CANCELLATION * self.bound, **{f"{name}|·|x": x.abs() @ w.abs().mT})
        lead = torch.broadcast_shapes(*(part.shape[:-2] for part in (x, w_k, w_q, w_v)))
        rows = torch.cat([w.expand(*lead, *w.shape[-2:]) for w in (w_k, w_q, w_v)], dim=-2)
        return self.assemble(self._rows(self.prompt(x.expand(*lead, *x.shape[-2:]), rows)))
