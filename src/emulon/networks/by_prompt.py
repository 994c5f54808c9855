"""A module whose forward pass is run by the frozen interpreter, its weights in the prompt."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from emulon.interpreter import Interpreter
from emulon.networks.program import NetworkProgram

Module = TypeVar("Module", bound=nn.Module)


def by_prompt(module: Module, program: NetworkProgram, interpreter: Interpreter | None = None) -> Module:
    """Replace a module's forward pass by a compiled program; its other methods stay, and use the new pass.

    Args:
        module: What `program` was compiled from, such as a learner; it is not changed.
        program: What `compile_network` made of it.
        interpreter: Runs the program; by default the smallest interpreter that fits.
    Returns:
        A shallow copy of the module.

    Example:
        >>> by_prompt(learner, compile_network(learner, data=tokens)).predict(xs, ys, x_query)  # doctest: +SKIP
    """
    machine = Interpreter.fitting(program) if interpreter is None else interpreter
    asked = copy.copy(module)

    @torch.no_grad()
    def forward(tokens: Tensor) -> Tensor:
        return machine.run(program, tokens).last

    asked.forward = forward
    return asked
