"""One transformer layer as Eq. 1 of Gao et al. 2024 writes it, and pre ∘ loop^T ∘ post (Eq. 2), T an argument."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import attend
from emulon.core.errors import OutOfDomain


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


@dataclass(frozen=True)
class Size:
    """Layers of one of the three transformers, and the heads of its widest layer."""

    layers: int
    heads: int

    def __str__(self) -> str:
        return f"{self.layers} layer{'s' * (self.layers != 1)} of ≤ {self.heads} head{'s' * (self.heads != 1)}"


class Frame(nn.Module):
    """The three stacks of layers; `stated` is what the theorem says they take, where there is one."""

    def __init__(
        self, pre: Sequence[Layer], loop: Sequence[Layer], post: Sequence[Layer], stated: Mapping[str, Size]
    ) -> None:
        super().__init__()
        self.pre, self.loop, self.post = nn.ModuleList(pre), nn.ModuleList(loop), nn.ModuleList(post)
        self.stated = dict(stated)

    @property
    def heads(self) -> dict[str, list[int]]:
        """The heads of every layer of the three stacks."""
        stacks = {"pre": self.pre, "loop": self.loop, "post": self.post}
        return {name: [layer.heads for layer in stack if isinstance(layer, Layer)] for name, stack in stacks.items()}

    @property
    def sizes(self) -> dict[str, Size]:
        return {name: Size(len(heads), max(heads, default=0)) for name, heads in self.heads.items()}

    def extra_repr(self) -> str:
        stated = {name: f" (theorem: {size})" for name, size in self.stated.items()}
        return "\n".join(f"{name}: {size}{stated.get(name, '')}" for name, size in self.sizes.items())

    def forward(self, tokens: Float[Tensor, "... tokens features"], loops: int) -> Float[Tensor, "... tokens features"]:
        *_, looped = self.iterates(tokens, loops)
        return self.finish(looped)

    def iterates(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        """The token matrices after pre and 0, 1, …, `loops` loops."""
        if loops < 0:
            raise OutOfDomain(f"loops must not be negative, got {loops}")
        for layer in self.pre:
            tokens = layer(tokens)
        yield tokens
        for _ in range(loops):
            for layer in self.loop:
                tokens = layer(tokens)
            yield tokens

    def finish(self, tokens: Tensor) -> Tensor:
        for layer in self.post:
            tokens = layer(tokens)
        return tokens
