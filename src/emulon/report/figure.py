"""Figures as data, which say what is drawn, and `chart`, which draws all of them as SVG text in one style."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Literal

import numpy as np

Number = float | int
# dashes are for bounds and references, dots for somebody else's numbers, bars and points for names along x
Mark = Literal["line", "dashes", "dots", "bars", "points"]


@dataclass(frozen=True)
class Series:
    """y over x, with a band from low to high where there are several seeds. x may be words, for bars and points.

    `of` is the label of another series, whose colour this one shares: a bound's of its errors. Without a label it is
    not in the legend.
    """

    label: str
    x: Sequence[Number] | Sequence[str]
    y: Sequence[Number]
    mark: Mark = "line"
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    of: str = ""
    colour: str = ""
    width: Number = 1.1


@dataclass(frozen=True)
class Rule:
    """A line across the whole panel, at a place along x or along y."""

    axis: Literal["x", "y"]
    at: Number
    label: str = ""
    colour: str = "#9aa5ad"
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `across`: x runs down the page and y across it, for long names. `size` is in inches."""

    x_label: str
    y_label: str
    series: Sequence[Series] = ()
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    across: bool = False
    rules: Sequence[Rule] = ()
    y_range: tuple[Number, Number] | None = None
    size: tuple[Number, Number] | None = None


@dataclass(frozen=True)
class Figure:
    """Panels side by side, in rows where they are many."""

    panels: Sequence[Panel]


INK, BLUE, ORANGE, GREY = "#222222", "#2a6f97", "#c8553d", "#9aa5ad"
GREEN, GOLD, PURPLE = "#4f8a5b", "#c9a227", "#7b5ea7"
COLOURS = (BLUE, ORANGE, GREEN, GOLD, PURPLE, INK, GREY)
# Inches; the rest of this file is in points.
WIDTH, HEIGHT, NAME_WIDTH = 4.2, 3.0, 0.62
POINTS = 72
MOST_MARKERS = 24
MOST_PANELS = 3
# Legends of more rows make the panel higher.
LEGEND_ROWS = 2
TEXT, TITLE, LINE = 7.0, 8.5, 9.5
# The mean width of a letter over the size of the text.
LETTER = 0.54
# An exact zero has no logarithm: it is drawn here, below what float64 knows of errors of numbers of size 1.
LEAST = 1e-17
# Stands for the id of a panel's area until the whole picture is known.
CLIP = "\0"
DASHES = "4 2.5"


