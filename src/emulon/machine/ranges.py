"""Domain analysis: what every register can hold, by interval and 2-norm arithmetic, before any weight is built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emulon.certify.domain import require_finite
from emulon.certify.rounding import unit
from emulon.core.errors import BadProgram, OutOfDomain
from emulon.machine.instruction import AffineForm, Instruction
from emulon.machine.tokens import Matched

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram


EDGE = 2.0**-20  # data on the edge of their domain may be rounded over it, in float32 too


@dataclass(frozen=True)
class Range:
    """Every entry lies in [low, high] and the 2-norm is at most `norm`."""

    low: float
    high: float
    norm: float

    @property
    def peak(self) -> float:
        return max(abs(self.low), abs(self.high))

    @classmethod
    def of(cls, low: float, high: float, norm: float, entries: int) -> Range:
        """The tightest consistent range: no entry exceeds the norm, no norm √entries times the largest entry."""
        low, high = max(low, -norm), min(high, norm)
        return cls(low, high, min(norm, math.sqrt(entries) * max(abs(low), abs(high))))

    def widened(self, by: float) -> Range:
        return Range(self.low - by, self.high + by, self.norm + by)

    def hull(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high), max(self.norm, other.norm))

    def require(self, name: str, values: Tensor) -> None:
        """Refuse data that are not finite or lie outside; on the edge they may be rounded over it."""
        if not values.is_floating_point():
            raise OutOfDomain(f"{name} is {values.dtype}; convert it to the program's dtype first")
        require_finite(**{name: values})
        worst, norm = values.abs().max().item(), torch.linalg.vector_norm(values, dim=-1).max().item()
        if worst > self.peak * (1 + EDGE) or norm > self.norm * (1 + EDGE):
            raise OutOfDomain(
                f"{name} reaches |·| = {worst:.6g}, ‖·‖ = {norm:.6g}; the program was built for {self.peak:.6g} and "
                f"{self.norm:.6g}: rescale, or build a wider domain"
            )


ZERO = Range(0.0, 0.0, 0.0)


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2)) * (1 + 1e-12) if matrix.numel() else 0.0


def slack(reach: Range, dtype: torch.dtype) -> float:
    """Stored values differ from exact ones: ranges are widened by this much, and the budget checks that it suffices."""
    room = max(unit(dtype) ** 0.25, 2.0**-10)
    # What cannot be negative may be divided by, perhaps after adding 1: its lower end must not move by a share
    # of its upper.
    least = min(reach.peak, max(reach.low, 1.0)) if reach.low >= 0 < reach.high else reach.peak or 1.0
    return float(room * least)


def range_of(expression: AffineForm, ranges: Mapping[str, Range]) -> Range:
    """Entry by entry W⁺·high + W⁻·low + b, and Σ ‖W‖₂·norm + ‖b‖₂."""
    low, high = expression.bias.clone(), expression.bias.clone()
    norm = float(torch.linalg.vector_norm(expression.bias))
    for name, part in expression.parts.items():
        reg = ranges[name]
        up, down = part.clamp(min=0).sum(dim=1), part.clamp(max=0).sum(dim=1)
        low += up * reg.low + down * reg.high
        high += up * reg.high + down * reg.low
        norm += spectral(part) * reg.norm
    return Range.of(float(low.min()), float(high.max()), norm, expression.entries)


@dataclass
class Analysis:
    """Ranges before and after every instruction, the slack left for error, the largest each register gets."""

    before: list[dict[str, Range]] = field(default_factory=list)
    after: list[Range] = field(default_factory=list)
    room: list[float] = field(default_factory=list)
    largest: dict[str, Range] = field(default_factory=dict)


def analyse(program: RegisterProgram, dtype: torch.dtype, allowed: Sequence[float] = ()) -> Analysis:
    """Run the program on ranges; refuse with the instruction's name what leaves its domain.

    `allowed` is the error allowed for each instruction; by default it follows from range and dtype.
    """
    ranges = dict(program.known)
    analysis = Analysis(largest=dict(ranges))
    for instruction in program.instructions:
        analysis.before.append(dict(ranges))
        result = _within_invariant(instruction, _result(instruction, ranges))
        if not math.isfinite(result.peak) or result.norm > math.sqrt(torch.finfo(dtype).max) ** 0.5:
            raise BadProgram(f"{instruction.label} can reach {result.peak:.3g}, beyond what {dtype} can carry")
        room = allowed[instruction.number - 1] if allowed else slack(result, dtype)
        analysis.room.append(0.0 if instruction.includes_errors else room)
        result = result.widened(analysis.room[-1])
        analysis.after.append(result)
        name = instruction.target.name
        ranges[name] = result
        analysis.largest[name] = analysis.largest.get(name, ZERO).hull(result)
    return analysis


def _result(instruction: Instruction, ranges: Mapping[str, Range]) -> Range:
    raw, size = instruction.raw, instruction.target.size
    read = range_of(raw.read, ranges)
    if raw.operator == "+":
        _require_reach(instruction, ranges)
        read = read.hull(ZERO) if instruction.where.reads_start else read
        local = range_of(raw.local, ranges) if raw.local is not None else ZERO
        return Range.of(read.low + local.low, read.high + local.high, read.norm + local.norm, size)
    if raw.operator == "⊓":
        low, high = (max(-raw.limit, min(raw.limit, end)) for end in (read.low, read.high))
        return Range.of(low, high, read.norm, size)
    assert raw.local is not None
    local = range_of(raw.local, ranges)
    if raw.operator == "÷":
        if local.low <= 0:
            raise BadProgram(
                f"{instruction.label} divides by {raw.local.text}, which can be {local.low:.6g}; it must be > 0"
            )
        corners = [a / b for a in (read.low, read.high) for b in (local.low, local.high)]
        return Range.of(min(corners), max(corners), read.norm / local.low, size)
    corners = [a * b for a in (read.low, read.high) for b in (local.low, local.high)]
    terms = len(raw.into) // size
    # Norms of the operands as matrices: rows of `read` repeat each entry, so the plain expressions are ranged.
    left, right = (range_of(part, ranges).norm for part in instruction.factors)
    return Range.of(terms * min(corners), terms * max(corners), left * right, size)


def _require_reach(instruction: Instruction, ranges: Mapping[str, Range]) -> None:
    """A match may not weigh more than its map was made for."""
    where = instruction.where
    if isinstance(where, Matched):
        most = where.sharp * ranges[where.query].norm * ranges[where.key].norm
        if most > where.reach:
            raise BadProgram(
                f"{instruction.label} matches {where.query} with {where.key}, which can reach {most:.6g}; its map was "
                f"made for {where.reach:.6g}"
            )


def _within_invariant(instruction: Instruction, result: Range) -> Range:
    invariant = instruction.invariant
    if invariant is None:
        return result
    low = result.low if invariant.low is None else max(result.low, invariant.low)
    high = result.high if invariant.high is None else min(result.high, invariant.high)
    norm = result.norm if invariant.norm is None else min(result.norm, invariant.norm)
    if low > high:
        raise BadProgram(f"{instruction.label} promises [{low:.6g}, {high:.6g}], which is empty")
    return Range.of(low, high, norm, instruction.target.size)
