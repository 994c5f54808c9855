"""The beginnings of a batch of datasets: everything the references share, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.lasso_path import lasso_path


@dataclass(frozen=True)
class Spectrum:
    """One SVD for each prefix. With X = Σ σ_j u_j v_jᵀ and s_j = σ_j², every method that filters the spectrum predicts
    Σ_j response(s_j)·share_j, share_j = (x_query·v_j)(u_j·y)/σ_j: response 1 is least squares, s/(s + λ) is ridge.
    """

    squares: Float[Tensor, "datasets counts features"]
    shares: Float[Tensor, "datasets counts features"]


@dataclass(frozen=True)
class Prefixes:
    """The first n examples of every dataset, for every n in `counts`; the query is the point that follows."""

    xs: Float[Tensor, "datasets points features"]
    ys: Float[Tensor, "datasets points"]
    counts: tuple[int, ...]

    @property
    def datasets(self) -> int:
        return self.xs.shape[0]

    @property
    def features(self) -> int:
        return self.xs.shape[-1]

    @cached_property
    def sizes(self) -> Float[Tensor, " counts"]:
        return torch.tensor(self.counts, dtype=torch.float64)

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
    def spectrum(self) -> Spectrum:
        parts = [self._svd(n) for n in self.counts]
        squares, shares = (torch.stack(part, dim=1) for part in zip(*parts, strict=True))
        return Spectrum(squares, shares)

    @cached_property
    def neighbours(self) -> tuple[Float[Tensor, "datasets counts points"], Float[Tensor, "datasets counts points"]]:
        """Distances from the query and targets of the examples, the nearest first; beyond the n-th ∞ and 0."""
        distance = torch.cdist(self.queries, self.xs, compute_mode="donot_use_mm_for_euclid_dist")
        later = torch.arange(self.xs.shape[1]) >= self.sizes.unsqueeze(-1)
        distance, order = distance.masked_fill(later, torch.inf).sort(dim=-1)
        targets = self.ys.unsqueeze(1).expand(distance.shape).gather(-1, order)
        return distance, targets.masked_fill(distance.isinf(), 0.0)

    @cached_property
    def lasso_path(self) -> tuple[Float[Tensor, "datasets counts knots"], Float[Tensor, "datasets counts knots"]]:
        """The penalties at which the lasso's weights turn, and what it predicts there."""
        sizes = self.sizes[:, None]
        path = lasso_path(self.grams / sizes.unsqueeze(-1), self.moments / sizes)
        return path.knots, (path.weights * self.queries.unsqueeze(-2)).sum(dim=-1)

    def take(self, datasets: slice, counts: int | None = None) -> Prefixes:
        """Some of the datasets, and at most so many of the counts, evenly spread."""
        kept = self.counts if counts is None else evenly(self.counts, counts)
        return Prefixes(self.xs[datasets], self.ys[datasets], kept)

    @property
    def _last(self) -> list[int]:
        return [n - 1 for n in self.counts]

    def _svd(self, n: int) -> tuple[Tensor, Tensor]:
        """Directions in which the data has no more than rounding error take no part: least norm, as for OLS."""
        u, sigma, vt = torch.linalg.svd(self.xs[:, :n], full_matrices=False)
        cut = torch.finfo(torch.float64).eps * max(n, self.features) * sigma[:, :1]
        kept = sigma > cut
        inverse = torch.where(kept, 1 / sigma, 0.0)
        onto = (vt @ self.xs[:, n].unsqueeze(-1)).squeeze(-1)
        shares = onto * (u.mT @ self.ys[:, :n].unsqueeze(-1)).squeeze(-1) * inverse
        missing = self.features - sigma.shape[-1]
        pad = torch.nn.functional.pad
        return pad(torch.where(kept, sigma.square(), 0.0), (0, missing)), pad(shares, (0, missing))


def evenly(counts: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most so many of them, evenly spread, the ends included."""
    if most >= len(counts):
        return counts
    return tuple(counts[i] for i in torch.linspace(0, len(counts) - 1, most).round().long().tolist())
