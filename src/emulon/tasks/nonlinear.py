"""Functions that are not linear: of a fixed representation, random networks, and random trees."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import LeastSquares, NearestNeighbours, RidgeRegression
from emulon.core.predictor import Predictor
from emulon.tasks.regression import RegressionTask
from emulon.tasks.task import normal


@functools.cache
def fixed_network(seed: int, widths: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """The weight matrices (out, in) of one network for all: the same on every device, and made once.

    Entries are N(0, 2/fan_in), so that signals keep their size from layer to layer.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(widths)
    return tuple((torch.randn(b, a, generator=generator, device="cpu") * math.sqrt(2 / a)).to(device) for a, b in pairs)


def leaky_network(weights: Iterable[Tensor], x: Float[Tensor, "*batch fan_in"]) -> list[Float[Tensor, "*batch _"]]:
    """The state after every layer, leaky ReLU of slope 0.01 in each."""
    states = []
    for weight in weights:
        x = F.leaky_relu(x @ weight.to(x.dtype).mT)
        states.append(x)
    return states


@dataclass(frozen=True)
class Representation(RegressionTask, name="representation"):
    """y = a·Φ*(x) + noise·ε, a ~ N(0, I) for each dataset, Φ* one `depth`-layer leaky-ReLU network for all
    (Gao et al. 2024, sections 3.1 and 5.1).

    Φ* is drawn from `network_seed`; what it is has to be learned in training, what a is in context. The paper does not
    give Φ*'s scale: here signals keep their size, and a is divided by √features so that y's variance is of order one.

    Attributes:
        features: Of x.
        points: Examples in a prompt, the last query included.
        noise: Standard deviation of the noise on y.
        depth: Layers of Φ*.
        network_seed: Of Φ*.
    """

    features: int = 20
    points: int = 41
    noise: float = 0.0
    depth: int = 3
    network_seed: int = 0

    what = "linear functions of a representation"

    def represent(self, xs: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        widths = (self.features,) * (self.depth + 1)
        return leaky_network(fixed_network(self.network_seed, widths, xs.device), xs)[-1]

    def values(
        self, generator: torch.Generator, xs: Float[Tensor, "batch points features"]
    ) -> Float[Tensor, "batch points"]:
        a = normal(generator, xs.shape[0], self.features, dtype=xs.dtype) * math.pow(self.features, -0.5)
        return (self.represent(xs) @ a.unsqueeze(-1)).squeeze(-1)

    def predictors(self) -> dict[str, Predictor]:
        """Least squares on x itself, and on Φ*(x), which a learner that knows Φ* could reach."""
        oracle: Predictor = RidgeRegression(self.noise**2 * self.features) if self.noise > 0 else LeastSquares()
        return {"ols": LeastSquares(), "oracle": oracle}

    def features_for(self, name: str, xs: Float[Tensor, "batch points features"]) -> Float[Tensor, "batch points seen"]:
        return (self.represent(xs) if name == "oracle" else xs).double()


@dataclass(frozen=True)
class ReluNetwork(RegressionTask, name="relu_network"):
    """y = √(2/hidden)·Σ_j a_j·relu(w_j·x) + noise·ε with Gaussian a and w, new ones for each dataset
    (Garg et al. 2022).

    Attributes:
        features: Of x.
        points: Examples in a prompt, the last query included.
        noise: Standard deviation of the noise on y.
        hidden: Hidden units.
    """

    features: int = 20
    points: int = 101
    noise: float = 0.0
    hidden: int = 100

    what = "two-layer ReLU networks"

    def values(
        self, generator: torch.Generator, xs: Float[Tensor, "batch points features"]
    ) -> Float[Tensor, "batch points"]:
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
        features: Of x.
        points: Examples in a prompt, the last query included.
        noise: Standard deviation of the noise on y.
        depth: Levels of the tree.
    """

    features: int = 20
    points: int = 101
    noise: float = 0.0
    depth: int = 4

    what = "decision trees"

    def values(
        self, generator: torch.Generator, xs: Float[Tensor, "batch points features"]
    ) -> Float[Tensor, "batch points"]:
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
