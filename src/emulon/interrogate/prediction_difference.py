"""Squared prediction difference (Eq. 13) and the learning curve, which is the difference from the truth."""

from __future__ import annotations

from typing import Unpack

from emulon.interrogate.curve import Curve
from emulon.interrogate.sampling import Sampling, draw
from emulon.predictor import as_predictor
from emulon.tasks import RegressionTask


def squared_prediction_difference(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """E (a(D)(x′) − b(D)(x′))²/d for each number of examples in D; the 1/d is the normalisation of Figure 1."""
    first, second = as_predictor(a), as_predictor(b)
    drawn = draw(task, first, second, **sampling)
    difference = drawn.answers(first) - drawn.answers(second)
    return drawn.curve("squared prediction difference / features", difference.square() / drawn.features)


def learning_curve(predictor: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """E (a(D)(x′) − y′)²/d for each number of examples in D, the noise of y′ included."""
    asked = as_predictor(predictor)
    drawn = draw(task, asked, **sampling)
    error = drawn.answers(asked) - drawn.ys[:, list(drawn.counts)]
    return drawn.curve("squared error / features", error.square() / drawn.features)
