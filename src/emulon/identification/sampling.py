"""Both ends of every comparison: datasets with the numbers of examples after which predictors are asked, and means over
datasets with bootstrap intervals, one for each number of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from emulon.algorithms.closed_form import lasso_path
from emulon.core.errors import EmulonError
from emulon.core.predictor import Predictor, predict_at
from emulon.tasks import RegressionTask

# Data of every dataset, and a predictor's answers after every number of examples.
Inputs = Float[Tensor, "datasets points features"]
Targets = Float[Tensor, "datasets points"]
Answers = Float[Tensor, "datasets counts"]

DATASETS = 256
POINTS = 40
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


class Sampling(TypedDict, total=False):
    """What every comparison can be given: how many datasets, of how many points, asked after which counts of examples.

    By default 256 datasets, of as many points as the predictors can read (40 where there is no limit), asked after
    fewest, …, points − 1 examples, `fewest` being 1.
    """

    seed: int
    datasets: int
    points: int | None
    fewest: int
    counts: Sequence[int] | None


@dataclass(frozen=True)
class GramSpectrum:
    """One SVD for each prefix. With X = Σ σ_j u_j v_jᵀ and s_j = σ_j², every method that filters the spectrum predicts
    Σ_j response(s_j)·share_j, share_j = (x_query·v_j)(u_j·y)/σ_j: response 1 is least squares, s/(s + λ) is ridge.
    """

    squares: Float[Tensor, "datasets counts features"]
    shares: Float[Tensor, "datasets counts features"]


@dataclass(frozen=True)
class KernelSpectrum:
    """One eigendecomposition K = Σ s_j u_j u_jᵀ of the examples' kernel for each prefix; with product_j =
    (k_query·u_j)(u_j·y), kernel ridge predicts Σ_j product_j/(s_j + λ). Beyond the n-th both are 0.
    """

    values: Float[Tensor, "datasets counts points"]
    products: Float[Tensor, "datasets counts points"]


@dataclass(frozen=True)
class Centred:
    """The same prefixes with the means of their n examples taken off inputs, targets and query: what is fitted to them
    is a fit with an intercept that no penalty sees, once the mean target is added to its answer."""

    means: Answers
    spectrum: GramSpectrum
    lasso_path: tuple[Float[Tensor, "datasets counts knots"], Float[Tensor, "datasets counts knots"]]


@dataclass(frozen=True)
class Prefixes:
    """The first n examples of every dataset, for every n in `counts`; the query is the point that follows.

    What the references share is computed once, when the first of them asks for it.

    Attributes:
        xs: Points.
        ys: Targets.
        counts: Numbers of examples.
    """

    xs: Inputs
    ys: Targets
    counts: tuple[int, ...]

    @property
    def datasets(self) -> int:
        return self.xs.shape[0]

    @property
    def features(self) -> int:
        return self.xs.shape[-1]

    def answers(self, predictor: Predictor) -> Answers:
        return predict_at(predictor, self.xs, self.ys, self.counts)

    def curve(self, name: str, values: Answers) -> Curve:
        return Curve.of(name, self.counts, values)

    @cached_property
    def sizes(self) -> Float[Tensor, " counts"]:
        return torch.tensor(self.counts, dtype=torch.float64, device="cpu")

    @cached_property
    def queries(self) -> Float[Tensor, "datasets counts features"]:
        return self.xs[:, list(self.counts)]

    @cached_property
    def scale(self) -> float:
        """The mean square of an input."""
        return self.xs.square().mean().item()

    @cached_property
    def moments(self) -> Float[Tensor, "datasets counts features"]:
        """Xᵀy."""
        return (self.xs * self.ys.unsqueeze(-1)).cumsum(dim=1)[:, self._last]

    @cached_property
    def grams(self) -> Float[Tensor, "datasets counts features features"]:
        """XᵀX."""
        return (self.xs.unsqueeze(-1) * self.xs.unsqueeze(-2)).cumsum(dim=1)[:, self._last]

    @cached_property
    def spectrum(self) -> GramSpectrum:
        return _spectrum([_svd(self.xs[:, :n], self.ys[:, :n], self.xs[:, n], n) for n in self.counts])

    @cached_property
    def centred(self) -> Centred:
        means, spectra, grams, moments, queries = [], [], [], [], []
        for n in self.counts:
            x, y, query = self.xs[:, :n], self.ys[:, :n], self.xs[:, n]
            middle, mean = x.mean(dim=1, keepdim=True), y.mean(dim=1, keepdim=True)
            x, y, query = x - middle, y - mean, query - middle.squeeze(1)
            means.append(mean.squeeze(1))
            # n centred examples span n − 1 directions; what is left of the last is rounding.
            spectra.append(_svd(x, y, query, n - 1))
            grams.append(x.mT @ x / n)
            moments.append((x.mT @ y.unsqueeze(-1)).squeeze(-1) / n)
            queries.append(query)
        gram, moment, query = (torch.stack(part, dim=1) for part in (grams, moments, queries))
        return Centred(torch.stack(means, dim=1), _spectrum(spectra), _path(gram, moment, query))

    @cached_property
    def neighbours(self) -> tuple[Float[Tensor, "datasets counts points"], Float[Tensor, "datasets counts points"]]:
        """Distances from the query and targets of the examples, the nearest first; beyond the n-th ∞ and 0."""
        distance = torch.cdist(self.queries, self.xs, compute_mode="donot_use_mm_for_euclid_dist")
        later = torch.arange(self.xs.shape[1], device="cpu") >= self.sizes.unsqueeze(-1)
        distance, order = distance.masked_fill(later, torch.inf).sort(dim=-1)
        targets = self.ys.unsqueeze(1).expand(distance.shape).gather(-1, order)
        return distance, targets.masked_fill(distance.isinf(), 0.0)

    def kernel_spectrum(self, width: int) -> KernelSpectrum:
        """Of exp(−‖x − x′‖²/(features·2^width)); kept, as every penalty asks for it."""
        if width not in self._kernels:
            kernel = (-self._squared_distances / (self.features * 2.0**width)).exp()
            parts = [_eigen(kernel[:, :n, :n], kernel[:, :n, n], self.ys[:, :n]) for n in self.counts]
            padded = [[pad(one, (0, self.counts[-1] - one.shape[-1])) for one in part] for part in parts]
            values, products = (torch.stack(part, dim=1) for part in zip(*padded, strict=True))
            self._kernels[width] = KernelSpectrum(values, products)
        return self._kernels[width]

    @cached_property
    def _squared_distances(self) -> Float[Tensor, "datasets points points"]:
        return torch.cdist(self.xs, self.xs, compute_mode="donot_use_mm_for_euclid_dist").square()

    @cached_property
    def _kernels(self) -> dict[int, KernelSpectrum]:
        return {}

    @cached_property
    def lasso_path(self) -> tuple[Float[Tensor, "datasets counts knots"], Float[Tensor, "datasets counts knots"]]:
        """The penalties at which the lasso's weights turn, and what it predicts there."""
        sizes = self.sizes[:, None]
        return _path(self.grams / sizes.unsqueeze(-1), self.moments / sizes, self.queries)

    def take(self, datasets: slice, counts: int | None = None) -> Prefixes:
        """Some of the datasets, and at most so many of the counts, evenly spread."""
        kept = self.counts if counts is None else evenly(self.counts, counts)
        return Prefixes(self.xs[datasets], self.ys[datasets], kept)

    @property
    def _last(self) -> list[int]:
        return [n - 1 for n in self.counts]


