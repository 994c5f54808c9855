"""The one function that draws a claim's figure, out of a figure that is data."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from emulon.claims.figure import Figure, Panel, Series
from emulon.report.figures import BLUE, GREY, INK, ORANGE, as_svg

GREEN, GOLD, PURPLE = "#4f8a5b", "#c9a227", "#7b5ea7"
COLOURS = (BLUE, ORANGE, GREEN, GOLD, PURPLE, INK, GREY)
WIDTH, HEIGHT = 4.2, 3.0


@as_svg
def chart(figure: Figure) -> Any:
    """Panels side by side. A label keeps its colour throughout the figure."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH * len(figure.panels), HEIGHT), layout="constrained")
    labels = dict.fromkeys(series.of or series.label for panel in figure.panels for series in panel.series)
    colours = dict(zip(labels, cycle(COLOURS), strict=False))
    for axes, panel in zip(np.atleast_1d(canvas.subplots(1, len(figure.panels))), figure.panels, strict=True):
        bars = [series for series in panel.series if series.mark == "bars"]
        for series in panel.series:
            colour = colours[series.of or series.label]
            if series.mark == "bars":
                _bars(axes, series, panel, bars.index(series), len(bars), colour)
            else:
                _curve(axes, series, panel, colour)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=6.5)
    return canvas


def _curve(axes: Any, series: Series, panel: Panel, colour: str) -> None:
    x, y = np.asarray(series.x, float), _above_zero(series.y, panel.log_y)
    style = {"line": "-o", "dashes": "--", "dots": "D"}[series.mark]
    markers = 3.0 if len(x) <= 24 else 0.0
    axes.plot(x, y, style, color=colour, linewidth=1.1, markersize=markers or None, label=series.label)
    if not markers:
        axes.lines[-1].set_marker("")
    if series.low is not None and series.high is not None:
        axes.fill_between(x, _above_zero(series.low, panel.log_y), series.high, color=colour, alpha=0.15, linewidth=0)


def _bars(axes: Any, series: Series, panel: Panel, number: int, count: int, colour: str) -> None:
    places, thickness, y = np.arange(len(series.x)), 0.8 / count, _above_zero(series.y, panel.log_y)
    spread = None
    if series.low is not None and series.high is not None:
        spread = np.stack([y - np.asarray(series.low), np.asarray(series.high) - y])
    at = places + (number - (count - 1) / 2) * thickness
    axes.bar(at, y, thickness, color=colour, yerr=spread, error_kw={"elinewidth": 0.7}, label=series.label)
    axes.set_xticks(places, [str(name) for name in series.x])


def _above_zero(y: Any, log: bool) -> np.ndarray:
    """An exact zero has no logarithm: it is drawn at the smallest error float64 knows of."""
    values = np.asarray(y, float)
    return np.maximum(values, 1e-17) if log else values
