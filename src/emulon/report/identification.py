"""The pages of an analysis: the ranking, the distances by number of examples and the best ridge parameter; and a
learner's phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from emulon.identification import AlgorithmPhase, Analysis, Curve, Identification, Interval, RidgeFit
from emulon.report.chart import BLUE, GREEN, GREY, INK, ORANGE, as_svg, canvas
from emulon.report.page import fill, write_page
from emulon.report.terminal import table

COLOURS = (BLUE, ORANGE, GREEN, INK)
# Unexplained shares that are drawn; a mark beyond them stands at the end, its value beside it.
DRAWN_SHARES = (1e-9, 30.0)
# Distances are drawn up to this many times their median, so that one that diverges leaves the others readable.
DRAWN_DISTANCES = 1e3
# The kinds of Figure 3 of Akyürek et al. 2022: of several references of a kind the nearest is drawn.
KINDS = {"gradient descent": ORANGE, "ridge": GREEN, "ols": BLUE, "newton": INK}
# What is smaller is drawn here: float64 knows of no smaller squared distance between answers of size 1.
LEAST = 1e-20
# More labels than this would run into each other.
MOST_LABELS = 12


def write(analysis: Analysis, folder: Path) -> Path:
    return write_page(render(analysis), folder)


def write_phases(target: str, phases: Sequence[AlgorithmPhase], folder: Path) -> Path:
    """The page of a learner's phases: the picture, and a row for each place."""
    picture = phases_figure([phase.as_numbers() for phase in phases])
    rows = [(phase.place, *phase_row(phase)) for phase in phases]
    values = {"target": target, "axis": phases[0].axis, "kinds": list(KINDS), "picture": picture, "rows": rows}
    return write_page(fill("phases.html", **values), folder)


def phase_row(phase: AlgorithmPhase) -> tuple[str, ...]:
    """The verdict, the nearest with its parameters, and what the nearest of each kind leaves unexplained."""
    left = [_nearest(phase.as_numbers(), kind)["value"] for kind in KINDS]
    one = phase.identification
    return one.algorithm, str(one.nearest), *(f"{value:.3g}" for value in left)


def phases_table(target: str, phases: Sequence[AlgorithmPhase]) -> Table:
    """A row for each checkpoint."""
    columns = ("steps", "algorithm", "nearest")
    rows = [(str(phase.place), *phase_row(phase)) for phase in phases]
    caption = "the last columns: what the nearest of each kind leaves unexplained"
    title = f"{target}, checkpoint by checkpoint"
    return table((*columns, *KINDS), rows, title=title, caption=caption, words=columns[1:])


def render(analysis: Analysis) -> str:
    comparison = analysis.comparison
    return fill(
        "identification.html",
        analysis=analysis,
        identification=analysis.identification,
        counts=comparison.linearity.counts,
        names=list(comparison.predictions),
        comparison=comparison,
        ranking=ranking(analysis.identification),
        predictions=distances(comparison.predictions, "E(ŷ − ŷ′)²/d"),
        weights=distances(comparison.weights, "E‖w − w′‖²/d"),
        ridge=ridge(analysis.ridge, analysis.bayes),
    )


@as_svg
def ranking(identification: Identification) -> Any:
    """What each reference leaves unexplained, with its interval; left of the dashed line it is near."""
    figure = canvas(5.6, 0.6 + 0.22 * len(identification.ranking))
    axes = figure.subplots()
    for row, match in enumerate(identification.ranking):
        value, low, high = (part.clip(*DRAWN_SHARES) for part in _drawn([match.unexplained]))
        colour = BLUE if identification.near and (row == 0 or match.name in identification.ties) else GREY
        axes.plot([low[0], high[0]], [row, row], color=colour, linewidth=1.4)
        axes.plot(value, [row], "o", color=colour, markersize=4)
        if match.unexplained.value > DRAWN_SHARES[1]:  # one that diverges must not squeeze the others together
            place = {"xytext": (4, 0), "textcoords": "offset points", "fontsize": 6.5, "va": "center"}
            axes.annotate(f"{match.unexplained.value:.0e}", (DRAWN_SHARES[1], row), color=GREY, **place)
    axes.axvline(identification.limit, color=ORANGE, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(identification.ranking)), [str(match) for match in identification.ranking])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("unexplained part of the predictor's variance")
    return figure


