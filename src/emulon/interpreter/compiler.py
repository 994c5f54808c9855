"""`compile`: from an algorithm and a domain to a program. The passes, in order, are the functions below."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from emulon.algorithms import Algorithm, GradientDescent
from emulon.attention.codes import Codes, circular
from emulon.certify import Band, Domain
from emulon.certify.domain import by_target, require_finite
from emulon.core.arrays import as_tensor
from emulon.core.errors import EmulonError, OutOfDomain, too_tight
from emulon.core.files import disk_cached
from emulon.expressions import Function, parse
from emulon.interpreter.identity_grid import identity_grid, octaves_for
from emulon.interpreter.phase import (
    LEAK_SHARE,
    Phase,
    ProvedBounds,
    Routing,
    ValueCoefficients,
    function_error,
    penalty_function,
    reading_scale,
    stored,
)
from emulon.interpreter.plan import INTERPRETER_SHARES, Plan, descent_of, domain_from_data, with_proof
from emulon.interpreter.program import Program
from emulon.softmax import Approximation, Grid, approximate
from emulon.softmax.spectral import Rounding

# How far errors on ordinary data stay below their bound, about, where there is a kink. Where there is none they stay as
# far below it, and of that little is spent: half of the bound counts, which takes half the keys.
EXPECTED, SPENT = {torch.float64: 512.0, torch.float32: 2048.0}, 2.0
# Where a kink keeps the tolerance from being met, the keys that data are read by may err so many times more than the
# best would, if they are fewer: a run's time goes with their number.
FEWER = 3.0
# Of the final weights, where none is asked for.
TOLERANCE = 1e-8
# How steep keys get on [−1, 1], with plenty to spare.
STEEPEST = 1e4
# Keys in float32, where the tolerance cannot be kept: two are a sigmoid.
KEYS = (2, 24)
# The identity grid's relative error at the scores of a jump, in units of the dtype's own.
LINE_NOISE = {torch.float64: 5e4, torch.float32: 32.0}


def compile(
    algorithm: Algorithm,
    domain: Domain | None = None,
    tolerance: float | None = None,
    dtype: torch.dtype = torch.float64,
    *,
    data: tuple[Any, Any] | None = None,
) -> Program:
    """Compile an algorithm to a program that the interpreter runs on any data of the domain.

    Args:
        algorithm: Gradient descent on a loss, such as `Ridge(penalty=0.1, steps=200)`.
        domain: Bounds on the data; by default bounds that cover the algorithm's path on `data`, with a warning where
            these are off centre and no column is constant: an algorithm fits no intercept of its own.
        tolerance: Error of the final weights in exact arithmetic. The scalar functions are approximated at least that
            well, or as well as the dtype allows, and a warning says how well that is. Without one they come as near to
            1e-8 as they can. What emulation and rounding add is in the certificate.
        dtype: float64 or float32; the certificate is about the data as the dtype holds them.
        data: Arrays (x, y). Several targets, y (samples, targets), are learned by one prompt each, on the same x.

    Returns:
        A program with its certificate.

    Raises:
        EmulonError: The algorithm is not gradient descent, or its step size depends on data that are not given.
        OutOfDomain: No interpreter could hold the numbers, or the step size is too long for the data.

    Example:
        >>> program = emulon.compile(Ridge(steps=50), data=(x, y))
    """
    descent = descent_of(algorithm)
    if dtype not in LINE_NOISE:
        raise EmulonError(f"programs are in float32 or float64, not {str(dtype).removeprefix('torch.')}")
    if data is not None:
        x, y = as_tensor(data[0], "x"), as_tensor(data[1], "y")
        require_finite(x=x, y=y)
        data = by_target(x.to(dtype).double(), y.to(dtype).double())
    given = domain
    if domain is None:
        if data is None:
            raise EmulonError("compile needs a domain, or data=(x, y) to make one from")
        domain = domain_from_data(descent, *data)
    domain = stored(domain, dtype)
    plan = Plan.of(type(algorithm).__name__, descent, domain, data)
    if given is None and data is not None and (advice := off_centre(descent, *data)):
        warnings.warn(advice, UserWarning, stacklevel=2)
    octaves_for(domain.w)  # refuses weights that no interpreter could hold, before work is done for them
    each = (TOLERANCE if tolerance is None else tolerance) / plan.growth
    shares = INTERPRETER_SHARES[plan.descent.l1 > 0]
    gradient = loss_to_phase(plan, each * shares[0], dtype)
    proximal = penalty_to_phase(plan, gradient, each * shares[1], dtype) if plan.descent.l1 else None
    program = Program(plan, gradient, proximal)
    # The curvature of the loss is enclosed wherever the exact path may go, on somewhat coarser interpreters, too.
    program = replace(program, plan=with_proof(plan, 2 * program.certificate.bound))
    if tolerance is not None and (missed := tolerance_missed(program, tolerance)):
        warnings.warn(missed, UserWarning, stacklevel=2)
    return program


def tolerance_missed(program: Program, tolerance: float) -> str | None:
    """Programs come as near to their tolerance as they can: the sentence that says so where it is not kept."""
    kept = program.certificate.terms["interpolation"]
    if program.descent.accelerated and kept > program.domain.w:
        return f"the certificate of {program.name} says nothing after {program.steps} steps; the audit of a run does"
    return too_tight(f"the interpolation of {program.name}", tolerance, kept) if kept > 1.01 * tolerance else None


def off_centre(descent: GradientDescent, x: Tensor, y: Tensor) -> str | None:
    """Advice where targets are so far from zero that a fit without an intercept misses them."""
    mean, deviation = y.mean(dim=-1).flatten(), y.std(dim=-1, correction=0).flatten()
    far = (mean.abs() > deviation).nonzero()
    constant = ((x == x[..., :1, :]) & (x != 0)).all(dim=-2)
    # Ten rows of centred data have such a mean once in 600 times.
    if not descent.loss.link.any_units or y.shape[-1] < 10 or not len(far) or constant.any():
        return None
    return (
        f"y has mean {mean[far[0]].item():.3g} and deviation {deviation[far[0]].item():.3g}, and no intercept is"
        " fitted: predictions will be far off. emulon.estimators.EmulatedRegressor standardises and fits one; or centre"
        " x and y, add a column of ones, or give a domain, as Domain.of(x, y), if this is meant"
    )


def loss_to_phase(plan: Plan, tolerance: float, dtype: torch.dtype) -> Phase:
    """The gradient phase: f = ℓ′ on the residuals, read out by the mean."""
    entry = plan.step_size * max(plan.domain.x, 1e-300)
    layout, proved = _softmax("gradient", plan.inner, "mean", plan.loss.derivative, tolerance / entry, entry, dtype)
    return Phase(*layout, name="gradient", readout="mean", values=plan.value_coefficients, proved=proved)


def penalty_to_phase(plan: Plan, gradient: Phase, tolerance: float, dtype: torch.dtype) -> Phase:
    """The proximal phase: x = e_k, y = 0, f the soft threshold at η·l1, read out by the sum.

    In float32 f is what the threshold takes off: beside a gate, values are off by as much as scores are, in parts of
    their own size, and these are no larger than η·l1.
    """
    d = plan.domain.features
    reach = (abs(plan.shrink) * plan.domain.w + plan.moved(gradient.proved.size)) * (1 + 1e-6)
    domain = Domain(d, d, 1.0, 0.0, reach, residual=reach, absolute=reach)
    readout = "rest" if dtype == torch.float32 else "sum"
    function = penalty_function(readout, plan.step_size * plan.descent.l1)
    layout, proved = _softmax("proximal", domain, readout, function, tolerance, 1.0, dtype)
    return Phase(*layout, name="proximal", readout=readout, values=ValueCoefficients.of_penalty(readout), proved=proved)


@lru_cache(maxsize=64)
def _softmax(
    name: str, domain: Domain, readout: str, f: str, tolerance: float, entry: float, dtype: torch.dtype
) -> tuple[tuple[Grid, Domain, Codes, float], ProvedBounds]:
    """A phase's layout and what is proved of it; `entry` multiplies an error of f on its way into the state."""
    codes = circular(domain.samples, dtype)
    routing = Routing(domain, codes, False, LEAK_SHARE * tolerance)

    def layout(grid: Grid) -> tuple[Grid, Domain, Codes, float]:
        return grid, domain, codes, routing.strength(grid)

    def made(grid: Grid) -> Phase:
        return Phase(*layout(grid), name=name, readout=readout, values=ValueCoefficients(0.0))

    def search() -> dict[str, Any]:
        function = parse(f)
        # At a kink, gate and noise are traded against each other: by what is to be expected, not by the worst case.
        expected = EXPECTED[dtype] if function.breaks(-domain.residual, domain.residual) else SPENT

        def noise(grid: Grid, deviation: float, size: float) -> float:
            phase = made(grid)
            reach = max(phase.magnitudes.values())
            if reach > 1e9:
                return float("inf")
            line, scale = identity_grid(reach, dtype), reading_scale(entry * grid.largest, dtype)
            # Values are read, too, and large ones worse.
            value = scale * entry * grid.largest
            read = identity_grid(value, dtype).error(value) / (scale * entry) if value < 1e9 else float("inf")
            return (function_error(phase, line, deviation, size) + read) / expected

        return _found(function, domain.residual, tolerance, dtype, noise, FEWER if name == "gradient" else 1.0)

    request = [name, asdict(domain), readout, f, tolerance, entry, str(dtype)]
    found = disk_cached("softmax", request, search)
    parts = {part: torch.tensor(found[part], dtype=dtype, device="cpu") for part in ("slopes", "intercepts", "values")}
    bands = tuple(Band(*band) for band in found["bands"])
    grid = Grid(**parts, lo=found["lo"], hi=found["hi"], way=found["way"], bands=bands)
    bounds = ProvedBounds(**found["bounds"], leak=routing.leak(grid), bands=grid.bands)
    return layout(grid), bounds


