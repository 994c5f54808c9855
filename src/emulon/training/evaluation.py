"""How good a learner is after each number of in-context samples, beside the task's own baselines."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.models import Learner
from emulon.tasks import Prompts, Task

# Prompts that are evaluated at once: memory, not errors, depends on it.
PART = 256


class Evaluation:
    """A fixed set of datasets that training never sees, with the errors of learners and baselines on it.

    Args:
        task: Where the datasets come from.
        seed: Of the datasets.
        batch: How many.
        device: Where learners are asked.
    """

    def __init__(self, task: Task, seed: int, batch: int, device: torch.device) -> None:
        prompts = task.held_out_prompts(seed, batch)
        self.task, self._drawn = task, prompts
        self.prompts = Prompts(*(part.to(device) for part in (prompts.tokens, prompts.targets, prompts.truth)))

    @cached_property
    def baselines(self) -> dict[str, list[float]]:
        """The curves of the task's own predictors; on thousands of datasets they take longer than a minute."""
        return {name: curve.tolist() for name, curve in self.task.baselines(self._drawn).items()}

    @torch.no_grad()
    def curve(self, learner: Learner) -> Float[Tensor, " curve"]:
        """The learner's squared error after 0, 1, 2, … in-context samples, against the noise-free truth; of texts, its
        cross entropy. Nothing is dropped out."""
        training = learner.training
        learner.eval()
        parts = zip(self.prompts.tokens.split(PART), self.prompts.truth.split(PART), strict=True)
        errors = [self.task.error_of(self.task.asked(learner(tokens)), truth) for tokens, truth in parts]
        learner.train(training)
        return self.task.curve(torch.cat(errors))
