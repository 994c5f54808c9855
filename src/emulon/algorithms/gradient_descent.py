"""Algorithms, and (proximal) gradient descent on any loss: the one algorithm under almost all of the familiar names."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.losses import (
    Answers,
    FloatInputs,
    FloatQueries,
    FloatTargets,
    Inputs,
    Loss,
    PerProblem,
    Queries,
    Scores,
    Targets,
    Weights,
    in_float64,
)
from emulon.certify.domain import require_finite
from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.core.names import Registry, snake_case

# An array in some arithmetic.
Number = TypeVar("Number", bound=Any)


class InContextPredictor(ABC):
    """Predicts from examples, in float64: supplies `answers`, for checked data and several queries a dataset."""

    @abstractmethod
    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        """Predictions (..., queries)."""

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Targets, x_query: Queries) -> Answers:
        """What (xs, ys) say about x_query, (..., features) or (..., queries, features)."""
        xs, ys = in_float64(xs, ys)
        require_queries(xs, x_query)
        several = x_query.ndim == xs.ndim
        queries = x_query.double() if several else x_query.double().unsqueeze(-2)
        answers = self.answers(xs, ys, queries)
        return answers if several else answers.squeeze(-1)


class Algorithm(InContextPredictor):
    """The exact reference that everything else is compared with. It computes in float64, whatever it is given.

    An algorithm supplies `weights_in_turn`, and `mean_response` where a prediction is not w·x itself. There is no
    intercept anywhere: append a column of ones to x for one (a penalty then covers it too).
    """

    several_queries = True

    @abstractmethod
    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        """The weights (..., features) before the first step, then after each."""

    def mean_response(self, score: Scores) -> Scores:
        """The prediction that belongs to w·x."""
        return score

    @accepts_arraylike("x", "y", like="x", side="columns")
    def run(self, x: Inputs, y: Targets) -> Weights:
        """The weights after the last step."""
        return _finite(deque(self.weights_in_turn(x, y), maxlen=1).pop())

    @accepts_arraylike("x", "y", like="x")
    def iterates(self, x: Inputs, y: Targets) -> Float[Tensor, "*batch iterates features"]:
        """All weights, the initial ones included: steps + 1 of them."""
        return _finite(torch.stack(list(self.weights_in_turn(x, y)), dim=-2))

    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        """Of the weights learned from (xs, ys)."""
        return self.mean_response((queries @ self.run(xs, ys).unsqueeze(-1)).squeeze(-1))


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm")


def name_of(algorithm: type[Algorithm]) -> str:
    """The name of an algorithm in commands and files.

    Args:
        algorithm: Its class.
    Returns:
        The class's name in snake case.

    Example:
        >>> name_of(HuberRegression)
        'huber_regression'
    """
    return snake_case(algorithm.__name__)


@dataclass(frozen=True)
class GradientDescent(Algorithm):
    """Minimises (1/n) Σ ℓ(t_i) + (l2/2)·‖w‖² + l1·‖w‖₁ from w = 0.

    One step, in this order: w ← soft_threshold((1 − η·l2)·w − η·∇ + momentum·(w − w_before), η·l1), where ∇ is the
    gradient of the mean loss alone. An `accelerated` step k = 0, 1, … starts from w + k/(k + 3)·(w − w_before) instead
    of w, which is Nesterov's method, and FISTA with an l1 penalty. With a `batch` of so many samples, step k takes the
    k-th of them, in order and round again; a last batch that is too small is filled up with the first samples.

    Claim: with the default step size η = 1/(L + l2), L = `loss.smoothness`, the objective never increases, for convex
    losses of bounded curvature and for Poisson. For losses whose derivative jumps see `smoothness.of_jump` and
    `smoothness.of_margin_jump`.
    Assumes: no momentum, acceleration or batches. With momentum the same step converges on the squared loss with or
    without l2; for others nothing is proved. Accelerated, the objective is within 2‖w*‖²/(η·(T + 1)²) of its minimum
    after T steps. With batches L is the largest of any batch.

    Args:
        loss: ℓ, a function of the residual, the margin or the log rate.
        steps: How many.
        step_size: η; None chooses 1/(L + l2) from the data.
        l2: Ridge penalty.
        l1: Lasso penalty.
        momentum: Part of the last step that is added to the next, in [0, 1).
        accelerated: Nesterov's method or FISTA.
        batch: Samples in a batch; None takes all of them.

    Example:
        >>> GradientDescent(squared(), steps=50, l2=0.1).run(x, y)
    """

    loss: Loss
    steps: int = 100
    step_size: float | None = None
    l2: float = 0.0
    l1: float = 0.0
    momentum: float = 0.0
    accelerated: bool = False
    batch: int | None = None

    def __post_init__(self) -> None:
        require_steps(self.steps)
        for name in ("l2", "l1"):
            if not 0 <= getattr(self, name) < math.inf:
                raise EmulonError(f"a penalty must be finite and not negative, got {getattr(self, name)} for {name}")
        if not 0 <= self.momentum < 1:
            raise EmulonError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise EmulonError(f"step_size must be positive and finite, got {self.step_size}; None chooses one")
        if self.step_size is None:
            self.loss.require_smoothness()
        if self.batch is not None and self.batch < 1:
            raise EmulonError(f"a batch has at least one sample, not {self.batch}; None takes all of them")
        if sum(map(bool, (self.momentum, self.accelerated, self.batch))) > 1:
            raise EmulonError("momentum, acceleration and batches do not go together; choose one of them")

    @property
    def descent(self) -> GradientDescent:
        """Itself: so that this and every named algorithm answer to the same name."""
        return self

    def resolved_step_size(self, x: Inputs, y: Targets) -> PerProblem:
        """η for each batch element: the one given, or 1/(L + l2) from the data (1 where nothing can move)."""
        x, y = in_float64(x, y)
        self.loss.template_data(x, y)  # refuses bad targets
        if self.step_size is not None:
            return x.new_full((*x.shape[:-2], 1), self.step_size)
        if self.batch is not None:
            x, y = in_batches(x, y, self.batch)
        smoothness = self.loss.smoothness(x, y, self.steps) + self.l2
        if self.batch is not None:
            smoothness = smoothness.amax(dim=-2)
        return torch.where(smoothness > 0, 1 / smoothness, 1.0)

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        step = self.resolved_step_size(x, y)
        x, y, fixed = self.loss.template_data(x.double(), y.double())
        weights = before = x.new_zeros(*x.shape[:-2], x.shape[-1])
        size = x.shape[-2] if self.batch is None else self.batch
        by_batch = in_batches(x, y, size)
        xs, ys = by_batch[0].unbind(-3), by_batch[1].unbind(-2)
        fixes = None if fixed is None else in_batches(fixed, y, size)[0].mean(dim=-2).unbind(-2)
        yield weights
        for number in range(self.steps):
            x, y = xs[number % len(xs)], ys[number % len(xs)]
            start = look_ahead(number, weights, before) if self.accelerated else weights
            slopes = self.loss.slope((x @ start.unsqueeze(-1)).squeeze(-1) - y)
            gradient = (slopes.unsqueeze(-2) @ x).squeeze(-2) / x.shape[-2]
            if fixes is not None:
                gradient = gradient - fixes[number % len(xs)]
            weights, before = self.step(step, start, gradient, weights - before, soft_threshold), weights
            yield weights

    def step(
        self, size: Number, start: Number, gradient: Number, change: Number, shrink: Callable[[Any, Any], Number]
    ) -> Number:
        """One step over any arithmetic: float64 tensors, balls, Arb matrices.

        Args:
            size: η.
            start: Where the step starts.
            gradient: Of the mean loss there.
            change: w − w_before, for momentum.
            shrink: Soft threshold in this arithmetic, of an array by η·l1.
        """
        moved: Any = start * (1 - size * self.l2) - gradient * size
        if self.momentum:
            moved = moved + change * self.momentum
        stepped: Number = shrink(moved, size * self.l1) if self.l1 else moved
        return stepped

    def starts(self, iterates: Float[Tensor, "*batch iterates features"]) -> Float[Tensor, "*batch iterates features"]:
        """Where the step from each of these weights starts."""
        if not self.accelerated:
            return iterates
        before = torch.cat([iterates[..., :1, :], iterates[..., :-1, :]], dim=-2)
        number = torch.arange(iterates.shape[-2], dtype=iterates.dtype, device=iterates.device).unsqueeze(-1)
        return look_ahead(number, iterates, before)

    def objective(self, x: Inputs, y: Targets, weights: Weights) -> Float[Tensor, "*batch"]:
        """What is minimised, at these weights."""
        x, y, fixed = self.loss.template_data(x.double(), y.double())
        fit = self.loss.value((x @ weights.unsqueeze(-1)).squeeze(-1) - y).mean(dim=-1)
        if fixed is not None:
            fit = fit - (fixed.mean(dim=-2) * weights).sum(dim=-1)
        return fit + self.l2 / 2 * weights.square().sum(dim=-1) + self.l1 * weights.abs().sum(dim=-1)

    def mean_response(self, score: Scores) -> Scores:
        """w·x for residual and margin losses; for a rate ℓ′(w·x), which is exp(w·x) for Poisson."""
        return self.loss.mean_response(score)


def look_ahead(number: int | Tensor, weights: Weights, before: Weights) -> Weights:
    """Where an accelerated step, the `number`-th from 0, starts: ahead in the direction of the last."""
    return weights + number / (number + 3) * (weights - before)


def in_batches(
    x: Inputs, y: Targets, size: int
) -> tuple[Real[Tensor, "*batch batches size features"], Real[Tensor, "*batch batches size"]]:
    """As many batches of this size as it takes to have every sample in one, in order; the first fill up the last.

    Where there are fewer samples than that, all of them are one batch.
    """
    samples = x.shape[-2]
    if size >= samples:
        return x.unsqueeze(-3), y.unsqueeze(-2)
    rows = torch.arange(-(-samples // size) * size, device=x.device).remainder(samples).reshape(-1, size)
    return x[..., rows, :], y[..., rows]


@dataclass(frozen=True)
class OnlineSGD(Algorithm):
    """One pass over the examples in their order: w ← w − step_size·(x_i(w·x_i − y_i) + 2·ridge·w) from w = 0.

    Eq. 11 of Akyürek et al. 2022, and the register machine's `sgd`.
    The iterates are the weights after 0, 1, 2, … examples: one pass serves every prefix.

    Args:
        step_size: Of every step.
        ridge: Penalty on ‖w‖².
    """

    step_size: float
    ridge: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.step_size < math.inf or not 0 <= self.ridge < math.inf:
            raise EmulonError(f"need step_size > 0 and ridge ≥ 0, got {self.step_size} and {self.ridge}")

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        x, y = in_float64(x, y)
        weights = x.new_zeros(*x.shape[:-2], x.shape[-1])
        yield weights
        for one, target in zip(x.unbind(-2), y.unbind(-1), strict=True):
            residual = (weights * one).sum(dim=-1) - target
            weights = (1 - 2 * self.step_size * self.ridge) * weights - self.step_size * residual.unsqueeze(-1) * one
            yield weights


def soft_threshold(v: Weights, threshold: Float[Tensor, "*#batch 1"]) -> Weights:
    """argmin_w ‖w − v‖²/2 + threshold·‖w‖₁: every entry moved towards zero by the threshold, and not past it.

    Args:
        v: (..., features).
        threshold: (..., 1), not negative.
    Returns:
        (..., features).
    """
    return v.sign() * (v.abs() - threshold).clamp(min=0)


def require_queries(x: Inputs, x_query: Queries) -> None:
    """Refuse queries that are neither one a batch element, (..., features), nor several, (..., queries, features)."""
    batch, features = tuple(x.shape[:-2]), x.shape[-1]
    several = x_query.ndim == x.ndim
    if not x_query.ndim or x_query.shape[-1] != features or tuple(x_query.shape[: -2 if several else -1]) != batch:
        one = ", ".join(map(str, (*batch, features)))
        many = ", ".join(map(str, (*batch, "queries", features)))
        raise BadShape(f"x_query has shape {tuple(x_query.shape)}, wanted ({one}) or ({many})")
    require_finite(x_query=x_query)


def require_steps(steps: int) -> None:
    if not isinstance(steps, int) or steps < 0:
        raise EmulonError(f"steps must be a whole number, 0 or more, got {steps}")


def _finite(weights: Tensor) -> Tensor:
    """A diverging run ends in an error, not in NaN."""
    if not torch.isfinite(weights).all():
        raise OutOfDomain("the weights overflowed: the steps diverge on this data; take fewer, or a smaller step_size")
    return weights
