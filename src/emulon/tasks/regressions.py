"""Regressions: linear functions (Gaussian, sparse, from a finite set), two-layer ReLU networks and trees."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import (
    Lasso,
    LeastSquares,
    LinearRegression,
    NearestNeighbours,
    RidgeRegression,
    TaskMixture,
)
from emulon.core.errors import EmulonError
from emulon.core.predictor import Predictor
from emulon.tasks.task import Inputs, RegressionTask, Values, normal, uniform


@dataclass(frozen=True)
class LinearFunctions(RegressionTask):
    """What the tasks of linear functions share: y = w·x + noise·ε, w ~ N(0, prior²·I), x ~ N(0, I)."""

    features: int = 20
    points: int = 41
    noise: float = 0.0
    prior: float = 1.0

    what = "linear functions"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior == 0:
            raise EmulonError("prior=0 makes every function zero; give a prior > 0")

    def weights(
        self, generator: torch.Generator, batch: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "batch features"]:
        return self.prior * normal(generator, batch, self.features, dtype=dtype)

    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        return (xs @ self.weights(generator, xs.shape[0], xs.dtype).unsqueeze(-1)).squeeze(-1)

    def predictors(self) -> dict[str, Predictor]:
        """OLS, ten steps of descent, the neighbours, and with noise ridge with λ = σ²/τ²."""
        known: dict[str, Predictor] = {"ols": LeastSquares(), "gd": LinearRegression(steps=10)}
        known["knn"] = NearestNeighbours()
        if self.noise > 0:
            known["ridge"] = RidgeRegression((self.noise / self.prior) ** 2)
        return known


@dataclass(frozen=True)
class Linear(LinearFunctions, name="linear"):
    """Linear functions and nothing more: the data of Akyürek et al. 2022.

    Attributes:
        features: Of x.
        points: Examples in a prompt, the last query included.
        noise: Standard deviation of the noise on y.
        prior: Standard deviation of the weights.

    Example:
        >>> Linear(features=3, noise=0.1).held_out(seed=0, batch=2, points=5).xs.shape
        torch.Size([2, 5, 3])
    """

    @property
    def bayes_ridge(self) -> float:
        """σ²/τ² (Akyürek et al. 2022, Eq. 18)."""
        return (self.noise / self.prior) ** 2


@dataclass(frozen=True)
class SparseLinear(LinearFunctions, name="sparse"):
    """Linear functions with all but `nonzero` weights set to zero.

    Attributes:
        nonzero: Weights that are not zero.
        features, points, noise, prior: As of `Linear`.
    """

    nonzero: int = 3

    what = "sparse linear functions"

    def weights(
        self, generator: torch.Generator, batch: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "batch features"]:
        order = uniform(generator, batch, self.features, dtype=dtype).argsort(dim=-1)
        return super().weights(generator, batch, dtype) * (order < self.nonzero)

    def predictors(self) -> dict[str, Predictor]:
        return super().predictors() | {"lasso": Lasso(penalty=0.1, steps=100)}


@dataclass(frozen=True)
class TaskSet(LinearFunctions, name="task_set"):
    """Linear functions from a finite set, `tasks` vectors drawn once from `task_seed` (Raventós et al. 2023).

    With few tasks the best predictor knows them by heart (`TaskMixture`), with many it is ridge regression: which of
    the two a learner became is a question for `identify`.

    Attributes:
        tasks: How many vectors there are.
        task_seed: Of the vectors.
        features, points, noise, prior: As of `Linear`.
    """

    noise: float = 0.5
    tasks: int = 16
    task_seed: int = 0

    what = "linear functions from a finite set"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tasks < 1:
            raise EmulonError(f"tasks={self.tasks} leaves nothing to draw from; tasks must be 1 or more")

    @property
    def vectors(self) -> Float[Tensor, "tasks features"]:
        return self.prior * _vectors(self.task_seed, self.tasks, self.features, torch.device("cpu"))

    def weights(
        self, generator: torch.Generator, batch: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "batch features"]:
        vectors = _vectors(self.task_seed, self.tasks, self.features, generator.device)
        which = (uniform(generator, batch, dtype=torch.float64) * self.tasks).long()
        return self.prior * vectors[which].to(dtype)

    def predictors(self) -> dict[str, Predictor]:
        mixture = {"task mixture": TaskMixture(self.vectors, self.noise)} if self.noise > 0 else {}
        return super().predictors() | mixture


@functools.cache
def _vectors(seed: int, tasks: int, features: int, device: torch.device) -> Float[Tensor, "tasks features"]:
    """The same on every device, and made once: copying a table would break a CUDA graph."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tasks, features, generator=generator, dtype=torch.float64, device="cpu").to(device)


@dataclass(frozen=True)
class ReluNetwork(RegressionTask, name="relu_network"):
    """y = √(2/hidden)·Σ_j a_j·relu(w_j·x) + noise·ε with Gaussian a and w, new ones for each dataset
    (Garg et al. 2022).

    Attributes:
        hidden: Hidden units.
        features, points, noise: As of `Linear`.
    """

    features: int = 20
    points: int = 101
    noise: float = 0.0
    hidden: int = 100

    what = "two-layer ReLU networks"

    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        inner = normal(generator, xs.shape[0], self.hidden, self.features, dtype=xs.dtype)
        outer = normal(generator, xs.shape[0], self.hidden, 1, dtype=xs.dtype)
        return ((xs @ inner.mT).relu() @ outer).squeeze(-1) * math.pow(2 / self.hidden, 0.5)

    def predictors(self) -> dict[str, Predictor]:
        return {"ols": LeastSquares(), "knn": NearestNeighbours()}


@dataclass(frozen=True)
class DecisionTree(RegressionTask, name="decision_tree"):
    """A full tree of depth `depth`, a new one for each dataset: every inner node asks for the sign of one feature,
    every leaf holds a N(0, 1).

    Attributes:
        depth: Levels of the tree.
        features, points, noise: As of `Linear`.
    """

    features: int = 20
    points: int = 101
    noise: float = 0.0
    depth: int = 4

    what = "decision trees"

    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        batch = xs.shape[0]
        inner = 2**self.depth - 1
        asks = torch.randint(self.features, (batch, inner), generator=generator, device=generator.device)
        leaves = normal(generator, batch, inner + 1, dtype=xs.dtype)
        node = torch.zeros(xs.shape[:2], dtype=torch.long, device=xs.device)
        for _ in range(self.depth):
            feature = asks.gather(1, node)
            right = xs.gather(2, feature.unsqueeze(-1)).squeeze(-1) > 0
            node = 2 * node + 1 + right.long()
        return leaves.gather(1, node - inner)

    def predictors(self) -> dict[str, Predictor]:
        return {"ols": LeastSquares(), "knn": NearestNeighbours()}
