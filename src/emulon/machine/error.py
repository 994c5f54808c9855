"""What one instruction adds to the error, what it passes on, and the certificate of every register.

An instruction adds truncation, routing leak, LayerNorm's scaling, division, and rounding. Rounding follows the standard
model; torch's GELU is taken to err by at most 4u·|GELU(z)| + u·|z|, its softmax by 8u.
Errors are 2-norms over a register's entries. A register's error is Σ_s carried[s]·E_s + fresh: E_s is what the
state s (a register under an invariant of stability) has gathered so far, and the invariant, not the chain of
operations, says how it grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from emulon.certify import Certificate
from emulon.certify.rounding import EXP_ASSUMED, average, gamma, shifted_average, softmax_weights, unit
from emulon.machine.instruction import AffineForm, Instruction
from emulon.machine.normalisation import KINK, Normalisation, square, steepness
from emulon.machine.ranges import Analysis, Range, range_of, spectral
from emulon.machine.tokens import Average, Matched, Where, gap, sharpness

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram

GELU_ROUNDINGS = 4
GELU_ASSUMED = "torch's GELU errs by at most 4u·|GELU(z)| + u·|z| for |z| ≤ 1/4"
GELU_FAR_ROUNDINGS = 8
GELU_FAR_ASSUMED = "torch's GELU errs by at most 8u·|z|, whatever z"


@dataclass(frozen=True)
class Division:
    """D, the divisor's interval, and how often the attention has swept the previous divisor out (0: there was none)."""

    factor: float
    low: float
    high: float
    sweeps: int


