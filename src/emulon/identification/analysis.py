"""How two predictors differ, by number of examples: predictions (Akyürek et al. 2022, Eq. 13) and implicit linear
weights (Eq. 14–15); and the analysis of one: which algorithm, how far from it, and at which ridge parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError
from emulon.core.predictor import Predictor, predict_queries
from emulon.identification.adapters import adapt
from emulon.identification.identify import Identification, Match, identify
from emulon.identification.references import Reference, references_for, ridge
from emulon.identification.sampling import Answers, Curve, Interval, Prefixes, Sampling, draw, intervals
from emulon.tasks import RegressionTask

# Fresh inputs come from a seed far from the datasets' own.
FRESH = 1_000_003


def squared_prediction_difference(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """E (a(D)(x′) − b(D)(x′))²/d for each number of examples in D; the 1/d is the normalisation of Figure 1.

    Args:
        a: Anything that predicts, see `adapt`.
        b: Another.
        task: Where datasets come from.
        **sampling: See `Sampling`.
    """
    first, second = adapt(a), adapt(b)
    drawn = draw(task, first, second, **sampling)
    difference = drawn.answers(first) - drawn.answers(second)
    return drawn.curve("squared prediction difference / features", difference.square() / drawn.features)


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


def weight_difference(a: object, b: object, task: RegressionTask, **sampling: Unpack[Sampling]) -> Curve:
    """The distance of the implicit weights of two predictors.

    Args:
        a, b, task, **sampling: As of `squared_prediction_difference`.
    """
    first, second = adapt(a), adapt(b)
    drawn = draw(task, first, second, **sampling)
    fresh = fresh_queries(task, drawn, sampling.get("seed", 0))
    return weights_on(first, drawn, fresh).difference(weights_on(second, drawn, fresh))


def fresh_queries(task: RegressionTask, drawn: Prefixes, seed: int) -> Float[Tensor, "datasets queries features"]:
    """Twice as many inputs for each dataset as there are features."""
    return task.held_out(seed + FRESH, len(drawn.xs), 2 * drawn.features).xs


def weights_on(
    predictor: Predictor, drawn: Prefixes, fresh: Float[Tensor, "datasets queries features"]
) -> ImplicitWeights:
    """The implicit weights on these datasets, from the answers at these inputs."""
    xs, ys = drawn.xs, drawn.ys
    asked = [predict_queries(predictor, xs[:, :n], ys[:, :n], fresh) for n in drawn.counts]
    answers = torch.stack(asked, dim=1).double()
    weights = (torch.linalg.pinv(fresh).unsqueeze(1) @ answers.unsqueeze(-1)).squeeze(-1)
    left = (answers - (fresh.unsqueeze(1) @ weights.unsqueeze(-1)).squeeze(-1)).square().sum(dim=-1)
    total = answers.square().sum(dim=-1)
    return ImplicitWeights(drawn.counts, weights, 1 - torch.where(total > 0, left / total, 0.0))


# Half an octave apart, from 1/256 to 256.
GRID = tuple(2.0 ** (i / 2) for i in range(-16, 17))


@dataclass(frozen=True)
class RidgeFit:
    """The squared prediction difference (over d) from ridge regression with every λ of a grid.

    Attributes:
        grid: The λs, rising.
        differences: One for each.
    """

    grid: tuple[float, ...]
    differences: tuple[Interval, ...]

    @property
    def best(self) -> float:
        return min(zip(self.differences, self.grid, strict=True), key=lambda pair: pair[0].value)[1]

    @property
    def difference(self) -> Interval:
        return self.differences[self.grid.index(self.best)]

    def agrees(self, ridge: float) -> bool:
        """Whether the best λ is this one within the grid's step."""
        place = self.grid.index(self.best)
        low, high = self.grid[max(place - 1, 0)], self.grid[min(place + 1, len(self.grid) - 1)]
        return low <= ridge * (1 + 1e-9) and ridge * (1 - 1e-9) <= high


def best_ridge(
    predictor: object, task: RegressionTask, *, grid: Sequence[float] = GRID, **sampling: Unpack[Sampling]
) -> RidgeFit:
    """Compare a predictor with (XᵀX + λI)⁻¹Xᵀy for every λ of a grid.

    Args:
        predictor: Anything that predicts, see `adapt`.
        task: Where datasets come from.
        grid: The λs, positive and rising.
        **sampling: See `Sampling`.
    """
    if not grid or min(grid) <= 0 or list(grid) != sorted(grid):
        raise EmulonError(f"a grid of ridge parameters is positive and rising, got {list(grid)}")
    subject = adapt(predictor)
    drawn = draw(task, subject, **sampling)
    return ridge_on(drawn, drawn.answers(subject), grid)


def ridge_on(drawn: Prefixes, answers: Answers, grid: Sequence[float] = GRID) -> RidgeFit:
    """The same on datasets already drawn and answered."""
    ridges = torch.tensor(list(grid), dtype=torch.float64, device="cpu")
    answered = ridge.respond(drawn, torch.zeros(len(grid), device="cpu").long(), ridges)
    return RidgeFit(tuple(grid), intervals((answered - answers).square().mean(dim=-1).mT / drawn.features))


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
    subject: Predictor,
    drawn: Prefixes,
    answers: Answers,
    queries: Float[Tensor, "datasets queries features"],
    matches: Sequence[tuple[Match, Reference]],
) -> Comparison:
    """How far a predictor is from references with these parameters; the implicit weights come from these queries."""
    datasets = max(4, QUESTIONS // queries.shape[1])
    few, queries = drawn.take(slice(0, datasets), WEIGHED_COUNTS), queries[:datasets]
    own = weights_on(subject, few, queries)
    predictions, weights = {}, {}
    for match, reference in matches:
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
        return {
            "target": self.target,
            "task": self.task,
            "seed": self.seed,
            "algorithm": self.identification.algorithm,
            **dataclasses.asdict(self.identification),
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
        **sampling: See `Sampling`.
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
    queries = fresh_queries(task, drawn, seed + NEXT)
    known = {reference.name: reference for reference in references_for(task)}
    matches = [(match, known[match.name]) for match in telling(identification)]
    comparison = compare(subject, drawn, answers, queries, matches)
    name, best = target or type(predictor).__name__, ridge_on(drawn, answers)
    return Analysis(name, str(task), seed, identification, comparison, best, task.bayes_ridge or None)
