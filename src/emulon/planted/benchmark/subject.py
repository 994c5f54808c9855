"""What a method is given: the model, prompts and quantities to find; nothing of the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.predictor import PrefixPredictor
from emulon.planted.architecture import ARCHITECTURES, Architecture, Weights
from emulon.planted.mechanism import BoundedLinear
from emulon.planted.model import removed_after

# Largest batch when many changes are tried.
BATCH = 1024
# A direction that varies less than this, relative to its size, is rounding; or than so many units in the last place.
ROUNDING, ULPS = 1e-9, 16


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
        swapped: For every quantity and prompt, ŷ if the algorithm's quantity were that of the next prompt (of the first
            for the last), all else as before.
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
    swapped: Float[Tensor, "quantities _ samples"]
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
        """The same subject with the first `count` prompts only, but for `swapped`; made once."""
        if count not in self._fewer:
            quantities = tuple(one[:count] for one in self.quantities)
            few = replace(self, prompts=self.prompts[:count], others=self.others[:count], quantities=quantities)
            self._fewer[count] = few
        return self._fewer[count]

    @cached_property
    def _fewer(self) -> dict[int, Subject]:
        return {}

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

    @cached_property
    def features(self) -> Float[Tensor, "streams tokens prompts width"]:
        """The streams, every direction scaled to variance 1 over prompts."""
        return standard(self.run.streams.double().transpose(1, 2))

    def answers(self, hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... samples"]:
        """ŷ, read off the last hidden state."""
        read: Tensor = (hidden @ self.readout)[..., 1::2]
        return read

    @cached_property
    def weights(self) -> Weights:
        """The model's weights by block and head."""
        return self.architecture.parse(self.model.state_dict(), self.heads)

    @property
    def output_matrices(self) -> Float[Tensor, "blocks heads head_width width"]:
        """The blocks' output matrices, one part per head."""
        return torch.stack([block.output for block in self.weights.blocks])

    def activations(self, prompts: Float[Tensor, "prompts tokens width"]) -> Activations:
        """Activations on any prompts."""
        *parts, answers = self._recorded(prompts)
        return self._stacked(parts, answers)

    @cached_property
    def slopes(self) -> Activations:
        """∂Σŷ/∂activation on the prompts, in one backward pass."""
        with torch.enable_grad():
            *parts, answers = self._recorded(self.prompts.clone().requires_grad_())
            slopes = iter(torch.autograd.grad(answers.sum(), [one for part in parts for one in part]))
        return self._stacked([[next(slopes) for _ in part] for part in parts], torch.ones_like(answers))

    def _stacked(self, parts: Sequence[Sequence[Tensor]], answers: Tensor) -> Activations:
        streams, heads, mlps = (torch.stack(list(part)) for part in parts)
        return Activations(streams, heads.unflatten(-1, (self.heads, -1)), mlps, answers)

    def _recorded(self, prompts: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
        streams, heads, mlps, names = list[Tensor](), list[Tensor](), list[Tensor](), self.architecture
        norm = self.model.get_submodule(names.norm)
        handles = [norm.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0]))]
        for block in names.blocks_of(self.model):
            output, mlp = block.get_submodule(names.output), block.get_submodule(names.mlp)
            handles.append(block.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0])))
            handles.append(output.register_forward_pre_hook(lambda module, inputs: heads.append(inputs[0])))
            handles.append(mlp.register_forward_hook(lambda module, inputs, output: mlps.append(output)))
        with removed_after(handles):
            hidden = self.model(inputs_embeds=prompts).last_hidden_state
        return streams, heads, mlps, self.answers(hidden)

    def entered(self, streams: Mapping[int, Float[Tensor, "_ tokens width"]]) -> Float[Tensor, "rows samples"]:
        """ŷ of streams that enter the model before these blocks, in ascending order of blocks.

        No row is computed in blocks before its own; a first row, which is dropped, keeps batches from being empty.
        """
        modules = [*self.architecture.blocks_of(self.model), self.model.get_submodule(self.architecture.norm)]
        hooks = [modules[block].register_forward_pre_hook(_joined_by(rows)) for block, rows in streams.items()]
        with removed_after(hooks):
            hidden = self.model(inputs_embeds=self.prompts[:1]).last_hidden_state
        return self.answers(hidden[1:])

    def with_changes(self, changes: Sequence[Change | tuple[Change, ...]]) -> Float[Tensor, "changes prompts samples"]:
        """ŷ on the prompts under each change alone, a tuple of them together; many changes run in one batch."""
        several = [change if isinstance(change, tuple) else (change,) for change in changes]
        first = [min(one.block for one in together) for together in several]
        order = sorted(range(len(several)), key=first.__getitem__)
        at_once, out = max(1, BATCH // len(self.prompts)), []
        for start in range(0, len(order), at_once):
            part = order[start : start + at_once]
            out.append(self._changed([several[number] for number in part], [first[number] for number in part]))
        return torch.cat(out)[torch.tensor(order, device="cpu").argsort()]

    def _changed(self, several: Sequence[tuple[Change, ...]], first: Sequence[int]) -> Tensor:
        """Each set of changes on rows that enter at its first block."""
        streams = {block: self.run.streams[block].repeat(first.count(block), 1, 1) for block in dict.fromkeys(first)}
        count, parts = len(self.prompts), dict[tuple[int, bool], list[tuple[slice, slice, Tensor]]]()
        for number, change in ((number, one) for number, together in enumerate(several) for one in together):
            rows = slice(1 + number * count, 1 + (number + 1) * count)
            start = (change.head or 0) * change.value.shape[-1]
            columns = slice(start, start + change.value.shape[-1])
            parts.setdefault((change.block, change.head is None), []).append((rows, columns, change.value))
        handles, names = [], self.architecture
        for (block, is_mlp), replaced in parts.items():
            module = names.blocks_of(self.model)[block].get_submodule(names.mlp if is_mlp else names.output)
            hook = _replacing(replaced)
            handles.append(
                module.register_forward_hook(lambda _, inputs, output, hook=hook: hook(output))
                if is_mlp
                else module.register_forward_pre_hook(lambda _, inputs, hook=hook: (hook(inputs[0]), *inputs[1:]))
            )
        with torch.no_grad(), removed_after(handles):
            answers: Tensor = self.entered(streams).unflatten(0, (len(several), count))
        return answers


def standard(values: Float[Tensor, "... prompts width"]) -> Float[Tensor, "... prompts width"]:
    """Mean 0 and variance 1 over prompts; directions that hold only rounding become 0."""
    centred = values - values.mean(dim=-2, keepdim=True)
    size = values.abs().amax(dim=-2, keepdim=True)
    deviation = (centred.square().sum(dim=-2, keepdim=True) / (values.shape[-2] - 1)).sqrt()
    least = max(ROUNDING, ULPS * torch.finfo(values.dtype).eps) * size
    return torch.where(deviation > least, centred / deviation.clamp(min=1e-300), 0.0)


def _joined_by(rows: Tensor) -> Any:
    def hook(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.cat([inputs[0], rows]), *inputs[1:])

    return hook


def _replacing(parts: Sequence[tuple[slice, slice, Tensor]]) -> Callable[[Tensor], Tensor]:
    """A function that puts values into rows and columns of a copy."""

    def replaced(before: Tensor) -> Tensor:
        after = before.clone()
        for rows, columns, value in parts:
            after[rows, :, columns] = value
        return after

    return replaced


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
class NoisyAnswers(PrefixPredictor):
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

    def __call__(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ at every x, without noise."""
        with torch.no_grad():
            hidden = self.model(inputs_embeds=self.embedding(xs, ys)).last_hidden_state
        answers: Tensor = (hidden @ self.readout)[..., 1::2]
        return answers

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ at every x; the last target and later examples may be missing."""
        answers = super().predict_prefixes(xs, ys)
        generator = torch.Generator().manual_seed(self.seed)
        errors = torch.randn(answers.shape, dtype=answers.dtype, generator=generator, device="cpu")
        return answers + self.noise * answers.std() * errors
