"""The Bayes predictor of finitely many linear functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.algorithm import require_data, require_queries
from emulon.core.arrays import accepts_arraylike, as_tensor
from emulon.core.errors import EmulonError


@dataclass(frozen=True, eq=False)
class TaskMixture:
    """E(y | examples) where w is one of `vectors`, each as likely as the others, and y = w·x + noise·ε.

    The posterior of a vector is in proportion to exp(−‖Xw − y‖²/(2·noise²)), and the answer is its mean of w·x: what
    Raventós et al. 2023 call dMMSE, the Bayes predictor of a learner with a fixed set of tasks. With noise → 0 it is
    the vector that fits best; ridge regression is the same for a Gaussian of vectors.

    Args:
        vectors: (tasks, features), a tensor or any array of numbers.
        noise: Standard deviation of the targets, positive.
    """

    vectors: Any
    noise: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "vectors", as_tensor(self.vectors, "vectors").double())
        if not 0 < self.noise < math.inf:
            raise EmulonError(f"a mixture of tasks needs a noise that is positive and finite, got {self.noise}")

    @accepts_arraylike("xs", "ys", "x_query", like="x_query")
    def predict(
        self,
        xs: Real[Tensor, "*batch samples features"],
        ys: Real[Tensor, "*batch samples"],
        x_query: Real[Tensor, "*query"],
    ) -> Float[Tensor, "*answers"]:
        """x_query is (..., features) or (..., queries, features)."""
        require_data(xs, ys)
        require_queries(xs, x_query)
        vectors: Tensor = self.vectors.to(xs.device)
        left = (xs.double() @ vectors.mT - ys.double().unsqueeze(-1)).square().sum(dim=-2)
        posterior = torch.softmax(left / (-2 * self.noise**2), dim=-1)
        said = x_query.double() @ vectors.mT
        return (said * (posterior.unsqueeze(-2) if x_query.ndim == xs.ndim else posterior)).sum(dim=-1)
