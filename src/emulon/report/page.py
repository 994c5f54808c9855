"""The report: one HTML file that opens from disk, on a phone too, and fetches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from emulon.core.files import make_folder, write_atomically, write_json
from emulon.interpreter import Program
from emulon.interpreter.phase import Phase
from emulon.playground.runs import PLACES, single_page, where
from emulon.report.chart import BLUE, GREY, INK, ORANGE, chart
from emulon.report.figure import Figure, Heat, Panel, Rule, Series
from emulon.report.prompt import RoutingPicture, facts, phases, prompt_rows, routing, telling_samples
from emulon.run import Experiment, Result, answers
from emulon.tables.data import Data

# Bars beyond these would be too thin to read, and steps beyond these are between two pixels.
MOST_BARS, MOST_STEPS = 20, 64
# Heights of the picture of a prompt: a slot of one row is drawn as tall as it takes to read its name.
PIXELS, LEAST_HEIGHT = 360, 0.05


def attention(routing: RoutingPicture) -> str:
    """Queries against tokens; beside it, how queries spread over their own sample's grid points."""
    weights = routing.weights.double().numpy()
    queries, keys = len(weights), routing.keys
    names = [str(number + 1) for number in routing.chosen]
    every = Panel(
        "tokens of sample",
        "query of sample",
        title=f"{routing.name}: {keys} tokens a sample",
        heat=Heat(weights, bar="weight"),
        rules=[Rule("x", edge * keys) for edge in range(1, queries)],
        x_ticks={(i + 0.5) * keys: name for i, name in enumerate(names)},
        y_ticks={i + 0.5: name for i, name in enumerate(names)},
        size=(4.0, 2.4),
    )
    chosen = sorted({0, queries // 2, queries - 1})
    own = [weights[i, i * keys : (i + 1) * keys] for i in chosen]
    points = range(1, keys + 1)
    series = [Series(f"sample {names[i]}", points, each.tolist()) for i, each in zip(chosen, own, strict=True)]
    spread = Panel("grid point of its own sample", "weight", series, title=routing.name, size=(4.0, 2.4))
    return chart(Figure([every])) + chart(Figure([spread]))


def error(result: Result) -> str:
    """Distance to the exact iterate after every step, under the bound for that many steps."""
    run, steps = result.run, range(1, result.run.program.steps + 1)
    some = np.unique(np.geomspace(1, len(steps), 12).astype(int)).tolist()
    bound = [run.interpreter.certificate(run.program.changed(steps=t)).bound for t in some]
    seen = result.errors[1:].clamp(min=1e-18).tolist()
    series = [Series("error", steps, seen), Series("certified bound", some, bound, "dashes")]
    return chart(Figure([Panel("steps", "", series, result.name, log_x=True, log_y=True, size=(3.6, 2.0))]))


def function(program: Program, phase: Phase) -> str:
    """The function, what the softmax gives, and the keys' values where each key weighs most; the range is shaded."""
    grid = phase.grid
    s = np.linspace(grid.lo, grid.hi, 401)
    truth = _truth(program, phase)(torch.from_numpy(s)).numpy()
    what = "ℓ′" if phase is program.gradient else "soft threshold"
    soft = _is_soft(phase)
    panel = Panel(
        "t",
        "",
        [
            Series("function", s.tolist(), truth.tolist(), colour="#c3ccd2", width=3.5),
            Series("softmax", s.tolist(), (grid.numbers.weights(s) @ grid.numbers.values).tolist(), colour=BLUE),
            Series("value of a key", _key_places(phase).tolist(), list(grid.numbers.values), "dots", colour=ORANGE),
        ],
        title=f"{program.name}, {what}: {len(grid)} keys, {grid.way}",
        spans=[(grid.lo, grid.hi, "#f3f6f8", 1.0)],
        x_range=None if soft else _widened(grid.lo, grid.hi, 0.5),
        y_range=None if soft else _widened(truth.min(), truth.max(), 0.5),
        size=(3.6, 2.2),
    )
    return chart(Figure([panel]))


def _is_soft(phase: Phase) -> bool:
    """One uniform grid, whose outer keys lie beyond the range."""
    return phase.grid.way == "spectral" and len(phase.grid) > 4


def _key_places(phase: Phase) -> np.ndarray:
    """Where each key weighs most. An outermost key does so at infinity: it is put one spacing after its neighbour."""
    grid = phase.grid
    s = np.linspace(*_widened(grid.lo, grid.hi, 40.0 if _is_soft(phase) else 1.0), 20001)
    places: np.ndarray = s[grid.numbers.weights(s).argmax(axis=0)]
    if _is_soft(phase):
        places[0], places[-1] = 2 * places[1] - places[2], 2 * places[-2] - places[-3]
    return places


def _widened(lo: float, hi: float, part: float) -> tuple[float, float]:
    return lo - part * (hi - lo) / 2, hi + part * (hi - lo) / 2


def _truth(program: Program, phase: Phase) -> Callable[[torch.Tensor], torch.Tensor]:
    if phase is program.gradient:
        return program.loss.slope
    threshold = program.step_size * program.descent.l1
    return lambda s: s.sign() * (s.abs() - threshold).clamp(min=0)


def prompt(tokens: np.ndarray, phase: Phase) -> str:
    """A corner of the token matrix: rows by name, one column a token, colour by sign and size."""
    slots, keys = phase.slots, len(phase.grid)
    heights = [max(slots.size(name), LEAST_HEIGHT * slots.width) for name in slots]
    edges = np.cumsum(
        [
            0.0,
            *(
                height / slots.size(name)
                for name, height in zip(slots, heights, strict=True)
                for _ in range(slots.size(name))
            ),
        ]
    )
    tops = np.cumsum([0.0, *heights])
    shown = np.searchsorted(edges[1:-1], np.linspace(0, edges[-1], PIXELS, endpoint=False), side="right")
    panel = Panel(
        f"tokens: {keys} for each sample, the first {len(tokens) // keys} samples",
        "",
        heat=Heat(tokens.T[shown], signed=True, symlog=True, bar="entry"),
        rules=[
            *(Rule("y", top, colour=INK) for top in tops[1:-1]),
            *(Rule("x", edge, colour=INK) for edge in range(keys, len(tokens), keys)),
        ],
        y_range=(0.0, float(tops[-1])),
        y_ticks={(top + height / 2): name for top, height, name in zip(tops, heights, slots, strict=False)},
        size=(7.2, 4.8),
    )
    return chart(Figure([panel]))


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
    """On the held-out rows: a point each, or for classes a count for each pair of true and predicted."""
    said = answers(result.run, data, data.x_test)
    title, size, truth = f"{result.name}: {result.score:.4f}", (3.0, 2.8), f"{data.target}, held out"
    if data.kind == "regression":
        ends = [float(min(said.min(), data.y_test.min())), float(max(said.max(), data.y_test.max()))]
        series = [
            Series("", ends, ends, "dashes", colour=GREY),
            Series("", data.y_test.tolist(), said.tolist(), "dots", colour=BLUE),
        ]
        return chart(Figure([Panel(truth, "predicted", series, title, size=size)]))
    counts = np.array([[np.sum((data.y_test == a) & (said == b)) for b in data.classes] for a in data.classes])
    texts = [
        (column + 0.5, row + 0.5, str(counts[row, column]), "white" if 2 * counts[row, column] > counts.max() else INK)
        for row, column in np.ndindex(counts.shape)
    ]
    ticks = {place + 0.5: str(name) for place, name in enumerate(data.classes)}
    panel = Panel(
        "predicted", truth, (), title, texts=texts, heat=Heat(counts), x_ticks=ticks, y_ticks=ticks, size=size
    )
    return chart(Figure([panel]))


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


NAME, PLAYGROUND = "index.html", "playground.html"
# Samples whose tokens the picture of the prompt shows.
CORNER = 4


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
    pair = _pair(experiment.results)
    programs = [result.run.program for result in experiment.results]
    chosen = telling_samples(pair[0].run)
    routings = [routing(result.run, chosen) for result in pair]
    return fill(
        "page.html",
        data=experiment.data,
        results=experiment.results,
        measure="R²" if experiment.data.kind == "regression" else "accuracy",
        left_out=experiment.left_out,
        places={name: f"{PLAYGROUND}#{place}" for name, place in places.items()},
        interpreter=experiment.interpreter,
        sha256=experiment.sha256,
        routings=routings,
        attention=[attention(each) for each in routings],
        coefficients=[coefficients(result, experiment.data) for result in experiment.results],
        predicted=[predicted(result, experiment.data) for result in experiment.results],
        objectives=[objective(result) for result in experiment.results],
        errors=[error(result) for result in experiment.results],
        functions=[function(program, phase) for program in programs for phase in phases(program)],
        prompt=prompt(_corner(pair[0]), pair[0].run.program.gradient),
        shown=pair[0].run.program.name,
        programs=[(p, facts(p), [(phase, prompt_rows(p, phase)) for phase in phases(p)]) for p in programs],
    )


def _pair(results: Sequence[Result]) -> list[Result]:
    """Two that look different: the first, and the one whose grid is of another kind or size, the larger the better."""
    first, *others = sorted(results, key=lambda r: r.name != "ridge")
    telling = sorted(others, key=lambda r: (r.name != "huber_regression", -len(r.run.program.gradient.grid)))
    return [first, *telling[:1]]


def _corner(result: Result) -> np.ndarray:
    """The first tokens of the prompt at the last step: (tokens, rows)."""
    run, phase = result.run, result.run.program.gradient
    first = (0,) * (run.x.ndim - 2)
    shown = CORNER * len(phase.grid)
    # as many samples as tokens are shown: each of these asks, too
    begun = phase.beginning(min(shown, phase.domain.samples))
    x, y, fixed = run.program.loss.template_data(run.x[first], run.y[first])
    count = begun.domain.samples
    rows = begun.data_rows(x[:count], y[:count], None if fixed is None else fixed[:count])
    state = run.weights[first]
    return begun.prompt(rows, state, state=state, before=state * 0)[:shown].numpy()
