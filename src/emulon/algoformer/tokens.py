"""The paper's prompt x_1, y_1, …, x_N, y_N, x_query, answer, as rows of named slots."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.algoformer.circuit import Circuit
from emulon.algoformer.codes import position_codes
from emulon.algoformer.copying import copy_head
from emulon.algoformer.layer import Layer
from emulon.algoformer.readout import constant
from emulon.algoformer.wiring import read
from emulon.attention import Slots

# Exactly one of these 0-1 indicators is set on each token; `sink` is the answer's token.
KINDS = ("train", "label", "query", "sink")


def others(slots: Slots, *names: str, kinds: tuple[str, ...] = KINDS) -> Tensor:
    """The row that is 0 on tokens of these kinds and 1 on all others."""
    return constant(slots, *(name for name in kinds if name not in names))


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
    circuit = Circuit(slots).move(read(slots, step=1.0), into, off=others(slots, kind), bound=bound)
    return Layer(heads, circuit.clear("step").matrices, dtype=dtype, name=name)
