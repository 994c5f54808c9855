"""Error terms of a register program in a stock Llama, instruction by instruction, in float32.

RMSNorm is the identity to the last bit, so it adds nothing; look-ups are exact, because all other weights of the
softmax underflow to zero. What remains is the rounding of linear maps, of gated products and of divisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from emulon.certify import Certificate
from emulon.certify.rounding import EXP_ASSUMED, average, gamma, shifted_average, unit
from emulon.core.errors import BadProgram
from emulon.machine.compiler import Plan, content, divisor_spans
from emulon.machine.error import Budget, LocalError, added, certify
from emulon.machine.instruction import AffineForm, Instruction
from emulon.machine.normalisation import Normalisation, up_to_power_of_two
from emulon.machine.ranges import Analysis, Range, analyse, range_of
from emulon.machine.tokens import Average, Matched, Where, gap
from emulon.machine.transformer import result_name

if TYPE_CHECKING:
    from emulon.machine.program import RegisterProgram


@dataclass(frozen=True)
class Noise:
    """What a stream written in another basis holds beside what it should, in units of stored entries.

    `misread` is the error of reading a functional, relative to its 1-norm, by the registers that it reads; `drift` what
    has drifted into a slot of a register when it is read, `final` the same after the last block.
    """

    misread: Mapping[frozenset[str], float] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)

    def reading(self, names: Collection[str]) -> float:
        """Of the worst functional that reads no register but these."""
        return max((error for read, error in self.misread.items() if read <= set(names)), default=0.0)

    def of(self, part: AffineForm, scale: Mapping[str, float], *, drift: bool = True) -> float:
        """The worst row of an affine form, with what has drifted into its registers or without."""
        rows, reading = torch.zeros_like(part.bias), self.reading(part.parts)
        for name, matrix in part.parts.items():
            error = reading + (self.drift.get(name, 0.0) if drift else 0.0)
            rows = rows + matrix.abs().sum(dim=1) * scale[name] * error
        return float(rows.max())


# The pad, and what must stand above everything else in a token: the next bit of its square is half of that of 2⁻²⁶.
PAD_SIZE, ABOVE = 2.0**44, 2.0**13
# Scores of unwanted tokens lie so far below those of wanted ones: e⁻¹¹⁰ is zero in float32.
UNDERFLOW = 110.0
# Gates of linear maps, and the factor on gates of products: silu(2²⁰) is 2²⁰.
GATE = 2.0**20
# silu(z) is z or 0 to the last bit beyond this.
SHUT = 128.0
# The least error that is allowed for, relative to a range, and how often ranges and errors are worked out.
LEAST_ROOM, ROUNDS = 2.0**-12, 8
# max |t·tanh(s·t/2) − |t|| · s.
KINK = 0.557
SILU_ASSUMED = "torch's silu errs by at most 4u·|z|, and is z for z ≥ 128 and 0 for z ≤ −128"
NORM_ASSUMED = "torch's rsqrt is exact for powers of four and errs by at most 4u elsewhere"


@dataclass(frozen=True)
class ExactNorm(Normalisation):
    """RMSNorm that a pad makes the identity.

    Claim: let one slot hold P = 2^m and all others together at most P/2¹³ in 2-norm, in a stream of width 4^k. Then
    RMSNorm with gain P/2^k is the identity to the last bit, and reads the pad's slot as 1 with gain 1/2^k.
    Proof. Every partial sum of squares that contains P² rounds to P², whatever the order: the rest is at most half a
    unit in the last place, 2⁻²⁶·P². The mean P²/4^k, its root and the reciprocal are powers of two; epsilon is below
    half a unit in the last place. Multiplying by powers of two is exact. QED
    """

    def holding(self, more: float) -> ExactNorm:
        """The same for tokens that may hold so much more, in 2-norm, in slots that nothing reads."""
        return replace(self, content=math.hypot(self.content, more))

    @property
    def gain(self) -> float:
        """Of every slot but the pad's."""
        return self.pad / math.sqrt(self.width)

    @property
    def scaling(self) -> float:
        """The identity scales nothing."""
        return 0.0

    def read_error(self, terms: int, magnitude: float, coefficients: float, *, divided: float = 0.0) -> float:
        """Rounding of a functional Σ a_i·x_i with Σ|a_i x_i| ≤ magnitude and Σ|a_i| ≤ coefficients."""
        return gamma(terms + 2, self.dtype) * magnitude

    def require_fits(self) -> None:
        """Refuse contents that the pad does not drown."""
        if max(self.content, self.divide_content) * ABOVE > self.pad:
            raise BadProgram(
                f"registers reach {self.content:.3g}, divisors {self.divide_content:.3g}; a Llama's pad of "
                f"{self.pad:.3g} carries {self.pad / ABOVE:.3g}: narrow the domain"
            )


