"""The page of an interrogation: the ranking, the distances by number of examples, and the best ridge parameter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from emulon.interrogate import Curve, Identification, Interrogation, Interval, RidgeFit
from emulon.report.chart import BLUE, GREY, INK, ORANGE, as_svg
from emulon.report.page import fill, write_page

COLOURS = (BLUE, ORANGE, "#4f8a5b", INK)
# What is smaller is drawn here: float64 knows of no smaller squared distance between answers of size 1.
LEAST = 1e-20


def write(interrogation: Interrogation, folder: Path) -> Path:
    return write_page(render(interrogation), folder)


def render(interrogation: Interrogation) -> str:
    comparison = interrogation.comparison
    return fill(
        "interrogation.html",
        interrogation=interrogation,
        identification=interrogation.identification,
        counts=comparison.linearity.counts,
        names=list(comparison.predictions),
        comparison=comparison,
        ranking=ranking(interrogation.identification),
        predictions=distances(comparison.predictions, "E(ŷ − ŷ′)²/d"),
        weights=distances(comparison.weights, "E‖w − w′‖²/d"),
        ridge=ridge(interrogation.ridge, interrogation.bayes),
    )


@as_svg
def ranking(identification: Identification) -> Any:
    """What each reference leaves unexplained, with its interval; left of the dashed line it is near."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 0.6 + 0.22 * len(identification.ranking)), layout="constrained")
    axes = figure.subplots()
    for row, match in enumerate(identification.ranking):
        value, low, high = _drawn([match.unexplained])
        colour = BLUE if identification.near and (row == 0 or match.name in identification.ties) else GREY
        axes.plot([low[0], high[0]], [row, row], color=colour, linewidth=1.4)
        axes.plot(value, [row], "o", color=colour, markersize=4)
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
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(4.0, 2.8), layout="constrained")
    axes = figure.subplots()
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        value, low, high = _drawn(curve.values)
        axes.plot(curve.counts, value, "o-", color=colour, markersize=2.5, linewidth=1.1, label=name)
        axes.fill_between(curve.counts, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("in-context examples")
    axes.set_ylabel(what)
    figure.legend(frameon=False, fontsize=6.5, loc="outside lower center")
    return figure


@as_svg
def ridge(fit: RidgeFit, bayes: float | None) -> Any:
    """Distance to ridge regression over its parameter; dashed, the Bayes predictor's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.0, 2.8), layout="constrained")
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