@dataclass(frozen=True)
class LocalError:
    """The error terms of single instructions, as 2-norms over the target's entries."""

    normalisation: Normalisation
    divisions: Mapping[int, Division]
    scale: Mapping[str, float]
    here: Where
    tokens: int

    @property
    def dtype(self) -> torch.dtype:
        return self.normalisation.dtype

    def of(self, instruction: Instruction, before: Mapping[str, Range]) -> dict[str, float]:
        kinds = {"+": self._sum, "⊙": self._product, "÷": self._quotient, "⊓": self._clipped}
        kind, size, written = kinds[instruction.raw.operator], instruction.target.size, instruction.entries_written
        old = self._old(instruction.target.name, before)
        entry = kind(instruction, before, old)
        # Entries that are only erased.
        fresh = entry if written == size else kind(instruction, before, 0.0)
        root, rest = math.sqrt(written), math.sqrt(size)
        return {name: root * fresh.get(name, 0.0) + rest * (e - fresh.get(name, 0.0)) for name, e in entry.items()}

    def own(self, instruction: Instruction, before: Mapping[str, Range]) -> dict[str, float]:
        """What an instruction adds to the error of its target, by the names of `Invariant.gains`."""
        name, invariant = instruction.target.name, instruction.invariant
        if instruction.raw.operator != "÷" or invariant is None or invariant.gains is None:
            return {name: sum(self.of(instruction, before).values())}
        old = self._old(name, before)
        divisor, numerator, relative, rest = self._division(instruction, before, old)
        misread = math.sqrt(instruction.entries_written) * numerator
        parts = {"divisor": divisor, "numerator": misread, "relative": relative}
        erased = math.sqrt(instruction.target.size) * sum(rest.values())
        return {name: erased, **{f"{name} / {part}": error for part, error in parts.items()}}

    def assumes(self, program: RegisterProgram) -> tuple[str, ...]:
        """What the bounds assume of torch."""
        far = (GELU_FAR_ASSUMED,) if any(each.raw.operator == "⊓" for each in program.instructions) else ()
        return EXP_ASSUMED, GELU_ASSUMED, *far

    def read_out(self, name: str, reach: Range, size: int) -> dict[str, float]:
        """The final LayerNorm and the subtraction of the zero slot."""
        rounding = math.sqrt(size) * self.normalisation.read_error(1, reach.peak, self.scale[name])
        return {"normalisation": self.normalisation.scaling * reach.norm, "rounding": rounding}

    # Reads

    def _old(self, name: str, before: Mapping[str, Range]) -> float:
        """The largest value that a write has to erase; 0 where there is none."""
        return self.scale[name] if name in before else 0.0

    def _sizes(self, part: AffineForm, before: Mapping[str, Range]) -> tuple[int, float, float]:
        """Of the worst row: how many terms it has, Σ|a·x|, and Σ|a|·scale, its weights on the stored numbers."""
        terms = (part.bias != 0).long()
        magnitude = coefficients = part.bias.abs()
        for name, matrix in part.parts.items():
            terms = terms + (matrix != 0).sum(dim=1)
            coefficients = coefficients + matrix.abs().sum(dim=1) * self.scale[name]
            magnitude = magnitude + matrix.abs().sum(dim=1) * before[name].peak
        return int(terms.max()), float(magnitude.max()), float(coefficients.max())

    def _read(self, part: AffineForm, before: Mapping[str, Range]) -> tuple[float, float]:
        """The largest value of a functional, and the rounding of reading it."""
        terms, magnitude, coefficients = self._sizes(part, before)
        return range_of(part, before).peak, self.normalisation.read_error(terms, magnitude, coefficients)

    def _skew(self, part: AffineForm, before: Mapping[str, Range]) -> float:
        """The rounding of a functional's sum alone, which may differ between a row of weights and its negative."""
        terms, magnitude, coefficients = self._sizes(part, before)
        plain = gamma(terms + 2, self.dtype) * (magnitude + 2 * coefficients * self.normalisation.mean)
        return plain + 2 * coefficients * self.normalisation.skew

    def _entry(self, name: str, before: Mapping[str, Range]) -> float:
        """The error of reading one entry of a register."""
        return self.normalisation.read_error(1, before[name].peak, self.scale[name])

    def _scored(self, where: Matched) -> tuple[float, float]:
        """The relative error of the products of a match, and what else it adds: weights that are not alike."""
        products = gamma(where.size + 3, self.dtype)
        beta = sharpness(where, self.tokens, self.dtype)
        return 2.1 * self.normalisation.scaling + products, products * (beta + where.reach)

    def _matched(self, where: Where, before: Mapping[str, Range]) -> float:
        """What a match adds to the error of a score: reading both sides, multiplying, exp."""
        if not isinstance(where, Matched):
            return 0.0
        query, key, root = before[where.query], before[where.key], math.sqrt(where.size)
        q_error, k_error = (root * self._entry(name, before) for name in (where.query, where.key))
        relative, beside = self._scored(where)
        moved = 1.1 * where.sharp * (relative * query.norm * key.norm + query.norm * k_error + key.norm * q_error)
        return moved + beside + softmax_weights(0.0, 2 * where.reach, self.dtype)

    def _attended(self, where: Where, value: float, rounding: float, matched: float = 0.0) -> dict[str, float]:
        """A functional read with attention: leak to unwanted tokens, uneven weights of wanted ones, rounding."""
        norm, u = self.normalisation, unit(self.dtype)
        beta = sharpness(where, self.tokens, self.dtype)
        score = 2 * beta * (norm.scaling + 2 * norm.read_error(2, 1.0, 2.0) + 4 * u) + matched
        beaten = beta * gap(where, self.tokens) - (2 * where.reach if isinstance(where, Matched) else 0.0)
        leak = self.tokens * math.exp(min(2 * score - beaten, 0.0))
        routing = 2 * leak * value
        spread = 8 * u * value
        if isinstance(where, Average):
            routing += shifted_average(score, 2 * value)
            spread += average(len(where.members), value, self.dtype)
        return {"normalisation": norm.scaling * value, "routing": routing, "rounding": rounding + spread}

    def _left(self, name: str, old: float) -> float:
        """The error of reading an old value that is erased."""
        return self.normalisation.read_error(1, old, old)

    def _erased(self, name: str, old: float) -> dict[str, float]:
        return self._attended(self.here, old, self._left(name, old)) if old else {}

    # Operators

    def _written(self, parts: int, value: float, old: float) -> float:
        """The rounding of adding so many parts, and taking the old value away."""
        return 6 * unit(self.dtype) * (value + 2 * old)

    def _sum(self, instruction: Instruction, before: Mapping[str, Range], old: float) -> dict[str, float]:
        raw, parts = instruction.raw, 1
        value, rounding = self._read(raw.read if instruction.increment is None else instruction.increment, before)
        out = self._attended(instruction.where, value, rounding, self._matched(instruction.where, before))
        if raw.local is not None:
            more, rounding = self._read(raw.local, before)
            out, parts, value = added(out, self._attended(self.here, more, rounding)), 2, value + more
        if instruction.increment is None:
            out = added(out, self._erased(instruction.target.name, old))
        return added(out, {"rounding": self._written(parts, value, old)})

    def _product(self, instruction: Instruction, before: Mapping[str, Range], old: float) -> dict[str, float]:
        """Per product, with z± = x/X ± y/Y: |z₊| + |z₋| ≤ 2 and the remainder is convex in |z|: truncation XY/4·t(2).

        The units for z and −z see the same normalised slots through opposite weights, so their arguments differ,
        but for sign, only by the rounding of the matrix product (`skew`); that, and GELU's own rounding, the 1/s of
        g/s² magnifies. What both arguments share (the reading of x and y) moves the product as it moves x and y.
        """
        raw, u, way, norm = instruction.raw, unit(self.dtype), square(self.dtype), self.normalisation
        assert raw.local is not None
        (x, x_error), (y, y_error) = self._read(raw.read, before), self._read(raw.local, before)
        x, y = x or 1.0, y or 1.0
        terms = len(raw.into) // instruction.target.size
        slope = 0.5 + 0.8 * max(way.scales)  # |GELU′| up to the largest |z|, and |GELU(z)| ≤ slope·|z|
        skew = 4 * slope * (self._skew(raw.read, before) / x + self._skew(raw.local, before) / y)  # four units a scale
        # The units' terms cancel down to the product, so no partial sum, in any order, exceeds half their
        # magnitudes' sum.
        summed = 4 * slope * ((GELU_ROUNDINGS + 4) * u + 0.55 * gamma(4 * len(way.scales) * terms + 4, self.dtype))
        erase = norm.read_error(1, old, old) + (8 * u + 2 * gamma(4 * len(way.scales) * terms + 4, self.dtype)) * old
        return {
            "product": terms * x * y / 4 * way.truncation,
            "normalisation": 2.1 * norm.scaling * terms * x * y + norm.scaling * old,
            "rounding": terms
            * (x * y / 4 * way.cost * (skew + summed) + 1.1 * (x * y_error + y * x_error + 8 * u * x * y))
            + erase
            + 4 * u * (terms * x * y + 2 * old),
        }

    def _clipped(self, instruction: Instruction, before: Mapping[str, Range], old: float) -> dict[str, float]:
        """Four units of slope 1 at most read z ± c, each with the weight ½: twice the reading, GELU's own rounding, the
        sum, the kinks' roundness; the old value passes through a linear pair."""
        raw, u, norm = instruction.raw, unit(self.dtype), self.normalisation
        value, rounding = self._read(raw.read + raw.limit, before)
        value = max(value, range_of(raw.read, before).peak + raw.limit)
        summed = (2 * GELU_FAR_ROUNDINGS * u + 2 * gamma(6, self.dtype)) * value
        erase = norm.read_error(1, old, old) + (8 * u + 2 * gamma(6, self.dtype)) * old
        return {
            "clipping": KINK / steepness(raw.limit, self.dtype),
            "normalisation": 1.1 * norm.scaling * value + norm.scaling * old,
            "rounding": 2 * rounding + summed + erase + 4 * u * (raw.limit + 2 * old),
        }

    def _quotient(self, instruction: Instruction, before: Mapping[str, Range], old: float) -> dict[str, float]:
        """(y/c)·(1 + LayerNorm's scaling)·(c over the divisor as written), and the reading of y beside ±D·c."""
        low = self.divisions[instruction.number].low
        divisor, numerator, relative, rest = self._division(instruction, before, old)
        division = (1.1 * divisor / low + relative) * self._result(instruction, before, low)
        return added(rest, {"division": division, "rounding": numerator / low})

    def _result(self, instruction: Instruction, before: Mapping[str, Range], low: float) -> float:
        """The largest quotient."""
        return range_of(instruction.raw.read, before).peak / low

    def _division(
        self, instruction: Instruction, before: Mapping[str, Range], old: float
    ) -> tuple[float, float, float, dict[str, float]]:
        """How far divisor and numerators are misread, the result's relative error, and what else is added to it."""
        raw, u, norm = instruction.raw, unit(self.dtype), self.normalisation
        assert raw.local is not None
        division = self.divisions[instruction.number]
        c, c_rounding = self._read(raw.local, before)
        swept = norm.scaling + 20 * u
        left = norm.divide_content / division.factor * swept**division.sweeps if division.sweeps else 0.0
        left += 2 * norm.noise / division.factor if division.sweeps else 0.0
        # LayerNorm's scaling and products round relative to c itself; the others are as large for a small c.
        divisor = c_rounding + self._attended(self.here, c, c_rounding)["routing"] + left
        terms, magnitude, coefficients = self._sizes(raw.read, before)
        mean = norm.divide_mean(division.factor * division.high)
        numerator = norm.read_error(terms, magnitude, coefficients, divided=mean)
        relative = norm.divide_scaling(division.factor, division.low) + 1.1 * (norm.scaling + 16 * u) + 16 * u
        erased = added({"rounding": 4 * u * old}, self._erased(instruction.target.name, old))
        return divisor, numerator, relative, erased