def chart(figure: Figure) -> str:
    """An <svg> element.

    Args:
        figure: Panels, which stand side by side, in rows of up to three.

    Returns:
        The element, with no id that another picture on the page has. A label keeps its colour throughout the figure,
        and stands in a panel's legend once.

    Example:
        >>> chart(Figure([Panel("steps", "error", [Series("ridge", [1, 2], [0.5, 0.1])], log_y=True)]))[:4]
        '<svg'
    """
    rows = -(-len(figure.panels) // MOST_PANELS)
    columns = -(-len(figure.panels) // rows)
    labels = dict.fromkeys(series.of or series.label for panel in figure.panels for series in panel.series)
    colours = dict(zip(labels, cycle(COLOURS), strict=False))
    sizes = [_size(panel) for panel in figure.panels]
    widths = [max(width for width, _ in sizes[column::columns]) for column in range(columns)]
    heights = [max(height for _, height in sizes[row * columns : (row + 1) * columns]) for row in range(rows)]
    parts = []
    for number, panel in enumerate(figure.panels):
        row, column = divmod(number, columns)
        drawing = _Drawing(panel, colours, widths[column], heights[row])
        parts.append(f'<g transform="translate({_n(sum(widths[:column]))} {_n(sum(heights[:row]))})">{drawing.svg}</g>')
    body = "".join(parts)
    mark = hashlib.sha256(body.encode()).hexdigest()[:10]
    for number in range(len(parts)):
        body = body.replace(CLIP, f"c{mark}-{number}", 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(sum(widths))} {_n(sum(heights))}" '
        f'font-family="sans-serif" font-size="{TEXT:g}" fill="{INK}">{body}</svg>'
    )


def _names(panel: Panel) -> list[str]:
    """The words along x, where there are any."""
    named = [series.x for series in panel.series if series.mark in ("bars", "points")]
    return [str(name) for name in max(named, key=len, default=())]


def _size(panel: Panel) -> tuple[float, float]:
    names = [] if panel.across else _names(panel)
    a_name = max(NAME_WIDTH, max(map(_text_width, names), default=0) / POINTS + 0.1)
    width, height = panel.size or (max(WIDTH, a_name * len(names)), HEIGHT)
    extra = max(0, len(_legend_rows(panel, POINTS * width - 40)) - LEGEND_ROWS)
    return POINTS * width, POINTS * height + extra * LINE


def _legend_rows(panel: Panel, width: Number) -> list[list[str]]:
    """The labels, as many in a row as fit."""
    rows: list[list[str]] = []
    room = 0.0
    labels = [*(series.label for series in panel.series), *(rule.label for rule in panel.rules)]
    for label in dict.fromkeys(filter(None, labels)):
        if _text_width(label) + 20 > room:
            rows.append([])
            room = width
        rows[-1].append(label)
        room -= _text_width(label) + 26
    return rows


def _text_width(words: str, size: Number = TEXT) -> float:
    return LETTER * size * max(map(len, words.split("\n")))


@dataclass(frozen=True)
class _Scale:
    """From numbers to places in points: linear or logarithmic."""

    lo: Number
    hi: Number
    log: bool
    start: Number = 0.0
    end: Number = 1.0

    @classmethod
    def over(cls, values: np.ndarray, log: bool, asked: tuple[Number, Number] | None, margin: Number = 0.05) -> _Scale:
        """The ends asked for, if they are two, or a little more than the values need."""
        if asked is not None and asked[0] < asked[1]:
            return cls(*asked, log)
        known = values[np.isfinite(values) & ((values > 0) | (not log))]
        lo, hi = (float(known.min()), float(known.max())) if known.size else (0.1, 1.0)
        if log:
            room = (hi / lo) ** margin if hi > lo else 2.0
            return cls(lo / room, hi * room, log)
        room = margin * (hi - lo) or 0.5 * abs(hi) or 0.5
        return cls(lo - room, hi + room, log)

    def places(self, values: object) -> np.ndarray:
        """In points; NaN stays."""
        numbers = np.asarray(values, float)
        lo, hi = self.lo, self.hi
        if self.log:
            numbers = np.log(np.where(numbers > 0, numbers, np.where(np.isnan(numbers), np.nan, LEAST)))
            lo, hi = math.log(lo), math.log(hi)
        shares = np.clip((numbers - lo) / (hi - lo), -20, 20)  # what lies far outside is cut off anyway
        return np.asarray(self.start + shares * (self.end - self.start))

    def ticks(self, most: int, whole: bool = False) -> dict[Number, str]:
        """Round numbers, and how they are written."""
        if not self.log:
            step = _round_step((self.hi - self.lo) / most)
            step = max(1.0, step) if whole else step
            first, last = math.ceil(self.lo / step - 1e-9), math.floor(self.hi / step + 1e-9)
            return {step * k: f"{step * k:g}" for k in range(first, last + 1)}
        first, last = math.ceil(math.log10(self.lo) - 1e-9), math.floor(math.log10(self.hi) + 1e-9)
        stride = -(-(last - first + 1) // most)
        powers = [10.0**k for k in range(first, last + 1) if k % max(1, stride) == 0]
        if len(powers) < 2:
            between = [factor * 10.0**k for k in range(first - 1, last + 1) for factor in (1, 2, 5)]
            powers = [value for value in between if self.lo <= value <= self.hi]
        return {value: f"{value:g}" for value in powers}


def _round_step(least: Number) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * least)


class _Drawing:
    """One panel as SVG, in a box of so many points."""

    def __init__(self, panel: Panel, colours: Mapping[str, str], width: Number, height: Number) -> None:
        self.panel, self.colours, self.names = panel, colours, _names(panel)
        legend = _legend_rows(panel, width - 40)
        self.parts: list[str] = []
        down, along = (panel.x_label, panel.y_label) if panel.across else (panel.y_label, panel.x_label)
        self.top = 8 + (13 if panel.title else 0) + LINE * len(legend)
        below = 3 + (0 if panel.across else max((name.count("\n") for name in self.names), default=0)) * LINE
        self.bottom = height - below - 11 - (10 if along else 0)
        self.x, self.y = self._scales()
        vertical = self._vertical_ticks()
        self.left = 8 + (11 if down else 0) + max(map(_text_width, vertical.values()), default=0)
        self.right = width - 8
        self.x, self.y = self._placed(self.x, panel.across), self._placed(self.y, not panel.across)
        self._inside()
        self._frame(vertical, down, along)
        self._heading(legend)
        self.svg = "".join(self.parts)

    def _placed(self, scale: _Scale, vertical: bool) -> _Scale:
        """Along the page; names that run down it begin at the top."""
        if not vertical:
            return _Scale(scale.lo, scale.hi, scale.log, self.left, self.right)
        ends = (self.top, self.bottom) if self.panel.across else (self.bottom, self.top)
        return _Scale(scale.lo, scale.hi, scale.log, *ends)

    def _scales(self) -> tuple[_Scale, _Scale]:
        panel, bars = self.panel, any(series.mark == "bars" for series in self.panel.series)
        ys = [np.asarray(part, float) for s in panel.series for part in (s.y, s.low, s.high) if part is not None]
        ys += [np.array([rule.at for rule in panel.rules if rule.axis == "y"]), np.zeros(int(bars and not panel.log_y))]
        values = np.concatenate([np.ravel(part) for part in ys])
        y = _Scale.over(np.maximum(values, LEAST) if panel.log_y else values, panel.log_y, panel.y_range)
        linear = panel.y_range is None and not panel.log_y
        if bars and linear and y.lo < 0 <= values[np.isfinite(values)].min(initial=0.0):
            y = _Scale(0.0, y.hi, False)  # bars stand on the axis
        if self.names:
            return _Scale(-0.6, len(self.names) - 0.4, False), y
        xs = [np.asarray(series.x, float) for series in panel.series]
        xs.append(np.array([rule.at for rule in panel.rules if rule.axis == "x"]))
        return _Scale.over(np.concatenate(xs), panel.log_x, None), y

    def _x_ticks(self, most: int) -> Mapping[Number, str]:
        panel = self.panel
        if self.names:
            return dict(enumerate(self.names))
        xs = np.array(sorted({float(x) for series in panel.series for x in series.x}))
        if panel.log_x and len(xs) and xs[0] > 0 and xs[-1] < 100 * xs[0] and len(xs) <= 2 * most:
            return {x: f"{x:g}" for x in xs.tolist()}  # powers of ten alone would be too few
        return self.x.ticks(most, whole=bool(len(xs) == 0 or (xs == np.round(xs)).all()))

    def _vertical_ticks(self) -> Mapping[Number, str]:
        most = max(3, int((self.bottom - self.top) / 24))
        return self._x_ticks(most) if self.panel.across else self.y.ticks(most)

    def _at(self, x: object, y: object) -> tuple[np.ndarray, np.ndarray]:
        """Places on the page."""
        first, second = self.x.places(x), self.y.places(y)
        return (second, first) if self.panel.across else (first, second)

    def _inside(self) -> None:
        panel, left, top = self.panel, self.left, self.top
        self.parts.append(f'<clipPath id="{CLIP}">')
        self._rectangle((left, top, self.right - left, self.bottom - top))
        self.parts.append(f'</clipPath><g clip-path="url(#{CLIP})">')
        bars = [series for series in panel.series if series.mark == "bars"]
        for series in panel.series:
            colour = self._colour(series)
            if series.mark == "bars":
                self._bars(series, bars.index(series), len(bars), colour)
            elif series.mark == "points":
                self._points(series, colour)
            else:
                self._curve(series, colour)
        for rule in panel.rules:
            flat = (rule.axis == "y") != panel.across
            at = float((self.y if rule.axis == "y" else self.x).places(rule.at))
            ends = (left, at, self.right, at) if flat else (at, top, at, self.bottom)
            self._line(ends, rule.colour, 0.8, rule.dashed)
        self.parts.append("</g>")

    def _colour(self, series: Series) -> str:
        return series.colour or self.colours[series.of or series.label]

    def _curve(self, series: Series, colour: str) -> None:
        across, down = self._at(series.x, series.y)
        if series.low is not None and series.high is not None:
            low, high = (self._at(series.x, part)[1] for part in (series.low, series.high))
            known = np.isfinite(across + low + high)
            there, back = np.stack([across, high])[:, known], np.stack([across, low])[:, known][:, ::-1]
            points = " ".join(f"{_n(x)},{_n(y)}" for x, y in np.hstack([there, back]).T)
            self._add("polygon", points=points, fill=colour, fill_opacity=0.15)
        if series.mark != "dots":
            dashes = {"stroke_dasharray": DASHES} if series.mark == "dashes" else {}
            path = _path(across, down)
            self._add("path", d=path, fill="none", stroke=colour, stroke_width=series.width, **dashes)
        if series.mark == "dots" or (series.mark == "line" and len(across) <= MOST_MARKERS):
            self._markers(across, down, colour, "square" if series.mark == "dots" else "round")

    def _markers(self, across: np.ndarray, down: np.ndarray, colour: str, shape: str, size: Number = 3.0) -> None:
        """Lines of no length, whose ends are drawn."""
        known = np.isfinite(across + down)
        dots = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in zip(across[known], down[known], strict=True))
        self._add("path", d=dots, stroke=colour, stroke_width=size, stroke_linecap=shape)

    def _points(self, series: Series, colour: str) -> None:
        """A point a name, with its interval."""
        places = np.arange(len(series.y))
        self._intervals(series, places, colour, 1.4)
        self._markers(*self._at(places, series.y), colour, "round", 4.5)

    def _intervals(self, series: Series, places: np.ndarray, colour: str, width: Number) -> None:
        if series.low is None or series.high is None:
            return
        ends = zip(*self._at(places, series.low), *self._at(places, series.high), strict=True)
        for end in ends:
            if np.isfinite(end).all():
                self._line(tuple(map(float, end)), colour, width)

    def _bars(self, series: Series, number: int, count: int, colour: str) -> None:
        thickness = 0.8 / count
        places = np.arange(len(series.x)) + (number - (count - 1) / 2) * thickness
        foot = self.y.lo if self.panel.log_y else min(max(0.0, self.y.lo), self.y.hi)
        starts = self._at(places - thickness / 2, np.full(len(places), foot))
        ends = self._at(places + thickness / 2, np.asarray(series.y, float))
        for x0, y0, x1, y1 in zip(*starts, *ends, strict=True):
            if np.isfinite([x1, y1]).all():
                self._rectangle((min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0)), fill=colour)
        self._intervals(series, places, INK, 0.7)

    def _frame(self, vertical: Mapping[Number, str], down: str, along: str) -> None:
        """The two axes with their ticks and names."""
        panel = self.panel
        most = max(2, int((self.right - self.left) / 34))
        level = self.y.ticks(most) if panel.across else self._x_ticks(most)
        flat, upright = (self.y, self.x) if panel.across else (self.x, self.y)
        left, bottom = self.left, self.bottom
        axes = f"M{_n(left)} {_n(self.top)}V{_n(bottom)}H{_n(self.right)}"
        self._add("path", d=axes, fill="none", stroke=GREY, stroke_width=0.6)
        for value, words in level.items():
            if flat.lo <= value <= flat.hi:
                place = float(flat.places(value))
                self._line((place, bottom, place, bottom + 2.5), GREY, 0.6)
                self._text(place, bottom + 10, words, "middle")
        for value, words in vertical.items():
            if upright.lo <= value <= upright.hi:
                place = float(upright.places(value))
                self._line((left - 2.5, place, left, place), GREY, 0.6)
                self._text(left - 5, place + TEXT / 3, words, "end")
        lines = max((words.count("\n") for words in level.values()), default=0)
        self._text((self.left + self.right) / 2, self.bottom + 20 + lines * LINE, along, "middle")
        self._text(9, (self.top + self.bottom) / 2, down, "middle", turned=True)

    def _heading(self, legend: Sequence[Sequence[str]]) -> None:
        """The title, and below it what the colours mean."""
        if self.panel.title:
            self._text(self.left, 12, self.panel.title, "start", size=TITLE)
        of = {rule.label: (rule.colour, rule.dashed) for rule in self.panel.rules}
        of |= {each.label: (self._colour(each), each.mark == "dashes") for each in self.panel.series}
        place = self.top - LINE * len(legend)
        for row in legend:
            across = self.left
            for label in row:
                colour, dashed = of[label]
                self._line((across, place, across + 12, place), colour, 2.0, dashed)
                self._text(across + 16, place + TEXT / 3, label, "start")
                across += _text_width(label) + 26
            place += LINE

    def _rectangle(self, box: Sequence[Number], **attributes: Number | str) -> None:
        left, top, width, height = box
        self._add("rect", x=left, y=top, width=width, height=height, **attributes)

    def _line(self, ends: Sequence[Number], colour: str, width: Number, dashed: bool = False) -> None:
        x1, y1, x2, y2 = ends
        dashes = {"stroke_dasharray": DASHES} if dashed else {}
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width=width, **dashes)

    def _text(
        self,
        x: Number,
        y: Number,
        words: str,
        anchor: str,
        size: Number = TEXT,
        turned: bool = False,
    ) -> None:
        turn = {"transform": f"rotate(-90 {_n(x)} {_n(y)})"} if turned else {}
        for line in filter(None, words.split("\n")):
            self._add("text", line, x=x, y=y, text_anchor=anchor, fill=INK, font_size=size, **turn)
            y += LINE

    def _add(self, tag: str, content: str = "", /, **attributes: Number | str) -> None:
        """An element; `stroke_width` is its stroke-width."""
        told = ((name, value if isinstance(value, str) else _n(value)) for name, value in attributes.items())
        listed = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in told)
        self.parts.append(f"<{tag}{listed}>{escape(content, quote=False)}</{tag}>" if content else f"<{tag}{listed}/>")


def _n(number: Number) -> str:
    """A length, to a hundredth of a point."""
    return f"{round(float(number), 2):g}"


def _path(across: np.ndarray, down: np.ndarray) -> str:
    """A line through these points, broken where one is missing."""
    parts, pen = [], "M"
    for x, y in zip(across.tolist(), down.tolist(), strict=True):
        if math.isfinite(x + y):
            parts.append(f"{pen}{_n(x)} {_n(y)}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)
