"""`approximate`: from a function, an interval and a tolerance to a proved softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulon.attention import attend
from emulon.certify.certificate import Certificate, CertifiedModule
from emulon.certify.domain import require_finite, require_real, require_scale
from emulon.certify.interpolation import Interpolation, prove, require_smooth
from emulon.certify.rounding import unit
from emulon.core.errors import BadExpression, EmulonError, OutOfDomain, ToleranceTooTight
from emulon.expressions import Break, Function, parse
from emulon.softmax.grid import Grid
from emulon.softmax.piecewise import Piecewise
from emulon.softmax.spectral import SEEN, Rounding, Spectral, Target, cost, dense, turns

# A first-order grid that needs more keys than this is not worth proving; `points` still makes it.
LIMIT = 1024


def paper_grid(f: Target, lo: float, hi: float, points: int, dtype: torch.dtype, beta: float | None = None) -> Grid:
    """L_r uniform on [lo, hi], weights ∝ exp(−β(s − L_r)²), values f(L_r).

    Without a `beta` the paper's own choice after (D.74), with its tail held to one spacing ΔL:
    β = 4/(3·ΔL²)·ln(P·(hi − lo)/ΔL).
    """
    nodes = np.linspace(lo, hi, points)
    if beta is None:
        steps = max(points - 1, 1)
        beta = 4 / 3 / ((hi - lo) / steps) ** 2 * max(1.0, 2 * math.log(steps))
    return Grid.stored(2 * beta * nodes, -beta * nodes**2, f(nodes), dtype, lo, hi, "paper")


def smallest_paper_grid(
    f: Target, lo: float, hi: float, tolerance: float, dtype: torch.dtype, rounding: Rounding, limit: int = LIMIT
) -> tuple[float, Grid]:
    """(cost, grid) of the smallest paper grid within the tolerance; else of the best within the limit."""

    def attempt(points: int) -> tuple[float, Grid]:
        grid = paper_grid(f, lo, hi, points, dtype)
        s = dense(lo, hi, points)
        return cost(grid, f(s), s, rounding)[0], grid

    below, above = 1, 2
    found = champion = attempt(above)
    while found[0] > tolerance:
        if above >= limit:
            return champion
        below, above = above, 2 * above
        found = attempt(above)
        champion = min(champion, found, key=lambda pair: pair[0])
    while above - below > 1:
        middle = (above + below) // 2
        trial = attempt(middle)
        if trial[0] <= tolerance:
            above, found = middle, trial
        else:
            below = middle
    return found


WAYS = ("auto", "paper", "spectral", "piecewise")
# The search samples, the proof encloses: leave slack between the two, and more where that was not enough.
HEADROOM = (0.75, 0.5, 0.25)

# A proof so many times above what the search has seen did not come to its end.
UNPROVED = 1e6

# One soft grid of more keys is not tried where pieces may do.
WHOLE_LIMIT = 160

# More than a softmax of so many keys as are tried could follow, as far as samples can tell.
MOST_TURNS = 1500


def approximate(
    f: Any,
    interval: tuple[float | int, float | int],
    *,
    tolerance: float | None = None,
    points: int | None = None,
    grid: str = "auto",
    dtype: torch.dtype = torch.float64,
    beta: float | None = None,
    rounding: Rounding = Grid.rounding_error,
    best_effort: bool = False,
    score_noise: float | None = None,
) -> Approximation:
    """Build one softmax head that computes a scalar function, with the smallest number of keys that is found.

    Args:
        f: A name, a sympy expression in one symbol, or its string.
        interval: (lo, hi), on which the error is bounded.
        tolerance: Largest allowed sup-norm error. Exactly one of `tolerance` and `points`.
        points: Number of keys; the grid that does best with them on ordinary data is taken.
        grid: "auto", "paper", "spectral" or "piecewise".
        dtype: The dtype in which keys are stored and scores computed.
        beta: Sharpness of a paper grid.
        rounding: Bound on rounding, for constructions whose scores are longer sums than slope·s + intercept.
        best_effort: Where the tolerance cannot be certified, return about the best that can, instead of raising.
        score_noise: Relative error of scores, by default the dtype's: it limits how sharp a jump can be.
    Returns:
        The approximation, with `keys`, `certificate` and a call on tensors.
    Raises:
        BadExpression: f has a pole or is undefined in the interval.
        ToleranceTooTight: The dtype does not allow the tolerance; the message has the smallest one that it does.

    Example:
        >>> F = approximate("tanh(t)", (-8, 8), tolerance=1e-10)
        >>> F.keys <= 128 and F.certificate.bound <= 1e-10
        True
    """
    function = parse(f)
    _check(tolerance, points, grid)
    lo, hi = _outward(function, interval, dtype)
    _check_function(function, lo, hi)
    noise = unit(dtype) if score_noise is None else score_noise
    maker = _Maker(function, _target(function), lo, hi, grid, dtype, rounding, noise)
    from threadpoolctl import threadpool_limits

    # Thousands of tiny least-squares problems: threads would only wait for each other. What overflows costs infinity.
    with threadpool_limits(1), np.errstate(all="ignore"):
        return _made(maker, tolerance, points, beta, best_effort)


def _made(
    maker: _Maker, tolerance: float | None, points: int | None, beta: float | None, best_effort: bool
) -> Approximation:
    if points is not None:
        return maker.certified(maker.best_of(points, beta))
    if beta is not None:
        raise EmulonError("give beta together with points: a tolerance chooses its own sharpness")
    assert tolerance is not None
    result, least = maker.within(tolerance)
    if result is not None:
        return result
    if best_effort and not maker.breaks and math.isfinite(least):
        # Three times the least cost met: the last factor would cost several times the keys.
        for factor in (3, 9, 27):
            result = maker.within(factor * least)[0]
            if result is not None:
                return result
    floor, kept = maker.floor(tolerance, least)
    if best_effort:
        return kept
    what = f"{maker.function.text} on ({maker.lo:g}, {maker.hi:g}) in {_name(maker.dtype)} with grid={maker.way!r}"
    advice = "" if maker.dtype == torch.float64 else ", or use float64"
    raise ToleranceTooTight(what, tolerance, floor, advice)


class Approximation(CertifiedModule):
    """F(s) = Σ_r softmax_r(slope_r·s + intercept_r)·value_r, elementwise over any tensor of numbers in the interval.

    Args:
        function: What it approximates.
        grid: Its keys and values.
        known: Proved bounds on F − f.
        rounding: Bound on the rounding of F.
    """

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
        terms = {"interpolation": known.error, "rounding": rounding}
        self.certificate = Certificate(terms, grid.dtype, bands=grid.bands)

    @property
    def keys(self) -> int:
        return len(self.grid)

    def extra_repr(self) -> str:
        interval = f"({self.grid.lo:g}, {self.grid.hi:g})"
        return f"{self.function.text!r} on {interval}, {self.grid.way}, keys={self.keys}, error {self.certificate}"

    def forward(self, s: Tensor | float | int) -> Tensor:
        """F(s), for s as the dtype stores it: a number of a wider dtype is rounded first."""
        if isinstance(s, Tensor):
            require_real(s=s)
        s = torch.as_tensor(s, dtype=self.slopes.dtype, device=self.slopes.device)
        require_finite(s=s)
        lo, hi = self.grid.lo, self.grid.hi
        # As Python numbers, for a tensor would round the ends before it compares.
        for worst in (s.min().item(), s.max().item()) if s.numel() else ():
            if not lo <= worst <= hi:
                raise OutOfDomain(f"s = {worst:.6g} is outside ({lo:g}, {hi:g}); approximate on a wider interval")
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
    way: str
    dtype: torch.dtype
    rounding: Rounding
    noise: float

    def certified(self, grid: Grid) -> Approximation:
        """The approximation by this grid; raises `BadExpression` where the dtype holds no such grid."""
        if not all(bool(torch.isfinite(part).all()) for part in (grid.slopes, grid.intercepts, grid.values)):
            raise self.out_of_reach()
        known = self._interpolation(grid)
        return Approximation(self.function, grid, known, self.rounding(grid, known.deviation, known.size))

    def within(self, tolerance: float) -> tuple[Approximation | None, float]:
        """The smallest approximation certified to the tolerance, or None; and the least cost that was met."""
        least = math.inf
        for headroom in HEADROOM:
            option = self.smallest(headroom * tolerance)
            if option is None:
                break
            found, grid = option
            met = found
            if found <= tolerance:
                result = self.certified(grid)
                if result.certificate.bound <= tolerance:
                    return result, found
                self._require_proved(result, found)
                met = max(found, result.interpolation.attained)  # samples may have missed a jump
            least = min(least, met)
            if found > headroom * tolerance:
                break
        return None, least

    def _require_proved(self, result: Approximation, found: float) -> None:
        """Refuse where a proof ended far above what is seen: no tolerance near that would come out otherwise."""
        if result.interpolation.error > UNPROVED * max(found, result.interpolation.attained):
            raise BadExpression(
                f"{self.function.text} on ({self.lo:g}, {self.hi:g}): what a softmax makes of it takes too long to "
                "prove; try a smaller interval"
            )

    def smallest(self, tolerance: float) -> tuple[float, Grid] | None:
        """(cost, grid) of the smallest grid of the asked way within the tolerance; else of the best found, if any."""
        if self.way == "paper":
            return smallest_paper_grid(self.f, self.lo, self.hi, tolerance, self.dtype, self.rounding)
        options: list[tuple[float, Grid]] = []
        worth_cutting = True
        whole = self.way == "auto" and not self.breaks and not self._spectral.hopeless(WHOLE_LIMIT, tolerance)
        if self.way == "spectral" or whole:
            fit = self._spectral.smallest(tolerance, limit=512 if self.way == "spectral" else WHOLE_LIMIT)
            if fit is not None:
                options.append((fit.cost, fit.grid))
                # Few keys already, or rounding is what fails: cutting into pieces would not help.
                worth_cutting = len(fit.grid) > 72 if fit.cost <= tolerance else fit.error > tolerance / 2
        if self.way == "piecewise" or (self.way == "auto" and worth_cutting):
            joined = self._piecewise.smallest(tolerance)
            if joined is not None:
                options.append((self._gated_cost(joined), joined))
        fitting = [option for option in options if option[0] <= tolerance]
        if fitting:
            return min(fitting, key=lambda option: len(option[1]))
        return min(options, key=lambda option: option[0], default=None)

    def best_of(self, points: int, beta: float | None) -> Grid:
        """The most accurate grid with at most this many keys."""
        if self.way == "paper":
            return paper_grid(self.f, self.lo, self.hi, points, self.dtype, beta)
        if self.way == "spectral" or (self.way == "auto" and not self.breaks):
            # Fewer keys may round better than more: the number given is what may be used, not what must.
            rungs = {points, *(k for k in (2, 5, 7, 9, 11, 13, 17, 24, 32, 48, 64) if k < points)}
            weighing = replace(self._spectral, typical=True)
            fits = [fit for fit in map(weighing.best, sorted(rungs)) if fit is not None]
            if fits:
                return min(fits, key=lambda fit: fit.cost).grid
        champion: tuple[float, Grid] | None = None
        for power in range(1, 13):
            trial = self._piecewise.smallest(self._scale * 10.0**-power)
            if trial is None or len(trial) > points:
                break
            found = self._gated_cost(trial)
            champion = min(filter(None, [champion, (found, trial)]), key=lambda pair: pair[0])
        if champion is None:
            raise EmulonError(
                f"{points} points are too few for {self.function.text} on ({self.lo:g}, {self.hi:g}); give more"
            )
        return champion[1]

    def floor(self, tolerance: float, found: float) -> tuple[float, Approximation]:
        """A tolerance that was certified and is hardly more than the smallest one, with its approximation."""
        tolerance = max(tolerance, unit(self.dtype) * self._scale / 8)
        gated = self.way != "paper" and bool(self.breaks)
        # A proof of a paper grid takes seconds: with slack it succeeds at once.
        slack = 1.02 / HEADROOM[0] if self.way == "paper" else 1.02
        for _ in range(24):
            failed = tolerance
            if math.isfinite(found) and gated:
                # A gate's sharpness, and so its rounding, goes with 1/tolerance: the two meet in the middle.
                tolerance = max(1.3 * tolerance, geometric_mean(tolerance, found))
            else:
                # Where no grid was like the function, one for a looser tolerance may do much better: do not leap.
                farthest = math.inf if self.way == "paper" else 30 * tolerance
                tolerance = min(max(1.1 * tolerance, slack * found), farthest)
                if tolerance > self._scale:
                    break  # zero everywhere would be as near
            result, found = self.within(tolerance)
            if result is not None:
                return self._lower(failed, tolerance, result) if gated else (tolerance, result)
        raise self.out_of_reach()

    def out_of_reach(self) -> BadExpression:
        """The error for a function that no grid of the dtype comes near."""
        return BadExpression(
            f"{self.function.text} on ({self.lo:g}, {self.hi:g}): no grid came near it; try a smaller interval"
        )

    def _lower(self, failed: float, tolerance: float, kept: Approximation) -> tuple[float, Approximation]:
        """From far below, the middle may lie far above the floor: halve the way back while it is long."""
        while tolerance > 2 * failed:
            middle = geometric_mean(failed, tolerance)
            result, _ = self.within(middle)
            if result is None:
                failed = middle
            else:
                tolerance, kept = middle, result
        return tolerance, kept

    @cached_property
    def _scale(self) -> float:
        return float(np.abs(self.f(dense(self.lo, self.hi, 16))).max()) or 1.0

    @cached_property
    def breaks(self) -> list[Break]:
        return self.function.breaks(self.lo, self.hi)

    @cached_property
    def _spectral(self) -> Spectral:
        return Spectral(self.f, self.lo, self.hi, self.dtype, self.rounding, sigmoid=self.function.sigmoid)

    @cached_property
    def _piecewise(self) -> Piecewise:
        return Piecewise(self.function, self.f, self.lo, self.hi, self.dtype, self.rounding, self.noise)

    def _interpolation(self, grid: Grid) -> Interpolation:
        s = dense(grid.lo, grid.hi, len(grid))
        _, deviation, size = grid.sampled(self.f(s), s)
        # An interpolation error well below the rounding need not be known exactly.
        target = self.rounding(grid, deviation, size) / 4
        return prove(grid.numbers, self.function, grid.lo, grid.hi, bands=grid.bands, target=target)

    def _gated_cost(self, grid: Grid) -> float:
        """What a joined grid costs, tested also where the error lives on a scale of 1/G: around the breaks."""
        near = np.geomspace(0.01, 40, 200) / max(float(np.ptp(grid.numbers.slopes)), 1e-300)
        points = [dense(self.lo, self.hi, len(grid)), *(b.at + sign * near for b in self.breaks for sign in (-1, 1))]
        s = np.sort(np.concatenate(points))
        s = s[(s >= self.lo) & (s <= self.hi)]
        if all(any(band.lo < at < band.hi for band in grid.bands) for at in s):
            raise BadExpression(
                f"{self.function.text} jumps so close to everything in ({self.lo:g}, {self.hi:g}) that nothing could "
                "be promised; choose a wider interval"
            )
        return cost(grid, self.f(s), s, self.rounding)[0]


def geometric_mean(a: float, b: float) -> float:
    """Of positive numbers whose product may be beyond all numbers."""
    return math.sqrt(a) * math.sqrt(b)


def _target(function: Function) -> Target:
    return lambda s: function(torch.from_numpy(np.ascontiguousarray(s))).numpy()


def _check(tolerance: float | None, points: int | None, way: str) -> None:
    if (tolerance is None) == (points is None):
        raise EmulonError("give either tolerance=… or points=…, not both or neither")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise EmulonError(f"tolerance must be a positive number, got {tolerance}")
    if points is not None and points < 1:
        raise EmulonError(f"points must be at least 1, got {points}")
    if way not in WAYS:
        raise EmulonError(f"grid={way!r} is unknown; choose one of {', '.join(WAYS)}")


def _outward(function: Function, interval: tuple[float | int, float | int], dtype: torch.dtype) -> tuple[float, float]:
    """The interval, and with it its ends as the dtype rounds them; but never across a break."""
    lo, hi = float(interval[0]), float(interval[1])
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise OutOfDomain(f"the interval ({lo}, {hi}) is empty or not finite; give lo < hi")
    require_scale(**{"hi − lo": hi - lo, "|t|": max(abs(lo), abs(hi))})
    wider = (
        min(lo, torch.tensor(lo, dtype=dtype, device="cpu").item()),
        max(hi, torch.tensor(hi, dtype=dtype, device="cpu").item()),
    )
    return wider if len(function.breaks(*wider)) == len(function.breaks(lo, hi)) else (lo, hi)


def _check_function(function: Function, lo: float, hi: float) -> None:
    require_smooth(function, lo, hi)
    # What turns faster than these points tell turns between most of them, where it does.
    s = torch.linspace(lo, hi, SEEN, dtype=torch.float64, device="cpu")
    values = function(s)
    finite = torch.isfinite(values)
    if not finite.all():
        at = f"t = {s[~finite][0].item():.6g}"
        raise BadExpression(f"{function.text} is not finite at {at}; choose an interval without it")
    if (often := len(turns(s.numpy(), values.numpy(), float(values.max() - values.min()) / 64))) > MOST_TURNS:
        where = f"on ({lo:g}, {hi:g})"
        raise BadExpression(f"{function.text} turns at least {often} times {where}; choose a shorter interval")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