def _svd(x: Tensor, y: Tensor, query: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Directions in which the data has no more than rounding error take no part: least norm, as for OLS."""
    n, features = x.shape[-2:]
    u, sigma, vt = torch.linalg.svd(x, full_matrices=False)
    cut = torch.finfo(torch.float64).eps * max(n, features) * sigma[:, :1]
    kept = (sigma > cut) & (torch.arange(sigma.shape[-1], device="cpu") < rank)
    inverse = torch.where(kept, 1 / sigma, 0.0)
    onto = (vt @ query.unsqueeze(-1)).squeeze(-1)
    shares = onto * (u.mT @ y.unsqueeze(-1)).squeeze(-1) * inverse
    missing = features - sigma.shape[-1]
    return pad(torch.where(kept, sigma.square(), 0.0), (0, missing)), pad(shares, (0, missing))


def _eigen(kernel: Tensor, to_query: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(kernel)
    # What is below zero is rounding.
    return values.clamp(min=0), (vectors.mT @ torch.stack([to_query, y], dim=-1)).prod(dim=-1)


def _spectrum(parts: list[tuple[Tensor, Tensor]]) -> GramSpectrum:
    squares, shares = (torch.stack(part, dim=1) for part in zip(*parts, strict=True))
    return GramSpectrum(squares, shares)


def _path(gram: Tensor, moment: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    path = lasso_path(gram, moment)
    return path.knots, (path.weights * query.unsqueeze(-2)).sum(dim=-1)


def draw(
    task: RegressionTask,
    *predictors: object,
    seed: int = 0,
    datasets: int = DATASETS,
    points: int | None = None,
    fewest: int = 1,
    counts: Sequence[int] | None = None,
) -> Prefixes:
    """Draw datasets for all these predictors; the same for the same arguments.

    Args:
        task: Where datasets come from.
        *predictors: Their `examples` limit how many points are drawn.
        seed: Of the datasets.
        datasets: How many.
        points: Of each; by default as many as the predictors can read, 40 where there is no limit.
        fewest: The smallest number of examples to ask after.
        counts: Numbers of examples to ask after; by default fewest, …, points − 1.
    Raises:
        EmulonError: There is no number of examples that every predictor can take.
    """
    limits = [getattr(one, "examples", None) for one in predictors]
    able = [set(limit) for limit in limits if limit is not None]
    if points is None:
        points = min((max(limit) + 1 for limit in able), default=POINTS)
    counts = counts_for(points, able, range(fewest, points) if counts is None else counts)
    xs, ys = task.held_out(seed, datasets, points).pairs
    return Prefixes(xs.double(), ys.double(), counts)


def counts_for(points: int, able: Sequence[set[int]], counts: Sequence[int]) -> tuple[int, ...]:
    """Of these numbers of examples to ask about those that all predictors can take."""
    numbers = set(counts)
    if not numbers <= set(range(1, points)):
        raise EmulonError(f"counts must lie in 1 … {points - 1}, as {points} points leave one to ask; got {counts}")
    numbers = numbers.intersection(*able)
    if not numbers:
        taken = " and ".join(_span(limit) for limit in able)
        why = f" that every predictor can take; they take {taken}" if able else ""
        raise EmulonError(f"no number of examples below {points}{why}; choose other points")
    return tuple(sorted(numbers))


def _span(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} … {high}"


def evenly(counts: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most so many of them, evenly spread, the ends included."""
    if most >= len(counts):
        return counts
    return tuple(counts[i] for i in torch.linspace(0, len(counts) - 1, most, device="cpu").round().long().tolist())
