"""Products of two slots of one token: a readout that only the token itself answers, because its code matches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.algoformer.causal_tokens import CAUSAL_KINDS
from emulon.algoformer.codes import GAP
from emulon.algoformer.readout import constant, readout_heads
from emulon.algoformer.stencil import STRAY, Stencil
from emulon.algoformer.wiring import Heads, read
from emulon.attention import Slots
from emulon.certify.rounding import unit


def self_product_heads(slots: Slots, stencil: Stencil, query: Tensor, key: Tensor, into: str, index: int = 0) -> Heads:
    """Claim: entry `index` of slot `into` of every point's token gains query·key of that same token.

    Every token of another code scores GAP·sharpness lower than the token itself; the sink is lifted by what the code
    adds to a match, so that C stays the difference. Bound: `stencil`, built by `self_stencil`. Cost: 2·pairs heads.
    """
    code, one = read(slots, code=1.0), constant(slots, *CAUSAL_KINDS)
    sharpness = _sharpness(stencil.tokens, stencil.dtype, stencil.cauchy)
    place = torch.zeros(slots.size(into), 1, dtype=torch.float64)
    place[index] = 1.0
    return readout_heads(
        slots,
        stencil,
        query=query,
        key=key,
        value=read(slots, point=place),
        into=into,
        one=one,
        sink=read(slots, sink=1.0),
        extra=(
            torch.cat([code, one]),
            torch.cat([sharpness * code, sharpness * slots.size("code") * read(slots, sink=1.0)]),
        ),
    )


def self_stencil(
    pairs: int, *, reach: float, tokens: int, width: int, code: int, dtype: torch.dtype, cauchy: float = 1.0
) -> Stencil:
    """One value of 1; the score carries an integer offset of the code's product, which rounds what is added to it."""
    offset = 2 * _sharpness(tokens, dtype, cauchy) * code
    return Stencil.best(
        pairs,
        reach=reach,
        tokens=tokens,
        summed=1,
        width=width + code + 1,
        dtype=dtype,
        cauchy=cauchy,
        offset=offset,
    )


def _sharpness(tokens: int, dtype: torch.dtype, cauchy: float) -> float:
    """The integer at which all tokens of other codes, whose scores reach cauchy·reach, weigh less than one rounding."""
    return float(math.ceil((math.log(tokens) - math.log(unit(dtype)) + STRAY * cauchy) / GAP))