@dataclass(frozen=True)
class LlamaError(LocalError):
    """The error terms of single instructions in a Llama, as 2-norms over the target's entries.

    `inexact` names the registers whose constant or initial values are not float32 numbers.
    """

    inexact: frozenset[str] = frozenset()
    noise: Noise = Noise()

    def assumes(self, program: RegisterProgram) -> tuple[str, ...]:
        """What the bounds assume of torch."""
        return EXP_ASSUMED, SILU_ASSUMED, NORM_ASSUMED

    def _entry(self, name: str, before: Mapping[str, Range]) -> float:
        return super()._entry(name, before) + self._noise(name, self.noise.drift)

    def _scored(self, where: Matched) -> tuple[float, float]:
        """Members' marks add exactly zero."""
        return gamma(where.size + 6, self.dtype), 0.0

    def _attended(self, where: Where, value: float, rounding: float, matched: float = 0.0) -> dict[str, float]:
        """A functional read with attention: exactly by a look-up, with equal weights by a mean.

        Unwanted tokens have scores UNDERFLOW below wanted ones, up to score errors: their weights are below
        e^(2·errors − UNDERFLOW). Members of a mean have bit-equal scores but for `matched`, each one nonzero product.
        RoPE turns the places that match by less than 2⁻¹⁴, which rounds to nothing.
        """
        beta = sharpness(where, self.tokens)
        score = 2 * beta * gamma(8, self.dtype) + matched
        beaten = beta * gap(where, self.tokens) - (2 * where.reach if isinstance(where, Matched) else 0.0)
        routing = 2 * self.tokens * math.exp(min(2 * score - beaten, 0.0)) * value
        if isinstance(where, Average):
            routing += shifted_average(matched, 2 * value) if matched else 0.0
            rounding += average(len(where.members), value, self.dtype)
        return {"routing": routing, "rounding": rounding}

    def _read(self, part: AffineForm, before: Mapping[str, Range]) -> tuple[float, float]:
        """The largest value of a functional, and the rounding of reading it; powers of two multiply exactly."""
        terms, magnitude, _ = self._sizes(part, before)
        rounded = (0 if _powers_of_two(part) else 2) + any(name in self.inexact for name in part.parts)
        error = gamma(terms - 1 + rounded, self.dtype) * magnitude + self.noise.of(part, self.scale)
        return range_of(part, before).peak, error if terms else 0.0

    def _skew(self, part: AffineForm, before: Mapping[str, Range]) -> float:
        """The rounding of a functional's sum alone, which may differ between a row of weights and its negative."""
        terms, magnitude, _ = self._sizes(part, before)
        return 2 * gamma(max(terms - 1, 0), self.dtype) * magnitude + 2 * self.noise.of(part, self.scale, drift=False)

    def _noise(self, name: str, drift: Mapping[str, float]) -> float:
        return self.scale[name] * (self.noise.reading([name]) + drift.get(name, 0.0))

    def _old(self, name: str, before: Mapping[str, Range]) -> float:
        """What a target holds before, or what has drifted into it; everything is erased."""
        return before[name].peak if name in before else self._noise(name, self.noise.drift)

    def _left(self, name: str, old: float) -> float:
        """How much of an old value is left: what has drifted into it is read, too, and erased with it."""
        return self._noise(name, {}) if old else 0.0

    def read_out(self, name: str, reach: Range, size: int) -> dict[str, float]:
        """The final norm reads exactly but for noise."""
        noise = math.sqrt(size) * self._noise(name, self.noise.final)
        return added(super().read_out(name, reach, size), {"rounding": noise})

    def _written(self, parts: int, value: float, old: float) -> float:
        """At most three values, all times powers of two, make the block's output; then the stream adds it."""
        return gamma(parts + 2, self.dtype) * (value + old)

    def _product(self, instruction: Instruction, before: Mapping[str, Range], old: float) -> dict[str, float]:
        """x·y = silu(x)·y − silu(−x)·y exactly; x comes times GATE, so that one of the two is x·y and the other zero
        unless |x| < SHUT/GATE, where silu errs by 4u·|x|.

        What the two readings of x share moves the product as it moves x; the rest is `_skew` (|silu′| ≤ 1.1).
        Or each is within `x_error`, and so is relu(x₁) − relu(−x₂), from which silu is 0.28/GATE away twice.
        """
        raw, u = instruction.raw, unit(self.dtype)
        assert raw.local is not None
        (x, x_error), (y, y_error) = self._read(raw.read, before), self._read(raw.local, before)
        terms = len(raw.into) // instruction.target.size
        apart = min(1.1 * self._skew(raw.read, before), 0.56 / GATE)
        read = x * y_error + y * (x_error + apart) + x_error * y_error
        small = 8 * u * min(x, SHUT / GATE) * y
        summed = gamma(terms + 3, self.dtype) * (terms * x * y + old)
        return {"rounding": terms * (2 * u * x * y + small + read) + summed + self._left(instruction.target.name, old)}

    def _clipped(self, instruction: Instruction, before: Mapping[str, Range], old: float) -> dict[str, float]:
        """clip(z, ±c) = (|z + c| − |z − c|)/2, and |t| is (silu(s·t) + silu(−s·t))/s but for KINK/s.

        Of the two units of each |t| one is open, so each end is read once; silu errs by 4u, the sum by γ₇.
        """
        raw, u = instruction.raw, unit(self.dtype)
        value, rounding = self._read(raw.read + raw.limit, before)
        value = max(value, range_of(raw.read, before).peak + raw.limit)
        summed = 5 * u * value + gamma(7, self.dtype) * (value + old)
        return {
            "clipping": KINK / steepness(raw.limit, self.dtype),
            "rounding": 2.2 * rounding + summed + self._left(instruction.target.name, old),
        }

    def _result(self, instruction: Instruction, before: Mapping[str, Range], low: float) -> float:
        """The largest quotient, or what is known of it."""
        known = instruction.invariant.norm if instruction.invariant is not None else None
        return min(super()._result(instruction, before, low), math.inf if known is None else 1.1 * known)

    def _division(
        self, instruction: Instruction, before: Mapping[str, Range], old: float
    ) -> tuple[float, float, float, dict[str, float]]:
        """RMSNorm divides by D·c, which stands in for the pad.

        The divisor is read by an exact look-up and written times a power of two. Squares, mean, root and product err
        by 8u; the rest of the token adds content²/(2(D·c)²). The divide slot itself reads as 1 within as much, and a
        gate of GATE times that is linear.
        """
        raw, u = instruction.raw, unit(self.dtype)
        assert raw.local is not None
        division = self.divisions[instruction.number]
        read = self._attended(self.here, *self._read(raw.local, before))
        inside = self.normalisation.content**2 / (2 * (division.factor * division.low) ** 2)
        numerator, relative = 1.1 * self._read(raw.read, before)[1], 1.1 * (2 * inside + 20 * u) + 2 * u
        erased = added({"rounding": 2 * u * old}, self._erased(instruction.target.name, old))
        return sum(read.values()), numerator, relative, erased


