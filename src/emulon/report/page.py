"""The report: one HTML file that opens from disk, on a phone too, and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
import torch

from emulon.core.files import make_folder, write_atomically, write_json
from emulon.interpreter import Program
from emulon.interpreter.phase import Phase
from emulon.playground import PLACES, single_page, where
from emulon.report.figure import BLUE, GREY, ORANGE, Figure, Panel, Rule, Series, chart
from emulon.run import Experiment, Result, answers
from emulon.tables.data import Data

# Bars beyond these would be too thin to read, and steps beyond these are between two pixels.
MOST_BARS, MOST_STEPS = 20, 64


def error(result: Result) -> str:
    """Distance to the exact iterate after every step, under the bound for that many steps."""
    run, steps = result.run, range(1, result.run.program.steps + 1)
    some = np.unique(np.geomspace(1, len(steps), 12).astype(int)).tolist()
    bound = [run.interpreter.certificate(run.program.changed(steps=t)).bound for t in some]
    seen = result.errors[1:].clamp(min=1e-18).tolist()
    series = [Series("error", steps, seen), Series("certified bound", some, bound, "dashes")]
    return chart(Figure([Panel("steps", "", series, result.name, log_x=True, log_y=True, size=(3.6, 2.0))]))


def coefficients(result: Result, data: Data) -> str:
    """The largest weights, of the first class where there are several, and another solver's of the same objective."""
    ours = np.atleast_2d(result.run.weights.double().numpy())[0]
    theirs = None if result.theirs is None else np.atleast_2d(result.theirs)[0]
    shown = np.argsort(-np.abs(ours), kind="stable")[:MOST_BARS]
    names = [data.names(result.run.program.loss)[i] for i in shown]
    names = [name if len(name) <= 24 else f"{name[:23]}…" for name in names]
    series = [Series("frozen transformer", names, ours[shown].tolist(), "bars")]
    if theirs is not None:
        series.append(Series("the solver", names, theirs[shown].tolist(), "bars"))
    several = f", {data.classes[0]}" if result.run.weights.ndim > 1 else ""
    cut = f": the largest {len(shown)} of {len(ours)}" if len(shown) < len(ours) else ""
    size = (3.6, 0.8 + 0.2 * len(shown))
    panel = Panel("", "", series, f"{result.name}{several}{cut}", across=True, rules=[Rule("y", 0)], size=size)
    return chart(Figure([panel]))


def predicted(result: Result, data: Data) -> str:
    """On the held-out rows: a point each, or for classes a table of counts for each pair of true and predicted."""
    said = answers(result.run, data, data.x_test)
    title, size, truth = f"{result.name}: {result.score:.4f}", (3.0, 2.8), f"{data.target}, held out"
    if data.kind == "regression":
        ends = [float(min(said.min(), data.y_test.min())), float(max(said.max(), data.y_test.max()))]
        series = [
            Series("", ends, ends, "dashes", colour=GREY),
            Series("", data.y_test.tolist(), said.tolist(), "dots", colour=BLUE),
        ]
        return chart(Figure([Panel(truth, "predicted", series, title, size=size)]))
    rows = [(a, *(np.sum((data.y_test == a) & (said == b)) for b in data.classes)) for a in data.classes]
    head, *lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in [("", *data.classes), *rows]]
    caption = f"<caption>{escape(title)}; a row for each true class, a column for each predicted</caption>"
    return f"<table>{caption}<thead>{head}</thead>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def objective(result: Result) -> str:
    """After every step, of the weights that the frozen transformer has; dashed, of the solver's."""
    run, program = result.run, result.run.program
    descent = replace(program.descent, momentum=0.0, accelerated=False, batch=None)
    x, y = run.x.double(), run.y.double()
    steps = np.unique(np.linspace(0, program.steps, MOST_STEPS).round().astype(int)).tolist()
    values = [descent.objective(x, y, run.iterates[..., step, :].double()).mean().item() for step in steps]
    rules = []
    if result.theirs is not None:
        least = descent.objective(x, y, torch.from_numpy(result.theirs)).mean().item()
        rules.append(Rule("y", least, "the solver's minimum", ORANGE, dashed=True))
    series = [Series("frozen transformer", steps, values, colour=BLUE)]
    return chart(Figure([Panel("steps", "objective", series, result.name, rules=rules, size=(3.6, 2.0))]))


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
    for phase in program.phases:
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


NAME, PLAYGROUND = "index.html", "playground.html"


def write(experiment: Experiment, folder: Path) -> tuple[Path, ...]:
    """Write the page of this experiment, and beside it the playground as one file, which its buttons open.

    Returns:
        The files written, the page first.
    """
    places = {result.name: found for result in experiment.results if (found := where(result, experiment.data))}
    make_folder(folder)
    page = write_page(render(experiment, places), folder)
    if not places:
        return (page,)
    write_atomically(folder / PLAYGROUND, single_page())
    write_json(folder / PLACES, places)
    return page, folder / PLAYGROUND, folder / PLACES


def write_page(text: str, folder: Path) -> Path:
    path = make_folder(folder) / NAME
    write_atomically(path, text)
    return path


def fill(template: str, **values: object) -> str:
    """A template of this folder with everything it asks for."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(loader=PackageLoader("emulon.report", "."), autoescape=True, undefined=StrictUndefined)
    return pages.get_template(template).render(**values)


def render(experiment: Experiment, places: Mapping[str, str]) -> str:
    programs = [result.run.program for result in experiment.results]
    return fill(
        "page.html",
        data=experiment.data,
        results=experiment.results,
        measure="R²" if experiment.data.kind == "regression" else "accuracy",
        left_out=experiment.left_out,
        places={name: f"{PLAYGROUND}#{place}" for name, place in places.items()},
        interpreter=experiment.interpreter,
        sha256=experiment.sha256,
        coefficients=[coefficients(result, experiment.data) for result in experiment.results],
        predicted=[predicted(result, experiment.data) for result in experiment.results],
        objectives=[objective(result) for result in experiment.results],
        errors=[error(result) for result in experiment.results],
        programs=[(p, facts(p), [(phase, prompt_rows(p, phase)) for phase in p.phases]) for p in programs],
    )
