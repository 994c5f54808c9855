"""The lasso solved exactly, for all penalties at once: its weights are piecewise linear in the penalty."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm, require_data
from emulon.core.errors import EmulonError

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

    def at(self, penalty: float) -> Float[Tensor, "*batch features"]:
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

    def weights_in_turn(
        self, x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> Iterator[Tensor]:
        require_data(x, y)
        x, y = x.double(), y.double()
        samples = x.shape[-2]
        path = lasso_path(x.mT @ x / samples, (x.mT @ y.unsqueeze(-1)).squeeze(-1) / samples)
        yield path.at(self.penalty)


def lasso_path(gram: Float[Tensor, "*batch features features"], moment: Float[Tensor, "*batch features"]) -> LassoPath:
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
