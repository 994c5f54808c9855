"""The standard learner: a GPT-2-style decoder."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from emulon.models.block import Decoder
from emulon.models.learner import Learner


class Standard(Learner):
    """`layers` different blocks, one after the other."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        tokens: int,
        *,
        width: int = 256,
        layers: int = 12,
        heads: int = 8,
        init: float = 0.02,
        fused: bool = False,
    ) -> None:
        super().__init__(width_in, width_out, tokens, width, init)
        self.decoder = Decoder(width, layers, heads, init=init, fused=fused)

    def states(
        self, embedded: Float[Tensor, "batch tokens width"], window: int | None = None
    ) -> Float[Tensor, "1 batch tokens width"]:
        return self.decoder(embedded).unsqueeze(0)
