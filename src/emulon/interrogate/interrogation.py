"""All there is to say about one predictor: which algorithm, how far from it, and at which ridge parameter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Unpack

from emulon.interrogate.comparison import Comparison, compare_on, telling
from emulon.interrogate.identification import Identification
from emulon.interrogate.identify import identify
from emulon.interrogate.implicit_weights import fresh_queries
from emulon.interrogate.ridge_fit import RidgeFit, ridge_on
from emulon.interrogate.sampling import Sampling, draw
from emulon.predictor import as_predictor
from emulon.progress import Progress, silent
from emulon.tasks import RegressionTask

# Parameters are fitted with one seed and distances measured with the next.
NEXT = 1


@dataclass(frozen=True)
class Interrogation:
    """`bayes` is σ²/τ², the ridge parameter of the Bayes predictor, where the task is linear with noise."""

    target: str
    task: str
    seed: int
    found: Identification
    comparison: Comparison
    ridge: RidgeFit
    bayes: float | None

    @property
    def agrees(self) -> bool | None:
        """Whether the best ridge parameter is the Bayes predictor's, within the grid's step; None where it has none."""
        return None if self.bayes is None else self.ridge.agrees(self.bayes)

    def as_numbers(self) -> dict[str, Any]:
        """Everything, for a file."""
        found = dataclasses.asdict(self.found)
        ranking = found.pop("ranking")
        return {
            "target": self.target,
            "task": self.task,
            "seed": self.seed,
            "algorithm": self.found.algorithm,
            **found,
            "ranking": ranking,
            "comparison": dataclasses.asdict(self.comparison),
            "best ridge": {**dataclasses.asdict(self.ridge), "best": self.ridge.best, "bayes": self.bayes},
        }


def interrogate(
    predictor: object,
    task: RegressionTask,
    *,
    target: str = "",
    progress: Progress = silent,
    **sampling: Unpack[Sampling],
) -> Interrogation:
    """Identify it, measure how far it is from what is nearest and from OLS, ridge and descent, and fit a ridge."""
    asked = as_predictor(predictor)
    seed = sampling.get("seed", 0)
    progress("identifying", 0.0)
    found = identify(asked, task, **sampling)
    progress("asking again, on other datasets", 0.4)
    sampling["seed"] = seed + NEXT
    drawn = draw(task, asked, **sampling)
    answers = drawn.answers(asked)
    progress("comparing implicit weights", 0.6)
    comparison = compare_on(asked, drawn, answers, fresh_queries(task, drawn, None, seed + NEXT), telling(found))
    bayes = task.bayes_ridge or None
    return Interrogation(
        target or type(predictor).__name__, str(task), seed, found, comparison, ridge_on(drawn, answers), bayes
    )
