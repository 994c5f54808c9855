"""GPT-2's block on the library's own attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import attend
from emulon.errors import BadShape


class SelfAttention(nn.Module):
    """Multi-head causal self-attention. `fused` runs the same formula in one kernel; it leaves no trace."""

    def __init__(self, width: int, heads: int, *, fused: bool = False, name: str = "attention") -> None:
        super().__init__()
        if width % heads:
            raise BadShape(f"{heads} heads do not divide a width of {width}; choose a multiple")
        self.heads, self.fused, self.name = heads, fused, name
        self.to_qkv = Affine(width, 3 * width)
        self.merge = Affine(width, width)

    def forward(self, x: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch tokens width"]:
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-2, -4).unbind(dim=-2)
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            out = attend(q / math.sqrt(q.shape[-1]), k, v, causal=True, name=self.name)
        return self.merge(out.movedim(-3, -2).flatten(-2))


class Affine(nn.Linear):
    """A linear layer that computes in the precision of its weights, whatever the precision of its input."""

    def forward(self, x: Float[Tensor, "*batch fan_in"]) -> Float[Tensor, "*batch fan_out"]:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). The residual stream keeps its own precision."""

    def __init__(self, width: int, heads: int, *, fused: bool = False, name: str = "block") -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, fused=fused, name=f"{name}.attention")
        self.mlp_norm = nn.LayerNorm(width)
        self.widen = Affine(width, 4 * width)
        self.narrow = Affine(4 * width, width)

    def forward(self, x: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch tokens width"]:
        x = x + self.attention(self.attention_norm(x))
        return x + self.narrow(F.gelu(self.widen(self.mlp_norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Several blocks and a last norm, initialised as GPT-2 is: matrices from N(0, init²).

    0.02 is GPT-2's. A width of 64 leaves the first plateau in half the steps with 0.08 (measured on 5 features).
    """

    def __init__(
        self, width: int, layers: int, heads: int, *, init: float = 0.02, fused: bool = False, name: str = "decoder"
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, fused=fused, name=f"{name}.{depth}") for depth in range(layers))
        self.last_norm = nn.LayerNorm(width)
        self.initialise(layers, init)

    @torch.no_grad()
    def initialise(self, layers: int, init: float) -> None:
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias"):
                parameter.zero_()
            else:
                # what is added to the residual stream shrinks with depth, so that the stream's size does not grow
                shrink = math.sqrt(2 * layers) if "merge" in name or "narrow" in name else 1.0
                parameter.normal_(0.0, init / shrink)

    def forward(self, x: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch tokens width"]:
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)
