"""What is in a program's prompt, row by row: numbers, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from emulon.interpreter import Program
from emulon.interpreter.phase import Phase


@dataclass(frozen=True)
class Row:
    """One named group of rows of the token matrix."""

    slot: str
    rows: str
    size: int
    tokens: str
    holds: str
    scale: str
    largest: float


def phases(program: Program) -> list[Phase]:
    return [phase for phase in (program.gradient, program.proximal) if phase is not None]


def anatomy(program: Program, phase: Phase) -> list[Row]:
    """The rows of one phase's prompt. x, y are the data as the loss sees them; r counts grid points, i samples."""
    domain, scales, slots = phase.domain, phase.scales, phase.slots
    gradient = phase is program.gradient
    step, shrink = (program.step_size, program.shrink) if gradient else (1.0, 0.0)
    fixed = program.fixed if gradient else 0.0
    momentum = program.momentum if gradient else 0.0
    m = phase.magnitudes(step, shrink, momentum, fixed)
    every, asking = f"all {phase.tokens}", f"first {domain.samples}"
    values = float(phase.grid.values.abs().max()) * domain.x
    told = {
        "key_x": (every, "slope_r · x_i", f"× {scales.x:g}", m["key_x"]),
        "key_y": (every, "slope_r · y_i", f"× {scales.y:g}", m["key_y"]),
        "key_bias": (every, "intercept_r", f"× {scales.bias:g}", m["key_bias"]),
        "key_code": (every, "code of sample i", f"× {phase.code_factors[0]:.4g}", m["key_code"]),
        "value": (every, "value_r · x_i", f"W_V: {-step if gradient else 1.0:.4g}", values),
        "fixed": (every, "y_i · x_i (a rate's linear part)" if fixed else "0", f"W_V: {step:.4g}", fixed),
        "state": (every, "w", f"W_V: {shrink + momentum:.6g}", domain.w),
        "before": (every, "w of the step before", f"W_V: {-momentum:g}", domain.w),
        "query_x": (asking, "w", f"÷ {scales.x:g}", m["query_x"]),
        "query_y": (asking, "−1", f"÷ {scales.y:g}", m["query_y"]),
        "query_bias": (asking, "1", f"÷ {scales.bias:g}", m["query_bias"]),
        "query_code": (asking, "code of the sample asked about", f"× {phase.code_factors[0]:.4g}", m["key_code"]),
    }
    return [Row(slot, _span(slots[slot]), slots.size(slot), *told[slot]) for slot in slots]


def _span(where: slice) -> str:
    return f"{where.start}" if where.stop - where.start == 1 else f"{where.start}–{where.stop - 1}"


def facts(program: Program) -> list[tuple[str, str]]:
    """What a program says about itself in a line each."""
    domain = program.domain
    told = [
        ("algorithm", f"{program.name}: {program.loss.name} loss, ℓ′(t) = {program.loss.derivative}"),
        ("steps", f"{program.steps} of size {program.step_size:.6g}, momentum {program.momentum:g}"),
        ("penalties", f"l2 {program.l2:g}, l1 {program.l1:g}"),
        ("data", f"{domain.samples} samples, {domain.features} features, |x| ≤ {domain.x:.4g}, |y| ≤ {domain.y:.4g}"),
        ("state", f"|w| ≤ {domain.w:.4g}, argument of ℓ′ within ±{program.inner.residual:.4g}"),
    ]
    for phase in phases(program):
        grid = phase.grid
        told.append(
            (
                f"{phase.name} grid",
                f"{len(grid)} keys, {grid.way}, on ({grid.lo:.4g}, {grid.hi:.4g}), |slope| ≤ "
                f"{float(grid.slopes.abs().max()):.4g}, |value| ≤ {float(grid.values.abs().max()):.4g}",
            )
        )
        told.append(
            (
                f"{phase.name} prompt",
                f"{phase.tokens} tokens of {phase.slots.width} rows, routing {phase.strength:.4g}, "
                f"read out by the {phase.readout}",
            )
        )
    capacity = program.capacity
    told.append(("needs", f"width {capacity.width}, numbers up to {capacity.reach:.4g}"))
    told.append(("certificate", str(program.certificate)))
    return told
