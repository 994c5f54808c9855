"""`approximate`: from a function, an interval and a tolerance to a proved softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from emulon.approximation.grid import Grid
from emulon.approximation.paper import paper_grid, smallest_paper_grid
from emulon.approximation.piecewise import Piecewise
from emulon.approximation.spectral import Rounding, Spectral, Target, cost, dense
from emulon.attention import attend
from emulon.certify.certificate import Certificate
from emulon.certify.domain import require_finite
from emulon.certify.interpolation import Interpolation, prove, require_smooth
from emulon.errors import BadExpression, EmulonError, OutOfDomain, ToleranceTooTight
from emulon.expression import Break, Function, parse

Way = Literal["auto", "paper", "spectral", "piecewise"]
# The search samples, the proof encloses: leave room between the two.
HEADROOM = 0.75
SAMPLED = "the function is a plain callable: its interpolation error was sampled, not proved"


def approximate(
    f: str | Function | Callable | object,
    interval: tuple[float, float],
    *,
    tolerance: float | None = None,
    points: int | None = None,
    grid: Way = "auto",
    dtype: torch.dtype = torch.float64,
    beta: float | None = None,
    rounding: Rounding = Grid.rounding_error,
) -> Approximation:
    """One softmax that acts as f on the interval, with the smallest number of keys that meets the tolerance.

    `f` is a name, a sympy expression in one symbol or its string, or a callable on tensors (which is only sampled, and
    its certificate says so). Give `tolerance`, or the number of `points` (keys) to make the best of on ordinary data.
    `beta` fixes the sharpness of a paper grid. `rounding` is for constructions whose scores are longer sums than
    slope·s + intercept.

    >>> F = approximate("tanh(t)", (-8, 8), tolerance=1e-10)
    >>> F.keys <= 128 and F.certificate.bound <= 1e-10
    True
    """
    function = parse(f)  # type: ignore[arg-type]
    lo, hi = _checked(function, interval, tolerance, points, grid)
    maker = _Maker(function, _target(function), lo, hi, grid, dtype, rounding)
    from threadpoolctl import threadpool_limits

    # Thousands of tiny least-squares problems: threads would only wait for each other.
    with threadpool_limits(1):
        return _made(maker, tolerance, points, beta)


def _made(maker: _Maker, tolerance: float | None, points: int | None, beta: float | None) -> Approximation:
    if points is not None:
        return maker.certified(maker.best_of(points, beta))
    if beta is not None:
        raise EmulonError("give beta together with points: a tolerance chooses its own sharpness")
    assert tolerance is not None
    found, grid = maker.smallest(HEADROOM * tolerance)
    if found <= tolerance and (result := maker.certified(grid)).certificate.bound <= tolerance:
        return result
    what = f"{maker.function.text} on ({maker.lo:g}, {maker.hi:g}) in {_name(maker.dtype)} with grid={maker.way!r}"
    advice = "" if maker.dtype == torch.float64 else ", or use float64"
    raise ToleranceTooTight(what, tolerance, maker.floor(tolerance, found), advice)


class Approximation(nn.Module):
    """F(s) = Σ_r softmax_r(slope_r·s + intercept_r)·value_r, elementwise over any tensor of numbers in the interval."""

    slopes: Tensor
    intercepts: Tensor
    values: Tensor

    def __init__(self, function: Function, grid: Grid, known: Interpolation, rounding: float) -> None:
        super().__init__()
        self.function = function
        self.grid = grid
        self.interpolation = known
        for name in ("slopes", "intercepts", "values"):
            self.register_buffer(name, getattr(grid, name))
        self.certificate = Certificate(
            {"interpolation": known.error, "rounding": rounding},
            grid.dtype,
            proved=known.proved,
            bands=grid.bands,
            note="" if known.proved else SAMPLED,
        )

    @property
    def keys(self) -> int:
        return len(self.grid)

    def extra_repr(self) -> str:
        interval = f"({self.grid.lo:g}, {self.grid.hi:g})"
        return f"{self.function.text!r} on {interval}, {self.grid.way}, keys={self.keys}, error {self.certificate}"

    def forward(self, s: Tensor | float) -> Tensor:
        s = torch.as_tensor(s, dtype=self.slopes.dtype, device=self.slopes.device)
        require_finite(s=s)
        if s.numel() and (s.min() < self.grid.lo or s.max() > self.grid.hi):
            worst = (s.min() if s.min() < self.grid.lo else s.max()).item()
            raise OutOfDomain(
                f"s = {worst:.6g} is outside ({self.grid.lo:g}, {self.grid.hi:g}); approximate on a wider interval"
            )
        queries = torch.stack([s, torch.ones_like(s)], dim=-1).reshape(-1, 2)
        keys = torch.stack([self.slopes, self.intercepts], dim=-1)
        return attend(queries, keys, self.values.unsqueeze(-1), name="approximation").reshape(s.shape)


@dataclass(frozen=True)
class _Maker:
    """Makes grids for one function on one interval, and their certificates."""

    function: Function
    f: Target
    lo: float
    hi: float
    way: Way
    dtype: torch.dtype
    rounding: Rounding

    def certified(self, grid: Grid) -> Approximation:
        known = self._interpolation(grid)
        return Approximation(self.function, grid, known, self.rounding(grid, known.deviation, known.size))

    def smallest(self, tolerance: float) -> tuple[float, Grid]:
        """(cost, grid) of the smallest grid of the asked way within the tolerance; else of the best one found."""
        if self.way == "paper":
            return smallest_paper_grid(self.f, self.lo, self.hi, tolerance, self.dtype, self.rounding)
        options: list[tuple[float, Grid]] = []
        worth_cutting = True
        if self.way == "spectral" or (self.way == "auto" and not self._breaks):
            fit = self._spectral.smallest(tolerance, limit=512 if self.way == "spectral" else 96)
            if fit is not None:
                options.append((fit.cost, fit.grid))
                # Few keys already, or rounding is what fails: cutting into pieces would not help.
                worth_cutting = len(fit.grid) > 72 and (fit.cost <= tolerance or fit.error > tolerance / 2)
        if self.way == "piecewise" or (self.way == "auto" and worth_cutting):
            joined = self._piecewise.smallest(tolerance)
            if joined is not None:
                options.append((cost(joined, self.f, self._look_into_gates(joined), self.rounding)[0], joined))
        fitting = [option for option in options if option[0] <= tolerance]
        if fitting:
            return min(fitting, key=lambda option: len(option[1]))
        if not options:
            raise BadExpression(
                f"{self.function.text} on ({self.lo:g}, {self.hi:g}): no grid came near it; try a smaller interval"
            )
        return min(options, key=lambda option: option[0])

    def best_of(self, points: int, beta: float | None) -> Grid:
        """The most accurate grid with at most this many keys."""
        if self.way == "paper":
            return paper_grid(self.f, self.lo, self.hi, points, self.dtype, beta)
        if self.way == "spectral" or (self.way == "auto" and not self._breaks):
            # Fewer keys may round better than more: the number given is what may be used, not what must.
            rungs = {points, *(k for k in (2, 5, 7, 9, 11, 13, 17, 24, 32, 48, 64) if k < points)}
            weighing = replace(self._spectral, typical=True)
            fits = [fit for fit in map(weighing.best, sorted(rungs)) if fit is not None]
            if fits:
                return min(fits, key=lambda fit: fit.cost).grid
        champion: tuple[float, Grid] | None = None
        scale = float(np.abs(self.f(dense(self.lo, self.hi, 16))).max()) or 1.0
        for power in range(1, 13):
            trial = self._piecewise.smallest(scale * 10.0**-power)
            if trial is None or len(trial) > points:
                break
            found = cost(trial, self.f, self._look_into_gates(trial), self.rounding)[0]
            champion = min(filter(None, [champion, (found, trial)]), key=lambda pair: pair[0])
        if champion is None:
            raise EmulonError(
                f"{points} points are too few for {self.function.text} on ({self.lo:g}, {self.hi:g}); give more"
            )
        return champion[1]

    def floor(self, tolerance: float, found: float) -> float:
        """The smallest tolerance that can be promised, nearly. A soft grid is already the best found; gates depend on
        the tolerance, so looser ones are tried until one holds."""
        tolerance = max(1.1 * tolerance, 1.05 * found / HEADROOM)
        for _ in range(8 if self._breaks and self.way != "paper" else 0):
            if self.smallest(HEADROOM * tolerance)[0] <= HEADROOM * tolerance:
                break
            tolerance *= 3
        return tolerance

    @cached_property
    def _breaks(self) -> list[Break]:
        return self.function.breaks(self.lo, self.hi)

    @property
    def _spectral(self) -> Spectral:
        return Spectral(self.f, self.lo, self.hi, self.dtype, self.rounding)

    @property
    def _piecewise(self) -> Piecewise:
        return Piecewise(self.function, self.f, self.lo, self.hi, self.dtype, self.rounding)

    def _interpolation(self, grid: Grid) -> Interpolation:
        """Proved for an expression, sampled for a callable."""
        s = dense(grid.lo, grid.hi, 4 * len(grid))
        error, deviation, size = grid.sampled(self.f(s), s)
        if self.function.provable:
            # An interpolation error well below the rounding need not be known exactly.
            target = self.rounding(grid, deviation, size) / 4
            return prove(grid.numbers, self.function, grid.lo, grid.hi, bands=grid.bands, target=target)
        return Interpolation(1.5 * error, error, 1.1 * deviation, 1.1 * size, proved=False)

    def _look_into_gates(self, grid: Grid) -> np.ndarray:
        """Test points also where the error lives on a scale of 1/G: around the breaks."""
        near = np.geomspace(0.01, 40, 200) / max(float(np.ptp(grid.numbers.slopes)), 1e-300)
        points = [dense(self.lo, self.hi, len(grid)), *(b.at + sign * near for b in self._breaks for sign in (-1, 1))]
        s = np.sort(np.concatenate(points))
        return s[(s >= self.lo) & (s <= self.hi)]


def _target(function: Function) -> Target:
    return lambda s: function(torch.from_numpy(np.ascontiguousarray(s))).numpy()


def _checked(
    function: Function, interval: tuple[float, float], tolerance: float | None, points: int | None, way: str
) -> tuple[float, float]:
    lo, hi = float(interval[0]), float(interval[1])
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise OutOfDomain(f"the interval ({lo}, {hi}) is empty or not finite; give lo < hi")
    if (tolerance is None) == (points is None):
        raise EmulonError("give either tolerance=… or points=…, not both or neither")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise EmulonError(f"tolerance must be a positive number, got {tolerance}")
    if points is not None and points < 1:
        raise EmulonError(f"points must be at least 1, got {points}")
    if way not in ("auto", "paper", "spectral", "piecewise"):
        raise EmulonError(f"grid={way!r} is unknown; choose auto, paper, spectral or piecewise")
    s = torch.linspace(lo, hi, 4001, dtype=torch.float64)
    values = function(s)
    if function.provable:
        require_smooth(function, lo, hi)
    elif not torch.isfinite(values).all():
        at = s[~torch.isfinite(values)][0].item()
        raise BadExpression(
            f"{function.text} is not finite at t = {at:.6g} in ({lo:g}, {hi:g}); choose an interval without it"
        )
    return lo, hi


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
