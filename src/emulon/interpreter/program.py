"""A program: prompt builder, readout, loop and certificate for one algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.loss import Loss
from emulon.certify import Band, Certificate, Domain, rounding
from emulon.certify.composition import accumulated, accumulated_with_momentum, step_lipschitz
from emulon.interpreter.interpreter import Capacity, Interpreter
from emulon.interpreter.number_line import NumberLine, number_line
from emulon.interpreter.phase import Phase

# What the codes' strength has to spare, in log weight (see constructions.template).
SLACK = 0.1


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
class Outline:
    """What an algorithm and a domain decide, before any grid is made.

    `inner` is the domain as the scalar function sees it. `strong` is a lower bound on λmin(XᵀX/n), where the loss makes
    use of it; `bend` bounds −ℓ″ from above, and is 0 for a convex loss. `ceiling`, 1 or 2, bounds step_size·L, L being
    the largest eigenvalue of the Hessian; it is checked as the program runs.
    """

    name: str
    loss: Loss
    steps: int
    step_size: float
    l2: float
    l1: float
    momentum: float
    strong: float
    bend: float
    ceiling: float
    domain: Domain
    inner: Domain

    @property
    def shrink(self) -> float:
        return 1 - self.step_size * self.l2

    @property
    def fixed(self) -> float:
        """Bound on the entries of y_i·x_i, which Poisson's tokens carry."""
        return self.loss.link.largest_fixed(self.domain)

    @property
    def eigenvalue(self) -> float:
        """A bound on λmax(XᵀX/n)."""
        return self.domain.largest

    @property
    def growth(self) -> float:
        """From the sup-norm error of one step to that of all: √d·(1 + ρ + … + ρ^{T−1}).

        ρ is the Lipschitz constant of the exact step: its Hessian lies between l2 + strong − bend·λmax and
        ceiling/step_size. Where ℓ is not convex, ρ is above 1 and errors grow. Momentum has a sum of its own.
        """
        flattest = self.l2 + self.strong - self.bend * self.eigenvalue
        if self.momentum:
            edges = (self.step_size * flattest, self.ceiling)
            spread = max(abs(1 + self.momentum - edge) for edge in edges)
            grown = accumulated_with_momentum(1.0, self.steps, spread, self.momentum)
        else:
            ratio = step_lipschitz(self.step_size, self.ceiling / self.step_size, flattest)
            grown = accumulated(1.0, self.steps, ratio)
        return max(1.0, math.sqrt(self.domain.features) * grown)


@dataclass(frozen=True)
class Program(Outline):
    """`steps` times: the gradient phase, then the proximal one if there is an l1 penalty; the result is written back.

    Everything that happens to the state happens in the interpreter's attention: gradient, shrinkage, proximal step.
    What is outside: building the prompt (each column affine in its sample and in the state, with fixed coefficients),
    the readout (a mean or sum over the n answering tokens), and writing it back into the prompt's state rows.
    """

    several_queries = True

    gradient: Phase
    gradient_facts: Facts
    proximal: Phase | None = None
    proximal_facts: Facts | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.grid.dtype

    @property
    def capacity(self) -> Capacity:
        """What an interpreter must have to run this."""
        capacity = self.gradient.capacity(
            self.gradient.magnitudes(self.step_size, self.shrink, self.momentum, self.fixed)
        )
        if self.proximal is not None:
            capacity = capacity | self.proximal.capacity(self.proximal.magnitudes(1.0, 0.0, 0.0, 0.0))
        return capacity

    @property
    def examples(self) -> tuple[int, ...]:
        """A prompt is built for one number of in-context examples."""
        return (self.domain.samples,)

    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        """What the weights that it learns from (xs, ys) say at x_query, on the smallest interpreter that fits.

        x_query is (..., features) or (..., queries, features).
        """
        run = Interpreter.fitting(self).run(self, xs, ys)
        several = x_query.ndim == xs.ndim
        answers = run.predict(x_query if several else x_query.unsqueeze(-2))
        return answers if several else answers.squeeze(-1)

    @property
    def certificate(self) -> Certificate:
        """On the smallest interpreter that fits."""
        return self.certificate_on(number_line(self.capacity.reach, self.dtype))

    def certificate_on(self, line: NumberLine) -> Certificate:
        """The promise for a whole run on an interpreter with this number line."""
        terms = phase_terms(
            self.gradient, self.gradient_facts, line, self.step_size, self.shrink, self.fixed, self.momentum
        )
        proved = self.gradient_facts.proved
        if self.proximal is not None and self.proximal_facts is not None:
            more = phase_terms(self.proximal, self.proximal_facts, line, 1.0, 0.0, 0.0)
            terms = {name: value + more[name] for name, value in terms.items()}
            proved = proved and self.proximal_facts.proved
        note = "" if proved else "the loss is a plain callable: its interpolation error was sampled, not proved"
        scaled = {name: value * self.growth for name, value in terms.items()}
        return Certificate(scaled, self.dtype, proved, self.gradient_facts.bands, note)