def _powers_of_two(part: AffineForm) -> bool:
    """Whether all coefficients are powers of two; those of stored entries then are, too."""
    numbers = torch.cat([part.bias, *(matrix.flatten() for matrix in part.parts.values())])
    mantissas = torch.frexp(numbers[numbers != 0]).mantissa.abs()
    return bool((mantissas == 0.5).all())


@dataclass(frozen=True)
class LlamaPlan(Plan):
    """All that is known of a program for a Llama before any weight is built."""

    @property
    def dirty(self) -> set[str]:
        """A target is erased the first time, too: in a rotated stream errors have drifted into it."""
        return set(self.program.registers)

    def certificates(
        self,
        *,
        noise: float = 0.0,
        skew: float = 0.0,
        beside: float = 0.0,
        noise_in: Callable[[Analysis], Noise] | None = None,
    ) -> dict[str, Certificate]:
        """A certificate for every register that is written; arguments as in `Plan.certificates`.

        `noise_in` has the noise as a function of the ranges that registers are in, by register.
        Ranges must be widened by what errors may reach, and errors depend on ranges: starting with small ones, every
        instruction gets twice the error that was found, until bounds settle. Each round is a proof; the best counts.
        """
        drift = dict.fromkeys(self.program.registers, noise - skew / 2)
        everywhere = Noise({frozenset(): skew / 2}, drift, drift)
        output, allowed, found = result_name(self.program), list[float](), list[dict[str, Certificate]]()
        least = [LEAST_ROOM * (one.low if one.low > 0 else one.peak or 1.0) for one in self.analysis.after]
        for _ in range(ROUNDS):
            try:
                analysis = analyse(self.program, self.normalisation.dtype, allowed or least)
                local = self._local(analysis, noise_in(analysis) if noise_in else everywhere, beside)
            except BadProgram:  # errors may be so large that a divisor's range reaches zero, or a register the pad
                if not found:
                    raise
                break
            found.append(certify(self.program, analysis, local))
            budget = Budget(replace(analysis, room=[math.inf] * len(least)), local)
            for one in self.program.instructions:
                budget.step(one)
            bounds = [one[output].bound for one in found]
            settled = len(bounds) > 1 and bounds[-1] >= 0.95 * bounds[-2] and math.isfinite(bounds[-2])
            if settled or not math.isfinite(max(budget.needed)):
                break
            allowed = [max(2 * size, room) for size, room in zip(budget.needed, least, strict=True)]
        return min(found, key=lambda one: one[output].bound)

    def _local(self, analysis: Analysis, noise: Noise, beside: float) -> LlamaError:
        """The error terms while registers are in the ranges of `analysis`."""
        scale, held = self.layout.scale, content(self.program, self.layout, analysis)[0]
        norm = self.normalisation.holding(beside)
        norm = replace(norm, content=math.hypot(held, beside) + max(noise.drift.values(), default=0.0))
        spans = divisor_spans(self.program, analysis)
        divided = {number: replace(self.divisions[number], low=low, high=high) for number, (low, high) in spans.items()}
        most = max((one.factor * one.high for one in divided.values()), default=0.0)
        norm = replace(norm, divide_content=most)
        assert isinstance(norm, ExactNorm)
        norm.require_fits()
        values = {**self.program.constants, **self.program.initial}
        inexact = frozenset(name for name, one in values.items() if not torch.equal(one.float().double(), one))
        return LlamaError(norm, divided, scale, self.program.here, self.layout.tokens, inexact, noise)


def sharpness(where: Where, tokens: int) -> float:
    """β that puts unwanted scores UNDERFLOW below wanted ones, whatever a match adds."""
    matched = 2 * where.reach if isinstance(where, Matched) else 0.0
    return 2.0 ** math.ceil(math.log2((2 * UNDERFLOW + matched) / gap(where, tokens)))


def steepness(limit: float, dtype: torch.dtype) -> float:
    """s, a power of two, with KINK/s ≤ u·limit."""
    return 2.0 ** math.ceil(math.log2(KINK / (unit(dtype) * limit)))


def exact_norm(
    width: int, content: float, spans: list[tuple[float, float]], dtype: torch.dtype
) -> tuple[ExactNorm, list[float]]:
    """The pad's norm, and D for each division by c in (low, high): D·low drowns the content."""
    factors = [up_to_power_of_two(2 * ABOVE * content / low) for low, _ in spans]
    most = max((factor * high for factor, (_, high) in zip(factors, spans, strict=True)), default=0.0)
    norm = ExactNorm(width, PAD_SIZE, content, 0.0, dtype, most)
    norm.require_fits()
    return norm, factors
