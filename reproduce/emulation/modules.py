"""The trained modules of Hu et al.'s public code, rebuilt, and models of one shape trained side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from emulon.core import Progress
from emulon.training.step import matrix_precision
from reproduce.claim import Setting

# What the claims about trained modules have in common.
SMALL = {"datasets": 500, "features": 4, "points": 5, "hidden": 12, "p": 15, "epochs": 8, "batch": 32, "lr": 3e-3}
GPU = {"datasets": 50_000, "features": 24, "points": 20, "hidden": 48, "p": 60, "epochs": 50, "batch": 32, "lr": 1e-3}


class Stack(nn.Module):
    """Models of one shape, drawn from a seed; inputs and outputs have a leading axis of models.

    With the sum of their losses Adam, which works entry by entry, trains each model as if it were alone.
    """

    def __init__(self, models: int, seed: int, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            every = [make() for _ in range(models)]
        shape = copy.deepcopy(every[0]).to("meta")
        state, _ = torch.func.stack_module_state(every)
        self.values = nn.ParameterList(state.values())

        def one(values: Sequence[Tensor], *inputs: Tensor) -> Any:
            return torch.func.functional_call(shape, dict(zip(state, values, strict=True)), inputs)

        self.every = torch.vmap(one)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The answers and the attention weights of every model."""
        found: tuple[Tensor, Tensor] = self.every(tuple(self.values), *inputs)
        return found


class Extension(nn.Module):
    """Projects every token, multiplies it by a factor for its position and feature, and adds learnable tokens.

    The factors start at 1, the `extra` learnable tokens at linspace(−1, 1, extra), the same number in all features.
    """

    def __init__(self, tokens: int, width_in: int, hidden: int, extra: int) -> None:
        super().__init__()
        self.project = nn.Linear(width_in, hidden)
        self.modulation = nn.Parameter(torch.ones(tokens, hidden))
        self.extra = nn.Parameter(torch.linspace(-1.0, 1.0, extra).unsqueeze(-1).repeat(1, hidden))

    def forward(self, x: Tensor, *maps: nn.Module) -> list[Float[Tensor, "batch all_tokens _"]]:
        """Each map of the data's tokens and, behind them, of the learnable ones."""
        own = self.project(x) * self.modulation
        return [torch.cat([one(own), one(self.extra).expand(len(x), -1, -1)], dim=1) for one in maps]


class MultiHeads(nn.Module):
    """Extension, then multi-head softmax attention with an output map; answers for the tokens of the data.

    What the learnable tokens would answer is cut off in the public code, and not computed here.
    """

    def __init__(self, tokens: int, width_in: int, hidden: int, width_out: int, extra: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.extension = Extension(tokens, width_in, hidden, extra)
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, width_out)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> tuple[Tensor, Tensor]:
        """The answers, and the attention weights (batch, heads, tokens, tokens + extra)."""
        parts = self.extension(x, self.query, self.key, self.value)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        weights = (q[:, :, : x.shape[1]] @ k.mT * k.shape[-1] ** -0.5).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(-2)), weights


class TwoInputs(nn.Module):
    """Section 5.1's head: keys and values from [X; y], queries from W, each through an extension of its own.

    With `over_keys` the softmax is normalised over the keys, as attention is. The public code computes softmax(K Qᵀ)
    over the last axis, which is that of the queries, and multiplies the values of [X; y] by it.
    """

    def __init__(self, tokens: int, features: int, hidden: int, extra: int, over_keys: bool) -> None:
        super().__init__()
        self.over_keys = over_keys
        self.of_data = Extension(tokens, features + 1, hidden, extra)
        self.of_weights = Extension(tokens, features, hidden, extra)
        self.query, self.key = (nn.Linear(hidden, hidden) for _ in range(2))
        self.value = nn.Linear(hidden, features)

    def forward(
        self, x: Float[Tensor, "batch tokens data"], w: Float[Tensor, "batch tokens width"]
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.of_data(x, self.key, self.value)
        [queries] = self.of_weights(w, self.query)
        rows, columns = (queries, keys) if self.over_keys else (keys, queries)
        weights = (rows[:, : x.shape[1]] @ columns.mT).softmax(dim=-1)
        return weights @ values, weights


class Predictor(nn.Module):
    """Appendix C's module: every token carries the weights w, multi-head attention, one number for every token."""

    def __init__(self, tokens: int, features: int, hidden: int, extra: int, heads: int) -> None:
        super().__init__()
        self.heads = MultiHeads(tokens, 2 * features, hidden, hidden, extra, heads)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], w: Float[Tensor, "batch features"]
    ) -> tuple[Tensor, Tensor]:
        mixed, weights = self.heads(torch.cat([x, w.unsqueeze(1).expand_as(x)], dim=-1))
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
    """The same rows once and in order, a few at a time, for held-out errors."""
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
