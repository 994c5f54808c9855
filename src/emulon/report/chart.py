"""The one function that draws a claim's figure, out of a figure that is data."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from emulon.claims.figure import Figure, Panel, Series
from emulon.report.figures import BLUE, GREY, INK, ORANGE, as_svg

GREEN, GOLD, PURPLE = "#4f8a5b", "#c9a227", "#7b5ea7"
COLOURS = (BLUE, ORANGE, GREEN, GOLD, PURPLE, INK, GREY)
WIDTH, HEIGHT, NAME_WIDTH = 4.2, 3.0, 0.62
MOST_MARKERS = 24


@as_svg
def chart(figure: Figure) -> Any:
    """Panels side by side. A label keeps its colour throughout the figure."""
    from matplotlib.figure import Figure as Canvas

    widths = [max(WIDTH, NAME_WIDTH * _names(panel)) for panel in figure.panels]
    canvas = Canvas(figsize=(sum(widths), HEIGHT), layout="constrained")
    labels = dict.fromkeys(series.of or series.label for panel in figure.panels for series in panel.series)
    colours = dict(zip(labels, cycle(COLOURS), strict=False))
    several = np.atleast_1d(canvas.subplots(1, len(widths), width_ratios=widths))
    for axes, panel in zip(several, figure.panels, strict=True):
        _scales(axes, panel)
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
        axes.legend(frameon=False, fontsize=6.5)
    return canvas


def _names(panel: Panel) -> int:
    return max((len(series.x) for series in panel.series if series.mark == "bars"), default=0)


def _scales(axes: Any, panel: Panel) -> None:
    if panel.log_y:
        axes.set_yscale("log")
    elif _names(panel):
        axes.margins(y=0.35)  # the legend's place
    if not panel.log_x:
        return
    axes.set_xscale("log")
    places = sorted({float(x) for series in panel.series for x in series.x})
    if places[-1] < 100 * places[0]:  # powers of ten alone would be too few, and what lies between them too many
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xticks([], minor=True)


def _curve(axes: Any, series: Series, panel: Panel, colour: str) -> None:
    x, y = np.asarray(series.x, float), _above_zero(series.y, panel.log_y)
    line, marker = {"line": ("-", "o"), "dashes": ("--", "_"), "dots": ("none", "D")}[series.mark]
    if len(x) > MOST_MARKERS and series.mark != "dots":
        marker = ""
    style = {"linestyle": line, "marker": marker, "color": colour, "linewidth": 1.1, "markersize": 3}
    axes.plot(x, y, label=series.label, **style)
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
