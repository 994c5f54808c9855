"""Predictors that learn nothing: what an answer has to be read against."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.data import require_data, require_queries


@dataclass(frozen=True)
class Zero:
    """Says 0."""

    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        require_data(xs, ys)
        require_queries(xs, x_query)
        return x_query.double().new_zeros(x_query.shape[:-1])


@dataclass(frozen=True)
class PreviousTarget:
    """Says again the last target it was shown."""

    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        require_data(xs, ys)
        require_queries(xs, x_query)
        last = ys.double()[..., -1]
        return last.unsqueeze(-1).expand(x_query.shape[:-1]) if x_query.ndim == xs.ndim else last
