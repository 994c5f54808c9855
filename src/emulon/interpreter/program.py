"""A program: prompt builder, readout, loop and certificate for one algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emulon.algorithms.loss import Loss
from emulon.certify import Band, Certificate, Domain, rounding
from emulon.certify.composition import accumulated, step_lipschitz
from emulon.certify.perturbation import shifted_average
from emulon.interpreter.interpreter import Capacity
from emulon.interpreter.number_line import NumberLine, number_line
from emulon.interpreter.phase import Phase


@dataclass(frozen=True)
class Facts:
    """What was proved about a phase's scalar function, and the leak its routing allows."""

    interpolation: float
    deviation: float
    size: float
    leak: float
    proved: bool
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True)
class Program:
    """`steps` times: the gradient phase, then the proximal one where there is an l1 penalty; the result is written back.

    Everything that happens to the state happens in the interpreter's attention: gradient, shrinkage, proximal step. What
    is outside: building the prompt (each column affine in its sample and in the state, with fixed coefficients), the
    readout (a mean or sum over the n answering tokens), and writing the readout back into the prompt's state rows.
    """

    name: str
    loss: Loss
    steps: int
    step_size: float
    l2: float
    l1: float
    strong: float
    domain: Domain
    inner: Domain
    gradient: Phase
    gradient_facts: Facts
    proximal: Phase | None = None
    proximal_facts: Facts | None = None
    options: dict[str, object] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.grid.dtype

    @property
    def shrink(self) -> float:
        return 1 - self.step_size * self.l2

    @property
    def fixed(self) -> float:
        """Bound on the entries of y_i·x_i, which Poisson's tokens carry."""
        return self.domain.x * self.domain.y if self.loss.form == "rate" else 0.0

    @property
    def capacity(self) -> Capacity:
        """What an interpreter must have to run this."""
        capacity = self.gradient.capacity(self.gradient.magnitudes(self.step_size, self.shrink, 0.0, self.fixed))
        if self.proximal is not None:
            capacity = capacity | self.proximal.capacity(self.proximal.magnitudes(1.0, 0.0, 0.0, 0.0))
        return capacity

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits."""
        return self.certificate_on(number_line(self.capacity.reach, self.dtype))

    def certificate_on(self, line: NumberLine) -> Certificate:
        """The promise for a whole run on an interpreter with this number line."""
        terms = phase_terms(self.gradient, self.gradient_facts, line, self.step_size, self.shrink, self.fixed)
        proved = self.gradient_facts.proved
        if self.proximal is not None and self.proximal_facts is not None:
            more = phase_terms(self.proximal, self.proximal_facts, line, 1.0, 0.0, 0.0)
            terms = {name: value + more[name] for name, value in terms.items()}
            proved = proved and self.proximal_facts.proved
        growth = self.growth
        note = "" if proved else "the loss is a plain callable: its interpolation error was sampled, not proved"
        scaled = {name: value * growth for name, value in terms.items()}
        return Certificate(scaled, self.dtype, proved, widened_bands(self.gradient, self.gradient_facts, line), note)

    @property
    def growth(self) -> float:
        """From the sup-norm error of one step to that of all: √d·(1 + ρ + … + ρ^{T−1})."""
        smoothest = (1 if self.strong else 2) / self.step_size
        ratio = step_lipschitz(self.step_size, smoothest, self.l2 + self.strong)
        return max(1.0, math.sqrt(self.domain.features) * accumulated(1.0, self.steps, ratio))


def score_error(phase: Phase, line: NumberLine) -> float:
    """How far the interpreter's score of one's own token may be from the template's.

    Layer 1 gets every entry of K and Q to within line.error(its size); layer 2 rounds a sum of products. The code rows
    are the same for all keys of a sample, so their error is common to them and does not count.
    """
    m = phase.magnitudes(0.0, 0.0, 0.0, 0.0)
    pairs = [("key_x", "query_x", phase.domain.features), ("key_bias", "query_bias", 1)]
    pairs += [("key_y", "query_y", 1)] if phase.domain.y else []
    emulated = 0.0
    for key, query, count in pairs:
        off_key, off_query = line.error(m[key]), line.error(m[query])
        emulated += count * (off_key * (m[query] + off_query) + off_query * m[key])
    slope, intercept = float(phase.grid.slopes.abs().max()), float(phase.grid.intercepts.abs().max())
    magnitude = slope * phase.domain.absolute + intercept + phase.strength * 1.001
    return emulated + rounding.dot(phase.width + 1, magnitude, phase.grid.dtype)


def is_switch(phase: Phase, facts: Facts) -> bool:
    """Two keys and a jump: then a moved score is a moved jump, and widens the band instead of adding an error."""
    return len(phase.grid) == 2 and len(facts.bands) == 1


def widened_bands(phase: Phase, facts: Facts, line: NumberLine) -> tuple[Band, ...]:
    if not is_switch(phase, facts):
        return facts.bands
    steepness = float((phase.grid.slopes[1] - phase.grid.slopes[0]).abs())
    band, room = facts.bands[0], 2 * score_error(phase, line) / steepness
    return (Band(band.lo - room, band.hi + room),)


def function_error(phase: Phase, line: NumberLine, deviation: float, size: float) -> float:
    """Bound on what emulation and rounding add to F(residual)."""
    error = 0.0 if len(phase.grid) == 2 and phase.grid.bands else score_error(phase, line)
    return phase.grid.rounding_error(deviation, size, error)


def phase_terms(
    phase: Phase, facts: Facts, line: NumberLine, step: float, shrink: float, fixed: float
) -> dict[str, float]:
    """Named terms of the sup-norm error that one application of a phase adds to the state."""
    domain, dtype = phase.domain, phase.grid.dtype
    m = phase.magnitudes(step, shrink, 0.0, fixed)
    entry = step * domain.x
    largest = float(phase.grid.values.abs().max()) + facts.size
    carried = abs(shrink) * domain.w
    copies = 1 if phase.readout == "mean" else domain.samples
    return {
        "interpolation": entry * facts.interpolation,
        "routing leak": copies * facts.leak * (entry * largest + 2 * step * fixed),
        "emulated scores": 0.0
        if is_switch(phase, facts)
        else entry * shifted_average(score_error(phase, line), 2 * largest, facts.deviation),
        "emulated values": copies * line.error(m["value"]) + (line.error(m["state"]) if shrink else 0.0),
        "rounding": entry * phase.grid.rounding_error(facts.deviation, facts.size, 0.0)
        + rounding.average(len(phase.grid), carried + step * fixed, dtype)
        + rounding.gamma(domain.samples + 2, dtype) * (carried + entry * facts.size + step * fixed),
    }


def step_tensor(value: float, like: Tensor) -> Tensor:
    return like.new_full((1,), value)
