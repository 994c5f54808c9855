"""The reference algorithms, each as predictions for a whole grid of parameters at once.

What they compute is what `emulon.algorithms` computes, example by example in the tests; here one SVD for each prefix
serves all the methods that filter the spectrum, and no loop runs over datasets.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emulon.algorithms.baselines import inverse_distance
from emulon.algorithms.lasso_path import interpolate
from emulon.interrogate.prefixes import Prefixes
from emulon.interrogate.reference import Real, Reference, Whole

MOST_STEPS = 1000
MOST_NEIGHBOURS = 24

Settings = Float[Tensor, " settings"]
Counted = Int[Tensor, " settings"]
Predictions = Float[Tensor, "settings datasets counts"]


def zero(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    return torch.zeros(len(whole), prefixes.datasets, len(prefixes.counts), dtype=torch.float64)


def previous_target(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    last = prefixes.ys[:, [n - 1 for n in prefixes.counts]]
    return last.expand(len(whole), *last.shape)


def least_squares(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    answers = prefixes.spectrum.shares.sum(dim=-1)
    return answers.expand(len(whole), *answers.shape)


def ridge(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """λ on the sum of squares: (XᵀX + λI)⁻¹Xᵀy."""
    squares = prefixes.spectrum.squares
    return _filtered(prefixes, squares / (squares + _column(real)))


def ridge_on_the_mean(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """λ on the mean of squares: (XᵀX/n + λI)⁻¹Xᵀy/n."""
    means = _means(prefixes)
    return _filtered(prefixes, means / (means + _column(real)))


def descent_on_the_mean(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """k steps of size η on ‖Xw − y‖²/2n."""
    return _filtered(prefixes, 1 - (1 - _column(real) * _means(prefixes)).pow(_column(whole)))


def descent_on_the_sum(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """k steps of size α on ‖Xw − y‖²/2: `003_…`'s, whose α does not shrink as examples come."""
    return _filtered(prefixes, 1 - (1 - _column(real) * prefixes.spectrum.squares).pow(_column(whole)))


