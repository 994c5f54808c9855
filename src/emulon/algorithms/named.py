"""Gradient descent under familiar names. n is the number of samples; nothing here has an intercept.

Classifiers take labels −1 and +1, and their predictions are decision values w·x: the sign is the class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.gradient_descent import ALGORITHMS, Algorithm, GradientDescent
from emulon.algorithms.losses import (
    Inputs,
    PerProblem,
    Scores,
    Targets,
    Weights,
    huber,
    log_cosh,
    logistic,
    perceptron,
    poisson,
    quantile,
    squared,
    squared_hinge,
)
from emulon.core.errors import EmulonError


class NamedAlgorithm(Algorithm):
    """A familiar name for gradient descent on one particular objective.

    Supplies `descent`; the rest is the descent's. Parameters that make no sense are refused at once.
    """

    def __post_init__(self) -> None:
        _ = self.descent

    @property
    @abstractmethod
    def descent(self) -> GradientDescent:
        """The gradient descent underneath."""

    def weights_in_turn(self, x: Inputs, y: Targets) -> Iterator[Tensor]:
        return self.descent.weights_in_turn(x, y)

    def resolved_step_size(self, x: Inputs, y: Targets) -> PerProblem:
        return self.descent.resolved_step_size(x, y)

    def objective(self, x: Inputs, y: Targets, weights: Weights) -> Float[Tensor, "*batch"]:
        return self.descent.objective(x, y, weights)

    def mean_response(self, score: Scores) -> Scores:
        return self.descent.mean_response(score)


@ALGORITHMS.register
@dataclass(frozen=True)
class LinearRegression(NamedAlgorithm):
    """Minimises ‖Xw − y‖²/(2n): scikit-learn's LinearRegression(fit_intercept=False), reached in the limit of steps.

    Where the minimum is not unique, descent from zero ends at the one of least norm.

    Args:
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size)


@ALGORITHMS.register
@dataclass(frozen=True)
class Ridge(NamedAlgorithm):
    """Minimises ‖Xw − y‖²/(2n) + (penalty/2)·‖w‖². scikit-learn's Ridge has alpha = n·penalty.

    Args:
        penalty: Ridge penalty.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size, l2=self.penalty)


@ALGORITHMS.register
@dataclass(frozen=True)
class HeavyBall(NamedAlgorithm):
    """`Ridge`'s objective (with penalty 0 `LinearRegression`'s), by steps that keep a part of the step before.

    Where features are correlated this reaches the minimum in a fraction of the steps.

    Args:
        penalty: Ridge penalty.
        momentum: Part of the last step that is added to the next.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.0
    momentum: float = 0.9
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size, l2=self.penalty, momentum=self.momentum)


@ALGORITHMS.register
@dataclass(frozen=True)
class Nesterov(NamedAlgorithm):
    """`Ridge`'s objective by accelerated steps: as near to its minimum in √T steps, about, as plain descent in T.

    Args:
        penalty: Ridge penalty.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.0
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size, l2=self.penalty, accelerated=True)


@ALGORITHMS.register
@dataclass(frozen=True)
class MiniBatchDescent(NamedAlgorithm):
    """`Ridge`'s objective by steps that see one batch of samples after the other, in order and round again.

    With a fixed step size it ends near the minimum and goes round it; scikit-learn's SGDRegressor has batches of one.

    Args:
        penalty: Ridge penalty.
        batch: Samples in a batch.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    batch: int = 16
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size, l2=self.penalty, batch=self.batch)


@ALGORITHMS.register
@dataclass(frozen=True)
class Lasso(NamedAlgorithm):
    """Minimises ‖Xw − y‖²/(2n) + penalty·‖w‖₁. scikit-learn's Lasso has alpha = penalty.

    Args:
        penalty: On ‖w‖₁.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size, l1=self.penalty)


@ALGORITHMS.register
@dataclass(frozen=True)
class Fista(NamedAlgorithm):
    """`Lasso`'s objective by accelerated proximal steps. scikit-learn's Lasso has alpha = penalty.

    Args:
        penalty: On ‖w‖₁.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared(), self.steps, self.step_size, l1=self.penalty, accelerated=True)


