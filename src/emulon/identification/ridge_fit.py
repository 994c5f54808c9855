"""Which ridge parameter explains a predictor best (Figure 2 of Akyürek et al. 2022), from numbers on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.identification.adapters import adapt
from emulon.identification.curves import Interval, intervals
from emulon.identification.references import ridge
from emulon.identification.sampling import Prefixes, Sampling, draw
from emulon.tasks import Linear, RegressionTask

# Half an octave apart, from 1/256 to 256.
GRID = tuple(2.0 ** (i / 2) for i in range(-16, 17))


@dataclass(frozen=True)
class RidgeFit:
    """The squared prediction difference (over d) from ridge regression with every λ of a grid.

    Attributes:
        grid: The λs, rising.
        differences: One for each.
    """

    grid: tuple[float, ...]
    differences: tuple[Interval, ...]

    @property
    def best(self) -> float:
        return min(zip(self.differences, self.grid, strict=True), key=lambda pair: pair[0].value)[1]

    @property
    def difference(self) -> Interval:
        return self.differences[self.grid.index(self.best)]

    def agrees(self, ridge: float) -> bool:
        """Whether the best λ is this one within the grid's step."""
        place = self.grid.index(self.best)
        low, high = self.grid[max(place - 1, 0)], self.grid[min(place + 1, len(self.grid) - 1)]
        return low <= ridge * (1 + 1e-9) and ridge * (1 - 1e-9) <= high


def best_ridge(
    predictor: object, task: RegressionTask, *, grid: Sequence[float] = GRID, **sampling: Unpack[Sampling]
) -> RidgeFit:
    """Compare a predictor with (XᵀX + λI)⁻¹Xᵀy for every λ of a grid.

    Args:
        predictor: Anything that predicts, see `adapt`.
        task: Where datasets come from.
        grid: The λs, positive and rising.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    if not grid or min(grid) <= 0 or list(grid) != sorted(grid):
        raise EmulonError(f"a grid of ridge parameters is positive and rising, got {list(grid)}")
    subject = adapt(predictor)
    drawn = draw(task, subject, **sampling)
    return ridge_on(drawn, drawn.answers(subject), grid)


def ridge_on(drawn: Prefixes, answers: Float[Tensor, "datasets counts"], grid: Sequence[float] = GRID) -> RidgeFit:
    """The same on datasets already drawn and answered."""
    answered = ridge.respond(
        drawn, torch.zeros(len(grid), device="cpu").long(), torch.tensor(list(grid), dtype=torch.float64, device="cpu")
    )
    return RidgeFit(tuple(grid), intervals((answered - answers).square().mean(dim=-1).mT / drawn.features))


@dataclass(frozen=True)
class RidgeCell:
    """The best ridge parameter at one noise and one prior.

    Attributes:
        noise: σ.
        prior: τ.
        fit: The differences, λ by λ.
    """

    noise: float
    prior: float
    fit: RidgeFit

    @property
    def bayes(self) -> float:
        return (self.noise / self.prior) ** 2

    @property
    def agrees(self) -> bool:
        return self.fit.agrees(self.bayes)


def ridge_table(
    predictor_for: Callable[[Linear], object],
    noises: Sequence[float],
    priors: Sequence[float],
    features: int = 8,
    *,
    grid: Sequence[float] = GRID,
    **sampling: Unpack[Sampling],
) -> tuple[RidgeCell, ...]:
    """The best λ for every σ × τ, row by row.

    Args:
        predictor_for: Returns the predictor that belongs to a task, such as a learner trained on it.
        noises: The σs, positive.
        priors: The τs.
        features: Of x.
        grid: The λs.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    cells = []
    for noise in noises:
        for prior in priors:
            if not 0 < noise < math.inf:
                raise EmulonError(f"without noise σ²/τ² is 0 and on no logarithmic grid; give a noise > 0, not {noise}")
            task = Linear(features, noise=noise, prior=prior)
            fit = best_ridge(predictor_for(task), task, grid=grid, **sampling)
            cells.append(RidgeCell(noise, prior, fit))
    return tuple(cells)
