"""A program's instructions carried out as they are written, in balls: what every register must hold, and no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from emulon.certify.balls import Ball, FloatBall
from emulon.core.arrays import zeros
from emulon.machine.instruction import AffineForm, Instruction
from emulon.machine.tokens import Lookup, Matched, Where

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram

f64 = torch.float64
Kind = TypeVar("Kind", Ball, FloatBall)
# What balls may be of a distance before those of twice the precision are asked.
NOTICED = 0.5


def distance(program: RegisterProgram, inputs: Mapping[str, Tensor], name: str, seen: Tensor) -> Tensor:
    """Above |seen − what the register `name` must hold|, in every entry; NaN or infinite where nothing can be said.

    Float64 knows most programs' results well enough. Where a recurrence lets its balls grow as if no error ever
    cancelled, those of twice the precision, which start at 1e-32, are asked.
    """
    register = program.registers[name]
    held = register.enclosed(evaluate(program, inputs, FloatBall)[name])
    away = held.distance_from(seen)
    if bool(held.radius.max() <= NOTICED * away.max()):
        return away
    return register.enclosed(evaluate(program, inputs, Ball)[name]).distance_from(seen)


def evaluate(program: RegisterProgram, inputs: Mapping[str, Tensor], kind: type[Kind]) -> dict[str, Kind]:
    """Every register's stored entries at the end, (..., tokens, size), enclosed: one pass of array operations."""
    registers = initial_values(program, inputs, kind)
    registers |= {one.target.name: held for one, held in results(program, registers)}
    return registers


def initial_values(program: RegisterProgram, inputs: Mapping[str, Tensor], kind: type[Kind]) -> dict[str, Kind]:
    """Every register's stored entries before the first instruction."""
    batch = next((values.shape[:-2] for values in inputs.values()), torch.Size())
    registers: dict[str, Kind] = {}
    for name, register in program.registers.items():
        known = inputs.get(name, program.constants.get(name, program.initial.get(name)))
        stored = zeros(register.size) if known is None else known.double()
        registers[name] = kind.of(stored.expand(*batch, program.tokens, register.size))
    return registers


def results(
    program: RegisterProgram, registers: Mapping[str, Kind], added: Mapping[int, Kind] | None = None
) -> Iterator[tuple[Instruction, Kind]]:
    """What every instruction writes, in turn; `added`, by an instruction's number, is put on top of it."""
    held, extra = dict(registers), added or {}
    for instruction in program.instructions:
        result = _result(instruction, held)
        result = result + extra[instruction.number] if instruction.number in extra else result
        held[instruction.target.name] = result
        yield instruction, result


def _result(instruction: Instruction, registers: Mapping[str, Kind]) -> Kind:
    raw = instruction.raw
    read = _affine(raw.read, registers)
    if raw.operator == "+":
        there = _read_at(read, instruction.where, registers)
        return there if raw.local is None else there + _affine(raw.local, registers)
    if raw.operator == "⊓":
        return read.clamped(raw.limit)
    assert raw.local is not None
    local = _affine(raw.local, registers)
    if raw.operator == "÷":
        return read / local
    # Rows that go into one entry stand together, as many for each.
    return (read * local).apply(lambda part: part.unflatten(-1, (instruction.target.size, -1))).sum()


def _affine(form: AffineForm, registers: Mapping[str, Kind]) -> Kind:
    some = next(iter(registers.values()))
    summands = [_linear(form, name, registers[name]) for name in form.parts]
    if form.has_bias or not summands:
        summands.append(type(some).of(form.bias.expand(*some.high.shape[:-1], form.entries)))
    return reduce(lambda a, b: a + b, summands)


def _linear(form: AffineForm, name: str, values: Kind) -> Kind:
    """Most rows take one entry, or its negative, as it stands."""
    chosen = form.selections[name]
    if chosen is None:
        return values.matmul(form.parts[name].mT)
    taken = values[..., chosen.places]
    if chosen.factors is None:
        return taken
    return taken.signed(chosen.factors) if bool((chosen.factors.abs() == 1).all()) else taken * chosen.factors


def _read_at(values: Kind, where: Where, registers: Mapping[str, Kind]) -> Kind:
    """What each token reads of the others; the start token, which it reads where there is none, holds zeros."""
    tokens = values.high.shape[-2]
    if isinstance(where, Lookup):
        table = [0 if read is None else read for read in where.table]
        if table == list(range(1, tokens + 1)):
            return values
        places = torch.tensor(table, device="cpu")
        kept = (places > 0).to(f64).unsqueeze(-1)
        return values.apply(lambda part: part[..., (places - 1).clamp(min=0), :] * kept)
    members = torch.tensor(where.members, dtype=torch.long, device="cpu") - 1
    chosen = zeros(tokens, tokens)
    chosen[:, members] = (members <= torch.arange(tokens, device="cpu").unsqueeze(-1)).to(f64)
    if isinstance(where, Matched):
        return _weighed(values, chosen, registers[where.query], registers[where.key], where.sharp)
    turned = values.apply(lambda part: part.mT).matmul(chosen.mT).apply(lambda part: part.mT)
    return turned / chosen.sum(dim=-1, keepdim=True).clamp(min=1.0)


def _weighed(values: Kind, chosen: Tensor, query: Kind, key: Kind, sharp: float) -> Kind:
    """Σ_j e^{sharp·q_i·k_j} v_j / Σ_j e^{sharp·q_i·k_j} over the chosen j of every i, zeros where there is none."""
    here, there = query.apply(lambda part: part.unsqueeze(-2)), key.apply(lambda part: part.unsqueeze(-3))
    weights = ((here * there).sum() * torch.tensor(sharp, dtype=f64, device="cpu")).exp() * chosen
    each = values.apply(lambda part: part.mT.unsqueeze(-3))
    numerator = (weights.apply(lambda part: part.unsqueeze(-2)) * each).sum()
    none = (chosen.sum(dim=-1) == 0).to(f64).expand_as(weights.high[..., 0])
    total = weights.sum() + type(values).of(none)
    return numerator / total.apply(lambda part: part.unsqueeze(-1))
