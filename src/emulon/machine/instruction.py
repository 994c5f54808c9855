"""Registers, affine forms of them, and the instructions that write them: what a program is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import Tensor

from emulon.certify.balls import Ball, FloatBall
from emulon.core.arrays import eye, zeros
from emulon.core.errors import BadShape
from emulon.machine.tokens import Lookup, Matched, Where

Kind = TypeVar("Kind", Ball, FloatBall)


@dataclass(frozen=True)
class Selection:
    """A matrix each of whose rows takes one entry, times a factor (None: all 1)."""

    places: Tensor
    factors: Tensor | None

    @classmethod
    def of(cls, matrix: Tensor) -> Selection | None:
        """None where a row takes several entries, or none."""
        if not bool(((matrix != 0).sum(dim=1) == 1).all()):
            return None
        rows, places = torch.arange(len(matrix), device="cpu"), matrix.abs().argmax(dim=1)
        factors = matrix[rows, places]
        return cls(places, None if bool((factors == 1).all()) else factors)


class AffineForm:
    """A matrix of `shape` whose entries are affine in the stored entries of named registers.

    Args:
        shape: Rows and columns.
        parts: By register, the coefficients, (entries, stored size of that register); entries run row by row.
        bias: The constants, (entries,).
        text: How it is printed.
    """

    def __init__(self, shape: tuple[int, int], parts: dict[str, Tensor], bias: Tensor, text: str) -> None:
        self.shape, self.parts, self.bias, self.text = shape, parts, bias, text

    @property
    def entries(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @cached_property
    def selections(self) -> dict[str, Selection | None]:
        """By register, its part as a selection where it is one."""
        return {name: Selection.of(part) for name, part in self.parts.items()}

    @cached_property
    def has_bias(self) -> bool:
        return bool(self.bias.any())

    def map(self, matrix: Tensor, shape: tuple[int, int], text: str) -> AffineForm:
        """The expression `matrix @ entries`, as a matrix of `shape`."""
        parts = {name: matrix @ part for name, part in self.parts.items()}
        return AffineForm(shape, parts, matrix @ self.bias, text)

    def take(self, index: Tensor) -> AffineForm:
        """The entries at these places, in this order, as a column."""
        return self.map(eye(self.entries)[index], (len(index), 1), self.text)

    def __getitem__(self, entry: int) -> AffineForm:
        """One entry of a column, as a scalar."""
        return self.take(torch.tensor([entry], device="cpu")).named(f"{self.factor_text}[{entry}]")

    @property
    def T(self) -> AffineForm:
        rows, columns = self.shape
        order = torch.arange(self.entries, device="cpu").reshape(rows, columns).T.flatten()
        return self.take(order).named(f"{self.factor_text}ᵀ", (columns, rows))

    def named(self, text: str, shape: tuple[int, int] | None = None) -> AffineForm:
        """The same entries, printed as `text`."""
        return AffineForm(shape or self.shape, self.parts, self.bias, text)

    @property
    def factor_text(self) -> str:
        """The text as a factor: in brackets if it is a sum."""
        depth = 0
        for letter in self.text:
            depth += (letter == "(") - (letter == ")")
            if letter == " " and depth == 0:
                return f"({self.text})"
        return self.text

    def __add__(self, other: AffineForm | float) -> AffineForm:
        other = constant(other, self.shape) if isinstance(other, (int, float)) else other
        if other.shape != self.shape:
            raise BadShape(f"{self.text} has shape {self.shape} and {other.text} {other.shape}; they cannot be added")
        parts = dict(self.parts)
        for name, part in other.parts.items():
            parts[name] = parts[name] + part if name in parts else part
        sign, term = (" − ", other.text[1:]) if other.text.startswith("−") else (" + ", other.text)
        return AffineForm(self.shape, parts, self.bias + other.bias, f"{self.text}{sign}{term}")

    def __radd__(self, other: float) -> AffineForm:
        return constant(other, self.shape) + self

    def __mul__(self, factor: float | AffineForm) -> AffineForm:
        if not isinstance(factor, (int, float)) or not math.isfinite(factor):
            raise BadShape(f"{self.text} can be scaled by a finite number only; products of registers are dot and mul")
        parts = {name: factor * part for name, part in self.parts.items()}
        name = {1.0: "", -1.0: "−"}.get(float(factor), f"{factor:.6g}·".replace("-", "−"))
        return AffineForm(self.shape, parts, factor * self.bias, f"{name}{self.factor_text if name else self.text}")

    __rmul__ = __mul__

    def __neg__(self) -> AffineForm:
        return self * -1.0

    def __sub__(self, other: AffineForm | float) -> AffineForm:
        return self + (-other)

    def __rsub__(self, other: float) -> AffineForm:
        return constant(other, self.shape) + (-self)

    def __repr__(self) -> str:
        return self.text


def constant(value: float | Tensor, shape: tuple[int, int]) -> AffineForm:
    """A fixed matrix: it reaches the stream through the slot that holds 1 at every token but the start."""
    bias = torch.as_tensor(value, dtype=torch.float64, device="cpu").expand(shape).reshape(-1).clone()
    text = f"{value:.6g}" if isinstance(value, (int, float)) else "constant"
    return AffineForm(shape, {}, bias, text.replace("-", "−"))


class Register(AffineForm):
    """A named place in the residual stream: a scalar, a vector (column) or a matrix, one value a token.

    Args:
        name: What it is called.
        shape: Rows and columns.
        symmetric: Store the upper triangle only, so that a matrix is symmetric whatever the rounding.
    """

    def __init__(self, name: str, shape: tuple[int, int] = (1, 1), *, symmetric: bool = False) -> None:
        rows, columns = shape
        grid = torch.arange(rows * columns, device="cpu").reshape(rows, columns)
        if symmetric:
            if rows != columns:
                raise BadShape(f"register {name} cannot be symmetric with shape {shape}")
            upper = torch.triu_indices(rows, rows, device="cpu")
            self.stored = grid[upper[0], upper[1]]
            place = torch.zeros(rows, rows, dtype=torch.long, device="cpu")
            place[upper[0], upper[1]] = torch.arange(len(self.stored), device="cpu")
            expand = torch.maximum(place, place.T).flatten()
        else:
            self.stored = expand = grid.flatten()
        full = eye(len(self.stored))[expand]
        super().__init__(shape, {name: full}, zeros(rows * columns), name)
        self.name, self.size, self.symmetric = name, len(self.stored), symmetric

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per stored entry, for `slots.json`."""
        if self.size == 1:
            return (self.name,)
        rows, columns = self.shape
        if columns == 1:
            return tuple(f"{self.name}[{i}]" for i in range(rows))
        return tuple(f"{self.name}[{int(i) // columns},{int(i) % columns}]" for i in self.stored)

    def expand(self, stored: Tensor) -> Tensor:
        """Stored entries (..., size) as (..., rows·columns)."""
        return stored @ self.parts[self.name].to(stored.dtype).mT

    def enclosed(self, stored: Kind) -> Kind:
        """`expand` for balls."""
        chosen = self.selections[self.name]
        assert chosen is not None
        return stored[..., chosen.places]


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
        valid: Up to which error `total` or `gains` holds.
        gains: Bounds this register's error, in 2-norm, by what single instructions have added: the sum of gains[name]
            times the errors of all instructions that have written `name` so far, wherever they went (of a division "l /
            divisor" and "l / numerator" are misreadings, "l / relative" is the relative error). Then low, high
            and norm hold for what the machine holds, errors included. Empty: this register's own error has no bound.
    """

    reason: str
    low: float | None = None
    high: float | None = None
    norm: float | None = None
    growth: float | None = None
    total: float | None = None
    valid: float = math.inf
    gains: Mapping[str, float] | None = None


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

    @property
    def includes_errors(self) -> bool:
        """Whether its range is of what the machine holds; a quotient's rounding comes on top of it."""
        return self.invariant is not None and self.invariant.gains is not None and self.raw.operator != "÷"

    @cached_property
    def increment(self) -> AffineForm | None:
        """What is added to the target where it keeps what it holds: target ← target + increment."""
        read, name = self.raw.read, self.target.name
        kept, here = read.parts.get(name), isinstance(self.where, Lookup) and self.where.name == "here"
        if self.raw.operator != "+" or not here or kept is None:
            return None
        if not torch.equal(kept, eye(self.target.size)):
            return None
        parts = {other: part for other, part in read.parts.items() if other != name}
        return AffineForm(read.shape, parts, read.bias, read.text)

    @cached_property
    def entries_written(self) -> int:
        """How many of the target's entries can become other than zero, or change."""
        raw = self.raw
        if self.increment is not None:
            raw = Raw("+", self.increment, raw.local)
        sides = [raw.read] if raw.local is None or raw.operator == "÷" else [raw.read, raw.local]
        used = [torch.cat([side.bias[:, None], *side.parts.values()], dim=1).any(dim=1) for side in sides]
        if raw.operator != "⊙":
            return int(torch.stack(used).any(dim=0).sum())
        both = torch.tensor(raw.into, device="cpu")[used[0] & used[1]]
        return len(both.unique())

    def __str__(self) -> str:
        return f"{self.name}  {self.text}"

    @property
    def label(self) -> str:
        return f"instruction {self.number} ({self.name} {self.text})"


def require_shape_of(target: Register, form: AffineForm) -> None:
    """Refuse a form of another shape than the register that it is written to."""
    if form.shape != target.shape:
        raise BadShape(f"{target.name} has shape {target.shape} but {form.text} has {form.shape}")


def additive(target: Register, read: AffineForm, local: AffineForm | None) -> Raw:
    """mov and aff: a symmetric target stores its upper triangle, so only those entries are read."""
    for part in (read, local):
        if part is not None:
            require_shape_of(target, part)
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
