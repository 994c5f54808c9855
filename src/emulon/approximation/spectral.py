"""Soft grids: do not sharpen the softmax, soften it, and let the values undo the smoothing.

On a uniform grid of spacing h the weights are ∝ exp(−β(s − L_r)²). When βh² is small they vary so smoothly with s that
the grid leaves no trace (Poisson summation: the ripple is of order exp(−π²/(βh²))), and the average is f smoothed by a
Gaussian of variance 1/(2β). Values fitted by least squares on Chebyshev nodes undo the smoothing for any smooth f;
since they are fitted on the interval alone, the keys outside it (the margin) are free to help. So the error falls
exponentially with the number of keys, whatever the range: P = O(log 1/ε).

Two numbers shape a grid of a given size: `softness` = βh² and `reach` = half the interval in units of h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from emulon.approximation.grid import CHUNK, Grid, statistics
from emulon.certify.interpolation import Keys, weights

SOFTNESS = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 5 / 8, 1.0, 3 / 2)
# Values far larger than f would cancel in the average; more than this is never worth it.
LARGEST_VALUE = 30.0

LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)

Target = Callable[[np.ndarray], np.ndarray]
# Rounding as seen by whoever uses the grid: (grid, deviation, size) → bound on what rounding adds to F.
Rounding = Callable[[Grid, float, float], float]


@dataclass(frozen=True)
class Fit:
    """A grid with what it costs: its sampled error plus its rounding bound."""

    cost: float
    error: float
    grid: Grid
    softness: float
    reach: float


def chebyshev(lo: float, hi: float, count: int) -> np.ndarray:
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    return (lo + hi) / 2 + (hi - lo) / 2 * nodes


def dense(lo: float, hi: float, keys: int) -> np.ndarray:
    """Points close enough together to see every ripple of a grid of so many keys, ends included."""
    return np.linspace(lo, hi, 12 * keys + 33)


def least_squares(weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Values whose averages are nearest to what is wanted; small singular values are cut, which keeps them modest."""
    u, sizes, v = np.linalg.svd(weights, full_matrices=False)
    scale = np.divide(1, sizes, out=np.zeros_like(sizes), where=sizes > 1e-14 * sizes[..., :1])

    def solved(right: np.ndarray) -> np.ndarray:
        parts: np.ndarray = scale[..., None] * (u.swapaxes(-1, -2) @ right[..., None])
        solution: np.ndarray = (v.swapaxes(-1, -2) @ parts)[..., 0]
        return solution

    values = solved(wanted)
    # Once more on what is left: the second pass takes out the rounding of the first.
    return values + solved(wanted - (weights @ values[..., None])[..., 0])


def cost(grid: Grid, f: np.ndarray, s: np.ndarray, rounding: Rounding) -> tuple[float, float]:
    """(sampled error + rounding bound, sampled error), with f at the points s: what every search minimises."""
    error, deviation, size = grid.sampled(f, s)
    total = error + rounding(grid, deviation, size)
    return (total if math.isfinite(total) else math.inf), error


@dataclass(frozen=True)
class Shaped:
    """Keys of one shape with fitted values, as the dtype stores them, and what they do at the points they were tested.

    No rounding is in this: whoever weighs it adds what it costs there.
    """

    keys: Keys
    error: float
    deviation: float
    size: float