@as_svg
def distances(curves: Mapping[str, Curve], what: str) -> Any:
    """A line for each reference, its 95% interval around it."""
    from matplotlib.ticker import MaxNLocator

    figure = canvas(4.0, 2.8)
    axes = figure.subplots()
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        value, low, high = _drawn(curve.values)
        axes.plot(curve.counts, value, "o-", color=colour, markersize=2.5, linewidth=1.1, label=name)
        axes.fill_between(curve.counts, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    usual = np.median([each.value for curve in curves.values() for each in curve.values])
    if usual > 0:
        axes.set_ylim(top=min(axes.get_ylim()[1], DRAWN_DISTANCES * usual))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("in-context examples")
    axes.set_ylabel(what)
    figure.legend(frameon=False, fontsize=6.5, loc="outside lower center")
    return figure


@as_svg
def ridge(fit: RidgeFit, bayes: float | None) -> Any:
    """Distance to ridge regression over its parameter; dashed, the Bayes predictor's."""
    figure = canvas(4.0, 2.8)
    axes = figure.subplots()
    value, low, high = _drawn(fit.differences)
    axes.loglog(fit.grid, value, "o-", color=BLUE, markersize=2.5, linewidth=1.1)
    axes.fill_between(fit.grid, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axes.plot([fit.best], [max(fit.difference.value, LEAST)], "o", color=ORANGE, markersize=5, label="best")
    if bayes is not None:
        axes.axvline(bayes, color=INK, linestyle="--", linewidth=0.8, label="σ²/τ²")
    axes.set_xlabel("ridge parameter λ")
    axes.set_ylabel("E(ŷ − ŷ′)²/d")
    figure.legend(frameon=False, fontsize=7, loc="outside lower center", ncols=2)
    return figure


def _drawn(values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, low and high of intervals, on a logarithmic axis."""
    rows: list[Interval] = list(values)
    table = np.array([(one.value, one.low, one.high) for one in rows])
    value, low, high = np.maximum(table, LEAST).T
    return value, low, high


def kind_of(reference: str) -> str:
    """Which line of the figure a reference belongs to; its own name where there is none."""
    return next((kind for kind in KINDS if reference.startswith(kind)), reference)


@as_svg
def phases_figure(phases: Sequence[Mapping[str, Any]]) -> Any:
    """A line for each kind of reference with its interval; behind it the colour of the nearest kind, pale where the
    verdict is none of these. Takes the numbers of `AlgorithmPhase.as_numbers`, as a file keeps them."""
    figure = canvas(5.2, 3.2)
    axes = figure.subplots()
    places = range(len(phases))
    for kind, colour in KINDS.items():
        best = [_nearest(phase, kind) for phase in phases]
        value, low, high = (np.array([one[end] for one in best]) for end in ("value", "low", "high"))
        axes.plot(places, value, "o-", color=colour, markersize=3, linewidth=1.2, label=kind)
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    for place, phase in zip(places, phases, strict=True):
        kind = kind_of(phase["ranking"][0]["name"])
        named = phase["algorithm"] == phase["ranking"][0]["name"]
        axes.axvspan(
            place - 0.5, place + 0.5, color=KINDS.get(kind or "", GREY), alpha=0.2 if named else 0.06, linewidth=0
        )
    axes.set_yscale("log")
    axes.set_xlim(-0.5, len(phases) - 0.5)
    shown = places[:: -(-len(phases) // MOST_LABELS)]
    axes.set_xticks(list(shown), [str(phases[place]["place"]) for place in shown])
    axes.set_xlabel(phases[0]["axis"])
    axes.set_ylabel("unexplained part of the learner's variance")
    axes.legend(frameon=False, fontsize=7)
    return figure


def _nearest(phase: Mapping[str, Any], kind: str) -> Mapping[str, float]:
    return min(
        (match["unexplained"] for match in phase["ranking"] if kind_of(match["name"]) == kind),
        key=lambda interval: interval["value"],
    )
