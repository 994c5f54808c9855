"""mov, aff, dot, mul, div, all cases of Read–Arithmetic–Write (Akyürek et al. 2022, Lemma 2); and clip: a layer each.

Raw's operators: `+` reads with attention (a linear map of the registers of the tokens K(i)) and adds a linear
map of the token's own registers; `⊙` multiplies two linear maps of the token's own registers entry by entry and
sums the products into the target; `÷` divides by a positive scalar; `⊓`, ours, clips a linear map of the token's own
registers at ±limit. A product of something read elsewhere is a mov and a mul: the mov's attention comes before the
mul's MLP, so the two share a layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from emulon.core.errors import BadProgram, BadShape
from emulon.machine.affine import AffineForm, Register
from emulon.machine.tokens import Matched, Where


@dataclass(frozen=True)
class Invariant:
    """What a program's author knows about a result and the compiler cannot see from the instruction alone.

    Bounds are checked in the running stream, so data that break them are refused; gains the author proves.

    Attributes:
        reason: How the gains are proved.
        low, high: Bounds of every entry.
        norm: Bound of the 2-norm.
        growth: Bound of the 2-norm gain of one round of a recurrence on earlier errors of the target.
        total: Bound of the gain of any number of rounds, as long as the error stays below `valid`.
        valid: Up to which error `total` holds.
    """

    reason: str
    low: float | None = None
    high: float | None = None
    norm: float | None = None
    growth: float | None = None
    total: float | None = None
    valid: float = math.inf


@dataclass(frozen=True)
class Raw:
    """target ← read@where + local,  or Σ read ⊙ local over rows with the same `into`,  or read / local,
    or read clipped at ±limit."""

    operator: Literal["+", "⊙", "÷", "⊓"]
    read: AffineForm
    local: AffineForm | None
    into: tuple[int, ...] = ()
    limit: float = 0.0


@dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    number: int
    name: str
    target: Register
    raw: Raw
    where: Where
    text: str
    factors: tuple[AffineForm, ...] = ()  # dot and mul: the two matrices, before their entries are paired
    invariant: Invariant | None = None
    group: int | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        local = self.raw.local.reads if self.raw.local is not None else ()
        matched = (self.where.query, self.where.key) if isinstance(self.where, Matched) else ()
        return tuple(dict.fromkeys(self.raw.read.reads + local + matched))

    def __str__(self) -> str:
        return f"{self.name}  {self.text}"

    @property
    def label(self) -> str:
        return f"instruction {self.number} ({self.name} {self.text})"


def additive(target: Register, read: AffineForm, local: AffineForm | None) -> Raw:
    """mov and aff: a symmetric target stores its upper triangle, so only those entries are read."""
    for part in (read, local):
        if part is not None and part.shape != target.shape:
            raise BadShape(f"{target.name} has shape {target.shape} but {part.text} has {part.shape}")
    return Raw("+", read.take(target.stored), None if local is None else local.take(target.stored))


def product(target: Register, left: AffineForm, right: AffineForm) -> Raw:
    """dot and mul: the matrix product, as one elementwise product and a reduction W_o."""
    (rows, inner), (inner_right, columns) = left.shape, right.shape
    if inner != inner_right or (rows, columns) != target.shape:
        raise BadShape(
            f"{target.name} {target.shape} cannot hold {left.text} {left.shape} × {right.text} {right.shape}"
        )
    entry = torch.arange(target.size, device="cpu").repeat_interleave(inner)
    row, column = target.stored[entry] // columns, target.stored[entry] % columns
    k = torch.arange(inner, device="cpu").repeat(target.size)
    return Raw("⊙", left.take(row * inner + k), right.take(k * columns + column), tuple(entry.tolist()))


def clipped(target: Register, value: AffineForm, limit: float) -> Raw:
    if value.shape != target.shape:
        raise BadShape(f"{target.name} has shape {target.shape} but {value.text} has {value.shape}")
    if not 0 < limit < math.inf:
        raise BadProgram(f"clip of {value.text} needs a positive limit, got {limit}")
    return Raw("⊓", value.take(target.stored), None, limit=limit)


def quotient(target: Register, numerator: AffineForm, divisor: AffineForm) -> Raw:
    if numerator.shape != target.shape or divisor.shape != (1, 1):
        raise BadShape(f"{target.name} {target.shape} cannot hold {numerator.text} {numerator.shape} / {divisor.text}")
    return Raw("÷", numerator.take(target.stored), divisor)
