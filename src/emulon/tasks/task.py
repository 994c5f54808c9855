"""Tasks: distributions over in-context datasets, registered under a name where the class is written; and those that ask
for a y from an x: datasets first, in any dtype, and prompts made of them."""

from __future__ import annotations

import dataclasses
import math
import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.core.names import Registry
from emulon.core.predictor import Predictor, predict_at

# Data of a batch of regressions.
Inputs = Float[Tensor, "batch points features"]
Values = Float[Tensor, "batch points"]

_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int) -> int:
    """A 63-bit seed for one step of one run: splitmix64's mixing of both numbers.

    Neighbouring seeds and steps must not give neighbouring generators, hence the mixing.

    Args:
        seed: Of the run.
        step: From 0; −1 is the evaluation's.
    """
    mixed = _splitmix(_splitmix(seed & _MASK) ^ (step & _MASK))
    return mixed >> 1


def at_step(generator: torch.Generator, seed: int, step: int) -> torch.Generator:
    """Put a generator where step `step` of seed `seed` begins, and return it; legal between replays of a CUDA graph.

    Args:
        generator, seed, step: As of `stream_seed`; the generator is changed in place.
    """
    return generator.manual_seed(stream_seed(seed, step))


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*shape"]:
    """Draw from N(0, 1), on the generator's device.

    Args:
        generator, *shape, dtype: As of `torch.randn`.
    """
    return torch.randn(*shape, generator=generator, device=generator.device, dtype=dtype)


def uniform(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*shape"]:
    """Draw from [0, 1), on the generator's device.

    Args:
        generator, *shape, dtype: As of `torch.rand`.
    """
    return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)


def _splitmix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


# Of texts: the word that fills a text up to the length of its batch, and a target at which nothing is asked.
PAD, NOT_ASKED = 0, -1


@dataclass(frozen=True)
class Datasets:
    """A batch of datasets, in any dtype.

    Attributes:
        xs: Points.
        ys: Their targets.
        truth: The targets without noise.
    """

    xs: Inputs
    ys: Values
    truth: Values

    @property
    def pairs(self) -> tuple[Inputs, Values]:
        """(xs, ys): all that a predictor may be shown."""
        return self.xs, self.ys


@dataclass(frozen=True)
class Prompts:
    """A batch of token sequences; of texts all are whole numbers.

    Attributes:
        tokens: Vectors, or pairs of a word and its place.
        targets: What a learner is trained on, noise included: numbers, words or classes.
        truth: What it is judged by, noise-free.
    """

    tokens: Real[Tensor, "batch tokens width"]
    targets: Real[Tensor, "batch asked out"]
    truth: Real[Tensor, "batch asked out"]


def interleave(xs: Inputs, ys: Values) -> Float[Tensor, "batch tokens width"]:
    """Write datasets as tokens [0, x₁], [y₁, 0], …, [0, x_n]: the encoding of Akyürek et al. 2022, section 2.3, without
    the last y, which is never shown.

    Args:
        xs: Points.
        ys: Targets, as many.
    Returns:
        (batch, 2·points − 1, features + 1).
    """
    batch, points, features = xs.shape
    pairs = xs.new_zeros(batch, points, 2, features + 1)
    pairs[:, :, 0, 1:] = xs
    pairs[:, :, 1, 0] = ys
    return pairs.flatten(1, 2)[:, :-1]


def deinterleave(tokens: Float[Tensor, "batch tokens width"]) -> tuple[Inputs, Float[Tensor, "batch answered"]]:
    """The points of tokens of `interleave`, and the targets that they show: one fewer.

    Args:
        tokens: (batch, 2·points − 1, features + 1).
    """
    return tokens[:, 0::2, 1:], tokens[:, 1::2, 0]


# By name, in the order in which they were registered.
TASKS: Registry[type[Task]] = Registry("task")
# The features of a task that is given by its name alone.
FEATURES = 8
HELD_OUT = -1  # the step whose stream is the evaluation's: training counts from 0


