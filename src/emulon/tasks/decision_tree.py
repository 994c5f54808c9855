"""Random decision trees, a new one for each dataset."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from emulon.algorithms import LeastSquares, NearestNeighbours
from emulon.predictor import Predictor
from emulon.tasks.task import RegressionTask, normal


@dataclass(frozen=True)
class DecisionTree(RegressionTask):
    """A full tree of depth `depth`: every inner node asks for the sign of one feature, every leaf holds a N(0, 1)."""

    features: int = 20
    points: int = 101
    noise: float = 0.0
    depth: int = 4

    def draw(self, generator, xs):
        batch = xs.shape[0]
        inner = 2**self.depth - 1
        asks = torch.randint(self.features, (batch, inner), generator=generator, device=generator.device)
        leaves = normal(generator, batch, inner + 1)
        node = torch.zeros(xs.shape[:2], dtype=torch.long, device=xs.device)
        for _ in range(self.depth):
            feature = asks.gather(1, node)
            right = xs.gather(2, feature.unsqueeze(-1)).squeeze(-1) > 0
            node = 2 * node + 1 + right.long()
        return leaves.gather(1, node - inner)

    def predictors(self) -> dict[str, Predictor]:
        return {"ols": LeastSquares(), "knn": NearestNeighbours()}
