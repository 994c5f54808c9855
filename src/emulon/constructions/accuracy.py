"""What all constructions share: the accuracy asked for, refusals that name a possible one, and batches of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import rounding as roundings
from emulon.certify.domain import require_real, require_shape
from emulon.core.errors import BadShape, ToleranceTooTight
from emulon.expressions import Function
from emulon.softmax import Approximation, approximate
from emulon.softmax.spectral import Rounding

# Data of n samples or tokens with d features, and rows of weights.
Inputs = Float[Tensor, "... n d"]
Rows = Float[Tensor, "... width d"]
Targets = Float[Tensor, "... n"]
Weights = Float[Tensor, "... d"]

Way = Literal["auto", "paper", "spectral", "piecewise"]
Built = TypeVar("Built")
# How often a larger tolerance is tried before giving up on naming one.
TRIES = 12


@dataclass(frozen=True)
class Accuracy:
    """A tolerance or a number of points, the kind of grid, and the dtype that everything runs in."""

    tolerance: float | None
    points: int | None
    grid: Way
    dtype: torch.dtype

    def scaled(self, factor: float) -> Accuracy:
        """The same with another tolerance; a number of points stays what it is."""
        return self if self.tolerance is None else replace(self, tolerance=self.tolerance * factor)

    def part(self, share: float, build: Callable[[Accuracy], Built]) -> Built:
        """What is built with this share of the tolerance; a refusal then names the whole that it would take."""
        try:
            return build(self.scaled(share))
        except ToleranceTooTight as error:
            error.smallest /= share
            raise

    def approximate(
        self, f: str | Function, reach: float, rounding: Rounding, beta: float | None = None
    ) -> Approximation:
        """f on arguments up to `reach` in magnitude."""
        return approximate(
            f,
            (-reach, reach),
            tolerance=self.tolerance,
            points=self.points,
            grid=self.grid,
            dtype=self.dtype,
            beta=beta,
            rounding=rounding,
        )


def checked_to(length: int, absolute: float) -> float:
    """How far a sum of so many products, computed in float64 to be checked, may be from the exact one."""
    return roundings.dot(length + 4, absolute, torch.float64)


def closest(build: Callable[[Accuracy], Built], accuracy: Accuracy) -> tuple[float, Built]:
    """(tolerance, what was built for it): the one given, or else a larger one at which building succeeds."""
    assert accuracy.tolerance is not None
    for tried in range(TRIES):
        try:
            return accuracy.tolerance, build(accuracy)
        except ToleranceTooTight as error:
            refused = error
            accuracy = replace(
                accuracy, tolerance=rounded_up(max(error.smallest, (1 + 0.05 * 2**tried) * accuracy.tolerance))
            )
    raise refused


def best(build: Callable[[Accuracy], Built], accuracy: Accuracy) -> Built:
    """As exact as was asked for, or else as exact as the dtype allows."""
    return build(accuracy) if accuracy.tolerance is None else closest(build, accuracy)[1]


def promised(build: Callable[[Accuracy], Built], accuracy: Accuracy, what: str) -> Built:
    """`build(accuracy)`, or a refusal that names a tolerance at which it really succeeds."""
    if accuracy.tolerance is None or not accuracy.tolerance > 0 or accuracy.points is not None:
        return build(accuracy)
    smallest, built = closest(build, accuracy)
    if smallest > accuracy.tolerance:
        advice = "" if accuracy.dtype == torch.float64 else ", or use float64"
        raise ToleranceTooTight(what, accuracy.tolerance, smallest, advice)
    return built


def rounded_up(number: float) -> float:
    """The next number of two digits: what a message prints must be no less than what was tried."""
    if not math.isfinite(number):
        return number
    digit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / digit * (1 - 1e-12)) * digit:.1e}")


def aligned(dtype: torch.dtype, **parts: tuple[Tensor, tuple[int, ...]]) -> list[Tensor]:
    """The tensors, each given with the sizes of its last dimensions, in one dtype and broadcast over all others."""
    for name, (tensor, sizes) in parts.items():
        require_shape(tensor, name, *sizes)
        require_real(**{name: tensor})
    leads = {name: tensor.shape[: tensor.ndim - len(sizes)] for name, (tensor, sizes) in parts.items()}
    try:
        lead = torch.broadcast_shapes(*leads.values())
    except RuntimeError:
        shapes = ", ".join(f"{tuple(shape)} for {name}" for name, shape in leads.items())
        raise BadShape(f"the batch dimensions do not fit together: {shapes}") from None
    return [tensor.to(dtype).expand(*lead, *sizes) for tensor, sizes in parts.values()]