def score_error(phase: Phase, line: NumberLine) -> float:
    """How far the interpreter's score of one's own token may be from the template's.

    Layer 1 gets every entry of K and Q to within line.error(its size); layer 2 rounds a sum of products. The code rows
    are the same numbers for all keys of a sample, so layer 1 makes the same numbers of them and their error is common
    to those keys; so are the rows that are zero everywhere (y where there is none, and the rows that pad the head).
    """
    m = phase.magnitudes(0.0, 0.0, 0.0, 0.0)
    emulated = _product_error(line, m["key_x"], m["query_x"], phase.domain.features)
    emulated += _product_error(line, m["key_bias"], m["query_bias"], 1)
    if phase.domain.y:
        emulated += _product_error(line, m["key_y"], m["query_y"], 1)
    slope, intercept = float(phase.grid.slopes.abs().max()), float(phase.grid.intercepts.abs().max())
    magnitude = slope * phase.domain.absolute + intercept + phase.strength * 1.001
    return emulated + rounding.dot(phase.width + 1, magnitude, phase.grid.dtype)


def code_error(phase: Phase, line: NumberLine) -> float:
    """How far the codes' part of any score may be off: of no matter inside a sample, but between samples."""
    size = phase.magnitudes(0.0, 0.0, 0.0, 0.0)["key_code"]
    return _product_error(line, size, size, phase.codes.width)


def _product_error(line: NumberLine, key: float, query: float, count: int) -> float:
    """Of `count` products of emulated numbers up to these sizes, added."""
    off_key, off_query = line.error(key), line.error(query)
    return count * (off_key * (query + off_query) + off_query * key)


def leaked(phase: Phase, facts: Facts, line: NumberLine) -> float:
    """The weight of all other samples' tokens, when every score may be off.

    Claim: at most e^{2δ − SLACK} of the weight that exact scores leave them, δ bounding the error of every score: the
    odds of a set of tokens change by a factor within e^{±2δ}. The codes' strength already has SLACK to spare.
    """
    moved = 2 * (score_error(phase, line) + code_error(phase, line)) - SLACK
    return min(1.0, facts.leak * math.exp(min(max(0.0, moved), 700.0)))


def function_error(phase: Phase, line: NumberLine, deviation: float, size: float) -> float:
    """Bound on what emulation and rounding add to F(residual)."""
    return phase.grid.rounding_error(deviation, size, score_error(phase, line))


def phase_terms(
    phase: Phase, facts: Facts, line: NumberLine, step: float, shrink: float, fixed: float, momentum: float = 0.0
) -> dict[str, float]:
    """Named terms of the sup-norm error that one application of a phase adds to the state."""
    domain, dtype = phase.domain, phase.grid.dtype
    m = phase.magnitudes(step, shrink, momentum, fixed)
    entry = step * domain.x
    largest = float(phase.grid.values.abs().max()) + facts.size
    carried = m["state"]
    copies = 1 if phase.readout == "mean" else domain.samples
    # Scores move once, by emulation and rounding together: what a move does grows faster than in proportion.
    rounded = phase.grid.rounding_error(facts.deviation, facts.size, 0.0)
    emulated = max(0.0, function_error(phase, line, facts.deviation, facts.size) - rounded)
    state = line.error(m["state"]) if phase.readout == "mean" else 0.0
    terms = {
        "interpolation": entry * facts.interpolation,
        "routing leak": copies * leaked(phase, facts, line) * (entry * largest + 2 * step * fixed),
        "emulated scores": entry * emulated,
        "emulated values": copies * line.error(m["value"]) + state,
        "rounding": entry * rounded
        + rounding.average(len(phase.grid), carried + step * fixed, dtype)
        + rounding.gamma(domain.samples + 2, dtype) * (carried + entry * facts.size + step * fixed),
    }
    # The readout rounds what is added, errors included.
    return {name: value * (1 + rounding.gamma(domain.samples + 2, dtype)) for name, value in terms.items()}
