"""The beginning of every comparison: datasets, and the numbers of examples after which predictors are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

from jaxtyping import Float
from torch import Tensor

from emulon.errors import EmulonError
from emulon.interrogate.curve import Curve
from emulon.interrogate.prefixes import Prefixes
from emulon.predictor import Predictor, predict_at
from emulon.tasks import RegressionTask

DATASETS = 256
POINTS = 40


class Sampling(TypedDict, total=False):
    """What every comparison may be told: how many datasets, of how many points, asked after which counts of examples.

    By default 256 datasets, of as many points as the predictors can read (40 where there is no limit), asked after
    1, 2, …, points − 1 examples.
    """

    seed: int
    datasets: int
    points: int | None
    counts: Sequence[int] | None


@dataclass(frozen=True)
class Drawn:
    """Datasets (xs, ys); after each of `counts` examples the point that follows is asked."""

    xs: Float[Tensor, "datasets points features"]
    ys: Float[Tensor, "datasets points"]
    counts: tuple[int, ...]

    @property
    def features(self) -> int:
        return self.xs.shape[-1]

    @cached_property
    def prefixes(self) -> Prefixes:
        return Prefixes(self.xs.double(), self.ys.double(), self.counts)

    def answers(self, predictor: Predictor) -> Float[Tensor, "datasets counts"]:
        return predict_at(predictor, self.xs, self.ys, self.counts)

    def curve(self, name: str, values: Float[Tensor, "datasets counts"]) -> Curve:
        return Curve.of(name, self.counts, values)


def draw(
    task: RegressionTask,
    *predictors: object,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int | None = None,
    counts: Sequence[int] | None = None,
) -> Drawn:
    """Datasets for all these predictors; the same for the same arguments."""
    limits = [getattr(one, "examples", None) for one in predictors]
    able = [set(limit) for limit in limits if limit is not None]
    if points is None:
        points = min((max(numbers) + 1 for numbers in able), default=POINTS)
    counts = counts_for(points, able, counts)
    return Drawn(*task.held_out(seed, datasets, points).pairs, counts)


def counts_for(points: int, able: Sequence[set[int]], counts: Sequence[int] | None = None) -> tuple[int, ...]:
    """The numbers of examples to ask about: those given, or 1 … points − 1; always those all predictors can take."""
    asked = set(range(1, points)) if counts is None else set(counts)
    if not asked <= set(range(1, points)):
        raise EmulonError(f"counts must lie in 1 … {points - 1}, as {points} points leave one to ask; got {counts}")
    asked = asked.intersection(*able)
    if not asked:
        taken = " and ".join(_span(numbers) for numbers in able)
        limit = f" that every predictor can take; they take {taken}" if able else ""
        raise EmulonError(f"no number of examples below {points}{limit}; choose other points")
    return tuple(sorted(asked))


def _span(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} … {high}"
