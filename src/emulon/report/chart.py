"""How everything is drawn: SVG text in one style, and the one function that draws a figure that is data."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from functools import wraps
from itertools import cycle
from typing import Any

import numpy as np

from emulon.report.figure import Figure, Panel, Series

INK, BLUE, ORANGE, GREY = "#222222", "#2a6f97", "#c8553d", "#9aa5ad"
GREEN, GOLD, PURPLE = "#4f8a5b", "#c9a227", "#7b5ea7"
COLOURS = (BLUE, ORANGE, GREEN, GOLD, PURPLE, INK, GREY)
WIDTH, HEIGHT, NAME_WIDTH = 4.2, 3.0, 0.62
MOST_MARKERS = 24
MOST_PANELS = 3
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.titlelocation": "left",
}


def as_svg(draw: Callable[..., Any]) -> Callable[..., str]:
    """The figure that `draw` returns, as an <svg> element whose ids no other picture on the page has."""

    @wraps(draw)
    def drawn(*arguments: Any) -> str:
        import matplotlib

        with matplotlib.rc_context({**STYLE, "svg.hashsalt": draw.__name__}):
            figure = draw(*arguments)
            _plain_powers(figure)
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
        svg = file.getvalue()[file.getvalue().index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
        mark = f"{draw.__name__}-{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
        return re.sub(r'(id="|url\(#|href="#)', rf"\1{mark}", svg)

    return drawn


def _plain_powers(figure: Any) -> None:
    """Write 1e-05 beside logarithmic axes, not 10⁻⁵: parsing that as mathematics takes half of a picture's time."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    for axis in (each for axes in figure.axes for each in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def canvas(width: float, height: float) -> Any:
    """A figure of its own, without pyplot's global state."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


@as_svg
def chart(figure: Figure) -> Any:
    """Panels side by side, in rows of up to three. A label keeps its colour throughout the figure, and stands in a
    panel's legend once."""
    count = len(figure.panels)
    rows = -(-count // MOST_PANELS)
    columns = -(-count // rows)
    wide = [max(WIDTH, NAME_WIDTH * _names(panel)) for panel in figure.panels]
    widths = [max(wide[column::columns]) for column in range(columns)]
    drawing = canvas(sum(widths), rows * HEIGHT)
    labels = dict.fromkeys(series.of or series.label for panel in figure.panels for series in panel.series)
    colours = dict(zip(labels, cycle(COLOURS), strict=False))
    several = np.ravel(drawing.subplots(rows, columns, width_ratios=widths))
    for axes in several[count:]:
        axes.set_axis_off()
    for axes, panel in zip(several, figure.panels, strict=False):
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
        handles, labelled = axes.get_legend_handles_labels()
        once = dict(zip(labelled, handles, strict=True))
        axes.legend(once.values(), once.keys(), frameon=False, fontsize=6.5)
    return drawing


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
