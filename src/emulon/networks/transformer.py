"""Attention and what torch builds of it, as layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from emulon.errors import BadNetwork
from emulon.networks.lowering import HEAD, Builder, joined, lowers

f64 = torch.float64


class Heads(nn.Module):
    """Heads of self-attention with these matrices (heads, width, features) and biases (heads, width), side by side.

    softmax(q·k) has no scale of its own: it is in W_Q. `heads_of` takes heads out of a GPT-2.
    """

    def __init__(self, w_q: Tensor, w_k: Tensor, w_v: Tensor, *biases: Tensor, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        given = biases or tuple(w.new_zeros(w.shape[:2]) for w in (w_q, w_k, w_v))
        for name, part in zip(HEAD, (w_q, w_k, w_v, *given), strict=True):
            self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        parts = [getattr(self, name) for name in HEAD]
        q, k, v = (x.unsqueeze(-3) @ w.mT + b.unsqueeze(-2) for w, b in zip(parts[:3], parts[3:], strict=True))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=1.0)
        return out.movedim(-3, -2).flatten(-2)


def heads_of(attention: Any, heads: Sequence[int] | None = None) -> Heads:
    """All heads, or these, of the attention of a Hugging Face GPT-2 (`model.h[0].attn`), before its c_proj."""
    count, width = attention.num_heads, attention.head_dim
    stacked = attention.c_attn.weight.detach().to(f64).T.unflatten(0, (3, count, width))
    biases = attention.c_attn.bias.detach().to(f64).unflatten(0, (3, count, width))
    chosen = list(range(count)) if heads is None else list(heads)
    (w_q, w_k, w_v), (b_q, b_k, b_v) = stacked[:, chosen], biases[:, chosen]
    scale = 1 / math.sqrt(width)
    return Heads(w_q * scale, w_k, w_v, b_q * scale, b_k, b_v, causal=True)


@lowers(Heads)
def heads(builder: Builder, module: Heads, place: str) -> None:
    _require_sequence(builder, place or "Heads")
    builder.attention(place, {name: getattr(module, name) for name in HEAD}, module.causal)
    builder.shape = (builder.shape[0], builder.features)


@lowers(nn.TransformerEncoderLayer)
def encoder_layer(builder: Builder, module: Any, place: str) -> None:
    """Self-attention and two linear layers, each added to what was before; normalised before or after."""
    _require_sequence(builder, place or "TransformerEncoderLayer")
    attention = module.self_attn
    if not attention.batch_first or attention.in_proj_weight is None:
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} is compiled with batch_first=True only")
    if module.training and (module.dropout.p or attention.dropout):
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} is in training mode with dropout; call .eval() first")
    before = builder.at
    if module.norm_first:
        builder.part(module.norm1, joined(place, "norm1"))
    inner = joined(place, "self_attn")
    stacked = (attention.in_proj_weight, attention.in_proj_bias, attention.num_heads)
    builder.self_attention(inner, *stacked, causal=False)
    after = builder.add_to(before, joined(inner, "out_proj"), attention.out_proj.weight, attention.out_proj.bias)
    if module.norm_first:
        builder.part(module.norm2, joined(place, "norm2"))
    else:
        after = builder.part(module.norm1, joined(place, "norm1"))
    builder.linear(joined(place, "linear1"), "linear", module.linear1.weight, module.linear1.bias)
    builder.part(_activation(module.activation, place), joined(place, "activation"))
    builder.add_to(after, joined(place, "linear2"), module.linear2.weight, module.linear2.bias)
    if not module.norm_first:
        builder.part(module.norm2, joined(place, "norm2"))


@lowers(nn.TransformerEncoder)
def encoder(builder: Builder, module: Any, place: str) -> None:
    for number, layer in enumerate(module.layers):
        builder.part(layer, joined(place, f"layers.{number}"))
    if module.norm is not None:
        builder.part(module.norm, joined(place, "norm"))


def _activation(function: Any, place: str) -> nn.Module:
    if isinstance(function, nn.Module):
        return function
    known: dict[Any, nn.Module] = {nn.functional.relu: nn.ReLU(), nn.functional.gelu: nn.GELU()}
    if function not in known:
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} has an activation that is not relu or gelu")
    return known[function]


def _require_sequence(builder: Builder, what: str) -> None:
    if not builder.is_sequence:
        raise BadNetwork(f"{what} attends between positions; give data or a shape of (positions, features)")
