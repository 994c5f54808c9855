"""95 % intervals over seeds, and decisions by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from reproduce.claim import State

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and Student's 95 % interval of it; one value has no interval, and gives (value, −∞, ∞).

    Raises:
        IndexError: more than 31 values, for which the table has no entry.
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, -math.inf, math.inf
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def at_most(limit: float, values: Sequence[float]) -> State:
    """Whether the mean is at most `limit`, where its interval does not contain the limit."""
    _, low, high = interval(values)
    return "holds" if high <= limit else "does not hold" if low > limit else "not decided"


def all_at_most(limit: float, every: Iterable[Sequence[float]]) -> State:
    """`at_most` of each: one above is above, and all must be below."""
    states = {at_most(limit, each) for each in every}
    return "does not hold" if "does not hold" in states else states.pop() if len(states) == 1 else "not decided"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Logarithms of paired ratios: the interval of their mean is that of the geometric mean of the ratios."""
    return [math.log(a / b) for a, b in zip(above, below, strict=True)]


def shown(values: Sequence[float], exp: bool = False, digits: str = ".3g") -> str:
    """Mean and interval in a few words, of exp(values) where they are logarithms; a single value alone."""
    numbers = [math.exp(x) if exp and math.isfinite(x) else x for x in interval(values)]
    mean, low, high = (format(x, digits) for x in numbers)
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"
