"""Which tokens a query attends to: layer 2's softmax weights in one run, for the first few samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.attention import Trace, attend
from emulon.interpreter import Run

# Rows × tokens that layer 1 works through for one picture.
AFFORDABLE = 2_000_000


@dataclass(frozen=True)
class Routing:
    """`weights` (chosen, chosen·keys): the query of each chosen sample against the tokens of the chosen samples.

    `elsewhere` is the largest total weight that one of these queries gives to tokens of samples other than its own,
    among the first `samples` of the data.
    """

    name: str
    chosen: tuple[int, ...]
    weights: Tensor
    keys: int
    samples: int
    elsewhere: float


def telling_samples(run: Run, count: int = 6) -> tuple[int, ...]:
    """Samples spread evenly over the values that ℓ′ is asked for, so that their queries look different."""
    x, y, w = _seen(run)
    order = (x @ w - y)[: _affordable(run)].argsort()
    places = torch.linspace(0, len(order) - 1, min(count, len(order))).long()
    return tuple(order[places].tolist())


def routing(run: Run, chosen: tuple[int, ...]) -> Routing:
    """The gradient phase of the last step, as `run.trace` has it, without keeping layer 1's records in memory."""
    program, interpreter = run.program, run.interpreter
    phase, keys = program.gradient, len(program.gradient.grid)
    x, y, before = _seen(run)
    # The fixed part of a rate is in the values only: it does not touch the weights drawn here.
    tokens = phase.prompt(phase.data_rows(x, y), before, state=before, before=torch.zeros_like(before))
    w_k, w_q, _ = phase.weights(x.new_tensor([program.step_size]), x.new_tensor([program.shrink]), 0.0)
    samples = max(_affordable(run), *(i + 1 for i in chosen))
    asking = interpreter.project(tokens[list(chosen)], w_q)
    answering = interpreter.project(tokens[: samples * keys], w_k)
    with Trace() as trace:
        attend(asking, answering, answering, name="layer 2")
    weights = trace["layer 2"].weights.unflatten(-1, (samples, keys))
    # One less the weight at home would drown in rounding: add up what is elsewhere instead.
    mask = torch.arange(samples) != torch.tensor(chosen).unsqueeze(-1)
    elsewhere = (weights.sum(dim=-1) * mask).sum(dim=-1).max().item()
    return Routing(program.name, chosen, weights[:, list(chosen)].flatten(-2), keys, samples, elsewhere)


def _seen(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """x and y as ℓ′ sees them, and the weights before the last step; of the first class where there are several."""
    first = (0,) * (run.x.ndim - 2)
    x, y, _ = run.program.loss.effective(run.x[first], run.y[first])
    return x, y, run.iterates[first][-2]


def _affordable(run: Run) -> int:
    phase = run.program.gradient
    return min(phase.domain.samples, max(8, AFFORDABLE // (len(phase.grid) * phase.width)))
