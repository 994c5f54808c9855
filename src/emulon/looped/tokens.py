"""The two prompts as rows of named slots, Gao et al. 2024's for encoders and one for decoders."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.looped.heads import code_length, copy_head, position_codes
from emulon.looped.layer import Circuit, Layer, others, read

# The encoder's prompt is x_1, y_1, …, x_N, y_N, x_query, answer. Exactly one of these indicators is 1 on each token;
# `sink` is the answer's.
KINDS = ("train", "label", "query", "sink")
# The decoder's is sink, x_1, y_1, …, x_N, y_N, x_query: every token can see a sink that comes first. `point` tokens
# hold an x, the `label` token after it its y.
CAUSAL_KINDS = ("sink", "point", "label")


def pair_tokens(slots: Slots, xs: Tensor, ys: Tensor, x_query: Tensor, inputs: str = "x") -> Tensor:
    """Tokens (..., 2N+2, width) with sample and label of a pair sharing a position code; ys is (..., N, outputs)."""
    batch = torch.broadcast_shapes(xs.shape[:-2], ys.shape[:-2], x_query.shape[:-1])
    samples, features = xs.shape[-2:]
    end, first = 2 * samples, slots[inputs].start
    tokens = xs.new_zeros(*batch, end + 2, slots.width)
    source = slice(first, first + features)
    for kind, where, slot, content in (
        ("train", slice(0, end, 2), source, xs),
        ("label", slice(1, end, 2), slots["y"], ys),
        ("query", slice(end, end + 1), source, x_query.unsqueeze(-2)),
        ("sink", slice(end + 1, None), slots["y"], 0.0),
    ):
        tokens[..., where, slot] = content
        tokens[..., where, slots[kind]] = 1.0
    tokens[..., slots["code"]] = position_codes(samples + 1).to(xs.dtype).repeat_interleave(2, dim=0)
    return tokens


def exchange_layer(
    slots: Slots, kind: str, into: str, *, sign: float, bound: float, dtype: torch.dtype, name: str
) -> Layer:
    """The neighbour exchange of Theorem 3.1: tokens of this kind get sign·y of the token that shares their code.

    Claim: exact. Assumes: |y| ≤ bound everywhere and y = 0 on one of the two. Cost: one layer of one head.
    """
    code = read(slots, code=1.0)
    heads = copy_head(slots, code, code, read(slots, y=2.0 * sign), "step")
    circuit = Circuit(slots).move(read(slots, step=1.0), into, off=others(slots, kind, kinds=KINDS), bound=bound)
    return Layer(heads, circuit.clear("step").matrices, dtype=dtype, name=name)


def causal_code_length(samples: int) -> int:
    return code_length(samples + 2)


def causal_tokens(slots: Slots, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
    """Tokens (..., 2N+2, width), with log(i−1) beside x_i, where the paper writes 1/(i−1)."""
    batch = torch.broadcast_shapes(xs.shape[:-2], ys.shape[:-1], x_query.shape[:-1])
    samples = xs.shape[-2]
    tokens = xs.new_zeros(*batch, 2 * samples + 2, slots.width)
    points, labels = slice(1, None, 2), slice(2, None, 2)
    tokens[..., 0, slots["sink"]] = 1.0
    tokens[..., points, slots["point"]] = 1.0
    tokens[..., labels, slots["label"]] = 1.0
    tokens[..., slice(1, -1, 2), slots["x"]] = xs
    tokens[..., -1, slots["x"]] = x_query
    tokens[..., labels, slots["y"]] = ys.unsqueeze(-1)
    counts = torch.arange(samples + 1, dtype=torch.float64, device="cpu").clamp(min=1).log()
    tokens[..., points, slots["log_count"]] = counts.to(xs.dtype).unsqueeze(-1)
    # The sink has no code: what a self-product adds to its score must be the same for every position.
    codes = position_codes(samples + 2)[: samples + 1].to(xs.dtype)
    tokens[..., 1:, slots["code"]] = codes.repeat_interleave(2, dim=0)[:-1]
    return tokens


def elsewhere(slots: Slots, *kinds: str) -> Tensor:
    """The row that is 0 on tokens of these kinds and 1 on all others."""
    return others(slots, *kinds, kinds=CAUSAL_KINDS)


def recall_layer(slots: Slots, scratch: str, bound: float, dtype: torch.dtype) -> Layer:
    """Claim: exactly, `past` of every label's token is the x of the sample before it, which shares its code."""
    code = read(slots, code=1.0)
    heads = copy_head(slots, code, code, read(slots, x=2.0), scratch)
    circuit = Circuit(slots).move(read(slots, **{scratch: 1.0}), "past", off=elsewhere(slots, "label"), bound=2 * bound)
    return Layer(heads, circuit.clear(scratch).matrices, dtype=dtype, causal=True, name="recall")
