"""What decoders share: every position predicts its own label from the pairs before it, multiplying within a token."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Slots
from emulon.certify.rounding import unit
from emulon.core.arrays import accepts_arraylike
from emulon.looped.heads import GAP, readout_heads
from emulon.looped.stencil import STRAY, Stencil
from emulon.looped.tokens import CAUSAL_KINDS, causal_tokens
from emulon.looped.transformer import LoopedRegression
from emulon.looped.wiring import Heads, constant, read, zeros


class CausalLoopedRegression(LoopedRegression):
    """A run's `prediction` holds all positions i = 1, …, N+1, each from the pairs before it; the query's is the last.

    The first position predicts 0. Prefixes have spectra of their own: none is asked of the whole.
    """

    def require_problem(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> None:
        self.domain.check_problem(xs, labels, x_query, spectrum=False)

    def prompt(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> Tensor:
        return causal_tokens(self.slots, xs, labels.squeeze(-1), x_query)

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., 1::2, self.slots["y"]]

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(
        self,
        xs: Float[Tensor, "... samples inputs"],
        ys: Float[Tensor, "... samples"] | Float[Tensor, "... samples outputs"],
        x_query: Float[Tensor, "... inputs"],
        *,
        loops: int,
    ) -> Tensor:
        """w_T·x_query, w_T from all the samples."""
        run = self.run(xs, ys, x_query, loops=loops)
        return run.prediction.select(-1 if run.scalar else -2, -1)


def self_product_heads(slots: Slots, stencil: Stencil, query: Tensor, key: Tensor, into: str, index: int = 0) -> Heads:
    """Claim: entry `index` of slot `into` of every point's token gains query·key of that same token.

    Every token of another code scores GAP·sharpness lower than the token itself; the sink is lifted by what the code
    adds to a match, so that C stays the difference. Bound: `stencil`, built by `self_stencil`. Cost: 2·pairs heads.
    """
    code, one = read(slots, code=1.0), constant(slots, *CAUSAL_KINDS)
    sharpness = _sharpness(stencil.tokens, stencil.dtype, stencil.cauchy)
    place = zeros(slots.size(into), 1)
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
