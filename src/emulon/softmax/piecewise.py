"""One soft grid per piece, and gates: the softmax itself picks the piece.

Every key right of a gate κ gets a steeper score. Inside a piece the gate adds the same to all its keys, so the weights
there are undisturbed; across the gate, where the log-normalisers of the two pieces are made equal at κ and their slopes
differ by G, the wrong piece keeps a share of about e^{−G|s−κ|}. Log-normalisers are convex, so beyond the margin of a
piece its slope exceeds the one at κ by no more than its steepest key; G is chosen above that excess.

A gate at a kink costs about 0.28·|change of slope|/G; at a jump it is wrong in a band of width O(1/G), and says so; at
a junction (a cut through a smooth segment, where both pieces are fitted a little beyond the cut) it costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from emulon.certify.certificate import Band
from emulon.certify.interpolation import Keys
from emulon.certify.rounding import unit
from emulon.expressions import Break, Function
from emulon.softmax.grid import Grid
from emulon.softmax.spectral import LARGEST_VALUE, Fit, Fitted, Rounding, Spectral, Target, chebyshev, least_squares

# A soft piece that needs more keys than this is cut in two.
PIECE_LIMIT = 56
# How far beyond a junction both neighbours are fitted, as a part of the shorter one.
OVERLAP = 0.08
# Cut further, a segment is given up.
MOST_PIECES = 256
# Neighbours are tried as one piece until that has failed so often.
MOST_IN_VAIN = 3
# Values of gated pieces stay within this many times max |f|.
GATED_VALUE = 4.0
# How much of the shortest piece the band at a jump may take.
WIDEST_BAND = 0.01


@dataclass(frozen=True)
class Gate:
    """Hands over at `at`; `sharpness` is the change of log-odds per unit of s there."""

    at: float
    sharpness: float


def assemble(pieces: list[Grid], gates: list[Gate], bands: tuple[Band, ...] = (), pivot: int | None = None) -> Grid:
    """One grid out of neighbouring ones, joined by gates.

    Softmax ignores what all keys share, so scores can be centred: on all pieces together, or on the `pivot` one, whose
    scores then stay as small as they are alone.
    """
    slopes, intercepts = [pieces[0].numbers.slopes], [pieces[0].numbers.intercepts]
    for gate, right in zip(gates, pieces[1:], strict=True):
        a, b = slopes[-1], intercepts[-1]
        level, slope = _log_normaliser(a, b, gate.at)
        own_level, own_slope = _log_normaliser(right.numbers.slopes, right.numbers.intercepts, gate.at)
        excess = (a.max() - slope) + (own_slope - right.numbers.slopes.min())
        tilt = slope - own_slope + excess + gate.sharpness
        slopes.append(right.numbers.slopes + tilt)
        intercepts.append(right.numbers.intercepts + level - own_level - tilt * gate.at)
    a, b = np.concatenate(slopes), np.concatenate(intercepts)
    around = slice(None) if pivot is None else slice(*np.cumsum([0, *map(len, slopes)])[pivot : pivot + 2])
    a, b = a - (a[around].max() + a[around].min()) / 2, b - (b[around].max() + b[around].min()) / 2
    values = np.concatenate([piece.numbers.values for piece in pieces])
    return Grid.stored(a, b, values, pieces[0].dtype, pieces[0].lo, pieces[-1].hi, "piecewise", bands)


def _log_normaliser(slopes: np.ndarray, intercepts: np.ndarray, s: float) -> tuple[float, float]:
    """log Σ exp(score) and its derivative at s."""
    scores = slopes * s + intercepts
    weights = np.exp(scores - scores.max())
    return float(scores.max() + np.log(weights.sum())), float(weights @ slopes / weights.sum())


@dataclass(frozen=True)
class Piecewise:
    """The search for gated grids for one function on one interval."""

    function: Function
    f: Target
    lo: float
    hi: float
    dtype: torch.dtype
    rounding: Rounding
    noise: float
    _searches: dict[tuple[object, ...], Spectral] = field(default_factory=dict, init=False, compare=False)
    _fitted: dict[tuple[float, float, float], Fitted] = field(default_factory=dict, init=False, compare=False)
    # The last piece of every depth of cutting: the next one will be much like it.
    _lately: dict[int, Fit] = field(default_factory=dict, init=False, compare=False)

    def smallest(self, tolerance: float) -> Grid | None:
        """Pieces between the function's breaks, each cut further where that saves keys, joined by gates."""
        breaks = self.function.breaks(self.lo, self.hi)
        edges = [self.lo, *(b.at for b in breaks), self.hi]
        shortest = min(right - left for left, right in pairwise(edges))
        sharpest = max((self._least_sharpness(b, tolerance, shortest) for b in breaks), default=0.0)
        pieces: list[Grid] = []
        gates: list[Gate] = []
        bands: list[Band] = []
        plans: list[list[Fit]] = []
        for index, segment in enumerate(pairwise(edges)):
            opposite = len(edges) - 2 - index
            plan = [_mirrored(fit) for fit in reversed(plans[opposite])] if self._odd and opposite < index else None
            plan = plan or self._segment(*segment, tolerance / 4, sharpest)
            if plan is None:
                return None
            plans.append(plan)
            if index:
                gate, band = self._break_gate(breaks[index - 1], tolerance, pieces[-1], plan[0].grid)
                gates.append(gate)
                bands += [band] if band else []
            for k, fit in enumerate(plan):
                if k:
                    gates.append(_junction_gate(plan[k - 1].grid, fit.grid, tolerance))
                pieces.append(fit.grid)
        grid = assemble(pieces, gates, tuple(bands), self._pivot(pieces))
        # Of what is odd to the last bit half need be read.
        fitted = self._refit(grid, pieces)
        return _made_odd(fitted) if self._odd and _has_odd_keys(grid) else fitted

    def _pivot(self, pieces: list[Grid]) -> int | None:
        """In float32 a large score has no digits for what keys of a piece differ by: those of the longest are small."""
        return int(np.argmax([len(piece) for piece in pieces])) if self.dtype == torch.float32 else None

    def _segment(self, lo: float, hi: float, tolerance: float, sharpness: float) -> list[Fit] | None:
        """Soft pieces between two breaks. Of an odd function on both sides of zero, one side and its mirror image."""
        whole = self._alone(lo, hi, tolerance, sharpness, 0)
        if whole is not None:
            return [whole]
        if self._odd and lo == -hi:
            right = self._plan(-OVERLAP * hi, hi, tolerance, sharpness, 1)
            half = None if right is None else self._merge(right, tolerance, sharpness)
            return None if half is None else [*map(_mirrored, reversed(half)), *half]
        plan = self._halves(lo, hi, tolerance, sharpness, 0)
        return None if plan is None else self._merge(plan, tolerance, sharpness)

    @cached_property
    def _odd(self) -> bool:
        """By all appearances, f(−s) = −f(s): then one side is the other's mirror image."""
        s = np.linspace(0.0, self.hi, 257)[1:]
        return self.lo == -self.hi and np.array_equal(self.f(s), -self.f(-s))

    def _refit(self, grid: Grid, pieces: list[Grid]) -> Grid:
        """Values fitted once more, for the slopes as they are stored: a sharp gate rounds them coarsely."""
        values = grid.values.clone()
        start = 0
        for piece in pieces:
            own = slice(start, start + len(piece))
            start += len(piece)
            if len(piece) < 3:
                continue
            numbers = grid.numbers
            alone = Keys(
                numbers.slopes[own] - numbers.slopes[own][0],
                numbers.intercepts[own] - numbers.intercepts[own][0],
                numbers.values[own],
            )
            nodes = chebyshev(piece.lo, piece.hi, 3 * len(piece) + 2)
            fitted = least_squares(alone.weights(nodes), self._inside(piece.lo, piece.hi)(nodes))
            values[own] = torch.tensor(fitted, dtype=values.dtype, device="cpu")
        return replace(grid, values=values)

    def _inside(self, lo: float, hi: float) -> Target:
        """At a jump the ends of a piece belong to the neighbour: stay a hair inside."""
        size = min(1.0, max(abs(self.lo), abs(self.hi)))
        left, right = lo + 1e-12 * (size + abs(lo)), hi - 1e-12 * (size + abs(hi))
        return lambda s: self.f(np.clip(s, left, right))

    def _spectral(self, lo: float, hi: float, sharpness: float) -> Spectral:
        """Soft grids for one piece. A gate makes its scores larger by up to sharpness·|s|, and so their rounding."""
        key = (lo, hi, sharpness)
        if key in self._searches:
            return self._searches[key]

        def gated(grid: Grid, deviation: float, size: float) -> float:
            tilted = replace(grid, slopes=grid.slopes + sharpness / 2, lo=self.lo, hi=self.hi)
            return self.rounding(tilted, deviation, size)

        # Gates make large scores, and their rounding meets the values' spread: keep it small.
        largest = GATED_VALUE if sharpness else LARGEST_VALUE
        # Another sharpness weighs the same grids otherwise.
        fitted = self._fitted.setdefault((lo, hi, largest), {})
        search = Spectral(self._inside(lo, hi), lo, hi, self.dtype, gated, largest=largest, fitted=fitted)
        return self._searches.setdefault(key, search)

    def _plan(self, lo: float, hi: float, tolerance: float, sharpness: float, depth: int) -> list[Fit] | None:
        """Soft pieces that cover [lo, hi], overlapping a little at the junctions."""
        fit = self._alone(lo, hi, tolerance, sharpness, depth)
        return [fit] if fit is not None else self._halves(lo, hi, tolerance, sharpness, depth)

    def _alone(self, lo: float, hi: float, tolerance: float, sharpness: float, depth: int) -> Fit | None:
        """One soft piece for [lo, hi], where cutting it would not help."""
        spectral = self._spectral(lo, hi, sharpness)
        # Hopeless segments are found by their largest grid alone, without climbing up to it.
        hopeful = depth == 0
        if depth and not spectral.hopeless(PIECE_LIMIT, tolerance):
            hopeful = (most := spectral.best(PIECE_LIMIT)) is None or most.error <= tolerance
        like = self._lately.get(depth)
        fit = spectral.smallest(tolerance, limit=PIECE_LIMIT, like=like) if hopeful else None
        # Rounding does not fall by cutting: where it rules, take the piece as it is and let the caller judge the whole.
        # The cheapest may then be one key that errs by all of f: a staircase of those would not end.
        rounds = fit is not None and (fit.cost - fit.error > tolerance or spectral.rounding_rules(tolerance))
        if fit is not None and (rounds or fit.error <= max(tolerance, self._noise(fit))):
            if depth:
                self._lately[depth] = fit
            return fit
        return None

    def _halves(self, lo: float, hi: float, tolerance: float, sharpness: float, depth: int) -> list[Fit] | None:
        if depth >= 12:
            return None
        middle, extra = (lo + hi) / 2, OVERLAP * (hi - lo) / 2
        left = self._plan(lo, middle + extra, tolerance, sharpness, depth + 1)
        right = self._plan(middle - extra, hi, tolerance, sharpness, depth + 1) if left else None
        if not left or not right or len(left) + len(right) > MOST_PIECES:
            return None
        return left + right

    def _noise(self, fit: Fit) -> float:
        """Below this a least-squares residual is rounding, not interpolation."""
        return 200 * unit(self.dtype) * _largest(fit.grid)

    def _merge(self, plan: list[Fit], tolerance: float, sharpness: float) -> list[Fit]:
        """Let the simpler of two neighbours reach as far as it can; join them if one grid does it with fewer keys."""
        merged, vain = [plan[0]], 0
        for piece in plan[1:]:
            last, piece = self._trim(merged[-1], piece, tolerance, sharpness)
            limit = len(last.grid) + len(piece.grid) - 1
            joint = None
            # A long row of pieces is of one kind: what was in vain for the first of them is so for the others.
            if limit <= 2 * PIECE_LIMIT and vain < MOST_IN_VAIN:
                spectral = self._spectral(last.grid.lo, piece.grid.hi, sharpness)
                most = spectral.best(limit)
                if most is not None and most.cost <= tolerance:
                    joint = spectral.smallest(tolerance, limit=limit, like=most)
            if joint is not None and joint.cost <= tolerance:
                merged[-1], vain = joint, 0
            else:
                merged[-1:] = [last, piece]
                vain += 1
        return merged

    def _trim(self, left: Fit, right: Fit, tolerance: float, sharpness: float) -> tuple[Fit, Fit]:
        """Move the junction into the piece with more keys, as far as the one with fewer still covers."""
        fewer, more = sorted((len(left.grid), len(right.grid)))
        if more < 1.25 * fewer:
            return left, right
        forward = len(left.grid) < len(right.grid)
        small, large = (left, right) if forward else (right, left)
        fixed, near, far = (
            (left.grid.lo, left.grid.hi, right.grid.hi) if forward else (right.grid.hi, right.grid.lo, left.grid.lo)
        )
        reached = small
        for _ in range(6):
            middle = (near + far) / 2
            trial = self._spectral(min(fixed, middle), max(fixed, middle), sharpness).best(len(small.grid))
            if trial is not None and trial.cost <= tolerance:
                near, reached = middle, trial
            else:
                far = middle
        if reached is small:
            return left, right
        end = large.grid.hi if forward else large.grid.lo
        junction = (
            near + OVERLAP * (near - end) / (1 + OVERLAP)
            if abs(near - end) < abs(near - fixed)
            else near - OVERLAP * (near - fixed)
        )
        rest = self._spectral(min(junction, end), max(junction, end), sharpness).smallest(
            tolerance, limit=len(large.grid)
        )
        if rest is None or rest.cost > tolerance:
            return left, right
        return (reached, rest) if forward else (rest, reached)

    def _least_sharpness(self, at: Break, tolerance: float, shortest: float) -> float:
        """At a kink half the tolerance goes to 0.28·Δslope/G; at a jump the band may take a part of the piece."""
        if not at.jump:
            return 0.56 * at.slope_change / tolerance
        largest = LARGEST_VALUE * max(abs(at.left), abs(at.right), abs(at.left - at.right))
        return 2 * math.log(40 * largest / tolerance + math.e) / (WIDEST_BAND * shortest)

    def _break_gate(self, at: Break, tolerance: float, left: Grid, right: Grid) -> tuple[Gate, Band | None]:
        """A kink wants a certain sharpness. A jump takes the sharpest gate that rounding leaves harmless."""
        largest = _largest(left, right)
        shorter = min(left.hi - left.lo, right.hi - right.lo)
        if not at.jump:
            # Beyond the kink a piece is continued by extrapolation, good for a small part of its own width (one or two
            # keys are continued exactly): there it must be gone.
            widths = [piece.hi - piece.lo for piece in (left, right) if len(piece) > 2]
            gone = math.log(100 * largest / tolerance + math.e) / (0.03 * min(widths)) if widths else 0.0
            return Gate(at.at, max(self._least_sharpness(at, tolerance, shorter), gone)), None
        noise = self.noise * max(abs(self.lo), abs(self.hi))
        deviation = max(float(np.ptp(left.numbers.values)), float(np.ptp(right.numbers.values)))
        sharpness = min(1e-3 / noise, tolerance / (32 * noise * deviation) if deviation else math.inf)
        sharpness = max(sharpness, self._least_sharpness(at, tolerance, shorter))
        width = math.log(max(40 * max(largest, abs(at.left - at.right)) / tolerance, math.e)) / sharpness
        # f(κ) itself belongs to one side: move the gate so that the band lies on the other.
        side = math.isclose(at.value, at.left, abs_tol=1e-9) - math.isclose(at.value, at.right, abs_tol=1e-9)
        center = at.at + side * width
        lo, hi = (at.at, center + width) if side > 0 else (center - width, at.at if side < 0 else center + width)
        if not at.exact:
            lo, hi = min(lo, at.at - at.nearby), max(hi, at.at + at.nearby)
        return Gate(center, sharpness), Band(lo, hi)