class Task(ABC):
    """A frozen dataclass whose fields are its options; supplies the sizes and `sample`.

    `class Linear(Task, name="linear")` can be trained on and asked about as `linear`. Everything is drawn on the
    generator's device, a whole batch at once, and no size depends on a value that was drawn, so that sampling can be
    captured in a CUDA graph.
    """

    features: int
    points: int
    # What the curve of an evaluation is of, and whether a learner may see the tokens after one that is asked.
    measure: str = "squared error"
    causal: bool = True
    # Whether tokens are words and their places instead of vectors.
    reads_words: bool = False

    def __init_subclass__(cls, *, name: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if name is not None:
            TASKS.register(cls, name)

    def __post_init__(self) -> None:
        """Sizes are 1 or more, and no other number is negative or infinite."""
        for option in _options(type(self)):
            value, least = getattr(self, option), 1 if option in ("features", "points") else 0
            if isinstance(value, int | float) and not least <= value < math.inf:
                raise EmulonError(f"{option}={value} makes no sense for a task; {option} must be {least} or more")

    @property
    @abstractmethod
    def width_in(self) -> int:
        """Numbers in a token."""

    @property
    @abstractmethod
    def width_out(self) -> int:
        """Numbers in an answer."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens in a prompt."""

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary where tokens are words and their places; 0 where they are vectors."""
        return 0

    @property
    def buckets(self) -> tuple[Task, ...]:
        """The tasks that training batches are drawn from, each with prompts of one size; texts have several."""
        return (self,)

    def bucket_at(self, seed: int, step: int) -> int:
        """Place in `buckets` that a step is drawn from."""
        return 0

    @abstractmethod
    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        """A batch of prompts; `live` is 1 for the features a curriculum has reached and 0 for the others."""

    @abstractmethod
    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        """The states of the tokens at which an answer is asked."""

    def held_out_prompts(self, seed: int, batch: int) -> Prompts:
        """Prompts for evaluation, drawn on the CPU, so that they are the same on every device."""
        return self.sample(at_step(torch.Generator(), seed, HELD_OUT), batch)

    def error_of(
        self, answers: Float[Tensor, "batch asked scores"], truth: Real[Tensor, "batch asked out"]
    ) -> Float[Tensor, "batch asked out"]:
        """What `curve` is made of: squared errors."""
        return (answers.float() - truth).square()

    def save_data(self, folder: Path) -> None:
        """Write what a learner needs of the task's data into its run's folder: only tasks over text do."""
        return

    def with_saved_data(self, folder: Path) -> Task:
        """The task, with the data that a run's folder has."""
        return self

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        """For each simple predictor, the squared error after 0, 1, 2, … in-context samples."""
        return {"zero": self.curve(prompts.truth.square())}

    def curve(self, errors: Float[Tensor, "batch asked out"]) -> Float[Tensor, " curve"]:
        """Average errors at the asked positions into a curve over the number of examples."""
        return errors.double().mean(dim=(0, 2)).cpu()


def task_options(name: str) -> tuple[str, ...]:
    """The options a task takes, the fields of its class; `EmulonError` where there is no such task.

    Args:
        name: A key of `TASKS`.
    """
    return _options(TASKS.named(name))


def read_task(text: str, **settings: Any) -> Task:
    """Build a task from a line: `linear`, or `linear:features=8,noise=0.1`; a list of numbers is written 0.1/0.5/1.

    Args:
        text: A task's name, and options behind it; the number of points is none of them.
        **settings: Options too; none may be given in both.
    Returns:
        The task; features are 8 where nothing gives them.
    Raises:
        EmulonError: There is no such task or option, or an option is given twice.

    Example:
        >>> read_task("sparse:features=4,nonzero=1").nonzero
        1
    """
    name, _, rest = text.partition(":")
    kinds, options = typing.get_type_hints(TASKS.named(name)), task_options(name)
    for option in settings:
        if option not in options:
            raise EmulonError(f"the task {name} has no {option!r}; it takes {', '.join(options)}")
    values: dict[str, Any] = ({"features": FEATURES} if "features" in options else {}) | settings
    written = [option for option in options if option != "points"]
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key in settings:
            raise EmulonError(f"{key} is given twice: {part!r} in the task, and {key}={settings[key]} beside it")
        try:
            values[key] = _read(kinds[key] if key in written else None, value)
        except ValueError:
            raise EmulonError(f"cannot read {part!r} in the task {name}; it takes {', '.join(written)}") from None
    return TASKS[name](**values)


def _options(task: type[Task]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(task)) if dataclasses.is_dataclass(task) else ()


def _read(kind: Any, text: str) -> Any:
    """A value of the kind that an option's annotation names."""
    if kind in (int, float, str):
        return kind(text)
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind == tuple[float, ...]:
        return tuple(float(one) for one in text.split("/"))
    raise ValueError(text)


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
