"""What a method is given: a model, prompts, and numbers that the model may have computed; nothing of the truth."""

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
from emulon.planted import Specimen
from emulon.planted.task import BoundedLinear

# Prompts that run at once where many changes are tried.
ROOM = 1024


@dataclass(frozen=True, eq=False)
class Activations:
    """One run: the stream before the first block and after every block, what every head hands to the block's output
    matrix, and what every MLP adds."""

    streams: Float[Tensor, "streams prompts tokens width"]
    heads: Float[Tensor, "blocks prompts tokens heads head_width"]
    mlps: Float[Tensor, "blocks prompts tokens width"]
    answers: Float[Tensor, "prompts samples"]


@dataclass(frozen=True)
class Change:
    """What a head (its number) or the MLP (None) of a block gives, replaced, in one run over all prompts."""

    block: int
    head: int | None
    value: Float[Tensor, "prompts tokens size"]


@dataclass(frozen=True, eq=False)
class Subject:
    """`model` is a `transformers.GPT2Model`, called with `inputs_embeds=prompts`; `others` are as many other prompts.

    ŷ is read at the tokens 1, 3, 5, … as `last_hidden_state @ readout`. `quantities` are numbers that the algorithm
    works out on these prompts, in random order and without names. `predictor` gives the model's answers on any data of
    `task`, with a little noise; `candidates` are names of algorithms. `seed` is for whatever is random in a method.
    """

    model: Any
    prompts: Float[Tensor, "prompts tokens width"]
    others: Float[Tensor, "prompts tokens width"]
    readout: Float[Tensor, " width"]
    quantities: tuple[Float[Tensor, "prompts _"], ...]
    predictor: NoisyAnswers
    task: BoundedLinear
    candidates: tuple[str, ...]
    seed: int

    @property
    def blocks(self) -> int:
        return len(self.model.h)

    @property
    def heads(self) -> int:
        return int(self.model.config.n_head)

    def few(self, count: int) -> Subject:
        """The same with the first prompts alone."""
        quantities = tuple(one[:count] for one in self.quantities)
        return replace(self, prompts=self.prompts[:count], others=self.others[:count], quantities=quantities)

    @cached_property
    def run(self) -> Activations:
        """The prompts' activations."""
        with torch.no_grad():
            return self.activations(self.prompts)

    @cached_property
    def other_run(self) -> Activations:
        with torch.no_grad():
            return self.activations(self.others)

    def answers(self, hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... samples"]:
        said: Tensor = (hidden @ self.readout)[..., 1::2]
        return said

    def output_matrix(self, block: int) -> Float[Tensor, "heads head_width width"]:
        """What a head's output is multiplied by before it is added to the stream."""
        split: Tensor = self.model.h[block].attn.c_proj.weight.unflatten(0, (self.heads, -1))
        return split

    def activations(self, prompts: Float[Tensor, "prompts tokens width"]) -> Activations:
        """Of any prompts."""
        streams, heads, mlps, answers = self._recorded(prompts)
        split = torch.stack(heads).unflatten(-1, (self.heads, -1))
        return Activations(torch.stack(streams), split, torch.stack(mlps), answers)

    @cached_property
    def slopes(self) -> Activations:
        """∂Σŷ by each activation, at the prompts: one backward pass."""
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
        handles = [self.model.ln_f.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0]))]
        for block in self.model.h:
            handles.append(block.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0])))
            handles.append(block.attn.c_proj.register_forward_pre_hook(lambda module, inputs: heads.append(inputs[0])))
            handles.append(block.mlp.register_forward_hook(lambda module, inputs, output: mlps.append(output)))
        with _until_done(handles):
            hidden = self.model(inputs_embeds=prompts).last_hidden_state
        return streams, heads, mlps, self.answers(hidden)

    def with_changes(self, changes: Sequence[Change]) -> Float[Tensor, "changes prompts samples"]:
        """ŷ on the prompts, each change alone: many at once, side by side in one batch."""
        at_once = max(1, ROOM // len(self.prompts))
        parts = [changes[start : start + at_once] for start in range(0, len(changes), at_once)]
        return torch.cat([self._changed(part) for part in parts])

    def _changed(self, changes: Sequence[Change]) -> Tensor:
        count, size = len(self.prompts), self.prompts.shape[-1] // self.heads
        handles = []
        for number, change in enumerate(changes):
            rows = slice(number * count, (number + 1) * count)
            block = self.model.h[change.block]
            if change.head is None:
                handles.append(block.mlp.register_forward_hook(_replacing_output(rows, change.value)))
            else:
                columns = slice(change.head * size, (change.head + 1) * size)
                handles.append(
                    block.attn.c_proj.register_forward_pre_hook(_replacing_input(rows, columns, change.value))
                )
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


class NoisyAnswers:
    """A specimen as a predictor and no more: its answers, with noise of `noise` times their deviation added.

    Without noise every parameter is known to the last digit, and no interval could be too narrow.
    """

    def __init__(self, specimen: Specimen, noise: float, seed: int) -> None:
        self._specimen, self.noise, self.seed = specimen, noise, seed
        self.examples = specimen.examples

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        answers = padded_prefixes(self._specimen, self._specimen.mechanism.samples, xs, ys)
        # The first answer of all is zero whatever the data are, and deviates from nothing.
        generator = torch.Generator().manual_seed(self.seed)
        errors = torch.randn(answers.shape, dtype=answers.dtype, generator=generator, device="cpu")
        return answers + self.noise * answers.std() * errors

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
        return self.predict_prefixes(points, ys)[..., -1]
