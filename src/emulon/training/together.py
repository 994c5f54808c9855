"""Several learners trained at the same time on one device."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from emulon.training.step import TrainStep


class Together:
    """Advances several `TrainStep`s in turn: seeds of one configuration, or different models.

    On a GPU each replays its graph on a stream of its own, so that one learner's small kernels run in the gaps of
    another's. Nothing is shared: every learner ends with the weights it would have had alone.
    """

    def __init__(self, steps: Sequence[TrainStep]) -> None:
        self.steps = list(steps)

    def __call__(self, step: int) -> list[Float[Tensor, ""]]:
        return [one(step) for one in self.steps]

    def synchronise(self) -> None:
        for one in self.steps:
            one.synchronise()