@dataclass(frozen=True)
class Spectral:
    """The search for soft grids for one target on one interval."""

    f: Target
    lo: float
    hi: float
    dtype: torch.dtype
    rounding: Rounding
    largest: float = LARGEST_VALUE
    typical: bool = False
    """Weigh grids by what to expect on ordinary data rather than by what can be promised for all."""
    shaped: dict[tuple[int, float, float], Shaped | None] = field(default_factory=dict, compare=False)
    """What was fitted already: `replace(…, rounding=…)` keeps it, for only its weighing is another."""

    def fit(self, keys: int, shapes: Sequence[tuple[float, float]], best: Fit | None = None) -> Fit | None:
        """The cheapest of `best` and of grids of so many keys with these shapes (softness, reach).

        No grid costs less than it errs: those that err more than the best of the others costs are not weighed.
        """
        self._shape(keys, [shape for shape in shapes if (keys, *shape) not in self.shaped])
        known = {shape: self.shaped[keys, *shape] for shape in shapes}
        fits = sorted(((each.error, shape, each) for shape, each in known.items() if each), key=lambda fit: fit[0])
        for error, shape, each in fits:
            if best is not None and (1e-3 * error if self.typical else error) >= best.cost:
                break
            best = _cheapest([best, self._weigh(each, *shape)])
        return best

    def _shape(self, keys: int, shapes: Sequence[tuple[float, float]]) -> None:
        """Fit values for the slopes and intercepts as the dtype stores them; None where they grow too large."""
        nodes, wanted, s, f = self._samples(keys)
        together = max(1, CHUNK // (4 * len(s) * keys))
        for start in range(0, len(shapes), together):
            some = shapes[start : start + together]
            softness, reach = np.array(some).T[:, :, None]
            center, spacing = (self.lo + self.hi) / 2, (self.hi - self.lo) / 2 / reach
            offsets = np.arange(keys) - (keys - 1) / 2
            slopes = 2 * softness * offsets / spacing
            slopes, intercepts = self._stored(slopes), self._stored(-softness * offsets**2 - slopes * center)
            values = self._stored(least_squares(weights(slopes, intercepts, nodes), wanted))
            fitting = np.abs(values).max(axis=-1) <= self.largest * np.abs(wanted).max()
            found = statistics(weights(slopes[fitting], intercepts[fitting], s), values[fitting], f)
            made = zip(slopes[fitting], intercepts[fitting], values[fitting], *found, strict=True)
            for shape, works in zip(some, fitting, strict=True):
                if not works:
                    self.shaped[keys, *shape] = None
                    continue
                a, b, v, *numbers = next(made)
                self.shaped[keys, *shape] = Shaped(Keys(a, b, v), *map(float, numbers))

    def _stored(self, part: np.ndarray) -> np.ndarray:
        rounded: np.ndarray = torch.from_numpy(part).to(self.dtype).double().numpy()
        return rounded

    def _samples(self, keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Where grids of so many keys are fitted and tested, and f there: nodes, f(nodes), points, f(points)."""
        if keys not in self._sampled:
            nodes, s = chebyshev(self.lo, self.hi, 3 * keys + 2), dense(self.lo, self.hi, keys)
            self._sampled[keys] = nodes, self.f(nodes), s, self.f(s)
        return self._sampled[keys]

    @cached_property
    def _sampled(self) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        return {}

    @cached_property
    def _best(self) -> dict[int, Fit | None]:
        return {}

    def _weigh(self, shaped: Shaped, softness: float, reach: float) -> Fit:
        keys = shaped.keys
        grid = Grid.stored(keys.slopes, keys.intercepts, keys.values, self.dtype, self.lo, self.hi, "spectral")
        if self.typical:
            total = grid.typical_error(self.f) + 1e-3 * shaped.error
        else:
            total = shaped.error + self.rounding(grid, shaped.deviation, shaped.size)
        return Fit(total if math.isfinite(total) else math.inf, shaped.error, grid, softness, reach)

    def best(self, keys: int, near: Fit | None = None) -> Fit | None:
        """The cheapest grid of this many keys: over a table of shapes, then downhill from the best of them.

        With `near`, only downhill from that fit's shape.
        """
        if near is not None:
            return self._downhill(keys, near)
        if keys not in self._best:
            self._best[keys] = self._downhill(keys, None)
        return self._best[keys]

    def _downhill(self, keys: int, near: Fit | None) -> Fit | None:
        if keys == 1:
            return self.fit(1, [(1.0, 1.0)])
        if keys == 2:
            return self.fit(2, [(softness, 0.5) for softness in SOFTNESS], self.logistic())
        if near is not None:
            shapes = [(near.softness, near.reach * keys / len(near.grid)), (near.softness, near.reach)]
        elif keys > 24:
            # Large grids are needed for detail, not for range: little margin, and a softness that no longer changes.
            shapes = [(softness, part * keys / 2) for softness in (3 / 16, 1 / 4, 3 / 8) for part in (0.6, 0.8, 0.95)]
        else:
            reaches = np.geomspace(0.5, (keys + 1) / 2, max(2, min(7, keys))).tolist()
            shapes = [(softness, reach) for softness in SOFTNESS for reach in reaches]
        found = self.fit(keys, shapes)
        for step in (1.25, 1.1) if found is not None else ():
            assert found is not None
            turns = [(step, 1), (1 / step, 1), (1, step), (1, 1 / step)]
            found = self.fit(keys, [(found.softness * a, found.reach * b) for a, b in turns], found)
        return found

    def logistic(self) -> Fit | None:
        """Two keys are p + q·σ(a(s − m)) exactly: sigmoid and tanh need no more, on any range."""
        from scipy.optimize import least_squares
        from scipy.special import expit

        s = np.linspace(self.lo, self.hi, 4001)
        y = self.f(s)
        rise, steepest = y[-1] - y[0], int(np.abs(np.diff(y)).argmax())
        steepness = 4 * (y[steepest + 1] - y[steepest]) / (s[1] - s[0]) / rise if rise else 0.0
        if not steepness > 0:
            return None
        near = np.clip(s[steepest] + np.linspace(-40, 40, 401) / steepness, self.lo, self.hi)
        wanted = self.f(near)

        def residual(p: np.ndarray) -> np.ndarray:
            off: np.ndarray = p[0] + p[1] * expit(p[2] * (near - p[3])) - wanted
            return off

        def jacobian(p: np.ndarray) -> np.ndarray:
            share = expit(p[2] * (near - p[3]))
            slope = p[1] * share * (1 - share)
            return np.stack([np.ones_like(near), share, slope * (near - p[3]), -slope * p[2]], axis=1)

        # Whatever is one finds its parameters in a few steps; the rest need not be followed far.
        sharp = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 60}
        options = []
        for guess in filter(None, ([y[0], rise, steepness, s[steepest]], _riccati(s, y))):
            fitted = least_squares(residual, guess, jac=jacobian, x_scale="jac", **sharp).x
            # On a short range they are known to a few digits only; but the true ones are often round numbers.
            options += [fitted, *(np.round(fitted, digits) for digits in (9, 6, 4, 2))]
        return _cheapest([self._two_keys(*parameters) for parameters in options])

    def _two_keys(self, p: float, q: float, a: float, m: float) -> Fit | None:
        parts = (np.array([-a / 2, a / 2]), np.array([a * m / 2, -a * m / 2]), np.array([p, p + q]))
        if not all(np.isfinite(part).all() for part in parts):
            return None
        s = np.linspace(self.lo, self.hi, 4001)
        f = self.f(s)
        # A stretch that is nearly straight is the middle of an endless sigmoid: its values must stay modest too.
        if not np.abs(parts[2]).max() <= LARGEST_VALUE * np.abs(f).max():
            return None
        keys = Keys(*map(self._stored, parts))
        found = statistics(keys.weights(s), keys.values, f)
        return self._weigh(Shaped(keys, *map(float, found)), 1.0, 1.0)

    def smallest(self, tolerance: float, limit: int = 512) -> Fit | None:
        """The smallest grid within the tolerance; else the cheapest found, for the caller to judge."""
        champion: Fit | None = None
        below, stale = 0, 0
        for keys in [k for k in LADDER if k < limit] + [limit]:
            found = self.best(keys)
            if found is not None and found.cost <= tolerance:
                return self._shrink(tolerance, below, found)
            # Where interpolation alone would do, rounding is what fails: stop once more keys no longer improve on it.
            if found is not None and found.error < tolerance / 2:
                stale = 0 if champion is None or found.cost < 0.9 * champion.cost else stale + 1
            champion = _cheapest([champion, found])
            if stale >= 3:
                break
            below = keys
        return champion

    def _shrink(self, tolerance: float, below: int, found: Fit) -> Fit:
        """Halve towards the smallest number of keys, between one that failed and one that works."""
        above = len(found.grid)
        # A rung may have failed for want of the right shape, which is known now: look below it as well.
        below = below // 2 if found.cost < tolerance / 4 else below
        while above - below > 1:
            middle = (above + below) // 2
            trial = self.best(middle, found if middle > 24 else None)
            if trial is not None and trial.cost <= tolerance:
                above, found = middle, trial
            else:
                below = middle
        return found


def _riccati(s: np.ndarray, y: np.ndarray) -> list[float] | None:
    """p, q, a, m of p + q·σ(a(s − m)) from its equation y′ = −(a/q)(y − p)(y − p − q), or None if that has no roots."""
    middle = slice(1, -1)
    slope = (y[2:] - y[:-2]) / (s[2:] - s[:-2])
    powers = np.stack([np.ones_like(slope), y[middle], y[middle] ** 2], axis=1)
    c = np.linalg.lstsq(powers, slope, rcond=None)[0]
    discriminant = c[1] ** 2 - 4 * c[0] * c[2]
    if not discriminant > 0 or not c[2]:
        return None
    low, high = np.sort((-c[1] + np.array([-1, 1]) * math.sqrt(discriminant)) / (2 * c[2])).tolist()
    share = (y[len(y) // 2] - low) / (high - low)
    if not 0 < share < 1:
        return None
    steepness = -c[2] * (high - low)
    return [low, high - low, steepness, s[len(s) // 2] - math.log(share / (1 - share)) / steepness]


def _cheapest(fits: list[Fit | None]) -> Fit | None:
    return min((fit for fit in fits if fit is not None), key=lambda fit: fit.cost, default=None)
