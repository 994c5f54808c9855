"""The trained modules of Hu et al.'s public code, rebuilt, many of one shape at once.

Every parameter has a leading axis of models. Their losses are added up and Adam works entry by entry, so that each
model is trained as if it were alone (`tests/reproduce/test_emulation_modules.py` compares with modules that are).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from emulon.core import Progress
from emulon.training.step import matrix_precision
from reproduce.claim import Setting

# What the claims about trained modules have in common.
SMALL = {"datasets": 500, "features": 4, "points": 5, "hidden": 12, "p": 15, "epochs": 8, "batch": 32, "lr": 3e-3}
GPU = {"datasets": 50_000, "features": 24, "points": 20, "hidden": 48, "p": 60, "epochs": 50, "batch": 32, "lr": 1e-3}

# Tokens of the data, and the learnable tokens that are the same for all data.
Extended = tuple[Tensor, Tensor]


class Linears(nn.Module):
    """One affine map for each model, drawn as torch's `nn.Linear` draws its own: ±1/√(width in)."""

    def __init__(self, models: int, width_in: int, width_out: int, draw: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width_in)
        self.weight = nn.Parameter((torch.rand(models, width_in, width_out, generator=draw) * 2 - 1) * bound)
        self.bias = nn.Parameter((torch.rand(models, 1, width_out, generator=draw) * 2 - 1) * bound)

    def forward(self, x: Float[Tensor, "models *rest width"]) -> Float[Tensor, "models *rest out"]:
        out: Tensor = torch.baddbmm(self.bias, x.flatten(1, -2), self.weight)
        return out.view(*x.shape[:-1], self.weight.shape[-1])


class Extension(nn.Module):
    """Projects every token, multiplies it by a factor for its position and feature, and adds learnable tokens.

    The factors start at 1, the `extra` learnable tokens at linspace(−1, 1, extra), the same number in all features.
    """

    def __init__(self, models: int, tokens: int, width_in: int, hidden: int, extra: int, draw: torch.Generator) -> None:
        super().__init__()
        self.project = Linears(models, width_in, hidden, draw)
        self.modulation = nn.Parameter(torch.ones(models, 1, tokens, hidden))
        self.extra = nn.Parameter(torch.linspace(-1.0, 1.0, extra).unsqueeze(-1).repeat(models, 1, hidden))

    def forward(self, x: Float[Tensor, "models batch tokens width"]) -> Extended:
        return self.project(x) * self.modulation, self.extra


def attend(rows: Tensor, keys: Extended, values: Extended) -> tuple[Tensor, Tensor]:
    """softmax(rows · keysᵀ) · values and the weights, over the tokens of the data and then the learnable ones.

    All are (models, heads, …, width), the tokens of the data with (batch, tokens) between, the learnable with (extra).
    """
    batch, n = rows.shape[2:4]
    learnable = rows.flatten(2, 3) @ keys[1].mT
    weights = torch.cat([rows @ keys[0].mT, learnable.unflatten(2, (batch, n))], dim=-1).softmax(dim=-1)
    own, learnable = weights[..., : keys[0].shape[-2]], weights[..., keys[0].shape[-2] :]
    return own @ values[0] + (learnable.flatten(2, 3) @ values[1]).unflatten(2, (batch, n)), weights


