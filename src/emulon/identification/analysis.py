"""All there is to say about one predictor: which algorithm, how far from it, and at which ridge parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from jaxtyping import Float
from torch import Tensor

from emulon.core.predictor import Predictor
from emulon.core.progress import Progress, silent
from emulon.identification.adapters import adapt
from emulon.identification.curves import Curve
from emulon.identification.differences import fresh_queries, weights_on
from emulon.identification.identify import Identification, Match, identify
from emulon.identification.references import Reference, references_for
from emulon.identification.ridge_fit import RidgeFit, ridge_on
from emulon.identification.sampling import Prefixes, Sampling, draw
from emulon.tasks import RegressionTask

# To find its weights a predictor is asked several questions for each dataset and count, and a learner reads the whole
# prompt for each: so many questions after so many counts at most.
QUESTIONS, WEIGHED_COUNTS = 640, 12
# Parameters are fitted with one seed and distances measured with the next.
NEXT = 1


@dataclass(frozen=True)
class Comparison:
    """Squared prediction and implicit weight difference (Akyürek et al. 2022, Eq. 13 and 15), over d.

    Attributes:
        predictions: By reference.
        weights: By reference, on some of the datasets and counts.
        linearity: How much of the answers the implicit weights explain.
    """

    predictions: dict[str, Curve]
    weights: dict[str, Curve]
    linearity: Curve


def compare(
    predictor: object, task: RegressionTask, matches: Sequence[Match], **sampling: Unpack[Sampling]
) -> Comparison:
    """Measure how far a predictor is from references with these parameters, all on the same datasets.

    Args:
        predictor: Anything that predicts, see `adapt`.
        task: Where datasets come from.
        matches: References with their parameters.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    subject = adapt(predictor)
    drawn = draw(task, subject, **sampling)
    queries = fresh_queries(task, drawn, None, sampling.get("seed", 0))
    return compare_on(subject, drawn, drawn.answers(subject), queries, matches, references_for(task))


def compare_on(
    subject: Predictor,
    drawn: Prefixes,
    answers: Float[Tensor, "datasets counts"],
    queries: Float[Tensor, "datasets queries features"],
    matches: Sequence[Match],
    references: Sequence[Reference],
) -> Comparison:
    """The same on datasets already drawn and answered; implicit weights come from answers at these queries."""
    datasets = max(4, QUESTIONS // queries.shape[1])
    few = drawn.take(slice(0, datasets), WEIGHED_COUNTS)
    queries = queries[:datasets]
    own = weights_on(subject, few, queries)
    known = {reference.name: reference for reference in references}
    predictions, weights = {}, {}
    for match in matches:
        reference = known[match.name]
        squared = (answers - reference.predict(drawn, match.parameters)).square() / drawn.features
        predictions[str(match)] = drawn.curve("squared prediction difference / features", squared)
        weights[str(match)] = own.difference(weights_on(reference.fitted(match.parameters), few, queries))
    return Comparison(predictions, weights, few.curve("R² of the implicit weights", own.linearity))


def telling(identification: Identification) -> tuple[Match, ...]:
    """The references worth comparing with: OLS, ridge, the nearest gradient descent, and the nearest of all.

    Args:
        identification: A verdict.
    """
    descent = next(match for match in identification.ranking if match.name.startswith("gradient descent"))
    some = [identification["ols"], identification["ridge"], descent]
    return tuple(some if identification.nearest in some else [identification.nearest, *some])


@dataclass(frozen=True)
class Analysis:
    """What `analyse` finds.

    Attributes:
        target: What was asked.
        task: Where datasets came from.
        seed: Of the datasets.
        identification: The verdict.
        comparison: Distances from what is nearest, OLS, ridge and descent.
        ridge: The best ridge parameter.
        bayes: σ²/τ², the ridge parameter of the Bayes predictor, where the task is linear with noise.
    """

    target: str
    task: str
    seed: int
    identification: Identification
    comparison: Comparison
    ridge: RidgeFit
    bayes: float | None

    @property
    def agrees(self) -> bool | None:
        """Whether the best ridge parameter is the Bayes predictor's, within the grid's step; None where it has none."""
        return None if self.bayes is None else self.ridge.agrees(self.bayes)

    def as_numbers(self) -> dict[str, Any]:
        """Everything, for a file."""
        verdict = dataclasses.asdict(self.identification)
        ranking = verdict.pop("ranking")
        return {
            "target": self.target,
            "task": self.task,
            "seed": self.seed,
            "algorithm": self.identification.algorithm,
            **verdict,
            "ranking": ranking,
            "comparison": dataclasses.asdict(self.comparison),
            "best ridge": {**dataclasses.asdict(self.ridge), "best": self.ridge.best, "bayes": self.bayes},
        }


def analyse(
    predictor: object,
    task: RegressionTask,
    *,
    target: str = "",
    report_progress: Progress = silent,
    **sampling: Unpack[Sampling],
) -> Analysis:
    """Identify a predictor, measure how far it is from the nearest and from OLS, ridge and descent, and fit a ridge.

    Args:
        predictor: Anything that predicts, see `adapt`.
        task: Where datasets come from.
        target: What to call it.
        report_progress: Called with what is done and the share of it.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    """
    subject = adapt(predictor)
    seed = sampling.get("seed", 0)
    report_progress("identifying", 0.0)
    identification = identify(subject, task, **sampling)
    report_progress("asking again, on other datasets", 0.4)
    sampling["seed"] = seed + NEXT
    drawn = draw(task, subject, **sampling)
    answers = drawn.answers(subject)
    report_progress("comparing implicit weights", 0.6)
    queries = fresh_queries(task, drawn, None, seed + NEXT)
    comparison = compare_on(subject, drawn, answers, queries, telling(identification), references_for(task))
    bayes = task.bayes_ridge or None
    return Analysis(
        target or type(predictor).__name__, str(task), seed, identification, comparison, ridge_on(drawn, answers), bayes
    )
