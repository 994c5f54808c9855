"""Soft grids: do not sharpen the softmax, soften it, and let the values undo the smoothing.

On a uniform grid of spacing h the weights are ∝ exp(−β(s − L_r)²). When βh² is small they vary so smoothly with s that
the grid leaves no trace (Poisson summation: the ripple is of order exp(−π²/(βh²))), and the average is f smoothed by a
Gaussian of variance 1/(2β). Values fitted by least squares on Chebyshev nodes undo the smoothing for any smooth f;
since they are fitted on the interval alone, the keys outside it (the margin) are free to help. So the error falls
exponentially with the number of keys, whatever the range: P = O(log 1/ε).

Two numbers shape a grid of a given size: `softness` = βh² and `half_width` = half the interval in units of h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from emulon.certify.interpolation import Keys, weights
from emulon.certify.rounding import unit
from emulon.softmax.grid import CHUNK, Grid, statistics

SOFTNESS = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 5 / 8, 1.0, 3 / 2)
# Values far larger than f would cancel in the average; more than this is never worth it.
LARGEST_VALUE = 30.0

LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)

# Points at which a function's turns are looked for.
SEEN = 16_001

Target = Callable[[np.ndarray], np.ndarray]
# Rounding where the grid is used: (grid, deviation, size) → bound on what rounding adds to F.
Rounding = Callable[[Grid, float, float], float]


@dataclass(frozen=True)
class Fit:
    """A grid with what it costs: its sampled error plus its rounding bound."""

    cost: float
    error: float
    grid: Grid
    softness: float
    half_width: float


def chebyshev(lo: float, hi: float, count: int) -> np.ndarray:
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    return (lo + hi) / 2 + (hi - lo) / 2 * nodes


def dense(lo: float, hi: float, keys: int) -> np.ndarray:
    """Points close enough together to see every ripple of a grid of so many keys, ends included."""
    return np.linspace(lo, hi, 12 * keys + 33)


def turns(s: np.ndarray, values: np.ndarray, by: float) -> np.ndarray:
    """Where values turn from rising to falling or back, by more than so much."""
    changes = np.diff(np.round((values - values.min()) / max(by, 1e-300)))
    at = np.flatnonzero(changes)
    turned: np.ndarray = s[at[1:]][np.diff(np.sign(changes[at])) != 0]
    return turned


def least_squares(weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Values whose averages are nearest to what is wanted; small singular values are cut, which keeps them modest."""
    if not (np.isfinite(weights).all() and np.isfinite(wanted).all()):
        return np.full((*weights.shape[:-2], weights.shape[-1]), np.nan)  # LAPACK would say so on the terminal
    u, sizes, v = np.linalg.svd(weights, full_matrices=False)
    scale = np.divide(1, sizes, out=np.zeros_like(sizes), where=sizes > 1e-14 * sizes[..., :1])

    def solved(right: np.ndarray) -> np.ndarray:
        parts: np.ndarray = scale[..., None] * (u.swapaxes(-1, -2) @ right[..., None])
        solution: np.ndarray = (v.swapaxes(-1, -2) @ parts)[..., 0]
        return solution

    values = solved(wanted)
    # Once more on what is left: the second pass takes out the rounding of the first.
    fitted: np.ndarray = values + solved(wanted - (weights @ values[..., None])[..., 0])
    return fitted


def cost(grid: Grid, f: np.ndarray, s: np.ndarray, rounding: Rounding) -> tuple[float, float]:
    """(sampled error + rounding bound, sampled error), with f at the points s: what every search minimises."""
    if not all(np.isfinite(part).all() for part in (grid.numbers.slopes, grid.numbers.intercepts, grid.numbers.values)):
        return math.inf, math.inf  # a narrow dtype holds no grid that is too sharp
    error, deviation, size = grid.sampled(f, s)
    total = error + rounding(grid, deviation, size)
    return (total if math.isfinite(total) else math.inf), error


@dataclass(frozen=True)
class Shaped:
    """Keys of one shape with fitted values, as the dtype stores them, and what they do at the points they were tested.

    Rounding is not included: it depends on where the grid is used.
    """

    keys: Keys
    error: float
    deviation: float
    size: float


