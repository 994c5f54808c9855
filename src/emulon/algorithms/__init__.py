"""The exact truth: learning algorithms in plain float64 tensor code, with no attention in it."""

from emulon.algorithms.algorithm import Algorithm
from emulon.algorithms.baselines import NearestNeighbours, PreviousTarget, Zero
from emulon.algorithms.closed_form import LeastSquares, NewtonLeastSquares, RidgeRegression, ShermanMorrisonRidge
from emulon.algorithms.gradient_descent import GradientDescent, OnlineSGD, soft_threshold
from emulon.algorithms.lasso_path import LassoPath, LassoRegression, lasso_path
from emulon.algorithms.link import MARGIN, RATE, RESIDUAL, Link
from emulon.algorithms.loss import Loss
from emulon.algorithms.losses import (
    LOSSES,
    as_loss,
    huber,
    log_cosh,
    logistic,
    perceptron,
    poisson,
    quantile,
    squared,
    squared_hinge,
)
from emulon.algorithms.named import (
    ElasticNet,
    Fista,
    HeavyBall,
    HuberRegression,
    Lasso,
    LinearRegression,
    LogCoshRegression,
    LogisticRegression,
    MiniBatchDescent,
    NamedAlgorithm,
    Nesterov,
    Perceptron,
    PoissonRegression,
    QuantileRegression,
    Ridge,
    SquaredHinge,
)
from emulon.algorithms.registry import ALGORITHMS, name_of
from emulon.algorithms.task_mixture import TaskMixture

__all__ = [
    "ALGORITHMS",
    "LOSSES",
    "MARGIN",
    "RATE",
    "RESIDUAL",
    "Algorithm",
    "ElasticNet",
    "Fista",
    "GradientDescent",
    "HeavyBall",
    "HuberRegression",
    "Lasso",
    "LassoPath",
    "LassoRegression",
    "LeastSquares",
    "LinearRegression",
    "Link",
    "LogCoshRegression",
    "LogisticRegression",
    "Loss",
    "MiniBatchDescent",
    "NamedAlgorithm",
    "NearestNeighbours",
    "Nesterov",
    "NewtonLeastSquares",
    "OnlineSGD",
    "Perceptron",
    "PoissonRegression",
    "PreviousTarget",
    "QuantileRegression",
    "Ridge",
    "RidgeRegression",
    "ShermanMorrisonRidge",
    "SquaredHinge",
    "TaskMixture",
    "Zero",
    "as_loss",
    "huber",
    "lasso_path",
    "log_cosh",
    "logistic",
    "name_of",
    "perceptron",
    "poisson",
    "quantile",
    "soft_threshold",
    "squared",
    "squared_hinge",
]
