"""Series of figures that claims have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from emulon.report.figure import Mark, Number, Series
from reproduce.claim import Numbers
from reproduce.interval import interval

# Drawn on a logarithmic axis in the place of zero.
FLOOR = 1e-17
X = Sequence[Number] | Sequence[str]


def band(label: str, x: X, curves: Sequence[Sequence[Number]]) -> Series:
    """The mean of several curves, between the lowest and the highest of them; as long as the shortest."""
    columns = list(zip(*curves, strict=False))
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    return Series(label, x[: len(columns)], [fmean(column) for column in columns], low=low, high=high)


def with_intervals(label: str, x: X, values: Sequence[Sequence[float]], mark: Mark) -> Series:
    """Means over seeds with Student's intervals, which are cut at a hundredth of the mean."""
    means, lows, highs = zip(*(interval(each) for each in values), strict=True)
    lows = tuple(max(low, mean / 100) for low, mean in zip(lows, means, strict=True))
    return Series(label, x, means, mark, lows, highs)


def of_rows(
    rows: Sequence[Numbers], x: X, keys: Mapping[str, str] | Sequence[str], mark: Mark = "bars"
) -> list[Series]:
    """A series for every key of the rows, under the key's label where there is one."""
    named = keys if isinstance(keys, Mapping) else {key: key for key in keys}
    return [Series(label, x, [max(row[key], FLOOR) for row in rows], mark) for label, key in named.items()]