# Grids fitted to one target on one interval, by (keys, softness, half_width).
Fitted = dict[tuple[int, float, float], Shaped | None]
Samples = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Spectral:
    """The search for soft grids for one target on one interval."""

    f: Target
    lo: float
    hi: float
    dtype: torch.dtype
    rounding: Rounding
    largest: float = LARGEST_VALUE
    sigmoid: tuple[float, float, float, float] | None = None
    """p, q, a and b where f is p + q·σ(a·s + b)."""
    typical: bool = False
    """Weigh grids by the error to expect on ordinary data rather than by its bound."""
    fitted: Fitted = field(default_factory=dict, compare=False)
    """What was fitted already, by this search or by one that weighs the same grids otherwise."""
    _sampled: dict[int, Samples] = field(default_factory=dict, init=False, compare=False)
    _best: dict[int, Fit | None] = field(default_factory=dict, init=False, compare=False)

    def fit(self, keys: int, shapes: Sequence[tuple[float, float]], best: Fit | None = None) -> Fit | None:
        """The cheapest of `best` and of grids of so many keys with these shapes (softness, half_width).

        Weighing takes longer than fitting. No grid costs less than it errs, and rounding goes about with the deviation:
        a grid is not weighed where its error and a quarter of what rounding should make of its deviation cost too much.
        """
        self._shape(keys, [shape for shape in shapes if (keys, *shape) not in self.fitted])
        known = [(shape, self.fitted[keys, *shape]) for shape in shapes]
        left = sorted(((shape, each) for shape, each in known if each), key=lambda pair: pair[1].error)
        rate = 0.0
        while left:
            shape, each = left.pop(0)
            if best is not None and self._surely(each, rate / 4) >= best.cost:
                continue
            fit = self._weigh(each, *shape)
            best = _cheapest([best, fit])
            if not rate and each.deviation and math.isfinite(fit.cost):
                rate = (fit.cost - fit.error) / each.deviation
                left.sort(key=lambda pair: pair[1].error + rate * pair[1].deviation)
        return best

    def _surely(self, shaped: Shaped, rate: float) -> float:
        """What a grid costs at least, by all appearances."""
        return 1e-3 * shaped.error if self.typical else shaped.error + rate * shaped.deviation

    def _shape(self, keys: int, shapes: Sequence[tuple[float, float]]) -> None:
        """Fit values for the slopes and intercepts as the dtype stores them; None where they grow too large."""
        if not shapes:
            return
        nodes, wanted, s, f = self._samples(keys)
        together = max(1, CHUNK // (4 * len(s) * keys))
        for start in range(0, len(shapes), together):
            some = shapes[start : start + together]
            softness, half_width = np.array(some).T[:, :, None]
            center, spacing = (self.lo + self.hi) / 2, (self.hi - self.lo) / 2 / half_width
            offsets = np.arange(keys) - (keys - 1) / 2
            slopes = 2 * softness * offsets / spacing
            slopes, intercepts = self._stored(slopes), self._stored(-softness * offsets**2 - slopes * center)
            # A narrow dtype holds no grid that is too sharp.
            held = np.isfinite(slopes + intercepts).all(axis=-1, keepdims=True)
            slopes, intercepts = np.where(held, slopes, 0.0), np.where(held, intercepts, 0.0)
            values = least_squares(weights(slopes, intercepts, nodes), wanted)
            # Of an odd function they are odd but for rounding, and the keys are: who reads them need read half.
            values = self._stored((values - values[..., ::-1]) / 2 if self._odd else values)
            fitting = held[:, 0] & (np.abs(values).max(axis=-1) <= self.largest * np.abs(wanted).max())
            found = statistics(weights(slopes[fitting], intercepts[fitting], s), values[fitting], f)
            made = zip(slopes[fitting], intercepts[fitting], values[fitting], *found, strict=True)
            for shape, works in zip(some, fitting, strict=True):
                if not works:
                    self.fitted[keys, *shape] = None
                    continue
                a, b, v, *numbers = next(made)
                self.fitted[keys, *shape] = Shaped(Keys(a, b, v), *map(float, numbers))

    def _stored(self, part: np.ndarray) -> np.ndarray:
        rounded: np.ndarray = torch.from_numpy(part).to(self.dtype).double().numpy()
        return rounded

    def _samples(self, keys: int) -> Samples:
        """Where grids of so many keys are fitted and tested, and f there: nodes, f(nodes), points, f(points)."""
        if keys not in self._sampled:
            nodes, s = chebyshev(self.lo, self.hi, 3 * keys + 2), dense(self.lo, self.hi, keys)
            self._sampled[keys] = nodes, self.f(nodes), s, self.f(s)
        return self._sampled[keys]

    @cached_property
    def _odd(self) -> bool:
        s = dense(0.0, self.hi, 8)
        return self.lo == -self.hi and np.array_equal(self.f(s), -self.f(-s))

    @cached_property
    def _rounding_of_f(self) -> float:
        """With values some times as large as f, as fits have them."""
        return 30 * unit(self.dtype) * float(np.abs(self.f(dense(self.lo, self.hi, 8))).max())

    def _weigh(self, shaped: Shaped, softness: float, half_width: float) -> Fit:
        keys = shaped.keys
        grid = Grid.stored(keys.slopes, keys.intercepts, keys.values, self.dtype, self.lo, self.hi, "spectral")
        if self.typical:
            total = grid.typical_error(self.f) + 1e-3 * shaped.error
        else:
            total = shaped.error + self.rounding(grid, shaped.deviation, shaped.size)
        return Fit(total if math.isfinite(total) else math.inf, shaped.error, grid, softness, half_width)

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
            shapes = [(near.softness, near.half_width * keys / len(near.grid)), (near.softness, near.half_width)]
        elif keys > 24:
            # Large grids are needed for detail, not for range: little margin, and a softness that no longer changes.
            shapes = [(softness, part * keys / 2) for softness in (3 / 16, 1 / 4, 3 / 8) for part in (0.6, 0.8, 0.95)]
        else:
            half_widths = np.geomspace(0.5, (keys + 1) / 2, max(2, min(7, keys))).tolist()
            shapes = [(softness, half_width) for softness in SOFTNESS for half_width in half_widths]
        found = self.fit(keys, shapes)
        for step in (1.25, 1.1) if found is not None else ():
            assert found is not None
            turns = [(step, 1), (1 / step, 1), (1, step), (1, 1 / step)]
            found = self.fit(keys, [(found.softness * a, found.half_width * b) for a, b in turns], found)
        return found

    def logistic(self) -> Fit | None:
        """Two keys are p + q·σ(a·s + b) exactly: sigmoid and tanh need no more, on any range."""
        if self.sigmoid is None:
            return None
        p, q, a, b = self.sigmoid if self.sigmoid[2] > 0 else _turned(*self.sigmoid)
        parts = (np.array([-a / 2, a / 2]), np.array([-b / 2, b / 2]), np.array([p, p + q]))
        s = np.linspace(self.lo, self.hi, 4001)
        keys = Keys(*map(self._stored, parts))
        numbers = map(float, statistics(keys.weights(s), keys.values, self.f(s)))
        return self._weigh(Shaped(keys, *numbers), 1.0, 1.0)

    def smallest(self, tolerance: float, limit: int = 512, like: Fit | None = None) -> Fit | None:
        """The smallest grid within the tolerance; else the cheapest found, for the caller to judge.

        A grid shaped `like` that of another segment of the same function is tried first, and made smaller step by step.
        """
        found = self._like(like, tolerance) if like is not None and 2 < len(like.grid) <= limit else None
        if found is not None and found.cost <= tolerance:
            while len(found.grid) > 3:
                keys = len(found.grid) - 1
                shapes = [
                    (found.softness, found.half_width),
                    (found.softness, found.half_width * keys / len(found.grid)),
                ]
                fewer = self.fit(keys, shapes)
                if fewer is None or fewer.cost > tolerance:
                    break
                found = fewer
            return found
        champion: Fit | None = None
        below, stale, settled = 0, 0, False
        for keys in [k for k in LADDER if k < limit] + [limit]:
            found = self.best(keys)
            if found is not None and found.cost <= tolerance:
                return self._shrink(tolerance, below, found)
            # Where interpolation alone would do, or errs by no more than f's own rounding, rounding is what fails: stop
            # once more keys no longer improve on it.
            settled = settled or (found is not None and found.error < max(tolerance / 2, self._rounding_of_f))
            if settled:
                better = found is not None and (champion is None or found.cost < 0.9 * champion.cost)
                stale = 0 if better else stale + 1
            champion = _cheapest([champion, found])
            if stale >= 3:
                break
            below = keys
        return champion

    def rounding_rules(self, tolerance: float) -> bool:
        """Whether the grid that errs least, of those that were weighed, is kept from the tolerance by rounding."""
        finest = min(filter(None, self._best.values()), key=lambda fit: fit.error, default=None)
        if finest is None or finest.cost <= tolerance:
            return False
        return finest.error <= tolerance or finest.cost - finest.error > tolerance

    def hopeless(self, keys: int, tolerance: float) -> bool:
        """Claim: where this holds, grids of so many keys err by more than the tolerance at the points they are tested.

        Proof. F − c is a sum of one exponential a key, over a positive one, and has fewer zeros than keys, whatever c:
        divided by one of them and differentiated it has one exponential less and, by Rolle, one zero less at most.
        Within the tolerance it would have the sign of f − c wherever that is beyond ±tolerance, and as many zeros as
        this has changes. QED
        """
        f = self._samples(keys)[3]
        off = f - (f.min() + f.max()) / 2
        return int(np.count_nonzero(np.diff(np.sign(off[np.abs(off) > tolerance])))) >= keys

    def _like(self, like: Fit, tolerance: float) -> Fit | None:
        """The shape of another segment; only where it fails, shapes near it."""
        same = self.fit(len(like.grid), [(like.softness, like.half_width)])
        return same if same is not None and same.cost <= tolerance else self.best(len(like.grid), like)

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


def _turned(p: float, q: float, a: float, b: float) -> tuple[float, float, float, float]:
    """The same, as σ(−x) = 1 − σ(x)."""
    return p + q, -q, -a, -b


def _cheapest(fits: list[Fit | None]) -> Fit | None:
    return min((fit for fit in fits if fit is not None), key=lambda fit: fit.cost, default=None)
