"""An exam: datasets, and what the predictor under examination answered."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.interrogate.prefixes import Prefixes
from emulon.interrogate.reference import Reference

# Numbers held at once while a grid is tried.
ROOM = 500_000
# A reference that overflows is this far away.
FARTHEST = 1e30


@dataclass(frozen=True)
class Exam:
    """Answers (datasets, counts) to be imitated; squared errors are divided by `scale`, one for each count."""

    prefixes: Prefixes
    answers: Float[Tensor, "datasets counts"]
    scale: Float[Tensor, " counts"]

    def take(self, datasets: slice, counts: int | None = None) -> Exam:
        """Some of the datasets, and at most so many of the counts."""
        prefixes = self.prefixes.take(datasets, counts)
        columns = [self.prefixes.counts.index(n) for n in prefixes.counts]
        return Exam(prefixes, self.answers[datasets][:, columns], self.scale[columns])

    def errors(
        self, predictions: Float[Tensor, "*settings datasets counts"]
    ) -> Float[Tensor, "*settings datasets counts"]:
        """Squared and scaled; what overflowed is infinitely wrong, or as good as."""
        wrong = (predictions - self.answers).square() / self.scale
        return wrong.nan_to_num_(nan=FARTHEST, posinf=FARTHEST).clamp_(max=FARTHEST)

    def losses(self, reference: Reference, whole: Tensor, real: Tensor) -> Float[Tensor, " settings"]:
        """The mean error of a reference with each of these settings."""
        each = self.prefixes.datasets * len(self.prefixes.counts) * self.prefixes.features
        some = torch.arange(len(whole)).split(max(1, ROOM // each))
        tried = [self.errors(reference.respond(self.prefixes, whole[i], real[i])).mean(dim=(1, 2)) for i in some]
        return torch.cat(tried)