@ALGORITHMS.register
@dataclass(frozen=True)
class ElasticNet(NamedAlgorithm):
    """Minimises ‖Xw − y‖²/(2n) + penalty·l1_ratio·‖w‖₁ + (penalty·(1 − l1_ratio)/2)·‖w‖².

    scikit-learn's ElasticNet has the same form: alpha = penalty, l1_ratio = l1_ratio.

    Args:
        penalty: Of both kinds together.
        l1_ratio: The share on ‖w‖₁.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    l1_ratio: float = 0.5
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        if not 0 <= self.l1_ratio <= 1:
            raise EmulonError(f"l1_ratio is the penalty's share on ‖w‖₁; give a number in [0, 1], not {self.l1_ratio}")
        l1, l2 = self.penalty * self.l1_ratio, self.penalty * (1 - self.l1_ratio)
        return GradientDescent(squared(), self.steps, self.step_size, l2=l2, l1=l1)


@ALGORITHMS.register
@dataclass(frozen=True)
class HuberRegression(NamedAlgorithm):
    """Minimises (1/n) Σ huber(w·x_i − y_i), huber(t) = t²/2 up to |t| = delta and delta·(|t| − delta/2) beyond.

    scikit-learn's HuberRegressor also fits a scale σ and applies its epsilon to residuals over σ; with σ held at 1, and
    alpha = 0, its objective is 2n times this one, with epsilon = delta.

    Args:
        delta: Where the loss becomes linear.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    delta: float = 1.35
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(huber(self.delta), self.steps, self.step_size)


@ALGORITHMS.register
@dataclass(frozen=True)
class LogCoshRegression(NamedAlgorithm):
    """Minimises (1/n) Σ log cosh(w·x_i − y_i). Not in scikit-learn.

    Args:
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(log_cosh(), self.steps, self.step_size)


@ALGORITHMS.register
@dataclass(frozen=True)
class QuantileRegression(NamedAlgorithm):
    """Minimises (1/n) Σ tau·max(y_i − w·x_i, 0) + (1 − tau)·max(w·x_i − y_i, 0) by subgradient steps of fixed size.

    scikit-learn's QuantileRegressor(quantile=tau, alpha=0) solves the same problem as a linear program. Subgradient
    steps do not settle on its weights; how near the objective comes is in `smoothness.of_jump`, with the default step.

    Args:
        tau: The quantile, in (0, 1).
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    tau: float = 0.5
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(quantile(self.tau), self.steps, self.step_size)


@ALGORITHMS.register
@dataclass(frozen=True)
class PoissonRegression(NamedAlgorithm):
    """Minimises (1/n) Σ (exp(w·x_i) − y_i·w·x_i) + (penalty/2)·‖w‖², counts y ≥ 0; predicts exp(w·x).

    scikit-learn's PoissonRegressor has alpha = penalty. The default step is in `smoothness.of_counts`: it never
    overshoots, and pays for that with more steps than a second-order method takes.

    Args:
        penalty: Ridge penalty.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(poisson(), self.steps, self.step_size, l2=self.penalty)


@ALGORITHMS.register
@dataclass(frozen=True)
class LogisticRegression(NamedAlgorithm):
    """Minimises (1/n) Σ log(1 + exp(−y_i·w·x_i)) + (penalty/2)·‖w‖². scikit-learn's has C = 1/(n·penalty).

    The probability of class +1 is sigmoid(predict).

    Args:
        penalty: Ridge penalty.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(logistic(), self.steps, self.step_size, l2=self.penalty)


@ALGORITHMS.register
@dataclass(frozen=True)
class SquaredHinge(NamedAlgorithm):
    """Minimises (1/n) Σ max(0, 1 − y_i·w·x_i)² + (penalty/2)·‖w‖².

    scikit-learn's LinearSVC(loss="squared_hinge") has C = 1/(n·penalty).

    Args:
        penalty: Ridge penalty.
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared_hinge(), self.steps, self.step_size, l2=self.penalty)


@ALGORITHMS.register
@dataclass(frozen=True)
class Perceptron(NamedAlgorithm):
    """Minimises (1/n) Σ max(0, −y_i·w·x_i): each step adds the mean of y_i·x_i over the samples on the wrong side.

    This is the batch perceptron; scikit-learn's Perceptron visits one sample at a time and ends at other weights. It
    stops on separable data, within the number of steps in `smoothness.of_margin_jump`. The step size only scales w.

    Args:
        steps: How many.
        step_size: η; None chooses it from the data.
    """

    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(perceptron(), self.steps, self.step_size)