class MultiHeads(nn.Module):
    """Extension, then multi-head softmax attention with an output map; answers for the tokens of the data.

    What the learnable tokens would answer is cut off in the public code, and not computed here.
    """

    def __init__(
        self,
        models: int,
        tokens: int,
        width_in: int,
        hidden: int,
        width_out: int,
        *,
        extra: int,
        heads: int,
        draw: torch.Generator,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.extension = Extension(models, tokens, width_in, hidden, extra, draw)
        self.query, self.key, self.value = (Linears(models, hidden, hidden, draw) for _ in range(3))
        self.out = Linears(models, hidden, width_out, draw)

    def forward(self, x: Float[Tensor, "models batch tokens width"]) -> Float[Tensor, "models batch tokens out"]:
        return self.answer(x)[0]

    def answer(self, x: Float[Tensor, "models batch tokens width"]) -> tuple[Tensor, Tensor]:
        """The answers, and the attention weights (models, heads, batch, tokens, tokens + extra)."""
        own, extra = self.extension(x)
        rows = self._split(self.query(own))
        keys, values = ((self._split(part(own)), self._split(part(extra))) for part in (self.key, self.value))
        mixed, weights = attend(rows * rows.shape[-1] ** -0.5, keys, values)
        return self.out(mixed.movedim(1, -2).flatten(-2)), weights

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, x.shape[-1] // self.heads))
        return heads.movedim(-2, 1)


class TwoInputs(nn.Module):
    """Section 5.1's head: keys and values from [X; y], queries from W, each through an extension of its own.

    With `over_keys` the softmax is normalised over the keys, as attention is. The public code computes softmax(K Qᵀ)
    over the last axis, which is that of the queries, and multiplies the values of [X; y] by it.
    """

    def __init__(
        self,
        models: int,
        tokens: int,
        features: int,
        hidden: int,
        *,
        extra: int,
        over_keys: bool,
        draw: torch.Generator,
    ) -> None:
        super().__init__()
        self.over_keys = over_keys
        self.of_data = Extension(models, tokens, features + 1, hidden, extra, draw)
        self.of_weights = Extension(models, tokens, features, hidden, extra, draw)
        self.query, self.key = (Linears(models, hidden, hidden, draw) for _ in range(2))
        self.value = Linears(models, hidden, features, draw)

    def forward(
        self, x: Float[Tensor, "models batch tokens data"], w: Float[Tensor, "models batch tokens width"]
    ) -> Float[Tensor, "models batch tokens width"]:
        data, weights = self.of_data(x), self.of_weights(w)
        queries, keys, values = (
            (part(own).unsqueeze(1), part(extra).unsqueeze(1))
            for part, (own, extra) in ((self.query, weights), (self.key, data), (self.value, data))
        )
        rows, columns = (queries, keys) if self.over_keys else (keys, queries)
        return attend(rows[0], columns, values)[0].squeeze(1)


class Predictor(nn.Module):
    """Appendix C's module: every token carries the weights w, multi-head attention, one number for every token."""

    def __init__(
        self, models: int, tokens: int, features: int, hidden: int, *, extra: int, heads: int, draw: torch.Generator
    ) -> None:
        super().__init__()
        self.heads = MultiHeads(models, tokens, 2 * features, hidden, hidden, extra=extra, heads=heads, draw=draw)
        self.out = Linears(models, hidden, 1, draw)

    def forward(
        self, x: Float[Tensor, "models batch tokens features"], w: Float[Tensor, "models batch features"]
    ) -> Float[Tensor, "models batch tokens"]:
        return self.answer(x, w)[0]

    def answer(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers, and the attention weights as `MultiHeads.answer` gives them."""
        mixed, weights = self.heads.answer(torch.cat([x, w.unsqueeze(2).expand_as(x)], dim=-1))
        return self.out(mixed).squeeze(-1), weights


class Batches:
    """Shuffled mini-batches of several streams at once, each with rows of its own.

    `tensors` share their first axis, and `rows[s]` are those of stream s. `draw` may be recorded in a CUDA graph: an
    epoch's order lies in a buffer. An incomplete last batch is left out, which the public code keeps.
    """

    def __init__(self, tensors: Sequence[Tensor], rows: Int[Tensor, "streams rows"], batch: int, seed: int) -> None:
        self.tensors, self.rows, self.batch = tensors, rows, min(batch, rows.shape[1])
        self.steps = rows.shape[1] // self.batch
        self._order, self._position = rows.clone(), torch.zeros(1, dtype=torch.long, device=rows.device)
        self._chance = torch.zeros(rows.shape, device=rows.device)
        self._within = torch.arange(self.batch, device=rows.device)
        self._draw = torch.Generator(rows.device).manual_seed(seed)

    def shuffle(self) -> None:
        """Begins an epoch."""
        order = self._chance.uniform_(generator=self._draw).argsort(dim=1)
        self._order.copy_(self.rows.gather(1, order))
        self._chance.uniform_(generator=self._draw)
        self._position.zero_()

    def draw(self) -> list[Tensor]:
        """The next batch, (streams, batch, …) of every tensor, and a fresh uniform number for each of its rows."""
        at = self._position + self._within
        chosen, chance = self._order.index_select(1, at), self._chance.index_select(1, at)
        self._position += self.batch
        return [*(tensor[chosen] for tensor in self.tensors), chance]


def in_chunks(tensors: Sequence[Tensor], rows: Int[Tensor, "streams rows"], chunk: int = 250) -> Iterator[list[Tensor]]:
    """The same rows once and in order, a few at a time: what held-out errors are measured on."""
    for some in rows.split(chunk, dim=1):
        yield [tensor[some] for tensor in tensors]


def fit(modules: nn.Module, loss: Callable[..., Tensor], batches: Batches, setting: Setting) -> None:
    """Adam at a constant rate on `loss(*batch)`, the sum of all models' losses; on a GPU a step is one CUDA graph.

    Of the setting's sizes it takes `epochs` and `lr`, and `fast`: whether matrix products are in tf32 and the loss is
    compiled.
    """
    epochs, lr, fast = setting.sizes["epochs"], setting.sizes["lr"], setting.sizes.get("fast")
    device = batches.rows.device
    modules.to(device)
    if fast:
        loss = torch.compile(loss, dynamic=False)
    with matrix_precision("tf32" if fast else "fp32"):
        _fit(modules, loss, batches, epochs, lr, setting.report_progress)


def _fit(
    modules: nn.Module, loss: Callable[..., Tensor], batches: Batches, epochs: int, lr: float, report_progress: Progress
) -> None:
    device = batches.rows.device
    optimizer = torch.optim.Adam(modules.parameters(), lr=lr, fused=True, capturable=device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss(*batches.draw()).backward()
        optimizer.step()

    made, replay = 0, step
    for epoch in range(epochs):
        batches.shuffle()
        for _ in range(batches.steps):
            if device.type == "cuda" and made == WARM_UP:
                replay = _captured(step, device)
            replay() if made >= WARM_UP or device.type != "cuda" else _aside(step)
            made += 1
        report_progress("training", (epoch + 1) / epochs)
    if device.type == "cuda":
        torch.cuda.synchronize()


# Steps that are made before one is recorded: the optimiser's state must be there.
WARM_UP = 3


def _aside(step: Callable[[], None]) -> None:
    """A step on a stream of its own, as recording asks of those before it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)


def _captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
