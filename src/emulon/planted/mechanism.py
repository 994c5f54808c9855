"""A mechanism: a learning algorithm with its parameters, as exact tensor code and as a register program.

Every mechanism is built for ‖x‖ ≤ 1 and |y| ≤ 1, with a bound on its weights that follows from these. No input of the
domain can therefore break an invariant, and certificates hold without run-time checks of the stream.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Domain, Spectrum
from emulon.core.errors import EmulonError, unknown
from emulon.core.names import Registry
from emulon.machine.instruction import Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.tasks.task import Datasets, Inputs, RegressionTask, Values, normal, uniform

# By name, in the order in which they were registered.
MECHANISMS: Registry[type[Mechanism]] = Registry("mechanism")
NORM = TARGET = 1.0
# The domain's bound on w exceeds the exact one by this factor, which covers rounding.
SLACK = 1.01
# Inputs of `BoundedLinear` are at least so long.
SHORTEST = 0.5
# What a refusal calls the type of a parameter.
WORDS = {int: "a whole number", float: "a number"}


# Distributions of parameters.


def integer_between(generator: torch.Generator, least: int, most: int) -> int:
    """Uniform, both ends included."""
    return int(torch.randint(least, most + 1, (), generator=generator, device="cpu"))


def between(generator: torch.Generator, low: float, high: float) -> float:
    """Uniform."""
    return low + (high - low) * float(uniform(generator, 1, dtype=torch.float64))


def scale_between(generator: torch.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(low * (high / low) ** between(generator, 0.0, 1.0))


def scale_or_zero(generator: torch.Generator, low: float, high: float) -> float:
    """Zero or log-uniform, with equal probability."""
    return scale_between(generator, low, high) * integer_between(generator, 0, 1)


# By parameter, in the order in which they are drawn: a distribution and its ends.
Draws = Mapping[str, tuple[Callable[..., Any], Any, Any]]
SIZES: Draws = {"features": (integer_between, 1, 3), "samples": (integer_between, 3, 6)}
SHORT: Draws = {**SIZES, "samples": (integer_between, 3, 5)}


@dataclasses.dataclass(frozen=True)
class Mechanism(ABC):
    """A learning algorithm: a frozen dataclass whose fields are its parameters.

    `class Sgd(Mechanism, name="sgd")` registers a subclass under its name.

    Attributes:
        features: Entries of x.
        samples: Examples in a prompt; the last one is only a query.
    """

    features: int = 2
    samples: int = 5
    name: ClassVar[str]
    draws: ClassVar[Draws] = SIZES

    def __init_subclass__(cls, *, name: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if name is not None:
            cls.name = name
            MECHANISMS.register(cls, name)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, Mechanism) and not self.least(field.name) <= value < math.inf:
                raise EmulonError(f"{field.name} of {self.name} is {self.least(field.name):g} or more, got {value}")
        if self.features < 1 or self.samples < 2:
            raise EmulonError(
                f"{self.name} with {self.features} features and {self.samples} samples learns nothing; it takes 1 or "
                "more features and 2 or more samples, the last of which is only a query"
            )

    def least(self, parameter: str) -> float:
        """The smallest allowed value of a parameter."""
        return 0.0

    @property
    def entries(self) -> int:
        """Entries of the largest register, a lower bound on the model's width."""
        return self.features

    @property
    def max_norm(self) -> float:
        """Upper bound on ‖w‖ for all data of the domain; where there is no w, on |ŷ|."""
        return TARGET

    @abstractmethod
    def add(self, examples: Examples) -> Register:
        """Append the instructions to the program and return the register that holds ŷ."""

    @abstractmethod
    def algorithm(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... samples"]
    ) -> Float[Tensor, "... samples"]:
        """ŷ_i at every x_i from the examples before it: the exact algorithm in plain tensor code."""

    @classmethod
    def drawn(cls, generator: torch.Generator) -> Mechanism:
        """Draw parameters from the distributions in `draws`, in their order."""
        return cls(**{name: draw(generator, low, high) for name, (draw, low, high) in cls.draws.items()})

    @property
    def domain(self) -> Domain:
        """The data that it is compiled for."""
        w = SLACK * self.max_norm
        return Domain(self.samples, self.features, x=NORM, y=TARGET, w=w, spectrum=Spectrum(norm=NORM))

    @property
    def task(self) -> BoundedLinear:
        """Data inside the domain."""
        return BoundedLinear(self.features, self.samples)

    @property
    def switch(self) -> dict[str, float]:
        """Words for values of x's first entry, of mechanisms that choose by it."""
        return {}

    def examples(self) -> Examples:
        """An empty program over this mechanism's prompt."""
        return Examples.of(self.name, self.domain)

    def program(self) -> RegisterProgram:
        """The register program."""
        examples = self.examples()
        return examples.program.returns(self.add(examples))

    @property
    def parameters(self) -> dict[str, Any]:
        """The fields for JSON; a mechanism among them becomes a table with its name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value.to_json() if isinstance(value, Mechanism) else value for name, value in fields.items()}

    def to_json(self) -> dict[str, Any]:
        """Name and parameters, as `mechanism_named` takes them."""
        return {"name": self.name, **self.parameters}

    def __str__(self) -> str:
        values = {name: one["name"] if isinstance(one, dict) else one for name, one in self.parameters.items()}
        shown = (f"{name}={one:.4g}" if isinstance(one, float) else f"{name}={one}" for name, one in values.items())
        return f"{self.name}({', '.join(shown)})"


def mechanism_named(name: str, **parameters: Any) -> Mechanism:
    """Make a registered mechanism.

    Args:
        name: A name of `MECHANISMS`.
        parameters: Its fields; the rest keep their defaults.
    Returns:
        The mechanism.
    Raises:
        EmulonError: The mechanism or a parameter does not exist, or has an impossible value.

    Example:
        >>> mechanism_named("sgd", step_size=0.2).step_size
        0.2
    """
    kind, given = MECHANISMS.named(name), dict[str, Any]()
    kinds = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    for parameter, one in parameters.items():
        if parameter not in fields:
            raise EmulonError(unknown(f"parameter of {name}", parameter, fields))
        value = mechanism_named(**one) if isinstance(one, dict) and isinstance(one.get("name"), str) else one
        wanted = kinds[parameter]
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            raise EmulonError(f"{parameter} of {name} is {WORDS.get(wanted, 'a mechanism')}, got {value!r:.40}")
        given[parameter] = value
    return kind(**given)


def read_mechanism(text: str) -> Mechanism:
    """Parse a mechanism as the command line writes it; a hyphen stands for a space.

    Args:
        text: `sgd`, `sgd:features=3,step_size=0.2` or `switch:first=ridge,second=last-value`.
    Returns:
        The mechanism.
    Raises:
        EmulonError: The mechanism or a parameter does not exist, or cannot be read.

    Example:
        >>> read_mechanism("sgd:features=3").features
        3
    """
    name, _, rest = text.partition(":")
    name, parameters = name.replace("-", " "), dict[str, Any]()
    kinds = typing.get_type_hints(MECHANISMS.named(name))
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        kind = kinds.get(key, str)  # an unknown parameter is refused below
        try:
            parameters[key] = {"name": value.replace("-", " ")} if kind is Mechanism else kind(value)
        except ValueError:
            raise EmulonError(f"cannot read {part!r} of {name}: {key} is {WORDS[kind]}") from None
    return mechanism_named(name, **parameters)


# Data.


@dataclasses.dataclass(frozen=True)
class BoundedLinear(RegressionTask):
    """Linear functions inside the domain of every planted model: y = w·x + noise·ε with w ~ N(0, I).

    The direction of x is uniform and ‖x‖ uniform in ½ … 1; where some |y| is above 1 all targets of the dataset are
    scaled down.

    Attributes:
        features: Entries of x.
        points: Examples in a dataset.
        noise: Standard deviation of the targets' noise before scaling.
    """

    features: int
    points: int
    noise: float = 0.1

    what = "linear functions with ‖x‖ ≤ 1 and |y| ≤ 1"

    def inputs(self, generator: torch.Generator, batch: int, points: int, dtype: torch.dtype = torch.float32) -> Inputs:
        xs = normal(generator, batch, points, self.features, dtype=dtype)
        length = SHORTEST + (1 - SHORTEST) * uniform(generator, batch, points, 1, dtype=dtype)
        return NORM * length * torch.nn.functional.normalize(xs, dim=-1)

    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        return (xs @ normal(generator, xs.shape[0], self.features, 1, dtype=xs.dtype)).squeeze(-1)

    def finished(self, drawn: Datasets) -> Datasets:
        shrink = TARGET / drawn.ys.abs().amax(dim=-1, keepdim=True).clamp(min=TARGET)
        return dataclasses.replace(drawn, ys=drawn.ys * shrink, truth=drawn.truth * shrink)
