"""References that only some tasks have: where functions come from a finite set, the Bayes predictor that knows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.arrays import accepts_arraylike
from emulon.identification.references import (
    REFERENCES,
    Continuous,
    ContinuousParameter,
    Integers,
    Predictions,
    Reference,
)
from emulon.identification.sampling import Prefixes
from emulon.tasks import RegressionTask, TaskSet


def references_for(task: RegressionTask) -> Sequence[Reference]:
    """The references that a predictor on this task is compared with by default."""
    return [*REFERENCES.values(), *([task_mixture(task.vectors)] if isinstance(task, TaskSet) else [])]


@accepts_arraylike("vectors", like="vectors")
def task_mixture(vectors: Float[Tensor, "tasks features"]) -> Reference:
    """`TaskMixture` over these vectors, with its noise to be fitted."""
    vectors = vectors.double()

    def respond(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
        squared = (prefixes.xs @ vectors.mT - prefixes.ys.unsqueeze(-1)).square().cumsum(dim=1)
        left = squared[:, [n - 1 for n in prefixes.counts]]
        answers_by_task = prefixes.queries @ vectors.mT
        # Setting by setting: there may be thousands of vectors.
        answers = [
            (torch.softmax(left / (-2 * noise**2), dim=-1) * answers_by_task).sum(dim=-1)
            for noise in continuous.tolist()
        ]
        return torch.stack(answers)

    noise = ContinuousParameter("noise", 1e-3, 1e2, _deviation, 48)
    return Reference("task mixture", "task mixture", respond, continuous=noise)


def _deviation(prefixes: Prefixes) -> float:
    return prefixes.ys.square().mean().sqrt().item()
