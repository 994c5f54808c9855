"""Learners: tokens in, answers out, the loss over loop counts and the library's one `predict`; and the three that are
trained: a decoder, a looped one, AlgoFormer."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Real
from torch import Tensor, nn

from emulon.algorithms.gradient_descent import require_queries
from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadNetwork, BadShape, EmulonError
from emulon.core.names import Registry
from emulon.models.block import Affine, Block, BlockShape, Decoder, Embedded, EveryLoop, Shown
from emulon.tasks.task import NOT_ASKED, PAD, interleave

if TYPE_CHECKING:
    from emulon.networks.builder import Builder

# Prompts that a learner reads at once when it is asked: memory, not answers, depends on it.
PROMPTS = 1024


class Learner(nn.Module):
    """Supplies `states`; reads tokens in with a linear map and positions, and answers out with another.

    Tokens of text, where `vocabulary` is not 0, are pairs of a word and its place, and answers are scores of words or
    classes. What is asked of them decides the loss: numbers squared error, words and classes cross entropy.

    `causal`: no answer depends on a later token, so that one pass answers at every prefix.
    A subclass with a name is a learner that configurations and the command line know: `class Mine(Learner, name=…)`.

    Args:
        width_in: Numbers in a token.
        width_out: Numbers in an answer.
        tokens: Tokens that it can read at most.
        shape: Of its blocks.
        vocabulary: Words, where tokens are words and their places; 0 where they are vectors.
    """

    causal = True
    several_queries = True
    registry: ClassVar[Registry[type[Learner]]] = Registry("model")

    def __init_subclass__(cls, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if name:
            Learner.registry.register(cls, name)

    def __init__(self, width_in: int, width_out: int, tokens: int, shape: BlockShape, vocabulary: int = 0) -> None:
        super().__init__()
        self.width_in, self.width_out, self.tokens, self.vocabulary = width_in, width_out, tokens, vocabulary
        self.causal = self.causal and shape.causal
        self.drop = nn.Dropout(shape.dropout)
        self.read_in: nn.Module = Affine(width_in, shape.width)
        if vocabulary:
            self.read_in = nn.Embedding(vocabulary, shape.width)
            nn.init.normal_(self.read_in.weight, 0.0, shape.init or 0.02)
        self.position = nn.Parameter(torch.empty(tokens, shape.width).normal_(0.0, shape.init or 0.02))
        self.read_out = Affine(shape.width, width_out)

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The keywords its constructor takes."""
        parameters = inspect.signature(cls).parameters.values()
        own = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        blocks = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        return (*own, *(field.name for field in fields(BlockShape))) if blocks else tuple(own)

    @abstractmethod
    def states(self, embedded: Embedded, window: int | None = None, visible: Shown | None = None) -> EveryLoop:
        """The states after the last `window` loop counts, the final one last; None for as many as the loss uses."""

    def embed(self, tokens: Real[Tensor, "batch tokens width_in"]) -> Embedded:
        if tokens.shape[-1] != self.width_in or tokens.shape[-2] > self.tokens:
            raise BadShape(
                f"tokens have shape {tuple(tokens.shape)}; this learner reads at most {self.tokens} of width"
                f" {self.width_in}"
            )
        if self.vocabulary:
            words, places = tokens.unbind(-1)
            embedded: Tensor = self.read_in(words) + F.embedding(places, self.position)
        else:
            embedded = self.read_in(tokens) + self.position[: tokens.shape[-2]]
        dropped: Tensor = self.drop(embedded)
        return dropped

    def visible(self, tokens: Real[Tensor, "batch tokens width_in"]) -> Shown | None:
        """Which tokens are no padding; None where there never is any."""
        return tokens[..., 0] != PAD if self.vocabulary else None

    def read_states(
        self, tokens: Real[Tensor, "batch tokens width_in"], window: int | None = None
    ) -> Float[Tensor, "loops batch read width"]:
        """The states that answers are read off: every token's, or in an encoder their mean, without padding."""
        visible = self.visible(tokens)
        states = self.states(self.embed(tokens), window, visible)
        if self.causal or visible is None:
            return states
        share = visible / visible.sum(dim=-1, keepdim=True)
        return share.to(states.dtype).unsqueeze(-2) @ states

    def forward(self, tokens: Real[Tensor, "batch tokens width_in"]) -> Float[Tensor, "batch read out"]:
        answers: Tensor = self.read_out(self.read_states(tokens, 1)[-1])
        return answers

    def lower_into(self, builder: Builder, place: str) -> None:
        """The same as layers for `compile_network`."""
        points = builder.given[0]
        if not builder.is_sequence or points > self.tokens:
            raise BadShape(f"this learner reads at most {self.tokens} tokens; compile it for such data")
        if isinstance(self.read_in, nn.Embedding):
            raise BadNetwork("a learner that reads words is not compiled; learners of numbers are")
        builder.part(self.drop, "drop")  # refused while it drops
        weight, bias = builder.weights_of(self.read_in, "read_in", Affine)
        position = builder.constant("position", self.position[:points])
        both = torch.cat([weight, torch.eye(len(weight), dtype=weight.dtype, device=weight.device)], dim=-1)
        builder.linear("read_in", "linear, plus position", both, bias, 0, position)
        builder.shape = (points, len(weight))
        self.lower_states(builder)
        builder.part(self.read_out, "read_out")

    def lower_states(self, builder: Builder) -> None:
        """`states` for one loop count, its last."""
        raise BadNetwork(f"a {type(self).__name__} is not compiled; learners made of blocks are")

    def loss(
        self,
        tokens: Real[Tensor, "batch tokens width_in"],
        targets: Real[Tensor, "batch asked out"],
        asked: Callable[[Tensor], Tensor],
        weight: Float[Tensor, " asked"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean squared error over loop counts, datasets and asked positions, these with a curriculum's weights; of
        words and classes mean cross entropy over loop counts and all that are no padding.

        Gao et al. 2024, Eq. 3, divides a sum of T − T₀ + 1 terms by T − T₀; here it is the mean over T₀+1..T, as in
        Yang et al. 2023, where the inputs have gone through at least one loop.
        """
        answers = self.read_out(asked(self.read_states(tokens))).float()
        if not targets.is_floating_point():
            wanted = targets[..., 0].expand(answers.shape[:-1])
            return F.cross_entropy(answers.flatten(0, -2), wanted.flatten(), ignore_index=NOT_ASKED)
        errors: Tensor = (answers - targets).square().mean(dim=(0, 1, 3))
        return errors.mean() if weight is None else (errors * weight).sum() / weight.sum()

    @property
    def examples(self) -> tuple[int, ...]:
        """The numbers of in-context examples that fit, with a query after them, into the tokens it reads."""
        return tuple(range(1, (self.tokens + 1) // 2))

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    @torch.no_grad()
    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        """The learner's answers at x_query, (..., features) or (..., queries, features), after reading (xs, ys)."""
        require_queries(xs, x_query)
        several = x_query.ndim == xs.ndim
        queries = x_query if several else x_query.unsqueeze(-2)
        each = queries.shape[:-1]  # every query gets a prompt of its own: it must not see the other queries
        xs = xs.unsqueeze(-3).expand(*each, *xs.shape[-2:])
        xs = torch.cat([xs, queries.unsqueeze(-2)], dim=-2).flatten(0, -3)
        ys = ys.unsqueeze(-2).expand(*each, ys.shape[-1]).reshape(len(xs), ys.shape[-1])
        parts = [self(part)[:, -1, 0] for part in self._prompt(xs, ys).split(PROMPTS)]
        answers = torch.cat(parts).double().reshape(each).to(x_query.device)
        return answers if several else answers.squeeze(-1)

    @torch.no_grad()
    def predict_prefixes(
        self, xs: Real[Tensor, "batch points features"], ys: Real[Tensor, "batch answered"]
    ) -> Float[Tensor, "batch points"]:
        """ŷ_i at every x_i from the examples before it, in one pass where the learner is causal."""
        if not self.causal:
            points = range(xs.shape[1])
            return torch.stack([self.predict(xs[:, :n], ys[:, :n], xs[:, n]) for n in points], dim=-1)
        parts = [self(part)[:, 0::2, 0] for part in self._prompt(xs, ys[:, : xs.shape[1] - 1]).split(PROMPTS)]
        return torch.cat(parts).double().to(xs.device)

    @torch.no_grad()
    def hidden_states(
        self, xs: Real[Tensor, "batch points features"], ys: Real[Tensor, "batch answered"]
    ) -> Float[Tensor, "layers batch tokens width"]:
        """The embedding, then the residual stream after every block in the order they run; a loop's, turn by turn."""
        streams = [self.embed(self._prompt(xs, ys[:, : xs.shape[1] - 1]))]
        blocks = [part for part in self.modules() if isinstance(part, Block)]
        hooks = [block.register_forward_hook(lambda _, given, stream: streams.append(stream)) for block in blocks]
        try:
            last = self.states(streams[0], 1)[-1]
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(streams if blocks else [*streams, last]).to(xs.device)

    def _prompt(self, xs: Tensor, ys: Tensor) -> Float[Tensor, "batch tokens width_in"]:
        """x₁, y₁, …, x_n as tokens on the learner's device, from one y fewer."""
        features = xs.shape[-1]
        if features + 1 != self.width_in or self.width_out != 1:
            raise BadShape(
                f"predict is for learners of y from x: this one reads tokens of width {self.width_in} and answers"
                f" {self.width_out} numbers, and x has {features} features"
            )
        device = self.position.device
        # interleave leaves the last y out
        ys = F.pad(ys, (0, 1))
        return interleave(xs.to(device, torch.float32), ys.to(device, torch.float32))


class Standard(Learner, name="standard"):
    """`layers` different blocks, one after the other.

    Args:
        layers: Blocks.
        **blocks: Fields of `BlockShape`; other arguments as of `Learner`.
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
        layers: Blocks.
        loops: Applications of the loop's decoder.
        window: Loop counts, the last so many, over which the loss averages.
        inject: Whether the loop's input is added at every turn.
        **blocks: Fields of `BlockShape`; other arguments as of `Learner`.
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
        layers: Blocks in each of the three decoders.
        loops: Applications of the loop's decoder.
        window: Loop counts, the last so many, over which the loss averages.
        inject: Whether the loop's input is added at every turn.
        **blocks: Fields of `BlockShape`; other arguments as of `Learner`.
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
