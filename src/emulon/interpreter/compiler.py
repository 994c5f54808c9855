"""`compile`: from an algorithm and a domain to a program. The passes, in order, are the functions below."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from emulon.algorithms import Algorithm, GradientDescent, Loss
from emulon.approximation import Grid, approximate
from emulon.certify import Domain
from emulon.certify.spectrum import largest_eigenvalue, smallest_eigenvalue
from emulon.constructions.codes import circular
from emulon.constructions.covering import covering
from emulon.constructions.routing import Routing
from emulon.errors import EmulonError
from emulon.expression import parse
from emulon.interpreter.number_line import number_line
from emulon.interpreter.phase import Phase
from emulon.interpreter.program import Facts, Outline, Program, function_error

# Of a step's tolerance: the gradient's share where a proximal step follows.
GRADIENT_SHARE = 0.5
# How far errors on ordinary data stay below their bound, about.
EXPECTED = 512.0
# The number line's relative error at the scores of a jump, in units of the dtype's own.
LINE_NOISE = {torch.float64: 5e4, torch.float32: 32.0}


def compile(
    algorithm: Algorithm,
    domain: Domain | None = None,
    tolerance: float = 1e-8,
    dtype: torch.dtype = torch.float64,
    *,
    data: tuple[Tensor, Tensor] | None = None,
) -> Program:
    """A program that runs this algorithm on any data of the domain.

    `tolerance` is for the final weights, in exact arithmetic: the scalar functions are approximated at least that
    well, or as well as the dtype allows. What emulation and rounding add is in the certificate, which is about the data
    as the dtype holds them. Without a domain, `data` gives one that covers the algorithm's path on it.
    """
    descent = algorithm_to_descent(algorithm)
    if data is not None:
        data = (data[0].to(dtype).double(), data[1].to(dtype).double())
    domain = data_to_domain(descent, data) if domain is None else domain
    domain = domain_to_dtype(domain, dtype)
    outline = descent_to_outline(type(algorithm).__name__, descent, domain, data)
    share = tolerance / outline.growth
    gradient, facts = loss_to_phase(outline, share * (GRADIENT_SHARE if descent.l1 else 1.0), dtype)
    program = Program(**vars(outline), gradient=gradient, gradient_facts=facts)
    if descent.l1:
        proximal, more = penalty_to_phase(program, share * (1 - GRADIENT_SHARE), dtype)
        program = replace(program, proximal=proximal, proximal_facts=more)
    return program


def algorithm_to_descent(algorithm: Algorithm) -> GradientDescent:
    descent = getattr(algorithm, "descent", None)
    if not isinstance(descent, GradientDescent):
        raise EmulonError(f"{type(algorithm).__name__} is not gradient descent on a loss; the interpreter runs those")
    if descent.momentum and (descent.loss.derivative != "t" or descent.l1):
        raise EmulonError("momentum has a certificate for the squared loss without an l1 penalty only; set it to 0")
    return descent


def data_to_domain(descent: GradientDescent, data: tuple[Tensor, Tensor] | None) -> Domain:
    if data is None:
        raise EmulonError("compile needs a domain, or data=(x, y) to make one from")
    return covering(descent, *data)


def domain_to_dtype(domain: Domain, dtype: torch.dtype) -> Domain:
    """Room for what rounding to a coarser dtype does to data on the domain's edge."""
    if dtype == torch.float64:
        return domain
    room = 1 + 4 * torch.finfo(dtype).eps
    wide = {name: getattr(domain, name) * room for name in ("x", "y", "w", "residual", "absolute")}
    return Domain(domain.samples, domain.features, **wide, spectrum=domain.spectrum.widened(room))


def descent_to_step_size(descent: GradientDescent, domain: Domain, data: tuple[Tensor, Tensor] | None) -> float:
    """The algorithm's own, or the one it would choose on the data."""
    if descent.step_size is not None:
        return descent.step_size
    if data is not None:
        return descent.resolved_step_size(*data).min().item()
    if domain.spectrum.largest and descent.loss.curvature < float("inf"):
        return 1 / (descent.loss.curvature * domain.spectrum.largest + descent.l2)
    raise EmulonError(
        f"{descent.loss.name} chooses its step size from the data; give step_size, data=(x, y), or a Domain.of(x, y)"
    )


def data_to_strong(descent: GradientDescent, data: tuple[Tensor, Tensor] | None) -> float:
    """λmin(XᵀX/n), which makes errors of the squared loss shrink from step to step; 0 where it is not known."""
    if data is None or descent.loss.derivative != "t":
        return 0.0
    return smallest_eigenvalue(data[0]).min().item() * (1 - 1e-9)


