"""Tasks that ask for a y from an x: datasets first, in any dtype, and prompts made of them."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.predictor import Predictor, predict_at
from emulon.tasks.task import Datasets, Inputs, Prompts, Task, Values, deinterleave, interleave, normal


class RegressionTask(Task):
    """Supplies `values`, and `inputs`, `noise_scale` and `errors` where they are not N(0, I), `noise` and Gaussian.

    The prompts are x₁, y₁, …, x_n and y is asked at every x.
    """

    noise: float
    # Noun for the functions in `str`.
    what: ClassVar[str] = "functions"

    @property
    def width_in(self) -> int:
        return self.features + 1

    @property
    def width_out(self) -> int:
        return 1

    @property
    def tokens(self) -> int:
        return 2 * self.points - 1

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states[..., 0::2, :]

    @property
    def bayes_ridge(self) -> float | None:
        """The ridge parameter of the Bayes predictor, where that is ridge regression."""
        return None

    def inputs(self, generator: torch.Generator, batch: int, points: int, dtype: torch.dtype = torch.float32) -> Inputs:
        return normal(generator, batch, points, self.features, dtype=dtype)

    @abstractmethod
    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        """One function a dataset, and its values at xs, without noise and in the dtype of xs."""

    def noise_scale(
        self, generator: torch.Generator, batch: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "batch 1"] | float:
        """The standard deviation of the noise, one for all or one a dataset."""
        return self.noise

    def errors(self, generator: torch.Generator, batch: int, points: int, dtype: torch.dtype = torch.float32) -> Values:
        """Noise on the targets, Gaussian by default."""
        return self.noise_scale(generator, batch, dtype) * normal(generator, batch, points, dtype=dtype)

    def datasets(
        self,
        generator: torch.Generator,
        batch: int,
        *,
        points: int | None = None,
        dtype: torch.dtype = torch.float32,
        live: Float[Tensor, " features"] | None = None,
    ) -> Datasets:
        """A batch of datasets of `points` points, by default the task's own number."""
        points = self.points if points is None else points
        xs = self.inputs(generator, batch, points, dtype)
        if live is not None:
            xs = xs * live
        truth = self.values(generator, xs)
        return self.finished(Datasets(xs, truth + self.errors(generator, batch, points, dtype), truth))

    def finished(self, drawn: Datasets) -> Datasets:
        """What was drawn, as the task gives it: here unchanged."""
        return drawn

    def held_out(self, seed: int, batch: int, points: int) -> Datasets:
        """The datasets on which predictors are compared: in float64, on the CPU, a function of the seed alone.

        Training mixes its seeds with its steps, so that it has not seen them.
        """
        generator = torch.Generator().manual_seed(seed)
        return self.datasets(generator, batch, points=points, dtype=torch.float64)

    def prompts(self, datasets: Datasets) -> Prompts:
        tokens = interleave(datasets.xs, datasets.ys)
        return Prompts(tokens, datasets.ys.unsqueeze(-1), datasets.truth.unsqueeze(-1))

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        return self.prompts(self.datasets(generator, batch, live=live))

    def predictors(self) -> dict[str, Predictor]:
        """Baselines on this task, by name."""
        return {}

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        xs, _ = deinterleave(prompts.tokens)
        ys, truth = prompts.targets[..., 0].double(), prompts.truth.double()
        curves = super().baselines(prompts)
        for name, predictor in self.predictors().items():
            # without examples every baseline answers 0
            answers = predict_at(predictor, self.features_for(name, xs), ys, range(1, self.points))
            answers = torch.nn.functional.pad(answers, (1, 0)).unsqueeze(-1)
            curves[name] = self.curve((answers - truth).square())
        return curves

    def features_for(self, name: str, xs: Inputs) -> Float[Tensor, "batch points seen"]:
        """Inputs of a baseline: x itself, in float64."""
        return xs.double()

    def __str__(self) -> str:
        options = dataclasses.asdict(self)  # type: ignore[call-overload]  # a task is a dataclass, its base is not
        others = [f"{name} {_shown(value)}" for name, value in options.items() if name not in ("features", "points")]
        return ", ".join([f"{self.what} of {self.features} features", *others])


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(_shown(one) for one in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)
