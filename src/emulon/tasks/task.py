"""A task: a distribution over in-context datasets, and what simpler predictors make of them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.predictor import Predictor, predict_at
from emulon.tasks.prompts import Prompts, deinterleave, interleave, row


class Task(ABC):
    """Supplies the sizes and `sample`. Everything is drawn on the generator's device, a whole batch at once.

    No size depends on a value that was drawn, so that sampling can be captured in a CUDA graph.
    """

    width_in: int
    width_out: int
    tokens: int

    @abstractmethod
    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        """A batch of datasets; `live` is 1 for the features a curriculum has reached and 0 for the others."""

    @abstractmethod
    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        """The states of the tokens at which an answer is asked."""

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        """For each simple predictor, the squared error after 0, 1, 2, … in-context samples."""
        return {"zero": self.curve(prompts.truth.square())}

    def curve(self, squared_errors: Float[Tensor, "batch asked out"]) -> Float[Tensor, " curve"]:
        """Errors at the asked positions as a curve over the number of in-context samples."""
        return squared_errors.double().mean(dim=(0, 2)).cpu()


class RegressionTask(Task):
    """Supplies `draw`; the prompts are x₁, y₁, …, x_n and y is asked at every x."""

    features: int
    points: int
    noise: float

    @property
    def width_in(self) -> int:  # type: ignore[override]
        return self.features + 1

    @property
    def tokens(self) -> int:  # type: ignore[override]
        return 2 * self.points - 1

    width_out = 1

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states[..., 0::2, :]

    @abstractmethod
    def draw(
        self, generator: torch.Generator, xs: Float[Tensor, "batch points features"]
    ) -> Float[Tensor, "batch points"]:
        """One function a dataset, and its values at xs, without noise."""

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        xs = normal(generator, batch, self.points, self.features)
        if live is not None:
            xs = xs * live
        truth = self.draw(generator, xs)
        ys = truth + self.noise_scale(generator, batch) * normal(generator, batch, self.points)
        return Prompts(interleave(xs, ys), row(ys), row(truth))

    def noise_scale(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch 1"] | float:
        """The standard deviation of the noise, one for all or one a dataset."""
        return self.noise

    def predictors(self) -> dict[str, Predictor]:
        """The predictors worth standing beside on this task."""
        return {}

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        xs, _ = deinterleave(prompts.tokens)
        ys, truth = prompts.targets[..., 0].double(), prompts.truth.double()
        curves = super().baselines(prompts)
        for name, predictor in self.predictors().items():
            # having seen nothing, everybody says 0
            said = predict_at(predictor, self.seen_by(name, xs), ys, range(1, self.points))
            said = torch.nn.functional.pad(said, (1, 0))
            curves[name] = self.curve((row(said) - truth).square())
        return curves

    def seen_by(self, name: str, xs: Float[Tensor, "batch points features"]) -> Float[Tensor, "batch points seen"]:
        """The features a baseline works on: the x itself, in float64."""
        return xs.double()


def normal(generator: torch.Generator, *shape: int) -> Float[Tensor, "*shape"]:
    return torch.randn(*shape, generator=generator, device=generator.device)


def uniform(generator: torch.Generator, *shape: int) -> Float[Tensor, "*shape"]:
    return torch.rand(*shape, generator=generator, device=generator.device)
