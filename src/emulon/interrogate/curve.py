"""A number for each count of in-context examples, with its intervals: what all the comparisons return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

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
