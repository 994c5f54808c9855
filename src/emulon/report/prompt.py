"""What is in a program's prompt, row by row, and which tokens its queries look at: numbers, never pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.attention import Trace, attend
from emulon.interpreter import Program, Run
from emulon.interpreter.identity_grid import identity_grid
from emulon.interpreter.phase import Phase
from emulon.networks import NetworkProgram

# Products that layer 1 forms for one picture: a second or two; and tokens at a time, which bounds its memory.
AFFORDABLE, TOKENS = 20_000_000_000, 512


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
    return list(program.phases)


def prompt_rows(program: Program, phase: Phase) -> list[Row]:
    """The rows of one phase's prompt. x, y are the data as the loss sees them; r counts grid points, i samples."""
    domain, scales, slots = phase.domain, phase.scales, phase.slots
    held = phase.values
    step, shrink, momentum, fixed = held.step, held.shrink, held.momentum, held.fixed
    m, (value_scale, state_scale) = phase.magnitudes, phase.reading_scales
    every, asking = f"all {phase.tokens}", f"first {domain.samples}"
    values = phase.grid.largest * domain.x
    holds = {
        "key_x": (every, "slope_r · x_i", f"× {scales.x:g}", m["key_x"]),
        "key_y": (every, "slope_r · y_i", f"× {scales.y:g}", m["key_y"]),
        "key_bias": (every, "intercept_r", f"× {scales.bias:g}", m["key_bias"]),
        "key_code": (every, "code of sample i", f"× {phase.code_factors[0]:.4g}", m["key_code"]),
        "value": (every, "value_r · x_i", f"W_V: {-value_scale * step:.4g}", values),
        "fixed": (every, "y_i · x_i (a rate's linear part)" if fixed else "0", f"W_V: {value_scale * step:.4g}", fixed),
        "state": (every, "w", f"W_V: {state_scale * (shrink + momentum):.6g}", domain.w),
        "before": (every, "w of the step before", f"W_V: {-state_scale * momentum:g}", domain.w),
        "query_x": (asking, "w", f"÷ {scales.x:g}", m["query_x"]),
        "query_y": (asking, "−1", f"÷ {scales.y:g}", m["query_y"]),
        "query_bias": (asking, "1", f"÷ {scales.bias:g}", m["query_bias"]),
        "query_code": (asking, "code of the sample asked about", f"× {phase.code_factors[0]:.4g}", m["key_code"]),
    }
    return [Row(slot, _span(slots[slot]), slots.size(slot), *holds[slot]) for slot in slots]


def _span(where: slice) -> str:
    return f"{where.start}" if where.stop - where.start == 1 else f"{where.start}–{where.stop - 1}"


def facts(program: Program) -> list[tuple[str, str]]:
    """What a program says about itself in a line each."""
    domain = program.domain
    lines = [
        ("algorithm", f"{program.name}: {program.loss.name} loss, ℓ′(t) = {program.loss.derivative}"),
        ("steps", f"{program.steps} of size {program.step_size:.6g}, {_kind_of_steps(program)}"),
        ("penalties", f"l2 {program.descent.l2:g}, l1 {program.descent.l1:g}"),
        ("data", f"{program.rows} samples, {domain.features} features, |x| ≤ {domain.x:.4g}, |y| ≤ {domain.y:.4g}"),
        ("state", f"|w| ≤ {domain.w:.4g}, argument of ℓ′ within ±{program.plan.inner.residual:.4g}"),
    ]
    for phase in phases(program):
        grid = phase.grid
        lines.append(
            (
                f"{phase.name} grid",
                f"{len(grid)} keys, {grid.way}, on ({grid.lo:.4g}, {grid.hi:.4g}), |slope| ≤ "
                f"{grid.steepest:.4g}, |value| ≤ {grid.largest:.4g}",
            )
        )
        lines.append(
            (
                f"{phase.name} prompt",
                f"{phase.tokens} tokens of {phase.slots.width} rows, routing {phase.strength:.4g}, "
                f"read out by the {phase.readout}",
            )
        )
    capacity = program.capacity
    lines.append(("needs", f"width {capacity.width}, numbers up to {capacity.reach:.4g}"))
    lines.append(("certificate", str(program.certificate)))
    return lines


def _kind_of_steps(program: Program) -> str:
    if program.descent.accelerated:
        return "accelerated"
    if program.descent.batch is not None:
        return f"each on a batch of {program.descent.batch}"
    return f"momentum {program.descent.momentum:g}"


