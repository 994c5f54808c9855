"""Figures as data: what is drawn, not how. `emulon.report.chart` is the one place that draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
    """One pair of axes. `across`: x runs down the page and y across it, for long names.

    `spans` are (from, to, colour, opacity) along x, `texts` are (x, y, words, colour). `size` is in inches.
    """

    x_label: str
    y_label: str
    series: Sequence[Series] = ()
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    across: bool = False
    rules: Sequence[Rule] = ()
    spans: Sequence[tuple[Number, Number, str, Number]] = ()
    texts: Sequence[tuple[Number, Number, str, str]] = ()
    x_range: tuple[Number, Number] | None = None
    y_range: tuple[Number, Number] | None = None
    x_ticks: Mapping[Number, str] | None = None
    size: tuple[Number, Number] | None = None


@dataclass(frozen=True)
class Figure:
    """Panels side by side, in rows where they are many."""

    panels: Sequence[Panel]
