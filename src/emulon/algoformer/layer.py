"""One transformer layer exactly as AlgoFormer's Eq. 1 writes it, with frozen, plain weight matrices."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import attend


class Layer(nn.Module):
    """A(X) = X + Σ_h W_V X·softmax((W_K X)ᵀ W_Q X), then A + W_2·ReLU(W_1 A + b_1) + b_2, tokens as rows.

    The matrices are buffers: w_k and w_q (heads, width, features), w_v (heads, features, features), w_1 (hidden,
    features), w_2 (features, hidden). No heads is the paper's identity attention (W_V = 0), no hidden units no MLP.
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    w_1: Tensor
    b_1: Tensor
    w_2: Tensor
    b_2: Tensor

    def __init__(
        self,
        heads: tuple[Tensor, Tensor, Tensor],
        mlp: tuple[Tensor, Tensor, Tensor, Tensor],
        *,
        dtype: torch.dtype,
        causal: bool = False,
        name: str = "layer",
    ) -> None:
        super().__init__()
        self.name = name
        self.causal = causal
        for key, matrix in zip(("w_k", "w_q", "w_v", "w_1", "b_1", "w_2", "b_2"), (*heads, *mlp), strict=True):
            self.register_buffer(key, matrix.to(dtype).contiguous())

    @property
    def heads(self) -> int:
        return self.w_v.shape[0]

    @property
    def hidden(self) -> int:
        return self.w_1.shape[0]

    def extra_repr(self) -> str:
        mask = ", causal" if self.causal else ""
        return f"{self.name}: heads={self.heads}, hidden={self.hidden}, features={self.w_2.shape[0]}{mask}"

    def forward(self, tokens: Float[Tensor, "... tokens features"]) -> Float[Tensor, "... tokens features"]:
        attended = tokens
        if self.heads:
            read = tokens.unsqueeze(-3)
            queries, keys, values = read @ self.w_q.mT, read @ self.w_k.mT, read @ self.w_v.mT
            attended = tokens + attend(queries, keys, values, causal=self.causal, name=self.name).sum(dim=-3)
        if not self.hidden:
            return attended
        return attended + (torch.relu(attended @ self.w_1.mT + self.b_1) @ self.w_2.mT + self.b_2)
