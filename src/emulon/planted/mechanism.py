"""A mechanism: a learning algorithm with its parameters, as exact tensor code and as a register program.

Every mechanism is built for ‖x‖ ≤ 1 and |y| ≤ 1, with a bound on its weights that follows from these, so that no input
of the domain breaks an invariant: what is promised holds without anybody watching the stream.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Domain, Spectrum
from emulon.core.errors import EmulonError, unknown
from emulon.core.registry import Registry
from emulon.machine.affine import Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.tasks.randomness import uniform

# By name, in the order in which they were registered.
MECHANISMS: Registry[type[Mechanism]] = Registry("mechanism")
NORM = TARGET = 1.0
# A bound on w that no rounding of its own recurrence reaches.
ROOM = 1.01


@dataclasses.dataclass(frozen=True)
class Mechanism(ABC):
    """A frozen dataclass whose fields are its parameters; `class Sgd(Mechanism, name="sgd")` registers it."""

    features: int = 2
    samples: int = 5
    name: ClassVar[str]

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
                "more features and 2 or more samples, the last of which is only asked about"
            )

    def least(self, parameter: str) -> float:
        """The smallest that a parameter may be."""
        return 0.0

    @property
    def entries(self) -> int:
        """Numbers in the largest register: no model of it is narrower."""
        return self.features

    @property
    @abstractmethod
    def reach(self) -> float:
        """Above ‖w‖ for all data of the domain."""

    @abstractmethod
    def add(self, examples: Examples) -> Register:
        """Append the instructions; the register that holds ŷ."""

    @abstractmethod
    def algorithm(
        self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... samples"]
    ) -> Float[Tensor, "... samples"]:
        """ŷ_i at every x_i from the examples before it, exactly, in plain tensor code."""

    @classmethod
    @abstractmethod
    def drawn(cls, generator: torch.Generator) -> Mechanism:
        """One from the distribution that the class's docstring states."""

    @property
    def domain(self) -> Domain:
        try:
            reach = self.reach
        except OverflowError:
            reach = math.inf  # which Domain refuses
        return Domain(self.samples, self.features, x=NORM, y=TARGET, w=ROOM * reach, spectrum=Spectrum(norm=NORM))

    def examples(self) -> Examples:
        """An empty program for this mechanism."""
        return Examples.of(self.name, self.domain)

    def program(self) -> RegisterProgram:
        examples = self.examples()
        return examples.program.returns(self.add(examples))

    @property
    def parameters(self) -> dict[str, Any]:
        """The fields as JSON has them; a mechanism among them is a table with its name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: {"name": value.name, **value.parameters} if isinstance(value, Mechanism) else value
            for name, value in fields.items()
        }

    def __str__(self) -> str:
        return f"{self.name}({', '.join(_told(name, value) for name, value in self.parameters.items())})"


def mechanism_named(name: str, **parameters: Any) -> Mechanism:
    """A registered mechanism with these parameters, the rest by default."""
    kind, given = MECHANISMS.named(name), dict[str, Any]()
    kinds = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    for parameter, one in parameters.items():
        if parameter not in fields:
            raise EmulonError(unknown(f"parameter of {name}", parameter, fields))
        value = mechanism_named(**one) if isinstance(one, dict) and isinstance(one.get("name"), str) else one
        wanted = kinds[parameter]
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            what = {int: "a whole number", float: "a number"}.get(wanted, "a mechanism")
            raise EmulonError(f"{parameter} of {name} is {what}, got {value!r:.40}")
        given[parameter] = value
    return kind(**given)


def read_mechanism(text: str) -> Mechanism:
    """`sgd`, `sgd:features=3,step_size=0.2`, `switch:first=ridge,second=last-value`; a hyphen is a space."""
    name, _, rest = text.partition(":")
    name, parameters = name.replace("-", " "), dict[str, Any]()
    kinds = typing.get_type_hints(MECHANISMS.named(name))
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        kind = kinds.get(key, str)  # what is no parameter is refused below
        try:
            parameters[key] = {"name": value.replace("-", " ")} if kind is Mechanism else kind(value)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise EmulonError(f"cannot read {part!r} of {name}: {key} is {wanted}") from None
    return mechanism_named(name, **parameters)


def _told(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{name}={value['name']}"
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


# What mechanisms draw their parameters from.


def whole(generator: torch.Generator, least: int, most: int) -> int:
    return int(torch.randint(least, most + 1, (), generator=generator, device="cpu"))


def between(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(uniform(generator, 1, dtype=torch.float64))


def scale_between(generator: torch.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(low * (high / low) ** between(generator, 0.0, 1.0))


def sizes(generator: torch.Generator) -> dict[str, int]:
    """1 to 3 features, 3 to 6 samples, each as likely."""
    return {"features": whole(generator, 1, 3), "samples": whole(generator, 3, 6)}