def _mirrored(fit: Fit) -> Fit:
    """The same for −s."""
    grid = fit.grid
    slopes, intercepts, values = (part.flip(0) for part in (-grid.slopes, grid.intercepts, -grid.values))
    return replace(fit, grid=Grid(slopes, intercepts, values, -grid.hi, -grid.lo, grid.way))


def _has_odd_keys(grid: Grid) -> bool:
    return torch.equal(grid.slopes, -grid.slopes.flip(0)) and torch.equal(grid.intercepts, grid.intercepts.flip(0))


def _made_odd(grid: Grid) -> Grid:
    """The mean of a grid and its mirror image, key by key."""
    slopes, intercepts, values = (
        (part + sign * part.flip(0)) / 2 for part, sign in ((grid.slopes, -1), (grid.intercepts, 1), (grid.values, -1))
    )
    return replace(grid, slopes=slopes, intercepts=intercepts, values=values)


def _junction_gate(left: Grid, right: Grid, tolerance: float) -> Gate:
    """Inside the overlap both pieces are right; beyond it the wrong one must be gone."""
    at, half = (left.hi + right.lo) / 2, (left.hi - right.lo) / 2
    return Gate(at, math.log(100 * _largest(left, right) / tolerance + math.e) / half)


def _largest(*pieces: Grid) -> float:
    return max(1e-300, *(float(np.abs(piece.numbers.values).max()) for piece in pieces))
