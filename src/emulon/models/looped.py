"""The looped learner of Yang et al.: one decoder applied again and again, the input added each time."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.errors import EmulonError
from emulon.models.block import Decoder
from emulon.models.learner import Learner


class Looped(Learner):
    """state ← decoder(state + input), `loops` times from zero; the loss averages over the last `window` loop counts.

    Gradients flow through the window only, as in Yang et al.: the loops before it are a free warm start.
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
        self.decoder = Decoder(width, layers, heads, init=init, fused=fused, name="loop")
        require_loops(loops, window)
        self.loops, self.window = loops, window

    def states(
        self, embedded: Float[Tensor, "batch tokens width"], window: int | None = None
    ) -> Float[Tensor, "loops batch tokens width"]:
        return loop(self.decoder, torch.zeros_like(embedded), embedded, self.loops, window or self.window)


def loop(
    decoder: Decoder,
    state: Float[Tensor, "batch tokens width"],
    injected: Float[Tensor, "batch tokens width"],
    loops: int,
    window: int,
) -> Float[Tensor, "window batch tokens width"]:
    """The states after loops − window + 1, …, loops applications of state ← decoder(state + injected)."""
    kept = []
    before = max(loops - window, 0)
    with torch.no_grad():
        for _ in range(before):
            state = decoder(state + injected)
    for _ in range(before, loops):
        state = decoder(state + injected)
        kept.append(state)
    return torch.stack(kept)


def require_loops(loops: int, window: int) -> None:
    if loops < 1 or window < 1:
        raise EmulonError(f"loops and window must be at least 1, got {loops} and {window}")
