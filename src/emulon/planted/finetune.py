"""Training from a planted model: its weights as the initialisation of a learner."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Certificate
from emulon.core.errors import EmulonError
from emulon.machine.layout import DIVIDE, PAD
from emulon.planted.model import PlantedModel
from emulon.tasks.task import RegressionTask, at_step

TRAINED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")


@dataclass(frozen=True)
class Trained:
    """A planted model after some training steps; its truth is that of the initialisation, and it has no bound."""

    step: int
    loss: float
    model: PlantedModel


def finetuned(
    planted: PlantedModel, task: RegressionTask, *, rate: float, at: Collection[int], batch: int = 64, seed: int = 0
) -> Iterator[Trained]:
    """Train with Adam on the squared error of ŷ at every x.

    Attention and MLP matrices are trained. What reads or writes pads and divisors, normalisations and positions stay
    as they are: in those coordinates a step of 1e-6 is as large as an answer.

    Args:
        planted: The initialisation, a GPT-2.
        task: Its data must be inside the planted model's domain.
        rate: Learning rate.
        at: Steps after which the model is yielded.
        batch: Datasets per step.
        seed: Draws the data.
    Yields:
        The model at these steps.
    Raises:
        EmulonError: The model is not a GPT-2.
    """
    if planted.build.architecture != "gpt2":
        raise EmulonError(f"{planted.name} is a {planted.architecture.title}; finetuned trains GPT-2 models only")
    model = copy.deepcopy(planted.network)
    weights = {name: part for name, part in model.named_parameters() if name.endswith(TRAINED)}
    for part in weights.values():
        part.requires_grad_(True)
    masks = {name: _mask(planted, name, part) for name, part in weights.items()}
    adam, generator = torch.optim.Adam(weights.values(), lr=rate), torch.Generator()
    for step in range(max(at) + 1):
        drawn = task.datasets(
            at_step(generator, seed, step), batch, points=planted.mechanism.samples, dtype=torch.float64
        )
        hidden = model(inputs_embeds=planted.embed(*drawn.pairs)).last_hidden_state
        loss = (planted.answers(hidden) - drawn.ys.to(planted.dtype)).square().mean()
        if step in at:
            yield Trained(step, loss.item(), _with_weights(planted, model))
        adam.zero_grad()
        loss.backward()
        for name, part in weights.items():
            assert part.grad is not None
            part.grad *= masks[name]
        adam.step()


def _mask(planted: PlantedModel, name: str, weight: Tensor) -> Tensor:
    """0 where a weight reads or writes pads or divisors, else 1."""
    registers = planted.truth.registers
    fixed = sum(registers[name].write.abs().sum(dim=0) for name in (PAD, DIVIDE) if name in registers)
    free = (torch.as_tensor(fixed, device=weight.device) == 0).to(weight)
    return free[:, None].expand_as(weight) if not name.endswith("c_proj.weight") else free.expand_as(weight)


def _with_weights(planted: PlantedModel, model: Any) -> PlantedModel:
    state = {name: part.detach().clone() for name, part in model.state_dict().items() if name in planted.state}
    void = Certificate({"training": math.inf}, planted.dtype, proved=False, note="trained: no bound is known")
    return replace(planted, state=state, certificate=void)
