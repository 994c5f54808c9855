"""The three architectures of Gao et al. 2024, section 5: a GPT-2-style decoder, a looped one, and AlgoFormer."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.models.block import BlockShape, Decoder, Embedded, EveryLoop, Shown
from emulon.models.learner import Learner

if TYPE_CHECKING:
    from emulon.networks.builder import Builder


class Standard(Learner, name="standard"):
    """`layers` different blocks, one after the other.

    Args:
        width_in: Numbers in a token.
        width_out: Numbers in an answer.
        tokens: Tokens that it can read at most.
        layers: Blocks.
        vocabulary: Words, where tokens are words and their places; 0 where they are vectors.
        **blocks: Fields of `BlockShape`.
    """

    def __init__(
        self, width_in: int, width_out: int, tokens: int, *, layers: int = 12, vocabulary: int = 0, **blocks: Any
    ) -> None:
        shape = BlockShape(**blocks)
        super().__init__(width_in, width_out, tokens, shape, vocabulary)
        self.decoder = Decoder(shape, layers)

    def states(
        self, embedded: Embedded, window: int | None = None, visible: Shown | None = None
    ) -> Float[Tensor, "1 batch tokens width"]:
        final: Tensor = self.decoder(embedded, visible)
        return final.unsqueeze(0)

    def lower_states(self, builder: Builder) -> None:
        builder.part(self.decoder, "decoder")


class LoopingLearner(Learner):
    """Supplies `build` and `states`: a learner whose loss averages over the last `window` of its `loops` turns."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        tokens: int,
        *,
        layers: int = 1,
        loops: int = 20,
        window: int = 15,
        inject: bool = True,
        vocabulary: int = 0,
        **blocks: Any,
    ) -> None:
        shape = BlockShape(**blocks)
        super().__init__(width_in, width_out, tokens, shape, vocabulary)
        if loops < 1 or window < 1:
            raise EmulonError(f"loops and window must be at least 1, got {loops} and {window}")
        self.loops, self.window, self.inject = loops, window, inject
        self.build(shape, layers)

    @abstractmethod
    def build(self, shape: BlockShape, layers: int) -> None:
        """The decoders, each of so many layers."""


class Looped(LoopingLearner, name="looped"):
    """The learner of Yang et al. 2023: state ← decoder(state + input), `loops` times from zero; the loss averages over
    the last `window` loop counts.

    Gradients flow through the window only, as in Yang et al.: the loops before it are a free warm start.

    Args:
        width_in: Numbers in a token.
        width_out: Numbers in an answer.
        tokens: Tokens that it can read at most.
        layers: Blocks.
        loops: Applications of the loop's decoder.
        window: Loop counts, the last so many, over which the loss averages.
        inject: Whether the loop's input is added at every turn.
        vocabulary: Words, where tokens are words; 0 where they are vectors.
        **blocks: Fields of `BlockShape`.
    """

    def build(self, shape: BlockShape, layers: int) -> None:
        if not self.inject:
            raise EmulonError("looped starts from zero and sees its prompt by injection alone; leave inject on")
        self.decoder = Decoder(shape, layers, "loop")

    def states(self, embedded: Embedded, window: int | None = None, visible: Shown | None = None) -> EveryLoop:
        return loop(self.decoder, torch.zeros_like(embedded), embedded, self.loops, window or self.window, visible)

    def lower_states(self, builder: Builder) -> None:
        injected = builder.at
        for turn in range(self.loops):
            if turn:
                builder.plus(builder.at, injected, f"turn {turn}")
            builder.part(self.decoder, f"turn {turn}")


class AlgoFormer(LoopingLearner, name="algoformer"):
    """post ∘ loop^T ∘ pre, Gao et al. 2024, Eq. 2, trained with the loss of Eq. 3 over the last `window` loop counts.

    The pre-transformer's output is added to the loop's input at every turn, as Yang et al. do with the prompt. Eq. 2
    has nothing of that: with `inject` off the loop starts from that output and never sees it again, as printed. The
    post-transformer reads all the loop counts as one batch.

    Args:
        width_in: Numbers in a token.
        width_out: Numbers in an answer.
        tokens: Tokens that it can read at most.
        layers: Blocks in each of the three decoders.
        loops: Applications of the loop's decoder.
        window: Loop counts, the last so many, over which the loss averages.
        inject: Whether the loop's input is added at every turn.
        vocabulary: Words, where tokens are words; 0 where they are vectors.
        **blocks: Fields of `BlockShape`.
    """

    def build(self, shape: BlockShape, layers: int) -> None:
        self.pre = Decoder(shape, layers, "pre")
        self.body = Decoder(shape, layers, "loop")
        self.post = Decoder(shape, layers, "post")

    def states(self, embedded: Embedded, window: int | None = None, visible: Shown | None = None) -> EveryLoop:
        prepared = self.pre(embedded, visible)
        injected = prepared if self.inject else None
        turns = loop(self.body, prepared, injected, self.loops, window or self.window, visible)
        each = None if visible is None else visible.repeat(len(turns), 1)
        finished: Tensor = self.post(turns.flatten(0, 1), each)
        return finished.view_as(turns)

    def lower_states(self, builder: Builder) -> None:
        prepared = builder.part(self.pre, "pre")
        for turn in range(self.loops):
            if self.inject:
                builder.plus(builder.at, prepared, f"turn {turn}")
            builder.part(self.body, f"turn {turn}")
        builder.part(self.post, "post")


def loop(
    decoder: Decoder, state: Embedded, injected: Embedded | None, loops: int, window: int, visible: Shown | None = None
) -> Float[Tensor, "window batch tokens width"]:
    """The states after loops − window + 1, …, loops applications of state ← decoder(state + injected), or of
    state ← decoder(state)."""
    kept = []
    before = max(loops - window, 0)
    with torch.no_grad():
        for _ in range(before):
            state = decoder(state if injected is None else state + injected, visible)
    for _ in range(before, loops):
        state = decoder(state if injected is None else state + injected, visible)
        kept.append(state)
    return torch.stack(kept)
