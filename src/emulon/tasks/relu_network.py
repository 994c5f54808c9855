"""Random two-layer ReLU networks, a new one for each dataset."""

from __future__ import annotations

from dataclasses import dataclass

from emulon.algorithms import LeastSquares, NearestNeighbours
from emulon.predictor import Predictor
from emulon.tasks.task import RegressionTask, normal


@dataclass(frozen=True)
class ReluNetwork(RegressionTask):
    """y = √(2/hidden)·Σ_j a_j·relu(w_j·x) + noise·ε with Gaussian a and w (Garg et al.)."""

    features: int = 20
    points: int = 101
    noise: float = 0.0
    hidden: int = 100

    def draw(self, generator, xs):
        inner = normal(generator, xs.shape[0], self.hidden, self.features)
        outer = normal(generator, xs.shape[0], self.hidden, 1)
        return ((xs @ inner.mT).relu() @ outer).squeeze(-1) * (2 / self.hidden) ** 0.5

    def predictors(self) -> dict[str, Predictor]:
        return {"ols": LeastSquares(), "knn": NearestNeighbours()}