Terms = dict[str, float]


def added(a: Mapping[str, float], b: Mapping[str, float], factor: float = 1.0) -> Terms:
    out = dict(a)
    for name, value in b.items():
        out[name] = out.get(name, 0.0) + factor * value
    return out


@dataclass(frozen=True)
class RegisterError:
    """One register's error: gains on the states' errors, and named terms of its own."""

    carried: Terms = field(default_factory=dict)
    fresh: Terms = field(default_factory=dict)

    def plus(self, other: RegisterError, factor: float = 1.0) -> RegisterError:
        return RegisterError(added(self.carried, other.carried, factor), added(self.fresh, other.fresh, factor))


class Budget:
    """Walks the program, keeping every register's error."""

    def __init__(self, analysis: Analysis, local: LocalError) -> None:
        self.analysis, self.local = analysis, local
        self.errors: dict[str, RegisterError] = {}
        self.states: dict[str, Terms] = {}
        self.sums: dict[str, Terms] = {}
        self.own: Terms = {}
        self.needed: list[float] = []

    def terms(self, error: RegisterError, *, without: str = "") -> Terms:
        out = dict(error.fresh)
        for state, gain in error.carried.items():
            if state != without:
                out = added(out, self.states[state], gain)
        return out

    def size(self, error: RegisterError) -> float:
        return sum(self.terms(error).values(), 0.0)

    def of(self, expression: AffineForm | None) -> RegisterError:
        out = RegisterError()
        if expression is not None:
            for name, part in expression.parts.items():
                out = out.plus(self.errors.get(name, RegisterError()), spectral(part))
        return out

    def step(self, instruction: Instruction) -> None:
        before = self.analysis.before[instruction.number - 1]
        name, invariant = instruction.target.name, instruction.invariant
        own = self.local.own(instruction, before)
        self.own = added(self.own, own)
        valid = math.inf if invariant is None else invariant.valid
        if invariant is not None and invariant.gains is not None:
            gained = sum(gain * self.own.get(source, 0.0) for source, gain in invariant.gains.items())
            self.errors[name] = RegisterError(fresh={"rounding": gained + own[name] if invariant.gains else math.inf})
            self.needed.append(0.0 if instruction.includes_errors else own[name])
        else:
            error = self._passed(instruction, before).plus(RegisterError(fresh=self.local.of(instruction, before)))
            if invariant is not None and (invariant.growth is not None or invariant.total is not None):
                self._settle(name, error, invariant.growth, invariant.total)
            else:
                self.errors[name] = error
            self.needed.append(self.size(self.errors[name]))
        room = self.analysis.room[instruction.number - 1]
        if not (self.needed[-1] <= room and (valid == math.inf or self.size(self.errors[name]) <= valid)):
            # The ranges were widened by less than this error, or an invariant no longer holds: nothing is proved.
            self.errors[name] = RegisterError(fresh={"unbounded": math.inf})
            self.needed[-1] = math.inf

    def _passed(self, instruction: Instruction, before: Mapping[str, Range]) -> RegisterError:
        raw = instruction.raw
        if raw.operator == "⊓":
            return self.of(raw.read)
        if raw.operator == "+":
            return self.of(raw.read).plus(self.of(raw.local)).plus(self._weighed(instruction, before))
        assert raw.local is not None
        if raw.operator == "÷":
            low = range_of(raw.local, before).low
            norm = self.analysis.after[instruction.number - 1].norm
            return RegisterError().plus(self.of(raw.read), 1 / low).plus(self.of(raw.local), norm / low)
        left, right = instruction.factors
        a, b = self.of(left), self.of(right)
        out = RegisterError().plus(a, range_of(right, before).norm).plus(b, range_of(left, before).norm)
        return out.plus(RegisterError(fresh={"second order": self.size(a) * self.size(b)}))

    def _weighed(self, instruction: Instruction, before: Mapping[str, Range]) -> RegisterError:
        """Errors of both sides of a match move its scores, and so the average."""
        where = instruction.where
        if not isinstance(where, Matched):
            return RegisterError()
        query, key = (self.size(self.errors.get(name, RegisterError())) for name in (where.query, where.key))
        moved = where.sharp * (before[where.key].norm * query + before[where.query].norm * key + query * key)
        return RegisterError(
            fresh={"matching": shifted_average(moved, 2 * range_of(instruction.raw.read, before).norm)}
        )

    def _settle(self, name: str, error: RegisterError, growth: float | None, total: float | None) -> None:
        """An invariant replaces the gain on the target's own earlier error."""
        fresh = self.terms(error, without=name)
        for other, passed in self.errors.items():
            if other != name and name in passed.carried:
                rest = {state: gain for state, gain in passed.carried.items() if state != name}
                self.errors[other] = RegisterError(rest, added(passed.fresh, self.states[name], passed.carried[name]))
        if total is not None:
            self.sums[name] = added(self.sums.get(name, {}), fresh)
            self.states[name] = added({}, self.sums[name], total)
        else:
            self.states[name] = added(fresh, self.states.get(name, {}), growth or 0.0)
        self.errors[name] = RegisterError(carried={name: 1.0})


def certify(program: RegisterProgram, analysis: Analysis, local: LocalError) -> dict[str, Certificate]:
    """A certificate for the final content of every register that is written, as read after the last LayerNorm."""
    budget = Budget(analysis, local)
    for instruction in program.instructions:
        budget.step(instruction)
    out = {}
    # Of an invariant its bounds are checked as a program runs; how errors grow is for its author to prove.
    known = [each.invariant for each in program.instructions if each.invariant is not None]
    proofs = {
        f"{each.reason} (proved by the program's author)" for each in known if each.growth or each.total or each.gains
    }
    assumes = (*local.assumes(program), *sorted(proofs))
    for name, error in budget.errors.items():
        register, reach = program.registers[name], analysis.largest[name]
        final = local.read_out(name, reach, register.size)
        terms = added(budget.terms(error), final)
        note = "" if all(map(math.isfinite, terms.values())) else "the domain is too wide: nothing is promised"
        out[name] = Certificate(terms, local.dtype, note=note, assumes=assumes)
    return out
