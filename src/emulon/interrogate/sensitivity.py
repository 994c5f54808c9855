"""Sensitivity: how a prediction moves with the query, and whether two predictors agree on the direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.interrogate.curve import Curve
from emulon.interrogate.sampling import Sampling, draw
from emulon.predictor import Predictor, as_predictor, predict_queries
from emulon.tasks import RegressionTask

# Half-width of the central differences, small against inputs of size 1 and large against float32's rounding.
STEP = 1e-3


@dataclass(frozen=True)
class Sensitivity:
    """The cosine of the two gradients ∂ŷ/∂x_query (1: the same direction), and their squared distance over d."""

    cosine: Curve
    distance: Curve


def sensitivity(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Sensitivity:
    """For each number of examples. Where a gradient is zero the cosine is 0."""
    first, second = as_predictor(a), as_predictor(b)
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
