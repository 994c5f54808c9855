"""What a method is given: the model, prompts and quantities to find; nothing of the truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.predictor import padded_prefixes
from emulon.planted.architecture import ARCHITECTURES, Architecture
from emulon.planted.mechanism import BoundedLinear

# Largest batch when many changes are tried.
BATCH = 1024


@dataclass(frozen=True, eq=False)
class Activations:
    """Activations of one run.

    Attributes:
        streams: The residual stream before the first block and after every block.
        heads: Every head's output before the block's output matrix.
        mlps: What every MLP adds to the stream.
        answers: ŷ.
    """

    streams: Float[Tensor, "streams prompts tokens width"]
    heads: Float[Tensor, "blocks prompts tokens heads head_width"]
    mlps: Float[Tensor, "blocks prompts tokens width"]
    answers: Float[Tensor, "prompts samples"]


@dataclass(frozen=True)
class Change:
    """Replacement of one component's output.

    Attributes:
        block: The block.
        head: The head, or None for the MLP.
        value: The new output for all prompts.
    """

    block: int
    head: int | None
    value: Float[Tensor, "prompts tokens size"]


@dataclass(frozen=True, eq=False)
class Subject:
    """What a method may look at.

    Attributes:
        model: The Hugging Face model, a `GPT2Model`; call it with `inputs_embeds=prompts`.
        prompts: Embedded prompts; ŷ is read at the tokens 1, 3, 5, … as `last_hidden_state @ readout`.
        others: As many other prompts.
        readout: The direction of ŷ.
        quantities: Numbers that the algorithm computes on these prompts, unnamed and in random order.
        swapped: For every quantity and the first prompts, ŷ if the algorithm's quantity were that of the next of these
            prompts (of the first for the last), all else as before.
        predictor: The model's answers on any data of `task`, with a little noise.
        task: Draws data of the model's domain.
        candidates: Names of algorithms.
        seed: For whatever is random in the method.
    """

    model: Any
    prompts: Float[Tensor, "prompts tokens width"]
    others: Float[Tensor, "prompts tokens width"]
    readout: Float[Tensor, " width"]
    quantities: tuple[Float[Tensor, "prompts _"], ...]
    swapped: Float[Tensor, "quantities swapped samples"]
    predictor: NoisyAnswers
    task: BoundedLinear
    candidates: tuple[str, ...]
    seed: int

    @property
    def architecture(self) -> Architecture:
        """Of the model: where its modules are."""
        return ARCHITECTURES[self.model.config.model_type]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.architecture.blocks_of(self.model))

    @property
    def heads(self) -> int:
        """Heads in a block."""
        return int(self.model.config.num_attention_heads)

    def few(self, count: int) -> Subject:
        """The same subject with the first `count` prompts only."""
        quantities = tuple(one[:count] for one in self.quantities)
        return replace(self, prompts=self.prompts[:count], others=self.others[:count], quantities=quantities)

    @cached_property
    def run(self) -> Activations:
        """Activations on the prompts."""
        with torch.no_grad():
            return self.activations(self.prompts)

    @cached_property
    def other_run(self) -> Activations:
        """Activations on the other prompts."""
        with torch.no_grad():
            return self.activations(self.others)

    def answers(self, hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... samples"]:
        """ŷ, read off the last hidden state."""
        read: Tensor = (hidden @ self.readout)[..., 1::2]
        return read

    def output_matrix(self, block: int) -> Float[Tensor, "heads head_width width"]:
        """The block's output matrix, one part per head."""
        return self.architecture.parse(self.model.state_dict(), self.heads).blocks[block].output

    def activations(self, prompts: Float[Tensor, "prompts tokens width"]) -> Activations:
        """Activations on any prompts."""
        streams, heads, mlps, answers = self._recorded(prompts)
        split = torch.stack(heads).unflatten(-1, (self.heads, -1))
        return Activations(torch.stack(streams), split, torch.stack(mlps), answers)

    @cached_property
    def slopes(self) -> Activations:
        """∂Σŷ/∂activation on the prompts, in one backward pass."""
        with torch.enable_grad():
            streams, heads, mlps, answers = self._recorded(self.prompts.clone().requires_grad_())
            slopes = torch.autograd.grad(answers.sum(), [*streams, *heads, *mlps])
        parts = [torch.stack(part) for part in (slopes[: len(streams)], slopes[len(streams) : -len(mlps)])]
        split = parts[1].unflatten(-1, (self.heads, -1))
        return Activations(parts[0], split, torch.stack(slopes[-len(mlps) :]), torch.ones_like(answers))

    def _recorded(self, prompts: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
        streams: list[Tensor] = []
        heads: list[Tensor] = []
        mlps: list[Tensor] = []
        names = self.architecture
        norm = self.model.get_submodule(names.norm)
        handles = [norm.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0]))]
        for block in names.blocks_of(self.model):
            output, mlp = block.get_submodule(names.output), block.get_submodule(names.mlp)
            handles.append(block.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0])))
            handles.append(output.register_forward_pre_hook(lambda module, inputs: heads.append(inputs[0])))
            handles.append(mlp.register_forward_hook(lambda module, inputs, output: mlps.append(output)))
        with _until_done(handles):
            hidden = self.model(inputs_embeds=prompts).last_hidden_state
        return streams, heads, mlps, self.answers(hidden)

    def with_changes(self, changes: Sequence[Change | tuple[Change, ...]]) -> Float[Tensor, "changes prompts samples"]:
        """ŷ on the prompts under each change alone, a tuple of them together; many changes run in one batch."""
        at_once = max(1, BATCH // len(self.prompts))
        parts = [changes[start : start + at_once] for start in range(0, len(changes), at_once)]
        return torch.cat([self._changed(part) for part in parts])

    def _changed(self, changes: Sequence[Change | tuple[Change, ...]]) -> Tensor:
        names, count, handles = self.architecture, len(self.prompts), []
        several = [change if isinstance(change, tuple) else (change,) for change in changes]
        for number, change in ((number, one) for number, together in enumerate(several) for one in together):
            rows = slice(number * count, (number + 1) * count)
            block = names.blocks_of(self.model)[change.block]
            output, mlp = block.get_submodule(names.output), block.get_submodule(names.mlp)
            if change.head is None:
                handles.append(mlp.register_forward_hook(_replacing_output(rows, change.value)))
            else:
                size = change.value.shape[-1]
                hook = _replacing_input(rows, slice(change.head * size, (change.head + 1) * size), change.value)
                handles.append(output.register_forward_pre_hook(hook))
        with torch.no_grad(), _until_done(handles):
            hidden: Tensor = self.model(inputs_embeds=self.prompts.repeat(len(changes), 1, 1)).last_hidden_state
        return self.answers(hidden.unflatten(0, (len(changes), count)))


def _replacing_output(rows: slice, value: Tensor) -> Any:
    def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[rows] = value
        return output

    return hook


def _replacing_input(rows: slice, columns: slice, value: Tensor) -> Any:
    def hook(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        changed = inputs[0].clone()
        changed[rows, :, columns] = value
        return (changed, *inputs[1:])

    return hook


@contextmanager
def _until_done(handles: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, eq=False)
class Embedding:
    """Data as `inputs_embeds`: a start token, x₁, y₁, x₂, …

    Attributes:
        start: What every token holds without data.
        x: What is added per feature at the tokens of x.
        y: What is added at the tokens of y.
    """

    start: Float[Tensor, "tokens width"]
    x: Float[Tensor, "features width"]
    y: Float[Tensor, "1 width"]

    def __call__(
        self, xs: Float[Tensor, "*datasets samples features"], ys: Float[Tensor, "*datasets samples"]
    ) -> Float[Tensor, "*datasets tokens width"]:
        """The embedded prompts; the last target is not in them."""
        out = self.start.repeat(*xs.shape[:-2], 1, 1)
        out[..., 1::2, :] += xs.to(out) @ self.x
        out[..., 2::2, :] += ys[..., :-1, None].to(out) @ self.y
        return out


@dataclass(frozen=True, eq=False)
class NoisyAnswers:
    """The model as a predictor only, with Gaussian noise of `noise` times the answers' standard deviation.

    Without noise every parameter could be read off exactly, and no interval could be too narrow.
    """

    model: Any
    embedding: Embedding
    readout: Float[Tensor, " width"]
    noise: float
    seed: int

    @property
    def samples(self) -> int:
        """Examples in a prompt, the last of them without its target."""
        return len(self.embedding.start) // 2

    @property
    def examples(self) -> tuple[int, ...]:
        """Numbers of examples that it can be asked after."""
        return tuple(range(1, self.samples))

    def __call__(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ at every x, without noise."""
        with torch.no_grad():
            hidden = self.model(inputs_embeds=self.embedding(xs, ys)).last_hidden_state
        answers: Tensor = (hidden @ self.readout)[..., 1::2]
        return answers

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ at every x; the last target and later examples may be missing."""
        answers = padded_prefixes(self, self.samples, xs, ys)
        generator = torch.Generator().manual_seed(self.seed)
        errors = torch.randn(answers.shape, dtype=answers.dtype, generator=generator, device="cpu")
        return answers + self.noise * answers.std() * errors

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        """ŷ at x_query after these examples."""
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
        return self.predict_prefixes(points, ys)[..., -1]
