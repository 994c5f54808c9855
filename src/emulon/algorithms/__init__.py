"""The exact truth: learning algorithms in plain float64 tensor code, with no attention in it."""

from emulon.algorithms.algorithm import Algorithm
from emulon.algorithms.baseline import PreviousTarget, Zero
from emulon.algorithms.classification import LogisticRegression, Perceptron, SquaredHinge
from emulon.algorithms.face import Face
from emulon.algorithms.gradient_descent import GradientDescent, soft_threshold
from emulon.algorithms.lasso_path import LassoPath, LassoRegression, lasso_path
from emulon.algorithms.least_squares import LeastSquares
from emulon.algorithms.loss import Form, Loss
from emulon.algorithms.losses import huber, log_cosh, logistic, perceptron, poisson, quantile, squared, squared_hinge
from emulon.algorithms.neighbours import NearestNeighbours
from emulon.algorithms.newton import NewtonLeastSquares
from emulon.algorithms.online_sgd import OnlineSGD
from emulon.algorithms.regression import (
    ElasticNet,
    HeavyBall,
    HuberRegression,
    Lasso,
    LinearRegression,
    LogCoshRegression,
    PoissonRegression,
    QuantileRegression,
    Ridge,
)
from emulon.algorithms.ridge_regression import RidgeRegression, ShermanMorrisonRidge

FACES: dict[str, type[Algorithm]] = {
    "linear_regression": LinearRegression,
    "ridge": Ridge,
    "heavy_ball": HeavyBall,
    "lasso": Lasso,
    "elastic_net": ElasticNet,
    "huber_regression": HuberRegression,
    "log_cosh_regression": LogCoshRegression,
    "quantile_regression": QuantileRegression,
    "logistic_regression": LogisticRegression,
    "squared_hinge": SquaredHinge,
    "perceptron": Perceptron,
    "poisson_regression": PoissonRegression,
    "newton_least_squares": NewtonLeastSquares,
}

__all__ = [
    "FACES",
    "Algorithm",
    "ElasticNet",
    "Face",
    "Form",
    "GradientDescent",
    "HeavyBall",
    "HuberRegression",
    "Lasso",
    "LassoPath",
    "LassoRegression",
    "LeastSquares",
    "LinearRegression",
    "LogCoshRegression",
    "LogisticRegression",
    "Loss",
    "NearestNeighbours",
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
    "Zero",
    "huber",
    "lasso_path",
    "log_cosh",
    "logistic",
    "perceptron",
    "poisson",
    "quantile",
    "soft_threshold",
    "squared",
    "squared_hinge",
]
