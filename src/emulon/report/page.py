"""The report: one HTML file that opens from disk, on a phone too, and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from emulon.core.files import make_folder, write_atomically, write_json
from emulon.playground.runs import PLACES, single_page, where
from emulon.report import figures
from emulon.report.prompt import facts, phases, prompt_rows, routing, telling_samples
from emulon.run import Experiment, Result

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
        attention=[figures.attention(each) for each in routings],
        coefficients=[figures.coefficients(result, experiment.data) for result in experiment.results],
        predicted=[figures.predicted(result, experiment.data) for result in experiment.results],
        objectives=[figures.objective(result) for result in experiment.results],
        errors=[figures.error(result) for result in experiment.results],
        functions=[figures.function(program, phase) for program in programs for phase in phases(program)],
        prompt=figures.prompt(_corner(pair[0]), pair[0].run.program.gradient),
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
