"""The AlgoFormer of `002_…`: prepare, iterate, finish."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from emulon.models.block import Decoder
from emulon.models.learner import Learner
from emulon.models.looped import loop, require_loops


class AlgoFormer(Learner):
    """post ∘ loop^T ∘ pre, Eq. 2, trained with the loss of Eq. 3 over the last `window` loop counts.

    The pre-transformer's output is added to the loop's input at every turn, as Yang et al. do with the prompt; Eq. 2
    starts the loop from it and is silent about the rest. The post-transformer reads all the loop counts as one batch.
    """

    def __init__(
        self,
        width_in: int,
        width_out: int,
        tokens: int,
        *,
        width: int = 256,
        layers: int = 1,
        heads: int = 8,
        loops: int = 20,
        window: int = 15,
        init: float = 0.02,
        fused: bool = False,
    ) -> None:
        super().__init__(width_in, width_out, tokens, width, init)
        require_loops(loops, window)
        self.loops, self.window = loops, window
        self.pre = Decoder(width, layers, heads, init=init, fused=fused, name="pre")
        self.body = Decoder(width, layers, heads, init=init, fused=fused, name="loop")
        self.post = Decoder(width, layers, heads, init=init, fused=fused, name="post")

    def states(
        self, embedded: Float[Tensor, "batch tokens width"], window: int | None = None
    ) -> Float[Tensor, "loops batch tokens width"]:
        prepared = self.pre(embedded)
        turns = loop(self.body, prepared, prepared, self.loops, window or self.window)
        return self.post(turns.flatten(0, 1)).unflatten(0, turns.shape[:2])
