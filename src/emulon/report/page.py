"""The report: one HTML file that opens from disk, on a phone too, and fetches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulon.core.files import make_folder, write_atomically, write_json
from emulon.expressions import parse
from emulon.interpreter import Program
from emulon.interpreter.phase import Phase
from emulon.playground.runs import PLACES, single_page, where
from emulon.report.chart import BLUE, GREY, INK, ORANGE, as_svg, canvas
from emulon.report.prompt import RoutingPicture, facts, phases, prompt_rows, routing, telling_samples
from emulon.run import Experiment, Result, answers
from emulon.tables.data import Data


@as_svg
def attention(routing: RoutingPicture) -> Any:
    """Above, queries against tokens; below, how queries spread over their own sample's grid points."""
    figure = canvas(4.0, 4.2)
    above, below = figure.subplots(2, 1, height_ratios=(1.25, 1))
    weights = routing.weights.double().numpy()
    queries, keys = len(weights), routing.keys
    image = above.imshow(weights, aspect="auto", cmap="Blues", vmin=0, vmax=weights.max(), interpolation="nearest")
    for edge in range(1, queries):
        above.axvline(edge * keys - 0.5, color=GREY, linewidth=0.4)
    names = [str(number + 1) for number in routing.chosen]
    above.set_xticks([(i + 0.5) * keys - 0.5 for i in range(queries)], names)
    above.set_yticks(range(queries), names)
    above.tick_params(length=0)
    above.set_xlabel("tokens of sample")
    above.set_ylabel("query of sample")
    above.set_title(f"{routing.name}: {keys} tokens a sample")
    figure.colorbar(image, ax=above, shrink=0.9, label="weight")
    for i, colour in zip(sorted({0, queries // 2, queries - 1}), (BLUE, ORANGE, INK), strict=False):
        own = weights[i, i * keys : (i + 1) * keys]
        below.plot(range(1, keys + 1), own, "o-", color=colour, markersize=3, linewidth=1, label=f"sample {names[i]}")
    below.set_xlabel("grid point of its own sample")
    below.set_ylabel("weight")
    below.set_ylim(bottom=0)
    below.xaxis.get_major_locator().set_params(integer=True)
    below.legend(frameon=False, fontsize=7)
    return figure


@as_svg
def error(result: Result) -> Any:
    """Distance to the exact iterate after every step, under the bound for that many steps."""
    figure = canvas(3.6, 2.0)
    axis = figure.subplots()
    steps = np.arange(1, result.run.program.steps + 1)
    seen = result.errors[1:].clamp(min=1e-18).numpy()
    some = np.unique(np.geomspace(1, len(steps), 12).astype(int))
    run = result.run
    bound = [run.interpreter.certificate(run.program.changed(steps=int(t))).bound for t in some]
    axis.loglog(some, bound, color=ORANGE, linewidth=1.2, linestyle="--", label="certified bound")
    axis.loglog(steps, seen, color=BLUE, linewidth=1.2, label="error")
    axis.set_title(result.name)
    axis.set_xlabel("steps")
    axis.grid(axis="y", color="#e8ecef", linewidth=0.6)
    axis.legend(frameon=False, fontsize=7)
    return figure


@as_svg
def function(program: Program, phase: Phase) -> Any:
    """The function, what the softmax gives, and the keys' values where each key weighs most; the range is shaded."""
    figure = canvas(3.6, 2.2)
    axis = figure.subplots()
    grid = phase.grid
    s = np.linspace(grid.lo, grid.hi, 801)
    truth = _truth(program, phase)(torch.from_numpy(s)).numpy()
    where, values = _key_places(phase), grid.numbers.values
    axis.axvspan(grid.lo, grid.hi, color="#f3f6f8", linewidth=0)
    axis.plot(s, truth, color="#c3ccd2", linewidth=3.5, label="function")
    axis.plot(s, grid.numbers.weights(s) @ grid.numbers.values, color=BLUE, linewidth=1.1, label="softmax")
    axis.plot(where, values, "o", color=ORANGE, markersize=3, label="value of a key")
    if not _is_soft(phase):
        axis.set_xlim(*_widened(grid.lo, grid.hi, 0.5))
        axis.set_ylim(*_widened(truth.min(), truth.max(), 0.5))
    what = "ℓ′" if phase is program.gradient else "soft threshold"
    axis.set_title(f"{program.name}, {what}: {len(grid)} keys, {grid.way}")
    axis.set_xlabel("t")
    axis.legend(frameon=False, fontsize=7)
    return figure


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
        return parse(program.loss.derivative)
    threshold = program.step_size * program.descent.l1
    return lambda s: s.sign() * (s.abs() - threshold).clamp(min=0)


@as_svg
def prompt(tokens: np.ndarray, phase: Phase) -> Any:
    """A corner of the token matrix: rows by name, one column a token, colour by sign and size."""
    from matplotlib.colors import SymLogNorm

    figure = canvas(7.2, 4.8)
    axis = figure.subplots()
    largest = float(np.abs(tokens).max())
    norm = SymLogNorm(linthresh=1e-2, vmin=-largest, vmax=largest)
    slots, keys = phase.slots, len(phase.grid)
    # A slot of one row is drawn as tall as it takes to read its name.
    heights = [max(slots.size(name), 0.05 * slots.width) for name in slots]
    tops = np.concatenate([[0.0], np.cumsum(heights)])
    edges = [
        np.linspace(top, top + h, slots.size(name) + 1)[:-1] for top, h, name in zip(tops, heights, slots, strict=False)
    ]
    rows = np.concatenate([*edges, tops[-1:]])
    image = axis.pcolormesh(np.arange(len(tokens) + 1), rows, tokens.T, cmap="PuOr", norm=norm, rasterized=True)
    for top in tops[1:-1]:
        axis.axhline(top, color=INK, linewidth=0.4)
    for edge in range(keys, len(tokens), keys):
        axis.axvline(edge, color=INK, linewidth=0.6)
    axis.invert_yaxis()
    axis.set_yticks((tops[:-1] + tops[1:]) / 2, list(slots))
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(f"tokens: {keys} for each sample, the first {len(tokens) // keys} samples")
    figure.colorbar(image, label="entry")
    return figure


# Bars beyond these would be too thin to read, and steps beyond these are between two pixels.
MOST_BARS, MOST_STEPS = 20, 64


@as_svg
def coefficients(result: Result, data: Data) -> Any:
    """The largest weights, of the first class where there are several, and scikit-learn's of the same objective."""
    ours = np.atleast_2d(result.run.weights.double().numpy())[0]
    theirs = None if result.theirs is None else np.atleast_2d(result.theirs)[0]
    shown = np.argsort(-np.abs(ours), kind="stable")[:MOST_BARS]
    names = [data.names(result.run.program.loss)[i] for i in shown]
    figure = canvas(3.6, 0.7 + 0.2 * len(shown))
    axis = figure.subplots()
    places = np.arange(len(shown))
    thickness = 0.8 if theirs is None else 0.4
    axis.barh(places - (0.0 if theirs is None else 0.2), ours[shown], thickness, color=BLUE, label="frozen transformer")
    if theirs is not None:
        axis.barh(places + 0.2, theirs[shown], thickness, color=ORANGE, label="scikit-learn")
    axis.axvline(0, color=GREY, linewidth=0.6)
    axis.set_yticks(places, [name if len(name) <= 24 else f"{name[:23]}…" for name in names])
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    several = f", {data.classes[0]}" if result.run.weights.ndim > 1 else ""
    cut = f": the largest {len(shown)} of {len(ours)}" if len(shown) < len(ours) else ""
    axis.set_title(f"{result.name}{several}{cut}")
    figure.legend(frameon=False, fontsize=7, loc="outside lower center", ncols=2)
    return figure


@as_svg
def predicted(result: Result, data: Data) -> Any:
    """On the held-out rows: a point each, or for classes a count for each pair of true and predicted."""
    said = answers(result.run, data, data.x_test)
    figure = canvas(3.0, 2.8)
    axis = figure.subplots()
    axis.set_title(f"{result.name}: {result.score:.4f}")
    if data.kind == "regression":
        ends = [min(said.min(), data.y_test.min()), max(said.max(), data.y_test.max())]
        axis.plot(ends, ends, color=GREY, linewidth=0.8)
        axis.plot(data.y_test, said, "o", color=BLUE, markersize=2.5, alpha=0.7)
        axis.set_xlabel(f"{data.target}, held out")
        axis.set_ylabel("predicted")
        return figure
    counts = np.array([[np.sum((data.y_test == a) & (said == b)) for b in data.classes] for a in data.classes])
    axis.imshow(counts, cmap="Blues", vmin=0)
    for row, column in np.ndindex(counts.shape):
        colour = "white" if counts[row, column] > counts.max() / 2 else "#222222"
        axis.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=7)
    axis.set_xticks(range(len(data.classes)), data.classes)
    axis.set_yticks(range(len(data.classes)), data.classes)
    axis.set_xlabel("predicted")
    axis.set_ylabel(f"{data.target}, held out")
    return figure


@as_svg
def objective(result: Result) -> Any:
    """After every step, of the weights that the frozen transformer has; dashed, of scikit-learn's."""
    run, program = result.run, result.run.program
    descent = replace(program.descent, momentum=0.0, accelerated=False, batch=None)
    x, y = run.x.double(), run.y.double()
    steps = np.unique(np.linspace(0, program.steps, MOST_STEPS).round().astype(int))
    values = [descent.objective(x, y, run.iterates[..., step, :].double()).mean().item() for step in steps]
    figure = canvas(3.6, 2.0)
    axis = figure.subplots()
    axis.plot(steps, values, color=BLUE, linewidth=1.2, label="frozen transformer")
    if result.theirs is not None:
        least = descent.objective(x, y, torch.from_numpy(result.theirs)).mean().item()
        axis.axhline(least, color=ORANGE, linestyle="--", linewidth=1, label="scikit-learn's minimum")
    axis.set_title(result.name)
    axis.set_xlabel("steps")
    axis.set_ylabel("objective")
    axis.legend(frameon=False, fontsize=7)
    return figure


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