def step_size_to_ceiling(
    descent: GradientDescent, step_size: float, domain: Domain, data: tuple[Tensor, Tensor] | None
) -> float:
    """1 where steps are no longer than 1/L, and convexity makes errors shrink; 2, what descent can bear, elsewhere."""
    if math.isinf(descent.loss.curvature):
        return 2.0 if descent.step_size is not None else 1.0
    largest = domain.spectrum.largest if data is None else largest_eigenvalue(data[0]).max().item()
    return 1.0 if largest and step_size * (descent.loss.curvature * largest + descent.l2) <= 1 + 1e-9 else 2.0


def loss_to_bend(loss: Loss, inner: Domain) -> float:
    """sup −ℓ″ over the domain's residuals, with some room: 0 for a convex loss. Sampled, not proved."""
    s = torch.linspace(-inner.residual, inner.residual, 4001, dtype=torch.float64)
    lowest = parse(loss.derivative).derivative()(s).nan_to_num(nan=0.0).min().item()
    return -1.05 * lowest if lowest < -1e-9 else 0.0


def descent_to_outline(
    name: str, descent: GradientDescent, domain: Domain, data: tuple[Tensor, Tensor] | None
) -> Outline:
    inner = descent.loss.link.effective_domain(domain)
    step_size = descent_to_step_size(descent, domain, data)
    strong, ceiling = data_to_strong(descent, data), step_size_to_ceiling(descent, step_size, domain, data)
    return Outline(
        name=name,
        loss=descent.loss,
        steps=descent.steps,
        step_size=step_size,
        l2=descent.l2,
        l1=descent.l1,
        momentum=descent.momentum,
        strong=strong if ceiling == 1 else 0.0,
        bend=loss_to_bend(descent.loss, inner),
        ceiling=ceiling if strong or descent.l2 else 2.0,
        domain=domain,
        inner=inner,
    )


def loss_to_phase(outline: Outline, tolerance: float, dtype: torch.dtype) -> tuple[Phase, Facts]:
    """The gradient phase: f = ℓ′ on the residuals, read out by the mean."""
    entry = outline.step_size * max(outline.domain.x, 1e-300)
    return _phase("gradient", outline.inner, "mean", outline.loss.derivative, tolerance / entry, dtype)


def penalty_to_phase(program: Program, tolerance: float, dtype: torch.dtype) -> tuple[Phase, Facts]:
    """The proximal phase: x = e_k, y = 0, f the soft threshold at η·l1, read out by the sum."""
    d = program.domain.features
    moved = program.step_size * (program.domain.x * program.gradient_facts.size + program.fixed)
    reach = (abs(program.shrink) * program.domain.w + moved) * (1 + 1e-6)
    domain = Domain(d, d, 1.0, 0.0, reach, residual=reach, absolute=reach)
    threshold = program.step_size * program.l1
    return _phase("proximal", domain, "sum", f"sign(t)*Max(Abs(t) - {threshold!r}, 0)", tolerance, dtype)


@lru_cache(maxsize=64)
def _phase(
    name: str, domain: Domain, readout: str, f: str, tolerance: float, dtype: torch.dtype
) -> tuple[Phase, Facts]:
    codes = circular(domain.samples, dtype)
    routing = Routing(domain, codes, False, 0.02 * tolerance)

    def made(grid: Grid) -> Phase:
        return Phase(name, grid, domain, codes, routing.strength(grid), readout)

    # At a kink, gate and noise are traded against each other: by what is to be expected, not by the worst case.
    function = parse(f)
    expected = EXPECTED if function.breaks(-domain.residual, domain.residual) else 1.0

    def noise(grid: Grid, deviation: float, size: float) -> float:
        phase = made(grid)
        reach = max(phase.magnitudes(0.0, 0.0, 0.0, 0.0).values())
        if reach > 1e9:
            return float("inf")
        return function_error(phase, number_line(reach, dtype), deviation, size) / expected

    found = approximate(
        function,
        (-domain.residual, domain.residual),
        tolerance=tolerance,
        dtype=dtype,
        rounding=noise,
        best_effort=True,
        score_noise=LINE_NOISE[dtype] * torch.finfo(dtype).eps,
    )
    known = found.interpolation
    leak = routing.leak(found.grid)
    facts = Facts(known.error, known.deviation, known.size, leak, known.proved, found.grid.bands)
    return made(found.grid), facts