def descent_with_safe_steps(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """k steps of size 1/L, L the largest eigenvalue on each dataset: what `LinearRegression` does unless told."""
    squares = prefixes.spectrum.squares
    return _filtered(prefixes, 1 - (1 - squares / _largest(squares)).pow(_column(whole)))


def newton(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """k Newton–Schulz steps from M₀ = S/‖S‖², as `NewtonLeastSquares`."""
    squares = prefixes.spectrum.squares
    return _newton(prefixes, (squares / _largest(squares)).square().expand(len(whole), *squares.shape), whole)


def newton_with_a_fixed_start(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """k Newton–Schulz steps from M₀ = αS with one α for all datasets, as AlgoFormer's."""
    return _newton(prefixes, _column(real) * prefixes.spectrum.squares.square(), whole)


def sgd(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """One pass over the examples; the weights on the way serve the prefixes."""
    weights = torch.zeros(len(real), prefixes.datasets, prefixes.features, dtype=torch.float64)
    wanted, out = set(prefixes.counts), []
    for n in range(1, prefixes.counts[-1] + 1):
        x, y = prefixes.xs[:, n - 1], prefixes.ys[:, n - 1]
        residual = (weights * x).sum(dim=-1) - y
        weights = weights - (real[:, None] * residual).unsqueeze(-1) * x
        if n in wanted:
            out.append((weights * prefixes.xs[:, n]).sum(dim=-1))
    return torch.stack(out, dim=-1)


def lasso(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    """‖Xw − y‖²/2n + λ‖w‖₁: its predictions are piecewise linear in λ."""
    knots, values = prefixes.lasso_path
    wanted = real.expand(*knots.shape[:-1], 1, len(real))
    return interpolate(knots, values.unsqueeze(-2), wanted).squeeze(-2).movedim(-1, 0)


def uniform_neighbours(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    distance, targets = prefixes.neighbours
    return _averages(torch.isfinite(distance).double(), targets, whole)


def weighted_neighbours(prefixes: Prefixes, whole: Counted, real: Settings) -> Predictions:
    distance, targets = prefixes.neighbours
    return _averages(inverse_distance(distance), targets, whole)


def _averages(weights: Tensor, targets: Tensor, whole: Tensor) -> Tensor:
    """Averages over the first k examples, for all k from one cumulative sum."""
    places = whole.clamp(max=weights.shape[-1]) - 1
    sums, totals = (weights * targets).cumsum(dim=-1), weights.cumsum(dim=-1)
    return (sums[..., places] / totals[..., places]).movedim(-1, 0)


def _filtered(prefixes: Prefixes, response: Tensor) -> Tensor:
    return torch.einsum("gbcd,bcd->gbc", response, prefixes.spectrum.shares)


def _newton(prefixes: Prefixes, start: Tensor, whole: Tensor) -> Tensor:
    """Eigenvalues of M_k S obey m ← 2m − m²; each setting stops after its own number of steps."""
    order = whole.argsort()
    response, left = start[order], whole[order]
    done: list[Tensor] = []
    for step in range(int(whole.max()) + 1):
        ready = int((left == step).sum())
        done.append(response[:ready])
        response, left = response[ready:], left[ready:]
        response = response * (2 - response)
    return _filtered(prefixes, torch.cat(done))[order.argsort()]


def _means(prefixes: Prefixes) -> Tensor:
    return prefixes.spectrum.squares / prefixes.sizes[:, None]


def _largest(squares: Tensor) -> Tensor:
    return squares[..., :1].clamp(min=torch.finfo(torch.float64).tiny)


def _column(settings: Tensor) -> Tensor:
    return settings.double()[:, None, None, None]


def _spread_out(most: int) -> tuple[int, ...]:
    """1, 2, 3, … and, from 24 on, steps of about a seventh."""
    values = list(range(1, 25))
    while values[-1] * 1.15 < most:
        values.append(round(values[-1] * 1.15))
    return tuple(values)


def _inverse(prefixes: Prefixes) -> float:
    return 1 / prefixes.scale


def _inverse_of_the_largest(prefixes: Prefixes) -> float:
    return 1 / prefixes.spectrum.squares.max().item() ** 2


def _largest_penalty(prefixes: Prefixes) -> float:
    """Above it every lasso weight is zero."""
    return (prefixes.moments.abs() / prefixes.sizes[:, None]).max().item()


_STEPS = Whole("steps", _spread_out(MOST_STEPS))
_NEWTON_STEPS = Whole("steps", tuple(range(25)))
_NEIGHBOURS = Whole("neighbours", tuple(range(1, MOST_NEIGHBOURS + 1)))

# In the order in which they are named when nothing tells them apart: the simplest first.
REFERENCES: tuple[Reference, ...] = (
    Reference("zero", "zero", zero),
    Reference("previous target", "previous target", previous_target),
    Reference("ols", "least squares", least_squares),
    Reference("ridge", "least squares", ridge, real=Real("ridge", 1e-12, 1e6, lambda p: p.scale, 64)),
    Reference(
        "ridge on the mean", "least squares", ridge_on_the_mean, real=Real("penalty", 1e-12, 1e6, lambda p: p.scale, 64)
    ),
    Reference("lasso", "least squares", lasso, real=Real("penalty", 1e-6, 1.0, _largest_penalty, 48)),
    Reference("gradient descent, safe steps", "least squares", descent_with_safe_steps, _STEPS),
    Reference("newton", "least squares", newton, _NEWTON_STEPS),
    Reference("sgd", "sgd", sgd, real=Real("step_size", 1e-5, 4.0, _inverse, 48)),
    Reference("knn", "neighbours", uniform_neighbours, _NEIGHBOURS),
    Reference("weighted knn", "neighbours", weighted_neighbours, _NEIGHBOURS),
    Reference(
        "gradient descent", "least squares", descent_on_the_mean, _STEPS, Real("step_size", 1e-4, 10.0, _inverse)
    ),
    Reference(
        "gradient descent on the sum",
        "least squares",
        descent_on_the_sum,
        _STEPS,
        Real("step_size", 1e-5, 4.0, _inverse),
    ),
    Reference(
        "newton, fixed start",
        "least squares",
        newton_with_a_fixed_start,
        _NEWTON_STEPS,
        Real("start", 1e-5, 4.0, _inverse_of_the_largest),
    ),
)
