"""Errors through a program: what each instruction adds, what it passes on, and the certificate of every register.

Errors are 2-norms over a register's entries. A register's error is Σ_s carried[s]·E_s + fresh: E_s is what the
state s (a register under a claim of stability) has gathered so far, and the claim, not the chain of operations,
says how it grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emulon.certify import Certificate
from emulon.machine.expression import Expression
from emulon.machine.instruction import Instruction
from emulon.machine.local_error import LocalError
from emulon.machine.ranges import Analysis, Range, range_of, spectral

if TYPE_CHECKING:
    from emulon.machine.program import Program

Terms = dict[str, float]


def added(a: Mapping[str, float], b: Mapping[str, float], factor: float = 1.0) -> Terms:
    out = dict(a)
    for name, value in b.items():
        out[name] = out.get(name, 0.0) + factor * value
    return out


@dataclass(frozen=True)
class Error:
    """One register's error: gains on the states' errors, and named terms of its own."""

    carried: Terms = field(default_factory=dict)
    fresh: Terms = field(default_factory=dict)

    def plus(self, other: Error, factor: float = 1.0) -> Error:
        return Error(added(self.carried, other.carried, factor), added(self.fresh, other.fresh, factor))


class Budget:
    """Walks the program, keeping every register's error."""

    def __init__(self, analysis: Analysis, local: LocalError) -> None:
        self.analysis, self.local = analysis, local
        self.errors: dict[str, Error] = {}
        self.states: dict[str, Terms] = {}
        self.sums: dict[str, Terms] = {}

    def terms(self, error: Error, *, without: str = "") -> Terms:
        out = dict(error.fresh)
        for state, gain in error.carried.items():
            if state != without:
                out = added(out, self.states[state], gain)
        return out

    def size(self, error: Error) -> float:
        return sum(self.terms(error).values(), 0.0)

    def of(self, expression: Expression | None) -> Error:
        out = Error()
        if expression is not None:
            for name, part in expression.parts.items():
                out = out.plus(self.errors.get(name, Error()), spectral(part))
        return out

    def step(self, instruction: Instruction) -> None:
        before = self.analysis.before[instruction.number - 1]
        error = self._passed(instruction, before).plus(Error(fresh=self.local.of(instruction, before)))
        name, claim = instruction.target.name, instruction.claim
        if claim is not None and (claim.growth is not None or claim.total is not None):
            self._settle(name, error, claim.growth, claim.total)
        else:
            self.errors[name] = error
        valid = math.inf if claim is None else claim.valid
        if not self.size(self.errors[name]) <= min(self.analysis.room[instruction.number - 1], valid):
            # The ranges were widened by less than this error, or a claim no longer holds: nothing is proved.
            self.errors[name] = Error(fresh={"unbounded": math.inf})

    def _passed(self, instruction: Instruction, before: Mapping[str, Range]) -> Error:
        raw = instruction.raw
        if raw.operator == "+":
            return self.of(raw.read).plus(self.of(raw.local))
        assert raw.local is not None
        if raw.operator == "÷":
            low = range_of(raw.local, before).low
            norm = self.analysis.after[instruction.number - 1].norm
            return Error().plus(self.of(raw.read), 1 / low).plus(self.of(raw.local), norm / low)
        left, right = instruction.factors
        a, b = self.of(left), self.of(right)
        out = Error().plus(a, range_of(right, before).norm).plus(b, range_of(left, before).norm)
        return out.plus(Error(fresh={"second order": self.size(a) * self.size(b)}))

    def _settle(self, name: str, error: Error, growth: float | None, total: float | None) -> None:
        """A claim replaces the gain on the target's own earlier error."""
        fresh = self.terms(error, without=name)
        for other, held in self.errors.items():
            if other != name and name in held.carried:
                rest = {state: gain for state, gain in held.carried.items() if state != name}
                self.errors[other] = Error(rest, added(held.fresh, self.states[name], held.carried[name]))
        if total is not None:
            self.sums[name] = added(self.sums.get(name, {}), fresh)
            self.states[name] = added({}, self.sums[name], total)
        else:
            self.states[name] = added(fresh, self.states.get(name, {}), growth or 0.0)
        self.errors[name] = Error(carried={name: 1.0})


def certify(program: Program, analysis: Analysis, local: LocalError) -> dict[str, Certificate]:
    """A certificate for the final content of every register that is written, as read after the last LayerNorm."""
    budget = Budget(analysis, local)
    for instruction in program.instructions:
        budget.step(instruction)
    out = {}
    for name, error in budget.errors.items():
        register, reach = program.registers[name], analysis.largest[name]
        final = local.read_out(name, reach, register.size)
        terms = added(budget.terms(error), final)
        note = "" if all(map(math.isfinite, terms.values())) else "the domain is too wide: nothing is promised"
        out[name] = Certificate(terms, local.dtype, note=note)
    return out
