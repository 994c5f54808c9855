"""The decoder's prompt sink, x_1, y_1, …, x_N, y_N, x_query, and what its layers have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.algoformer.circuit import Circuit
from emulon.algoformer.codes import code_length, position_codes
from emulon.algoformer.copying import copy_head
from emulon.algoformer.layer import Layer
from emulon.algoformer.tokens import others
from emulon.algoformer.wiring import read
from emulon.attention import Slots

# The sink comes first: every later token can see it. `point` tokens hold an x, the `label` token after it its y.
CAUSAL_KINDS = ("sink", "point", "label")


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
    counts = torch.arange(samples + 1, dtype=torch.float64).clamp(min=1).log()
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
