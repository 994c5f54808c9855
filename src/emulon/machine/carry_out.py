"""A program's instructions carried out as they are written, in balls: what every register must hold, and no weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emulon.certify.balls import Ball
from emulon.machine.affine import AffineForm
from emulon.machine.instruction import Instruction
from emulon.machine.tokens import Lookup, Where

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram

f64 = torch.float64


def carried_out(program: RegisterProgram, inputs: Mapping[str, Tensor]) -> dict[str, Ball]:
    """Every register's stored entries at the end, (..., tokens, size), enclosed.

    Cost: one pass of array operations over the instructions. Balls grow along a recurrence as if no error ever
    cancelled, but they start at 1e-32.
    """
    batch = next((values.shape[:-2] for values in inputs.values()), torch.Size())
    registers: dict[str, Ball] = {}
    for name, register in program.registers.items():
        known = inputs.get(name, program.constants.get(name, program.initial.get(name)))
        stored = torch.zeros(register.size, dtype=f64) if known is None else known.double()
        registers[name] = Ball.of(stored.expand(*batch, program.tokens, register.size))
    for instruction in program.instructions:
        registers[instruction.target.name] = _result(instruction, registers)
    return registers


def _result(instruction: Instruction, registers: Mapping[str, Ball]) -> Ball:
    raw = instruction.raw
    read = _affine(raw.read, registers)
    if raw.operator == "+":
        there = _read_at(read, instruction.where)
        return there if raw.local is None else there + _affine(raw.local, registers)
    assert raw.local is not None
    local = _affine(raw.local, registers)
    if raw.operator == "÷":
        return read / local
    # Rows that go into one entry stand together, as many for each.
    products = (read * local).apply(lambda part: part.unflatten(-1, (instruction.target.size, -1)))
    total = products[..., 0]
    for term in range(1, products.high.shape[-1]):
        total = total + products[..., term]
    return total


def _affine(form: AffineForm, registers: Mapping[str, Ball]) -> Ball:
    tokens = next(iter(registers.values())).high.shape[:-1]
    summands = [_linear(part, registers[name]) for name, part in form.parts.items()]
    if form.bias.any() or not summands:
        summands.append(Ball.of(form.bias.expand(*tokens, form.entries)))
    return reduce(lambda a, b: a + b, summands)


def _linear(matrix: Tensor, values: Ball) -> Ball:
    """Most rows take one entry, or its negative, as it stands."""
    if bool(((matrix != 0).sum(dim=1) == 1).all()):
        place = matrix.abs().argmax(dim=1)
        factor = matrix[torch.arange(len(matrix)), place]
        taken = values[..., place]
        return taken if bool((factor == 1).all()) else taken * factor
    return values.matmul(matrix.mT)


def _read_at(values: Ball, where: Where) -> Ball:
    """What each token reads of the others; the start token, which it reads where there is none, holds zeros."""
    tokens = values.high.shape[-2]
    if isinstance(where, Lookup):
        places = torch.tensor([0 if read is None else read for read in where.table])
        kept = (places > 0).to(f64).unsqueeze(-1)
        return values.apply(lambda part: part[..., (places - 1).clamp(min=0), :] * kept)
    members = torch.tensor(where.members) - 1
    chosen = torch.zeros(tokens, tokens, dtype=f64)
    chosen[:, members] = (members <= torch.arange(tokens).unsqueeze(-1)).to(f64)
    turned = values.apply(lambda part: part.mT).matmul(chosen.mT).apply(lambda part: part.mT)
    return turned / chosen.sum(dim=-1, keepdim=True).clamp(min=1.0)