def require_held(function: Function, residual: float, dtype: torch.dtype) -> None:
    """Refuse a function if its values, or the slopes of its softmax, overflow the dtype."""
    name, largest = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
    if residual < STEEPEST / largest:
        raise OutOfDomain(
            f"residuals up to {residual:.3g} need slopes that are more than {name} holds; scale the data up, or use"
            " float64"
        )
    most = function(torch.linspace(-residual, residual, 33, dtype=torch.float64, device="cpu")).abs().max().item()
    if most > largest:
        raise OutOfDomain(
            f"residuals up to {residual:.3g} take the derivative of the loss to {most:.3g}, more than"
            f" {name} holds; scale the data down"
        )


def _found(
    function: Function, residual: float, tolerance: float, dtype: torch.dtype, noise: Rounding, fewer: float
) -> dict[str, Any]:
    """The softmax for one phase, searched for and proved, in plain numbers."""
    require_held(function, residual, dtype)
    interval, score_noise = (-residual, residual), LINE_NOISE[dtype] * torch.finfo(dtype).eps

    def within(tolerance: float) -> Approximation:
        return approximate(
            function,
            interval,
            tolerance=tolerance,
            dtype=dtype,
            rounding=noise,
            best_effort=True,
            score_noise=score_noise,
        )

    made = within(tolerance)
    if fewer > 1 and made.certificate.bound > tolerance and function.breaks(*interval):
        made = min(made, within(fewer * made.certificate.bound), key=lambda each: each.keys)
    if dtype == torch.float32 and made.interpolation.error > tolerance and not function.breaks(*interval):
        # What float32's rounding may do is so much more than what it does that a bound would leave hardly any key.
        others = [approximate(function, interval, points=n, dtype=dtype, score_noise=score_noise) for n in KEYS]
        made = min([made, *others], key=lambda each: each.interpolation.error)
    grid, known = made.grid, made.interpolation
    parts = {part: getattr(grid, part).tolist() for part in ("slopes", "intercepts", "values")}
    bounds = {"interpolation": known.error, "deviation": known.deviation, "size": known.size, "proved": True}
    bands = [[band.lo, band.hi] for band in grid.bands]
    return {**parts, "lo": grid.lo, "hi": grid.hi, "way": grid.way, "bands": bands, "bounds": bounds}
