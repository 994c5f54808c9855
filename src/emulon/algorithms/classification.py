"""Two-class classification by gradient descent, labels −1 and +1. Predictions are decision values w·x: their sign is
the class. n is the number of samples; no face has an intercept.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulon.algorithms.face import Face
from emulon.algorithms.gradient_descent import GradientDescent
from emulon.algorithms.losses import logistic, perceptron, squared_hinge


@dataclass(frozen=True)
class LogisticRegression(Face):
    """Minimises (1/n) Σ log(1 + exp(−y_i·w·x_i)) + (penalty/2)·‖w‖². scikit-learn's has C = 1/(n·penalty).

    The probability of class +1 is sigmoid(predict).
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(logistic(), self.steps, self.step_size, l2=self.penalty)


@dataclass(frozen=True)
class SquaredHinge(Face):
    """Minimises (1/n) Σ max(0, 1 − y_i·w·x_i)² + (penalty/2)·‖w‖².

    scikit-learn's LinearSVC(loss="squared_hinge") has C = 1/(n·penalty).
    """

    penalty: float = 0.1
    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(squared_hinge(), self.steps, self.step_size, l2=self.penalty)


@dataclass(frozen=True)
class Perceptron(Face):
    """Minimises (1/n) Σ max(0, −y_i·w·x_i): each step adds the mean of y_i·x_i over the samples on the wrong side.

    This is the batch perceptron; scikit-learn's Perceptron visits one sample at a time and ends at other weights. It
    stops on separable data, within the number of steps in `smoothness.of_margin_jump`. The step size only scales w.
    """

    steps: int = 100
    step_size: float | None = None

    @property
    def descent(self) -> GradientDescent:
        return GradientDescent(perceptron(), self.steps, self.step_size)
