"""An algorithm: weights from data, step by step, and predictions from weights; and what it asks of data first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.certify.domain import require_finite
from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.core.names import Registry, snake_case

# Data of every algorithm, and what it answers; Float… is what it computes with.
Inputs = Real[Tensor, "*batch samples features"]
Targets = Real[Tensor, "*batch samples"]
FloatInputs = Float[Tensor, "*batch samples features"]
FloatTargets = Float[Tensor, "*batch samples"]
Weights = Float[Tensor, "*batch features"]
Queries = Real[Tensor, "*query"]
FloatQueries = Float[Tensor, "*batch queries features"]
Answers = Float[Tensor, "*answers"]
PerProblem = Float[Tensor, "*batch 1"]
Scores = Float[Tensor, "*shape"]


class InContextPredictor(ABC):
    """Predicts from examples, in float64: supplies `answers`, for checked data and several queries a dataset."""

    @abstractmethod
    def answers(self, xs: FloatInputs, ys: FloatTargets, queries: FloatQueries) -> Answers:
        """Predictions (..., queries)."""

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Targets, x_query: Queries) -> Answers:
        """What (xs, ys) say about x_query, (..., features) or (..., queries, features)."""
        require_data(xs, ys)
        require_queries(xs, x_query)
        several = x_query.ndim == xs.ndim
        queries = x_query.double() if several else x_query.double().unsqueeze(-2)
        answers = self.answers(xs.double(), ys.double(), queries)
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


def require_data(x: Inputs, y: Targets) -> None:
    """Refuse data that is empty, not finite, or whose x and y do not belong together."""
    if x.ndim < 2 or x.shape[:-1] != y.shape:
        raise BadShape(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}, wanted (..., samples, features), (..., samples)"
        )
    if 0 in x.shape[-2:]:
        raise BadShape(f"x has shape {tuple(x.shape)}; give at least one sample and one feature")
    require_finite(x=x, y=y)


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
