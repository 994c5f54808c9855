"""The softmax that acts as an activation, found for the noise of emulated scores, and proved."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from emulon.certify import rounding
from emulon.core.errors import EmulonError
from emulon.core.files import disk_cached, write_json
from emulon.expressions import parse
from emulon.interpreter.compiler import EXPECTED
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid
from emulon.interpreter.phase import balancing_power, product_error
from emulon.softmax import Approximation, Grid, approximate

f64 = torch.float64
SQUARE, ROOT = "t**2", "1/sqrt(t)"
# Larger numbers are read after a division by a power of two: the identity grid is best up to here.
SMALL = 16.0
# The number line's relative error at the scores of a jump, in units of float64's own.
LINE_NOISE = 5e4
# Tolerance of squares and roots of numbers about 1.
UNIT = 2.0**-46
# Factor by which a tolerance may be missed before piecewise grids are tried.
MISSED = 100.0
# Largest numbers of a grid that an interpreter should read.
FARTHEST = 1e7


# Of a softmax in a file: what was proved of it, and its grid's numbers.
BOUNDS, NUMBERS = ("interpolation", "deviation", "size"), ("slopes", "intercepts", "values")


def power_for(size: float) -> float:
    """The power of two that brings numbers of this size to at most `SMALL`, and near to it."""
    return 2.0 ** max(math.ceil(math.log2(size / SMALL)), -60) if size > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Softmax:
    """A grid, and what was proved of it: |F − f| ≤ interpolation, Σ w|v − F| ≤ deviation, |F| ≤ size."""

    f: str
    grid: Grid
    interpolation: float
    deviation: float
    size: float

    @property
    def key(self) -> float:
        """The factor of slopes, by which the argument is divided: a power of two."""
        return balancing_power(self.grid.range, self.grid.steepest)

    @property
    def bias(self) -> float:
        """The same for intercepts."""
        return balancing_power(1.0, self.grid.highest)

    @property
    def value(self) -> float:
        """The divisor of values, by which answers are multiplied."""
        return power_for(self.grid.largest)

    @property
    def reach(self) -> float:
        grid = self.grid
        keys = (grid.steepest * self.key, grid.highest * self.bias, grid.range / self.key, 1 / self.bias)
        return max(*keys, grid.largest / self.value)

    def own_error(self, line: IdentityGrid) -> float:
        """Bound on |F − f| with F computed by the interpreter."""
        score = self.score_error(line)
        values = self.value * line.error(self.grid.largest / self.value)
        return self.interpolation + self.grid.rounding_error(self.deviation, self.size, score) + values

    def score_error(self, line: IdentityGrid) -> float:
        """Layer 1 reads slope, argument, intercept and one to within the line's error; layer 2 adds two products."""
        grid = self.grid
        emulated = product_error(line, grid.steepest * self.key, grid.range / self.key, 1)
        emulated += product_error(line, grid.highest * self.bias, 1 / self.bias, 1)
        return emulated + rounding.dot(3, grid.score_size, f64)

    def scaled(self, argument: int, result: int) -> Softmax:
        """For an argument 2^argument times as large, and 2^result times the result; nothing is rounded."""
        grid, wide, high = self.grid, 2.0**argument, 2.0**result
        slopes, values = grid.slopes / wide, grid.values * high
        made = replace(grid, slopes=slopes, values=values, lo=grid.lo * wide, hi=grid.hi * wide)
        bounds = (self.interpolation * high, self.deviation * high, self.size * high)
        return Softmax(self.f, made, *bounds)

    @property
    def facts(self) -> dict[str, Any]:
        """As JSON has it, for files."""
        own = {name: getattr(self, name) for name in ("f", *BOUNDS)}
        ends = {name: getattr(self.grid, name) for name in ("lo", "hi", "way")}
        return own | ends | {name: getattr(self.grid, name).tolist() for name in NUMBERS}

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Softmax:
        parts: dict[str, Any] = {name: torch.tensor(facts[name], dtype=f64, device="cpu") for name in NUMBERS}
        grid = Grid(**parts, lo=float(facts["lo"]), hi=float(facts["hi"]), way=facts["way"])
        return cls(facts["f"], grid, *(rounding.rounded_up(float(facts[name])) for name in BOUNDS))


def softmax_for(f: str, lo: float, hi: float, tolerance: float) -> Softmax:
    """The smallest softmax within the tolerance of f on [lo, hi], or about the best there is.

    Intervals and tolerances are taken a little wider and finer, so that many layers of a network share one softmax;
    but not where a function may end near its interval. Squares and roots of all magnitudes are one softmax each.
    """
    if f == SQUARE:
        power = math.ceil(math.log2(max(abs(lo), abs(hi), 1e-300)))
        return _softmax_for(f, -1.0, 1.0, UNIT).scaled(power, 2 * power)
    if f == ROOT and lo > 0:
        power = 2 * math.ceil(math.log2(hi) / 2 - 1)
        if lo >= 2.0**power / 4:  # as it is wherever hi ≤ 4·lo
            return _softmax_for(f, 0.25, 4.0, UNIT).scaled(power, -power // 2)
    if not parse(f).conditions:
        step = 2.0 ** (math.floor(math.log2(hi - lo)) - 3) if hi > lo else 1.0
        lo, hi = math.floor(lo / step) * step, math.ceil(hi / step) * step
    return _softmax_for(f, lo, hi, 2.0 ** math.floor(math.log2(tolerance)))


@lru_cache(maxsize=256)
def _softmax_for(f: str, lo: float, hi: float, tolerance: float) -> Softmax:
    shipped = _shipped().get(claim_of(f, lo, hi, tolerance))
    found = shipped or disk_cached("network", [f, lo, hi, tolerance], lambda: _found(f, lo, hi, tolerance))
    return Softmax.of(found)


# Squares and roots are in every normalisation: their softmaxes come with the package, found and proved.
UNITS = ((SQUARE, -1.0, 1.0, UNIT), (ROOT, 0.25, 4.0, UNIT))
FILE = Path(__file__).with_suffix(".json")


def claim_of(f: str, lo: float, hi: float, tolerance: float) -> str:
    return f"{f} on ({lo!r}, {hi!r}) to {tolerance!r}"


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """By request. The tests prove them again; `python -m emulon.networks.softmaxes` writes them."""
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return known


def _found(f: str, lo: float, hi: float, tolerance: float) -> dict[str, Any]:
    """The search, by expected noise; bounds are of the worst case."""

    def noise(grid: Grid, deviation: float, size: float) -> float:
        made = Softmax(f, grid, 0.0, deviation, size)
        if made.reach > FARTHEST:
            return math.inf
        return made.own_error(identity_grid(made.reach)) / EXPECTED[f64]

    def made_by(way: str) -> Approximation:
        return approximate(
            parse(f),
            (lo, hi),
            tolerance=tolerance,
            grid=way,
            rounding=noise,
            best_effort=True,
            score_noise=LINE_NOISE * torch.finfo(f64).eps,
        )

    made = made_by("auto")
    if made.certificate.bound > MISSED * tolerance:
        # Where one grid cannot follow, as 1/√t over a long range, several may.
        made = min(made, made_by("piecewise"), key=lambda each: each.certificate.bound)
    known = made.interpolation
    softmax = Softmax(f, made.grid, known.error, known.deviation, known.size)
    if made.grid.bands:
        raise EmulonError(f"{f} jumps between {lo:g} and {hi:g}: a network with jumps is not compiled")
    return softmax.facts


if __name__ == "__main__":
    write_json(FILE, {claim_of(*unit): _found(*unit) for unit in UNITS})
