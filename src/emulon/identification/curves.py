"""What all comparisons return: means over datasets with bootstrap intervals, one for each number of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

RESAMPLES = 500
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % percentile interval.

    Attributes:
        value: The estimate.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def bootstrap_means(
    values: Float[Tensor, "datasets columns"], seed: int = 0, resamples: int = RESAMPLES
) -> Float[Tensor, "resamples columns"]:
    """The columns' means over datasets drawn again with replacement, the same draw for every column."""
    count = values.shape[0]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (resamples, count), generator=generator, device="cpu")
    times = torch.zeros(resamples, count, dtype=torch.float64, device="cpu").scatter_add_(
        1, drawn, torch.ones_like(drawn).double()
    )
    return times.to(values) @ values / count


def intervals(values: Float[Tensor, "datasets columns"], seed: int = 0) -> tuple[Interval, ...]:
    """One interval for the mean of every column."""
    low, high = bounds(bootstrap_means(values, seed))
    rows = zip(values.mean(dim=0).tolist(), low.tolist(), high.tolist(), strict=True)
    return tuple(Interval(*row) for row in rows)


def bounds(means: Float[Tensor, "resamples columns"]) -> tuple[Tensor, Tensor]:
    """The ends of the percentile intervals of resampled means."""
    tail = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=means.dtype, device=means.device)
    low, high = torch.quantile(means, tail, dim=0)
    return low, high


@dataclass(frozen=True)
class Curve:
    """A number for each count of in-context examples.

    Attributes:
        name: What it is of.
        counts: Numbers of examples.
        values: One for each count.
        overall: The mean over all counts.
    """

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
