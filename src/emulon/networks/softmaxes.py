"""The softmax that acts as an activation, found for the noise of emulated scores, and proved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from emulon.approximation import Grid, approximate
from emulon.cache import remembered
from emulon.certify import Band, rounding
from emulon.descent.layout import balancing_power
from emulon.errors import EmulonError
from emulon.expression import parse
from emulon.interpreter.number_line import NumberLine, number_line
from emulon.interpreter.phase import product_error
from emulon.networks.phase import power_for

f64 = torch.float64
# The number line's relative error at the scores of a jump, in units of float64's own.
LINE_NOISE = 5e4
# Numbers that a grid may ask an interpreter to read; sharper ones are not worth their line.
FARTHEST = 1e7


@dataclass(frozen=True, eq=False)
class Softmax:
    """A grid, and what was proved of it: |F − f| ≤ interpolation, Σ w|v − F| ≤ deviation, |F| ≤ size."""

    f: str
    grid: Grid
    interpolation: float
    deviation: float
    size: float
    proved: bool

    @property
    def key(self) -> float:
        """What slopes are multiplied by, and the argument divided by: a power of two."""
        return balancing_power(self.grid.range, self.grid.steepest)

    @property
    def bias(self) -> float:
        """The same for intercepts."""
        return balancing_power(1.0, self.grid.highest)

    @property
    def value(self) -> float:
        """What values are divided by, and answers multiplied by."""
        return power_for(self.grid.largest)

    @property
    def reach(self) -> float:
        grid = self.grid
        keys = (grid.steepest * self.key, grid.highest * self.bias, grid.range / self.key, 1 / self.bias)
        return max(*keys, grid.largest / self.value)

    def own_error(self, line: NumberLine) -> float:
        """Of F by the interpreter, against f."""
        score = self.score_error(line)
        values = self.value * line.error(self.grid.largest / self.value)
        return self.interpolation + self.grid.rounding_error(self.deviation, self.size, score) + values

    def score_error(self, line: NumberLine) -> float:
        """Layer 1 reads slope, argument, intercept and one to within the line's error; layer 2 adds two products."""
        grid = self.grid
        emulated = product_error(line, grid.steepest * self.key, grid.range / self.key, 1)
        emulated += product_error(line, grid.highest * self.bias, 1 / self.bias, 1)
        return emulated + rounding.dot(3, grid.score_size, f64)

    @property
    def facts(self) -> dict[str, Any]:
        """As plain numbers, for files."""
        grid = self.grid
        return {
            "f": self.f,
            **{name: getattr(self, name) for name in ("interpolation", "deviation", "size", "proved")},
            **{"lo": grid.lo, "hi": grid.hi, "way": grid.way, "bands": [[band.lo, band.hi] for band in grid.bands]},
        }

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self.grid, name) for name in ("slopes", "intercepts", "values")}

    @classmethod
    def from_parts(cls, facts: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Softmax:
        bands = tuple(Band(*band) for band in facts["bands"])
        parts = {name: tensors[name] for name in ("slopes", "intercepts", "values")}
        grid = Grid(**parts, lo=float(facts["lo"]), hi=float(facts["hi"]), way=facts["way"], bands=bands)
        interpolation, deviation, size = (float(facts[name]) for name in ("interpolation", "deviation", "size"))
        return cls(facts["f"], grid, interpolation, deviation, size, bool(facts["proved"]))


@lru_cache(maxsize=256)
def softmax_for(f: str, lo: float, hi: float, tolerance: float) -> Softmax:
    """The smallest softmax that is f on [lo, hi] to the tolerance, or about the best that there is."""
    found = remembered("network", [f, lo, hi, tolerance], lambda: _found(f, lo, hi, tolerance))
    parts = {name: torch.tensor(found[name], dtype=f64) for name in ("slopes", "intercepts", "values")}
    return Softmax.from_parts(found, parts)


def _found(f: str, lo: float, hi: float, tolerance: float) -> dict[str, Any]:
    def noise(grid: Grid, deviation: float, size: float) -> float:
        made = Softmax(f, grid, 0.0, deviation, size, False)
        if made.reach > FARTHEST:
            return math.inf
        return made.own_error(number_line(made.reach))

    made = approximate(
        parse(f),
        (lo, hi),
        tolerance=tolerance,
        rounding=noise,
        best_effort=True,
        score_noise=LINE_NOISE * torch.finfo(f64).eps,
    )
    known = made.interpolation
    softmax = Softmax(f, made.grid, known.error, known.deviation, known.size, known.proved)
    if made.grid.bands:
        raise EmulonError(f"{f} jumps between {lo:g} and {hi:g}: a network with jumps is not compiled")
    return softmax.facts | {name: part.tolist() for name, part in softmax.tensors.items()}
