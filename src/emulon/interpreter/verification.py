"""What a program's file claims is proved again before it is believed: its checksum says that it is whole, no more.

On loading, every softmax is compared with its function in ball arithmetic, the codes and their strength with the leak
they are said to allow, the loss with the curvature it is said to have. Other claims are checked on the data, by a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from emulon.attention.codes import circular
from emulon.certify import rounding
from emulon.certify.interpolation import Interpolation, holds
from emulon.expressions import parse
from emulon.interpreter.curvature import Slopes
from emulon.interpreter.phase import SPARE, Phase, penalty_function
from emulon.interpreter.plan import enclosed_negative_curvature
from emulon.interpreter.program import Program

# Codes are compared with each other up to so many, and so many at a time with all others.
PAIRS, BLOCK = 20_000, 512
READOUTS = {"gradient": ("mean",), "proximal": ("sum", "rest")}


def false_claim(program: Program) -> str | None:
    """What the program says of itself and is not so, in words that follow "its"; None where all of it is."""
    return next(_false_claims(program), None)


def _false_claims(program: Program) -> Iterator[str]:
    if not _possible(program):
        yield "numbers are none that descent can have"
        return
    plan, descent = program.plan, program.descent
    if program.loss.derivative != "t" and (descent.momentum or plan.strong_convexity):
        yield "loss is not quadratic, as momentum and strong convexity ask"
    if descent.l1 and descent.momentum:
        yield "momentum has no promise beside a penalty"
    if not _jumps_in_bands(program):
        yield "loss jumps where it has no band"
    phases = [(program.gradient, program.loss.derivative)]
    if program.gradient.domain != plan.inner:
        yield "gradient phase is for another domain"
    if bool(descent.l1) != (program.proximal is not None):
        yield "penalty and its proximal phase do not fit together"
    elif program.proximal is not None:
        if not _reaches(program, program.proximal):
            yield "proximal phase is for another domain"
        if program.proximal.grid.bands:
            yield "proximal phase has bands, of which no promise speaks"
        function = penalty_function(program.proximal.readout, program.step_size * descent.l1)
        phases.append((program.proximal, function))
    for phase, function in phases:
        yield from _false_claims_of_phase(phase, function)
    if plan.curvature_reach:
        found = enclosed_negative_curvature(program.loss, plan.curvature_reach)
        if found is None or found > plan.negative_curvature:
            yield "loss bends more than it says"
    if math.isfinite(program.loss.curvature):
        reach = plan.inner.residual
        _, steepest = Slopes(parse(program.loss.derivative)).between(-reach, reach)
        # The enclosure is tight to a hundredth, so that a curvature wrong by less than two passes.
        if steepest > program.loss.curvature * 1.02:
            yield "loss is steeper than it says"


def _jumps_in_bands(program: Program) -> bool:
    """A band may end at a jump, if the loss is continuous from the other side."""
    reach, bands = program.plan.inner.residual, program.gradient.grid.bands
    jumps = (one for one in parse(program.loss.derivative).breaks(-reach, reach) if one.jump)
    return all(
        any(
            band.lo < one.at < band.hi
            or (one.at == band.lo and one.value == one.left)
            or (one.at == band.hi and one.value == one.right)
            for band in bands
        )
        for one in jumps
    )


def _possible(program: Program) -> bool:
    plan = program.plan
    numbers = (plan.strong_convexity, plan.negative_curvature, plan.curvature_reach)
    parts = [
        part
        for phase in (program.gradient, program.proximal)
        if phase is not None
        for part in (phase.grid.slopes, phase.grid.intercepts, phase.grid.values, phase.codes.vectors)
    ]
    return (
        0 < plan.max_step_times_smoothness <= 2
        and program.rows >= program.domain.samples
        and all(0 <= number < math.inf for number in numbers)
        and all(bool(torch.isfinite(part).all()) for part in parts)
    )


def _reaches(program: Program, phase: Phase) -> bool:
    """Whether the proximal phase covers every weight that a gradient step can lead to."""
    plan = program.plan
    moved = plan.moved(program.gradient.proved.size)
    d, domain = program.domain.features, phase.domain
    covered = abs(plan.shrink) * program.domain.w + moved <= min(domain.w, domain.residual, domain.absolute)
    return covered and (domain.samples, domain.features, domain.x, domain.y) == (d, d, 1.0, 0.0)


def _false_claims_of_phase(phase: Phase, function: str) -> Iterator[str]:
    grid, bounds, reach, which = phase.grid, phase.proved, phase.domain.residual, f"{phase.name} phase"
    if not grid.lo <= -reach < reach <= grid.hi or phase.readout not in READOUTS[phase.name]:
        yield f"{which} does not cover its residuals"
        return
    vectors = phase.codes.vectors
    if len(vectors) != phase.domain.samples or not _least_distance(vectors) >= phase.codes.gap > 0:
        yield f"{which} has codes that are nearer to each other than it says"
        return
    others = max(phase.domain.samples - 1, 1)
    # Compared in log; processors agree to within the rounding of scores, a part of `log_normaliser_range`'s own doubt.
    needed = grid.log_normaliser_range + math.log(others / bounds.leak) + SPARE if bounds.leak > 0 else math.inf
    enough = phase.strength * phase.codes.gap
    if not needed <= enough + 1e-12 * (enough + grid.score_size):
        yield f"{which} leaks more to other samples than it says"
    claimed = Interpolation(bounds.interpolation, 0.0, bounds.deviation, bounds.size)
    if bounds.bands != grid.bands or not holds(
        grid.numbers, parse(function), grid.lo, grid.hi, claimed, bands=grid.bands
    ):
        yield f"{which} is not as near to {function} as it says"


def _least_distance(vectors: torch.Tensor) -> float:
    """A lower bound on the gap between codes: products with themselves less those with others, less rounding.

    Of codes that are zeros and ones, as those of few samples, nothing is rounded.
    """
    width, last = vectors.shape[1], torch.finfo(vectors.dtype).eps / 4
    if len(vectors) > PAIRS:
        # All pairs of so many would take hours. How far ours are apart is known, with room for last places.
        known = circular(len(vectors), vectors.dtype, width // 2)
        near = (known.vectors.double() - vectors.double()).abs().max().item() <= max(2e-14, last)
        return known.gap if near else -math.inf
    vectors = vectors.double()
    own, nearest = vectors.square().sum(dim=1).min().item(), -math.inf
    for start in range(0, len(vectors), BLOCK):
        products = vectors[start : start + BLOCK] @ vectors.T
        products.diagonal(start).fill_(-math.inf)
        nearest = max(nearest, products.max().item())
    plain = bool(((vectors == 0) | (vectors == 1)).all())
    off = 0.0 if plain else 2 * rounding.dot(width + 1, vectors.square().sum(dim=1).max().item(), torch.float64)
    return (own - nearest if len(vectors) > 1 else own) - off
