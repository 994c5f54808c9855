"""A reference algorithm with its free parameters, all settings of which are tried at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.interrogate.prefixes import Prefixes

# (prefixes, whole (settings,), real (settings,)) ↦ predictions (settings, datasets, counts)
Respond = Callable[[Prefixes, Tensor, Tensor], Tensor]


# Fitted values by name: a count is an int.
Parameters = dict[str, int | float]


@dataclass(frozen=True)
class Whole:
    """A parameter that counts, and the values to begin with."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Real:
    """A positive parameter, searched on a logarithmic grid between low and high, in units that the data suggest."""

    name: str
    low: float
    high: float
    unit: Callable[[Prefixes], float]
    points: int = 36

    def grid(self, prefixes: Prefixes) -> Float[Tensor, " points"]:
        unit = max(self.unit(prefixes), torch.finfo(torch.float64).tiny)
        low, high = math.log(self.low), math.log(self.high)
        return torch.linspace(low, high, self.points, dtype=torch.float64).exp() * unit


@dataclass(frozen=True)
class Reference:
    """`kind` groups those that are limits of each other, as OLS is of ridge, of many steps, of no lasso penalty.

    >>> from emulon.interrogate.references import REFERENCES
    >>> [reference.name for reference in REFERENCES][:4]
    ['zero', 'previous target', 'ols', 'ridge']
    """

    name: str
    kind: str
    respond: Respond
    whole: Whole | None = None
    real: Real | None = None

    @property
    def free(self) -> int:
        """How many parameters are fitted: of two that cannot be told apart the one with fewer is named."""
        return (self.whole is not None) + (self.real is not None)

    def predict(self, prefixes: Prefixes, parameters: Parameters) -> Float[Tensor, "datasets counts"]:
        """The predictions with these parameters."""
        whole = parameters[self.whole.name] if self.whole else 0
        real = parameters[self.real.name] if self.real else 0.0
        setting = torch.tensor([whole]).long(), torch.tensor([real], dtype=torch.float64)
        return self.respond(prefixes, *setting)[0]

    def fitted(self, parameters: Parameters) -> FittedReference:
        return FittedReference(self, parameters)


@dataclass(frozen=True)
class FittedReference:
    """A reference with its parameters set, as a predictor like any other."""

    reference: Reference
    parameters: Parameters

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2).double()
        targets = torch.nn.functional.pad(ys.double(), (0, 1))
        return self.reference.predict(Prefixes(points, targets, (xs.shape[-2],)), self.parameters)[:, 0]
