"""Figures as data: what is drawn, not how. `emulon.report.chart` is the one place that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Number = float | int
# dashes are for bounds and references, dots for somebody else's numbers, bars for names along x
Mark = Literal["line", "dashes", "dots", "bars"]


@dataclass(frozen=True)
class Series:
    """y over x, with a band from low to high where there are several seeds. x may be words, for bars.

    `of` is the label of another series, whose colour this one shares: a bound's of its errors.
    """

    label: str
    x: Sequence[Number] | Sequence[str]
    y: Sequence[Number]
    mark: Mark = "line"
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    of: str = ""


@dataclass(frozen=True)
class Panel:
    x_label: str
    y_label: str
    series: Sequence[Series]
    title: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels side by side, in rows where they are many."""

    panels: Sequence[Panel]
