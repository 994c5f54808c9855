"""A number for each count of in-context examples, with its intervals: what all the comparisons return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from emulon.errors import EmulonError
from emulon.interrogate.interval import Interval, intervals


@dataclass(frozen=True)
class Curve:
    """`values[i]` belongs to `counts[i]` in-context examples; `overall` is the mean over all counts."""

    name: str
    counts: tuple[int, ...]
    values: tuple[Interval, ...]
    overall: Interval

    @classmethod
    def of(cls, name: str, counts: Sequence[int], values: Float[Tensor, "datasets counts"]) -> Curve:
        """From one number for each dataset and count."""
        (overall,) = intervals(values.mean(dim=1, keepdim=True))
        return cls(name, tuple(counts), intervals(values), overall)

    def __getitem__(self, count: int) -> Interval:
        return self.values[self.counts.index(count)]

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"{n:4d}  {v}" for n, v in zip(self.counts, self.values, strict=True))])


def counts_for(points: int, *predictors: object, counts: Sequence[int] | None = None) -> tuple[int, ...]:
    """The numbers of examples to ask about: those given, or 1 … points − 1; always those all predictors can take."""
    asked = set(range(1, points)) if counts is None else set(counts)
    if not asked <= set(range(1, points)):
        raise EmulonError(f"counts must lie in 1 … {points - 1}, as {points} points leave one to ask; got {counts}")
    for predictor in predictors:
        if (able := getattr(predictor, "examples", None)) is not None:
            asked &= set(able)
    if not asked:
        able = [getattr(predictor, "examples", None) for predictor in predictors]
        raise EmulonError(f"no number of examples below {points} that every predictor can take; they take {able}")
    return tuple(sorted(asked))
