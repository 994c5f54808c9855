"""Regression with representation, `002_…` section 3.1 and 5.1: linear in features that are fixed but unknown."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import LeastSquares, RidgeRegression
from emulon.predictor import Predictor
from emulon.tasks.network import fixed_network, leaky_network
from emulon.tasks.task import RegressionTask, normal


@dataclass(frozen=True)
class Representation(RegressionTask):
    """y = a·Φ*(x) + noise·ε, a ~ N(0, I) for each dataset, Φ* one `depth`-layer leaky-ReLU network for all.

    Φ* is drawn from `network_seed`; what it is has to be learned in training, what a is in context. The paper does not
    give Φ*'s scale: here signals keep their size, and a is divided by √features so that y's variance is of order one.
    """

    features: int = 20
    points: int = 41
    noise: float = 0.0
    depth: int = 3
    network_seed: int = 0

    def represent(self, xs: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        widths = (self.features,) * (self.depth + 1)
        return leaky_network(fixed_network(self.network_seed, widths, xs.device), xs)[-1]

    def draw(self, generator, xs):
        a = normal(generator, xs.shape[0], self.features) * self.features**-0.5
        return (self.represent(xs) @ a.unsqueeze(-1)).squeeze(-1)

    def predictors(self) -> dict[str, Predictor]:
        """Least squares on x itself, and on Φ*(x): what a learner that knows Φ* could do."""
        oracle: Predictor = RidgeRegression(self.noise**2 * self.features) if self.noise > 0 else LeastSquares()
        return {"ols": LeastSquares(), "oracle": oracle}

    def seen_by(self, name: str, xs: Float[Tensor, "batch points features"]) -> Float[Tensor, "batch points seen"]:
        return (self.represent(xs) if name == "oracle" else xs).double()