@dataclass(frozen=True)
class RoutingPicture:
    """`weights` (chosen, chosen·keys): the query of each chosen sample against the tokens of the chosen samples.

    `elsewhere` is the largest total weight that one of these queries gives to tokens of samples other than its own,
    among the first `samples` of the data.
    """

    name: str
    chosen: tuple[int, ...]
    weights: Tensor
    keys: int
    samples: int
    elsewhere: float


def telling_samples(run: Run, count: int = 6) -> tuple[int, ...]:
    """Samples spread evenly over the values that ℓ′ is asked for, so that their queries look different."""
    x, y, w = _seen(run)
    order = (x @ w - y)[: _affordable(run)].argsort()
    places = torch.linspace(0, len(order) - 1, min(count, len(order)), device="cpu").long()
    return tuple(order[places].tolist())


def routing(run: Run, chosen: tuple[int, ...]) -> RoutingPicture:
    """The gradient phase of the last step, as `run.trace` has it, without keeping layer 1's records in memory."""
    program, interpreter = run.program, run.interpreter
    phase, keys = program.gradient, len(program.gradient.grid)
    x, y, before = _seen(run)
    samples = max(_affordable(run), *(i + 1 for i in chosen))
    # The fixed part of a rate is in the values only: it does not touch the weights drawn here.
    first = phase.beginning(samples)
    rows = first.data_rows(x[:samples], y[:samples])
    tokens = first.prompt(rows, before, state=before, before=torch.zeros_like(before))
    w_k, w_q, _ = phase.weights(x.device)
    asking = interpreter.project(tokens[list(chosen)], w_q)
    answering = torch.cat([interpreter.project(part, w_k) for part in tokens.split(TOKENS)])
    with Trace() as trace:
        attend(asking, answering, answering, name="layer 2")
    weights = trace["layer 2"].weights.reshape(len(chosen), samples, keys)
    # One less the weight at home would drown in rounding: add up what is elsewhere instead.
    mask = torch.arange(samples, device="cpu") != torch.tensor(chosen, device="cpu").unsqueeze(-1)
    elsewhere = (weights.sum(dim=-1) * mask).sum(dim=-1).max().item()
    return RoutingPicture(program.name, chosen, weights[:, list(chosen)].flatten(-2), keys, samples, elsewhere)


def _seen(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """x and y as ℓ′ sees them, and where the last step started; of the first class where there are several."""
    first, program, last = (0,) * (run.x.ndim - 2), run.program, run.iterates.shape[-2] - 2
    batches = program.plan.batches(program.loss.template_data(run.x[first], run.y[first]))
    x, y, _ = batches[last % len(batches)]
    return x, y, program.descent.starts(run.iterates[first])[last]


def _affordable(run: Run) -> int:
    phase = run.program.gradient
    a_sample = len(phase.grid) * phase.width * phase.slots.width * len(run.interpreter.slopes)
    return min(phase.domain.samples, max(8, AFFORDABLE // a_sample))


def network_facts(program: NetworkProgram) -> list[tuple[str, str]]:
    """What a network says about itself in a line each."""
    capacity, (lo, hi) = program.capacity, program.box.ends
    seen = "for every input of the domain" if program.source == "domain" else "seen on data, checked by every run"
    return [
        ("network", f"{program.name}: {program.shape} to {program.out_shape}, {len(program.phases)} phases"),
        ("inputs", f"within ({lo:.4g}, {hi:.4g}); ranges {seen}"),
        (
            "needs",
            f"{capacity.tokens} tokens of {capacity.features}, width {capacity.width}, up to {capacity.reach:.4g}",
        ),
        ("certificate", str(program.certificate)),
    ]


def network_rows(program: NetworkProgram) -> list[tuple[str, str, str, str, str, str]]:
    """Phase by phase: layer, registers, kind, prompt, range of what is written, and its own error at most."""
    line, rows = identity_grid(program.capacity.reach), []
    for phase in program.phases:
        lo, hi = phase.ranges.output.ends
        reads = ", ".join(map(str, phase.layer.reads)) or "–"
        own = f"{phase.own_error(line):.1e}"
        rows.append((phase.layer.name, reads, phase.kind, phase.description(), f"({lo:.4g}, {hi:.4g})", own))
    return rows
