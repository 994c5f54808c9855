"""The prompts that the playground offers, compiled for whatever its picture can hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from emulon.algorithms import (
    ElasticNet,
    HeavyBall,
    HuberRegression,
    Lasso,
    LinearRegression,
    LogCoshRegression,
    LogisticRegression,
    NamedAlgorithm,
    Perceptron,
    PoissonRegression,
    QuantileRegression,
    Ridge,
    SquaredHinge,
    name_of,
)
from emulon.attention.codes import Codes
from emulon.certify import Domain
from emulon.interpreter import Program, compile, load_program, save
from emulon.interpreter.phase import Phase
from emulon.playground import POINTS

STEPS = 200
# Features are (1, x), |x| ≤ 1: λ(XᵀX/n) ≤ 2, so that a step of 1/2 suits every set of points. Descent on squares never
# raises their mean, so that no residual outgrows √24·|y|. An l1 penalty keeps weights smaller.
LINE = Domain(POINTS, 2, x=1.0, y=2.0, w=6.0)
SQUARES = replace(LINE, residual=10.0)
SPARSE = Domain(POINTS, 2, x=1.0, y=2.0, w=4.0, residual=7.0)
COUNTS = Domain(POINTS, 2, x=1.0, y=2.0, w=3.0, residual=3.0)
# Features are (1, x₁, x₂): λ ≤ 3.
PLANE = Domain(POINTS, 3, x=1.0, y=1.0, w=8.0)
MARGINS = Domain(POINTS, 3, x=1.0, y=1.0, w=5.0, residual=8.0)


@dataclass(frozen=True)
class Offer:
    """A prompt to choose: `says` is its objective, in a line.

    Kinks take a sharp gate, which multiplies the last places in which two machines differ: a looser tolerance blunts
    it, so that the browser and Python agree to 1e-9.
    """

    algorithm: NamedAlgorithm
    domain: Domain
    says: str
    tolerance: float = 1e-8

    @property
    def name(self) -> str:
        return name_of(type(self.algorithm)).removesuffix("_regression")


OFFERS = (
    Offer(Ridge(0.1, STEPS, 0.5), SQUARES, "squares, and a little of ‖w‖²"),
    Offer(LinearRegression(STEPS, 0.5), SQUARES, "least squares, step by step"),
    Offer(HeavyBall(0.0, 0.8, STEPS, 0.5), SQUARES, "least squares, with momentum"),
    Offer(Lasso(0.15, STEPS, 0.5), SPARSE, "squares and ‖w‖₁: weights may be exactly zero", 1e-2),
    Offer(ElasticNet(0.2, 0.5, STEPS, 0.5), SPARSE, "squares, ‖w‖₁ and ‖w‖²", 1e-2),
    Offer(HuberRegression(0.3, STEPS, 0.5), LINE, "squares near, distance far: outliers pull less", 1e-6),
    Offer(LogCoshRegression(STEPS, 0.5), LINE, "log cosh: a smooth Huber"),
    Offer(QuantileRegression(0.9, STEPS, 0.1), LINE, "nine points in ten lie below"),
    Offer(PoissonRegression(0.01, STEPS, 0.1), COUNTS, "counts, predicted as exp(w·x)"),
    Offer(LogisticRegression(0.02, STEPS, 1.0), PLANE, "two classes, by log-odds"),
    Offer(SquaredHinge(0.02, STEPS, 0.3), MARGINS, "two classes, with a margin", 1e-6),
    Offer(Perceptron(STEPS, 0.5), PLANE, "two classes, mistakes only"),
)


def compile_offers(folder: Path) -> None:
    """Write every program as a file, from which Python runs the same."""
    for offer in OFFERS:
        save(compile(offer.algorithm, offer.domain, offer.tolerance), folder / f"{offer.name}.safetensors")


def load_offers(folder: Path) -> dict[str, Program]:
    return {offer.name: load_program(folder / f"{offer.name}.safetensors") for offer in OFFERS}


def for_points(program: Program, points: int) -> Program:
    """The same prompt for fewer samples than it was compiled for.

    Claim: its error bound still holds. Proof. The codes that are left are no nearer to each other, fewer other samples
    leak, and a shorter sum rounds no worse; no other term depends on the number of samples. QED
    """

    def shorter(phase: Phase) -> Phase:
        codes = Codes(phase.codes.vectors[:points], phase.codes.gap)
        return replace(phase, domain=replace(phase.domain, samples=points), codes=codes)

    domain = replace(program.domain, samples=points)
    plan = replace(program.plan, domain=domain, rows=points)
    return replace(program, plan=plan, gradient=shorter(program.gradient))
