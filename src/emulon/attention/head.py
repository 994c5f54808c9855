"""Frozen heads: their matrices are buffers, so no optimiser can ever see them."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention.softmax import attend


class Head(nn.Module):
    """One or several frozen attention heads; the outputs of several are added.

    With several heads the tokens have a head axis too, (..., heads, tokens, features), of size 1 where all heads read
    the same tokens. `forward(tokens)` is self-attention, `forward(tokens, queries)` cross-attention.

    Args:
        w_k: Key matrix (width, features), or (heads, width, features).
        w_q: Query matrix, of the same shape.
        w_v: Value matrix (out, features), or (heads, out, features).
        name: Name of its records in a `Trace`.
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor

    def __init__(
        self,
        w_k: Float[Tensor, "*heads width features"],
        w_q: Float[Tensor, "*heads width features"],
        w_v: Float[Tensor, "*heads out features"],
        *,
        name: str = "head",
    ) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("w_k", w_k.contiguous())
        self.register_buffer("w_q", w_q.contiguous())
        self.register_buffer("w_v", w_v.contiguous())

    @property
    def heads(self) -> int:
        return self.w_k.shape[0] if self.w_k.ndim == 3 else 1

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.w_k.shape[-2]}, features={self.w_k.shape[-1]}"

    def forward(
        self, tokens: Float[Tensor, "... tokens features"], queries: Float[Tensor, "... queries features"] | None = None
    ) -> Float[Tensor, "... queries out"]:
        asking = tokens if queries is None else queries
        out = attend(asking @ self.w_q.mT, tokens @ self.w_k.mT, tokens @ self.w_v.mT, name=self.name)
        return out.sum(dim=-3) if self.w_k.ndim == 3 else out
