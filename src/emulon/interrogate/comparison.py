"""How far a predictor is from a few references, example by example (Figure 1 of `003_…`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from emulon.interrogate.curve import Curve
from emulon.interrogate.identification import Identification, Match
from emulon.interrogate.implicit_weights import fresh_queries, weights_on
from emulon.interrogate.prefixes import evenly
from emulon.interrogate.references import REFERENCES
from emulon.interrogate.sampling import Drawn, Sampling, draw
from emulon.predictor import Predictor, as_predictor
from emulon.tasks import RegressionTask

# To find its weights a predictor is asked several questions for each dataset and count, and a learner reads the whole
# prompt for each: so many questions after so many counts at most.
QUESTIONS, WEIGHED_COUNTS = 640, 12


@dataclass(frozen=True)
class Comparison:
    """Squared prediction difference (Eq. 13) and implicit weight difference (Eq. 15), both over d, by reference.

    `linearity` is how much of the answers the implicit weights explain. Weights are compared on some of the
    datasets and counts.
    """

    predictions: dict[str, Curve]
    weights: dict[str, Curve]
    linearity: Curve


def compare(
    predictor: object, task: RegressionTask, matches: Sequence[Match], **sampling: Unpack[Sampling]
) -> Comparison:
    """The predictor beside each of these references with these parameters, on the same datasets."""
    asked = as_predictor(predictor)
    drawn = draw(task, asked, **sampling)
    queries = fresh_queries(task, drawn, None, sampling.get("seed", 0))
    return compare_on(asked, drawn, drawn.answers(asked), queries, matches)


def compare_on(
    asked: Predictor,
    drawn: Drawn,
    answers: Float[Tensor, "datasets counts"],
    queries: Float[Tensor, "datasets queries features"],
    matches: Sequence[Match],
) -> Comparison:
    """The same on datasets already drawn and answered; implicit weights come from answers at these queries."""
    known = {reference.name: reference for reference in REFERENCES}
    datasets = max(4, QUESTIONS // queries.shape[1])
    few = Drawn(drawn.xs[:datasets], drawn.ys[:datasets], evenly(drawn.counts, WEIGHED_COUNTS))
    queries = queries[:datasets]
    own = weights_on(asked, few, queries)
    predictions, weights = {}, {}
    for match in matches:
        reference = known[match.name]
        apart = (answers - reference.predict(drawn.prefixes, match.parameters)).square() / drawn.features
        predictions[str(match)] = drawn.curve("squared prediction difference / features", apart)
        weights[str(match)] = own.difference(weights_on(reference.fitted(match.parameters), few, queries))
    return Comparison(predictions, weights, few.curve("R² of the implicit weights", own.linearity))


def telling(found: Identification) -> tuple[Match, ...]:
    """OLS, ridge, the nearest gradient descent, and the nearest of all where it is none of these."""
    descent = next(match for match in found.ranking if match.name.startswith("gradient descent"))
    some = [found["ols"], found["ridge"], descent]
    return tuple(some if found.nearest in some else [found.nearest, *some])
