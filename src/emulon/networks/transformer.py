"""Attention and what torch builds of it, as layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from emulon.core.errors import BadNetwork
from emulon.networks.builder import HEAD, Builder, joined, lowers

f64 = torch.float64


class Heads(nn.Module):
    """Heads of self-attention side by side, with the weights softmax(q·k/√scale).

    Args:
        w_q: Query matrices (heads, width, features).
        w_k: Key matrices, likewise.
        w_v: Value matrices (heads, out, features).
        biases: b_q, b_k and b_v (heads, ·), all or none.
        causal: Whether position i sees 0..i alone.
        scale: The square of what scores are divided by.

    Example:
        >>> Heads(*torch.randn(3, 2, 4, 8).unbind(), causal=True, scale=4.0)
    """

    def __init__(
        self, w_q: Tensor, w_k: Tensor, w_v: Tensor, *biases: Tensor, causal: bool = False, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale
        given = biases or tuple(w.new_zeros(w.shape[:2]) for w in (w_q, w_k, w_v))
        for name, part in zip(HEAD, (w_q, w_k, w_v, *given), strict=True):
            self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        parts = [getattr(self, name) for name in HEAD]
        q, k, v = (x.unsqueeze(-3) @ w.mT + b.unsqueeze(-2) for w, b in zip(parts[:3], parts[3:], strict=True))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale**-0.5)
        return out.movedim(-3, -2).flatten(-2)


def heads_of(attention: Any, heads: Sequence[int] | None = None) -> Heads:
    """Heads of the attention of a Hugging Face GPT-2, before its output projection c_proj.

    Args:
        attention: `model.h[layer].attn`.
        heads: Their numbers; None takes all.
    Returns:
        The heads as a module in float64.

    Example:
        >>> heads_of(model.h[0].attn, [3])
    """
    count, width = attention.num_heads, attention.head_dim
    stacked = attention.c_attn.weight.detach().to(f64).T.unflatten(0, (3, count, width))
    biases = attention.c_attn.bias.detach().to(f64).unflatten(0, (3, count, width))
    chosen = list(range(count)) if heads is None else list(heads)
    (w_q, w_k, w_v), (b_q, b_k, b_v) = stacked[:, chosen], biases[:, chosen]
    return Heads(w_q, w_k, w_v, b_q, b_k, b_v, causal=True, scale=float(width))


@lowers(Heads)
def heads(builder: Builder, module: Heads, place: str) -> None:
    _require_sequence(builder, place or "Heads")
    if not 0 < module.scale < math.inf:
        raise BadNetwork(f"{place or 'Heads'} has the scale {module.scale}; it must be positive and finite")
    builder.attention(place, {name: getattr(module, name) for name in HEAD}, module.causal, float(module.scale))
    builder.shape = (builder.shape[0], builder.features)


@lowers(nn.TransformerEncoderLayer)
def encoder_layer(builder: Builder, module: Any, place: str) -> None:
    """Self-attention and two linear layers, each added to its input; normalised before or after."""
    _require_sequence(builder, place or "TransformerEncoderLayer")
    attention, inner = module.self_attn, joined(place, "self_attn")
    parts: dict[str, type] = dict.fromkeys(("norm1", "norm2"), nn.LayerNorm) | dict.fromkeys(
        ("linear1", "linear2"), nn.Linear
    )
    parts |= dict.fromkeys(("dropout", "dropout1", "dropout2"), nn.Dropout)
    for name, kind in parts.items():
        builder.require(getattr(module, name), joined(place, name), kind)
    builder.require(attention, inner, nn.MultiheadAttention)
    builder.require(attention.out_proj, joined(inner, "out_proj"), NonDynamicallyQuantizableLinear, nn.Linear)
    if not attention.batch_first or attention.in_proj_weight is None:
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} is compiled with batch_first=True only")
    if attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn:
        raise BadNetwork(f"{inner} attends to more than its positions (add_bias_kv or add_zero_attn); not compiled")
    drops = (module.dropout, module.dropout1, module.dropout2)
    if any(each.training and each.p for each in drops) or (attention.training and attention.dropout):
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} is in training mode with dropout; call .eval() first")
    before = builder.at
    if module.norm_first:
        builder.part(module.norm1, joined(place, "norm1"))
    stacked = (attention.in_proj_weight, attention.in_proj_bias, attention.num_heads)
    builder.self_attention(inner, *stacked, causal=False)
    after = builder.add_to(before, joined(inner, "out_proj"), attention.out_proj.weight, attention.out_proj.bias)
    if module.norm_first:
        builder.part(module.norm2, joined(place, "norm2"))
    else:
        after = builder.part(module.norm1, joined(place, "norm1"))
    builder.linear(joined(place, "linear1"), "linear", module.linear1.weight, module.linear1.bias)
    builder.part(_activation(module, place), joined(place, "activation"))
    builder.add_to(after, joined(place, "linear2"), module.linear2.weight, module.linear2.bias)
    if not module.norm_first:
        builder.part(module.norm2, joined(place, "norm2"))


@lowers(nn.TransformerEncoder)
def encoder(builder: Builder, module: Any, place: str) -> None:
    builder.require(module.layers, joined(place, "layers"), nn.ModuleList)
    for number, layer in enumerate(module.layers):
        builder.require(layer, joined(place, f"layers.{number}"), nn.TransformerEncoderLayer)
        builder.part(layer, joined(place, f"layers.{number}"))
    if module.norm is not None:
        builder.part(module.norm, joined(place, "norm"))


def _activation(module: Any, place: str) -> nn.Module:
    """The layer's own. Its fast kernel computes what `activation_relu_or_gelu` was when the layer was made."""
    function, kernel = module.activation, module.activation_relu_or_gelu
    known: dict[Any, nn.Module] = {nn.functional.relu: nn.ReLU(), nn.functional.gelu: nn.GELU()}
    found = function if isinstance(function, nn.Module) else known.get(function)
    if found is None:
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} has an activation that is not relu or gelu")
    plain_gelu = type(found) is nn.GELU and found.approximate == "none"
    if kernel != (1 if type(found) is nn.ReLU else 2 if plain_gelu else 0):
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} computes another activation in PyTorch's fast kernel")
    return found


def _require_sequence(builder: Builder, what: str) -> None:
    if not builder.is_sequence:
        raise BadNetwork(f"{what} attends between positions; give data or a shape of (positions, features)")
