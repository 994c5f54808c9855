"""The heads of Lemma A.2: Σ_j value_j·(query·key_j) out of a softmax, by symmetric pairs beside a sink."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.algoformer.codes import UNDERFLOW
from emulon.algoformer.stencil import Stencil, pair_weights
from emulon.algoformer.wiring import Heads, read, write
from emulon.attention import Slots


def constant(slots: Slots, *indicators: str) -> Tensor:
    """The row that reads 1 at every token: the sum of indicators of which exactly one is set."""
    return read(slots, **{name: 1.0 for name in indicators})


def readout_heads(
    slots: Slots,
    stencil: Stencil,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    into: str,
    one: Tensor,
    sink: Tensor,
    extra: tuple[Tensor, Tensor] | None = None,
    masked: Tensor | None = None,
) -> Heads:
    """Heads that add Σ_j (value_j)(query·key_j) to slot `into` of the asking token.

    Claim and Bound: `Stencil`. Assumes: |query·key_j| ≤ stencil.reach; exactly one token has sink = 1, with value 0.
    `masked` tokens get a score 800 lower, so that their weight underflows to zero. `extra` rows (query, key) are added
    to the score unscaled: a code that routes, or log n on the sink, which divides the sum by n without any MLP.
    Cost: 2·pairs heads of width + 1 rows.
    """
    fixed = stencil.sink * sink - (0.0 if masked is None else UNDERFLOW * masked)
    extra_query, extra_key = (query[:0], query[:0]) if extra is None else extra
    keys, queries, values = [], [], []
    for g, weight in enumerate(pair_weights(stencil.pairs), 1):
        for sign in (1.0, -1.0):
            scale = sign * g * stencil.tau / stencil.reach
            lift = sign * float(weight) * stencil.reach / (2 * g * stencil.tau) * math.exp(stencil.sink)
            keys.append(torch.cat([scale * key, fixed, extra_key]))
            queries.append(torch.cat([query, one, extra_query]))
            values.append(write(slots, into, lift * value))
    return torch.stack(keys), torch.stack(queries), torch.stack(values)
