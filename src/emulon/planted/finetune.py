"""Compile, then train: a planted model's weights as the start of a learner, and what training leaves of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Certificate
from emulon.machine.layout import DIVIDE, PAD
from emulon.planted.model import PlantedModel
from emulon.tasks.randomness import at_step
from emulon.tasks.regression import RegressionTask

TRAINED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")


@dataclass(frozen=True)
class Trained:
    """A planted model after some steps: the loss of the last one, and the start's truth, which may not hold."""

    step: int
    loss: float
    model: PlantedModel


def finetuned(
    planted: PlantedModel, task: RegressionTask, *, rate: float, at: Collection[int], batch: int = 64, seed: int = 0
) -> Iterator[Trained]:
    """Adam on the squared error of ŷ at every x of `task`, whose data must lie in the planted model's domain.

    Attention and MLP matrices are trained; what reads or writes the pads and divisors stays, and so do LayerNorms and
    positions: in those coordinates a step of 1e-6 is as large as an answer. Nothing is promised of what comes out.
    """
    model = copy.deepcopy(planted.gpt2)
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
    """0 where a weight reads or writes pads or divisors."""
    registers = planted.truth.registers
    apart = sum(registers[name].write.abs().sum(dim=0) for name in (PAD, DIVIDE) if name in registers)
    free = (torch.as_tensor(apart, device=weight.device) == 0).to(weight)
    return free[:, None].expand_as(weight) if not name.endswith("c_proj.weight") else free.expand_as(weight)


def _with_weights(planted: PlantedModel, model: Any) -> PlantedModel:
    state = {name: part.detach().clone() for name, part in model.state_dict().items() if name in planted.state}
    void = Certificate({"training": math.inf}, planted.dtype, proved=False, note="trained: nothing is promised")
    return replace(planted, state=state, certificate=void)
