"""Data that every specimen can be asked about: linear functions inside the domain that all of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.planted.mechanism import NORM, TARGET
from emulon.tasks.prompts import Datasets
from emulon.tasks.randomness import normal, uniform
from emulon.tasks.regression import RegressionTask

SHORTEST = 0.5


@dataclass(frozen=True)
class BoundedLinear(RegressionTask):
    """y = w·x + noise·ε with w ~ N(0, I); directions of x at random, ‖x‖ uniform in ½ … 1; a dataset in which some |y|
    is above 1 shrinks its targets until none is."""

    features: int
    points: int
    noise: float = 0.1

    what = "linear functions with ‖x‖ ≤ 1 and |y| ≤ 1"

    def inputs(
        self, generator: torch.Generator, batch: int, points: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "batch points features"]:
        xs = normal(generator, batch, points, self.features, dtype=dtype)
        length = SHORTEST + (1 - SHORTEST) * uniform(generator, batch, points, 1, dtype=dtype)
        return NORM * length * torch.nn.functional.normalize(xs, dim=-1)

    def values(
        self, generator: torch.Generator, xs: Float[Tensor, "batch points features"]
    ) -> Float[Tensor, "batch points"]:
        return (xs @ normal(generator, xs.shape[0], self.features, 1, dtype=xs.dtype)).squeeze(-1)

    def datasets(
        self,
        generator: torch.Generator,
        batch: int,
        *,
        points: int | None = None,
        dtype: torch.dtype = torch.float32,
        live: Float[Tensor, " features"] | None = None,
    ) -> Datasets:
        drawn = super().datasets(generator, batch, points=points, dtype=dtype, live=live)
        shrink = TARGET / drawn.ys.abs().amax(dim=-1, keepdim=True).clamp(min=TARGET)
        return replace(drawn, ys=drawn.ys * shrink, truth=drawn.truth * shrink)
