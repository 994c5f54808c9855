"""Algorithms that solve their objective outright (least squares, ridge, Newton steps, the path of the lasso), and
predictors without weights: trivial baselines, nearest neighbours, the Bayes predictor of a set of tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.gradient_descent import ALGORITHMS, Algorithm, InContextPredictor, require_steps
from emulon.algorithms.losses import (
    Answers,
    FloatInputs,
    FloatQueries,
    FloatTargets,
    Inputs,
    Targets,
    Weights,
    in_float64,
)
from emulon.certify.domain import largest_eigenvalue
from emulon.core.arrays import as_tensor
from emulon.core.errors import EmulonError


@dataclass(frozen=True)
class LeastSquares(Algorithm):
    """argmin ‖Xw − y‖², and where many w attain it the one of least norm, by an SVD (LAPACK's gelsd).

    The limit of `LinearRegression`, `NewtonLeastSquares` and of ridge regression without a penalty. No intercept.
    """

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        x, y = in_float64(x, y)
        yield torch.linalg.lstsq(x, y.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)


@dataclass(frozen=True)
class RidgeRegression(Algorithm):
    """(XᵀX + ridge·I)⁻¹ Xᵀy, without intercept: scikit-learn's Ridge has alpha = ridge, our `Ridge` penalty = ridge/n.

    With targets of noise σ² and weights drawn from N(0, τ²I), ridge = σ²/τ² is the Bayes predictor.

    Args:
        ridge: Penalty, positive.
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        require_ridge(self.ridge)

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        x, y = in_float64(x, y)
        gram = x.mT @ x + self.ridge * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        yield torch.linalg.solve(gram, x.mT @ y.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class ShermanMorrisonRidge(Algorithm):
    """Ridge regression on the first 0, 1, 2, … examples: the iterates are the solutions on every prefix.

    Claim: with P = (Σ xxᵀ + ridge·I)⁻¹, k = Px, l = k/(1 + x·k), one more example makes it P − k lᵀ and w + l(y − w·x).

    Args:
        ridge: Penalty, positive.
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        require_ridge(self.ridge)

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        x, y = in_float64(x, y)
        inverse = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) / self.ridge
        weights = x.new_zeros(*x.shape[:-2], x.shape[-1])
        yield weights
        for one, target in zip(x.unbind(-2), y.unbind(-1), strict=True):
            k = (inverse @ one.unsqueeze(-1)).squeeze(-1)
            gain = k / (1 + (one * k).sum(dim=-1, keepdim=True))
            weights = weights + gain * (target - (weights * one).sum(dim=-1)).unsqueeze(-1)
            inverse = inverse - k.unsqueeze(-1) * gain.unsqueeze(-2)
            yield weights


@ALGORITHMS.register
@dataclass(frozen=True)
class NewtonLeastSquares(Algorithm):
    """Minimises ‖Xw − y‖²: M ← 2M − M S M with S = XᵀX, from M_0 = S/‖S‖², and w_k = M_k Xᵀ y.

    Claim: I − M_k S = (I − S²/‖S‖²)^(2^k): the correct digits double with every step, once there is one. That takes
    about 2·log2 of S's condition number.
    Proof. I − M_{k+1} S = I − 2M_k S + (M_k S)² = (I − M_k S)². The eigenvalues of I − S²/‖S‖² lie in [0, 1). QED
    Assumes: S invertible. If it is not, M_k tends to the pseudo-inverse and w to the solution of least norm; but
    rounding errors off the range of S double with every step, so do not take many more steps than it needs.

    The iterates begin at M_0 Xᵀ y, not at zero. No intercept. Limit: scikit-learn's LinearRegression.

    Args:
        steps: How many.
    """

    steps: int = 30

    def __post_init__(self) -> None:
        require_steps(self.steps)

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        x, y = in_float64(x, y)
        s = x.mT @ x
        target = x.mT @ y.unsqueeze(-1)
        norm = x.shape[-2] * largest_eigenvalue(x).unsqueeze(-1)
        inverse = torch.where(norm > 0, s / norm.square(), 0.0)
        yield (inverse @ target).squeeze(-1)
        for _ in range(self.steps):
            inverse = 2 * inverse - inverse @ s @ inverse
            yield (inverse @ target).squeeze(-1)


def require_ridge(ridge: float) -> None:
    if not 0 < ridge < math.inf:
        raise EmulonError(f"ridge must be positive and finite, got {ridge}; LeastSquares has none")


# Penalties below this fraction of the first knot are zero.
END = 1e-10
# Events nearer than this fraction of the penalty are the one just handled.
SAME = 1e-11


@dataclass(frozen=True)
class LassoPath:
    """Knots, penalties from the one that first frees a weight down to 0, and the weights at each.

    Between knots the weights move along straight lines; above the first they are zero.

    Args:
        knots: Penalties at which the set of nonzero weights changes, falling.
        weights: The weights at each.
    """

    knots: Float[Tensor, "*batch knots"]
    weights: Float[Tensor, "*batch knots features"]

    def at(self, penalty: float) -> Weights:
        wanted = self.knots.new_full((*self.knots.shape[:-1], 1), penalty)
        return interpolate(self.knots, self.weights.mT, wanted.unsqueeze(-2)).squeeze(-1)


@dataclass(frozen=True)
class LassoRegression(Algorithm):
    """Minimises ‖Xw − y‖²/(2n) + penalty·‖w‖₁ exactly: where `Lasso`'s steps, and scikit-learn's, end. No intercept.

    Args:
        penalty: On ‖w‖₁.
    """

    penalty: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.penalty < math.inf:
            raise EmulonError(f"a penalty must be finite and not negative, got {self.penalty}")

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        x, y = in_float64(x, y)
        samples = x.shape[-2]
        path = lasso_path(x.mT @ x / samples, (x.mT @ y.unsqueeze(-1)).squeeze(-1) / samples)
        yield path.at(self.penalty)


def lasso_path(gram: Float[Tensor, "*batch features features"], moment: Weights) -> LassoPath:
    """The homotopy method on XᵀX/n and Xᵀy/n, all problems of the batch walking their paths together.

    Claim: on the nonzero weights A the slope moment − gram·w equals penalty·sign; as the penalty falls by γ they move
    by γ·gram_AA⁻¹·sign. The set changes when another slope reaches the penalty (it joins) or a weight reaches zero (it
    leaves); between these events the optimality conditions keep holding.
    Assumes: columns in general position (one event at a time), as continuous data are.

    Args:
        gram: XᵀX/n, (..., features, features).
        moment: Xᵀy/n, (..., features).
    Returns:
        The path, with as many knots as the longest of the batch.
    """
    slope, weights = moment, torch.zeros_like(moment)
    penalty = slope.abs().amax(dim=-1, keepdim=True)
    active = (slope.abs() == penalty) & (penalty > 0)
    left = torch.zeros_like(active)
    end = END * penalty
    knots, path = [penalty], [weights]
    for _ in range(8 * moment.shape[-1]):
        move = _direction(gram, torch.where(active, slope.sign(), 0.0), active)
        drop = (gram @ move.unsqueeze(-1)).squeeze(-1)
        joins, leaves = _events(slope, drop, weights, move, penalty, active, left)
        length = torch.minimum(torch.minimum(joins, leaves).amin(dim=-1, keepdim=True), penalty)
        going = penalty > end
        length = torch.where(going, length, 0.0)
        left = going & active & (leaves <= length)
        joined = going & ~active & (joins <= length)
        weights = torch.where(left, 0.0, weights + length * move)
        slope, penalty = slope - length * drop, penalty - length
        active = (active & ~left) | joined
        knots.append(penalty)
        path.append(weights)
        if not (penalty > end).any():
            break
    return LassoPath(torch.cat(knots, dim=-1), torch.stack(path, dim=-2))


def _direction(gram: Tensor, signs: Tensor, active: Tensor) -> Tensor:
    """gram_AA⁻¹·sign on the active weights, zero elsewhere."""
    inside = active.to(gram.dtype)
    restricted = gram * inside.unsqueeze(-1) * inside.unsqueeze(-2) + torch.diag_embed(1 - inside)
    solved: Tensor = torch.linalg.solve_ex(restricted, signs.unsqueeze(-1))[0]
    return solved.squeeze(-1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _events(
    slope: Tensor, drop: Tensor, weights: Tensor, move: Tensor, penalty: Tensor, active: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """How far the penalty may fall until each weight joins, or leaves; ∞ where it does not."""
    least = SAME * penalty
    # A weight that has just left still has slope ±penalty: only the other sign can bring it back at once.
    above = _ahead((penalty - slope) / (1 - drop), ~active & ~(left & (slope > 0)), least)
    below = _ahead((penalty + slope) / (1 + drop), ~active & ~(left & (slope < 0)), least)
    return torch.minimum(above, below), _ahead(-weights / move, active & (weights != 0), least)


def _ahead(length: Tensor, possible: Tensor, least: Tensor) -> Tensor:
    return torch.where(possible & (length > least) & length.isfinite(), length, torch.inf)


def interpolate(
    knots: Float[Tensor, "*batch knots"],
    values: Float[Tensor, "*batch rows knots"],
    penalties: Float[Tensor, "*batch #rows penalties"],
) -> Float[Tensor, "*batch rows penalties"]:
    """What is linear between knots, at other penalties; constant above the first knot and below the last."""
    rising = (-knots).unsqueeze(-2).expand(values.shape).contiguous()
    wanted = -penalties.expand(*values.shape[:-1], penalties.shape[-1]).contiguous()
    after = torch.searchsorted(rising, wanted).clamp(1, knots.shape[-1] - 1)
    low, high = rising.gather(-1, after - 1), rising.gather(-1, after)
    share = torch.where(high > low, (wanted - low) / (high - low), 1.0).clamp(0, 1)
    before, then = values.gather(-1, after - 1), values.gather(-1, after)
    return before + share * (then - before)


@dataclass(frozen=True)
class Zero(InContextPredictor):
    """Predicts 0."""

    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        return queries.new_zeros(queries.shape[:-1])


@dataclass(frozen=True)
class PreviousTarget(InContextPredictor):
    """Predicts the target of the last example."""

    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        return ys[..., -1:].expand(queries.shape[:-1])


@dataclass(frozen=True)
class NearestNeighbours(InContextPredictor):
    """The mean target of the `neighbours` nearest examples (of all, while there are fewer).

    `weighted` weighs them by 1/distance, as scikit-learn's weights="distance"; an example at the query decides alone.
    Akyürek et al. 2022 print the squared distance itself as the weight, which would favour the far ones: a slip.

    Args:
        neighbours: How many.
        weighted: Whether near examples weigh more.
    """

    neighbours: int = 3
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise EmulonError(f"neighbours must be at least 1, got {self.neighbours}")

    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        distance = torch.cdist(queries, xs, compute_mode="donot_use_mm_for_euclid_dist")
        near = distance.topk(min(self.neighbours, xs.shape[-2]), largest=False)
        targets = ys.unsqueeze(-2).expand(*distance.shape).gather(-1, near.indices)
        weights = inverse_distance(near.values) if self.weighted else torch.ones_like(targets)
        return (weights * targets).sum(dim=-1) / weights.sum(dim=-1)


def inverse_distance(distance: Float[Tensor, "... neighbours"]) -> Float[Tensor, "... neighbours"]:
    """1/distance; where some distances are zero, 1 for those and 0 for the others."""
    exact = distance == 0
    return torch.where(exact.any(dim=-1, keepdim=True), exact.to(distance.dtype), 1 / distance)


@dataclass(frozen=True, eq=False)
class TaskMixture(InContextPredictor):
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

    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        vectors: Tensor = self.vectors.to(xs.device)
        left = (xs @ vectors.mT - ys.unsqueeze(-1)).square().sum(dim=-2)
        posterior = torch.softmax(left / (-2 * self.noise**2), dim=-1)
        return (queries @ vectors.mT * posterior.unsqueeze(-2)).sum(dim=-1)
