"""A learner whose every pass is run by the frozen interpreter, its weights in the prompt."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from emulon.interpreter import Interpreter
from emulon.models.learner import Learner
from emulon.networks import NetworkProgram


def by_prompt(learner: Learner, program: NetworkProgram, interpreter: Interpreter | None = None) -> Learner:
    """The same learner, asked in the same ways: its forward is `program` on an interpreter, the smallest by default."""
    machine = Interpreter.fitting(program) if interpreter is None else interpreter
    asked = copy.copy(learner)

    @torch.no_grad()
    def forward(tokens: Tensor) -> Tensor:
        return machine.run(program, tokens).last

    asked.forward = forward  # type: ignore[method-assign]  # this one learner's, and nothing else of it
    return asked
