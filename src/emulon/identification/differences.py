"""How two predictors differ, by number of examples: predictions (Akyürek et al. 2022, Eq. 13), implicit linear weights
(Eq. 14–15), and how they move with the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.predictor import Predictor, predict_queries
from emulon.identification.adapters import adapt
from emulon.identification.curves import Curve
from emulon.identification.sampling import Answers, Prefixes, Sampling, draw
from emulon.tasks import RegressionTask

# Fresh inputs come from a seed far from the datasets' own.
FRESH = 1_000_003
# Half-width of the central differences, small against inputs of size 1 and large against float32's rounding.
STEP = 1e-3


def squared_prediction_difference(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """E (a(D)(x′) − b(D)(x′))²/d for each number of examples in D; the 1/d is the normalisation of Figure 1.

    Args:
        a: Anything that predicts, see `adapt`.
        b: Another.
        task: Where datasets come from.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    first, second = adapt(a), adapt(b)
    drawn = draw(task, first, second, **sampling)
    difference = drawn.answers(first) - drawn.answers(second)
    return drawn.curve("squared prediction difference / features", difference.square() / drawn.features)


def learning_curve(predictor: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """E (a(D)(x′) − y′)²/d for each number of examples in D, the noise of y′ included.

    Args:
        predictor: Anything that predicts, see `adapt`.
        task: Where datasets come from.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    subject = adapt(predictor)
    drawn = draw(task, subject, **sampling)
    error = drawn.answers(subject) - drawn.ys[:, list(drawn.counts)]
    return drawn.curve("squared error / features", error.square() / drawn.features)


@dataclass(frozen=True)
class ImplicitWeights:
    """The linear function of the query that is nearest to a predictor, on each dataset.

    Attributes:
        counts: Numbers of examples.
        weights: One vector for each dataset and count.
        linearity: R²: 1 where the predictor is linear in the query; below, they are only its best linear summary.
    """

    counts: tuple[int, ...]
    weights: Float[Tensor, "datasets counts features"]
    linearity: Answers

    def difference(self, other: ImplicitWeights) -> Curve:
        """E ‖w_a − w_b‖²/d for each number of examples (Eq. 15, normalised as Figure 1)."""
        distance = (self.weights - other.weights).square().mean(dim=-1)
        return Curve.of("implicit weight difference / features", self.counts, distance)


def implicit_weights(
    predictor: object, task: RegressionTask, *, queries: int | None = None, **sampling: Unpack[Sampling]
) -> ImplicitWeights:
    """Fit least squares to the predictor's own answers at fresh inputs.

    Args:
        predictor: Anything that predicts, see `adapt`.
        task: Where datasets come from.
        queries: How many inputs for each dataset; by default twice as many as features.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    subject = adapt(predictor)
    drawn = draw(task, subject, **sampling)
    return weights_on(subject, drawn, fresh_queries(task, drawn, queries, sampling.get("seed", 0)))


def weight_difference(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """The distance of the implicit weights of two predictors on the same datasets.

    Args:
        a: Anything that predicts, see `adapt`.
        b: Another.
        task: Where datasets come from.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    first, second = adapt(a), adapt(b)
    drawn = draw(task, first, second, **sampling)
    fresh = fresh_queries(task, drawn, None, sampling.get("seed", 0))
    return weights_on(first, drawn, fresh).difference(weights_on(second, drawn, fresh))


def fresh_queries(
    task: RegressionTask, drawn: Prefixes, queries: int | None, seed: int
) -> Float[Tensor, "datasets queries features"]:
    return task.held_out(seed + FRESH, len(drawn.xs), queries or 2 * drawn.features).xs


def weights_on(
    predictor: Predictor, drawn: Prefixes, fresh: Float[Tensor, "datasets queries features"]
) -> ImplicitWeights:
    """The implicit weights on these datasets, from the answers at these inputs."""
    xs, ys = drawn.xs, drawn.ys
    answers = torch.stack(
        [predict_queries(predictor, xs[:, :n], ys[:, :n], fresh) for n in drawn.counts], dim=1
    ).double()
    weights = (torch.linalg.pinv(fresh).unsqueeze(1) @ answers.unsqueeze(-1)).squeeze(-1)
    left = (answers - (fresh.unsqueeze(1) @ weights.unsqueeze(-1)).squeeze(-1)).square().sum(dim=-1)
    total = answers.square().sum(dim=-1)
    return ImplicitWeights(drawn.counts, weights, 1 - torch.where(total > 0, left / total, 0.0))


@dataclass(frozen=True)
class Sensitivity:
    """How the answers of two predictors move with the query.

    Attributes:
        cosine: Of the two gradients ∂ŷ/∂x_query; 1 is the same direction, and 0 stands where one of them is zero.
        distance: Squared, over the number of features.
    """

    cosine: Curve
    distance: Curve


def sensitivity(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Sensitivity:
    """Compare how two predictors move with the query, for each number of examples.

    Args:
        a: Anything that predicts, see `adapt`.
        b: Another.
        task: Where datasets come from.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    first, second = adapt(a), adapt(b)
    drawn = draw(task, first, second, **sampling)
    xs, ys = drawn.xs, drawn.ys
    slopes = [
        torch.stack([input_gradient(one, xs[:, :n], ys[:, :n], xs[:, n]) for n in drawn.counts], dim=1)
        for one in (first, second)
    ]
    cosine = torch.nn.functional.cosine_similarity(slopes[0], slopes[1], dim=-1)
    distance = (slopes[0] - slopes[1]).square().mean(dim=-1)
    return Sensitivity(
        drawn.curve("cosine of the input gradients", cosine),
        drawn.curve("squared input gradient difference / features", distance),
    )


def input_gradient(
    predictor: Predictor,
    xs: Float[Tensor, "batch examples features"],
    ys: Float[Tensor, "batch examples"],
    x_query: Float[Tensor, "batch features"],
) -> Float[Tensor, "batch features"]:
    """∂ŷ/∂x_query by autograd, or by central differences where the predictor is not differentiable."""
    query = x_query.detach().clone().requires_grad_()
    try:
        answer = predictor.predict(xs, ys, query)
    except RuntimeError as error:  # numpy() on a tensor that requires grad
        if "requires grad" not in str(error):
            raise
        return _central_differences(predictor, xs, ys, x_query)
    if not answer.requires_grad:
        return _central_differences(predictor, xs, ys, x_query)
    (slope,) = torch.autograd.grad(answer.sum(), query)
    return slope.double()


def _central_differences(predictor: Predictor, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
    step = STEP * torch.eye(x_query.shape[-1], dtype=x_query.dtype, device=x_query.device)
    around = torch.cat([x_query.unsqueeze(1) + step, x_query.unsqueeze(1) - step], dim=1)
    above, below = predict_queries(predictor, xs, ys, around).double().chunk(2, dim=-1)
    return (above - below) / (2 * STEP)
