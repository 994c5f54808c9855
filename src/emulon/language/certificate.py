"""How far a run by text can be from the exact iterates, known before it: from the prompt alone, for any correct engine.

Claim. Written behind `text_of(prompt)` by an engine as `ASSUMES` says, the weights after step t are within `bounds[t]`
of the exact iterates, in the sup norm. U = 2^-24; a sum of k numbers in any order is off by at most k·U·Σ|terms|.
One step, from written weights w, errors in what the registers of `language.interpreter` hold:
  r     whole parts are integers below 2^24: exact. The rest, t_r = Σ|w||x_l| + |w_l||x| + |y_l|, is off by
        (2d + 12)·U·t_r; a read takes `LEAK` of a number from other words.
  f     of K pieces: (K + 12)·U·(max|times_k|·|r| + max|plus_k|), 7·U of one, pieces held to 3·U, and the softmax's:
        scores are off by Δ ≤ 2^s·16·U·(|slope|·|r| + |bias|), so a soft gate by Δ·range of the pieces; two hard pieces
        that meet at κ by |times_j − times_k|·(2Δ + 1)/(2^s·|slope_j − slope_k|) near κ, by a jump there twice, and by
        nothing that counts 2Δ + 60 nats away.
  g     f = f_h + f_l, f_h a multiple of 2^-8 and any number within 2^-8 of f: f_h·x_h and its sums are exact, as long
        as Σ|f||x_h| ≤ 2^16; (n + 17)·U of Σ|f_l·x_h| + |f·x_l| else. The weights of a block of 2^b rows are 2^-b.
  u     whole hundredths, and momentum's, exact; 8·U of rate·|mean|, 20·U of |w_l| + rate·ridge·|w| + what is left of
        momentum's part.
  g(u)  as f; nothing where one piece of times 0 or ±1 is left.
  words The nearest multiple of 1e-8, but for 6·U·c² of its score, c the number of the word: a wrong first or second
        word is mended by the next one, which goes to 999.
All steps. The deviations e_t = written − exact are J_t·e_{t−1} + …, with J_t the step's divided differences along the
exact path, whose middles are applied to generators of e (a zonotope) and whose radii, as the errors of a step, make new
ones: Σ over generators of |entry| bounds e_t. Float64's own errors are below a relative 1e-9, which is added. QED
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulon.certify.transcript_checker import HARD, PRECISION, Gate, Prompt, exact_iterates
from emulon.expressions.evaluation import ball_arithmetic
from emulon.machine.token_error import ASSUMES as ROUTED

ASSUMES = (*ROUTED, "activations are stored in float32, exp(0) is 1, and quotients and silu are within two roundings")
U = 2.0**-24
UNIT = 1e-8
LEAK = 2e-10  # of a number, what `machine.token_error` leaves to other words: 1e-11 of 20
GRID = 1.1 * 2.0**-8  # between f and its coarse part
FAR = 60.0  # nats
HIGHEST = 8.0  # beyond it the nearest first word may be missed by more than the next can mend
SPARE = 1 + 1e-9
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pieces:
    """A gate in numbers: what it may be off by, and how steep it is, where its argument lies in an interval."""

    sharpness: int
    slope: Array
    bias: Array
    times: Array
    plus: Array

    @classmethod
    def of(cls, gate: Gate) -> Pieces:
        columns = np.array(gate.pieces, dtype=np.float64).T * UNIT
        return cls(gate.sharpness, *columns)

    @property
    def single(self) -> bool:
        return len(self.slope) == 1

    def crossings(self, low: float, high: float) -> tuple[NDArray[np.bool_], float]:
        """Which hard pieces may be read in the interval, and what that costs: kinks and jumps within reach."""
        steep, blur = 2.0**self.sharpness, self._blur(low, high)
        ends = np.array([low, high])
        scores = steep * (self.slope[:, None] * ends + self.bias[:, None])
        # A piece that is FAR below some one other at both ends is so in between.
        below = (scores[None] - scores[:, None] - 2 * (blur[None, :, None] + blur[:, None, None])).min(axis=2)
        read, cost = below.max(axis=1) <= FAR, 0.0
        for j, k in zip(*np.nonzero(np.triu(np.outer(read, read), 1)), strict=True):
            turn = abs(self.slope[j] - self.slope[k])
            gap = (self.bias[k] - self.bias[j]) / (self.slope[j] - self.slope[k]) if turn else 0.0
            jump = abs((self.times[j] - self.times[k]) * gap + self.plus[j] - self.plus[k])
            nats = 2 * (blur[j] + blur[k]) + 1
            near = abs(self.times[j] - self.times[k]) * nats / (steep * turn) if turn else math.inf
            cost += near + (2 * jump if jump > 2 * UNIT * (1 + abs(gap)) else jump)
        return read, cost

    def _blur(self, low: float, high: float) -> Array:
        """What the scores may be off by, in nats."""
        reach = max(abs(low), abs(high))
        parts: Array = (np.abs(self.slope) + 0.01) * reach + np.abs(self.bias) + 0.01
        return 2.0**self.sharpness * 16 * U * parts

    def rounding(self, low: float, high: float) -> float:
        """What the value may be off by for numbers that are stored and added in float32, the gate's weights given."""
        reach, count = max(abs(low), abs(high)), len(self.slope)
        largest, most = float(np.abs(self.times).max()), float(np.abs(self.plus).max())
        stored = 3 * U * ((largest + 0.01) * reach + most + 0.01) * (not self._exact)
        rounded = (7 if self.single else count + 12) * U * (largest * reach + most)
        return stored + rounded

    def gating(self, low: float, high: float) -> float:
        """What weights of the pieces that are off add."""
        if self.single:
            return 0.0
        if self.sharpness == HARD:
            return self.crossings(low, high)[1]
        blur = self._blur(low, high).max()
        lines = self.times[:, None] * np.array([low, high]) + self.plus[:, None]
        return float(1.01 * (blur + 8 * U) * np.ptp(lines, axis=0).max())

    def steepness(self, low: float, high: float) -> tuple[float, float]:
        """The least and the largest divided difference between two points of the interval, jumps left out."""
        if self.single:
            return float(self.times[0]), float(self.times[0])
        if self.sharpness == HARD:
            read = self.times[self.crossings(low, high)[0]]
            return float(read.min()), float(read.max())
        steep = 2.0**self.sharpness
        reach = max(abs(low), abs(high))
        if len(self.slope) > 2 or self.times.any():
            wide = np.ptp(np.abs(self.times) * reach + np.abs(self.plus)) + 2 * np.abs(self.plus).max()
            most = float(np.abs(self.times).max() + steep * np.ptp(self.slope) * wide / 4)
            return -most, most
        # Two constants under a logistic weight: their difference times p·(1 − p), largest where p = ½.
        turn, shift = self.slope[0] - self.slope[1], self.bias[0] - self.bias[1]
        ends = np.abs(steep * (turn * np.array([low, high]) + shift))
        inside = (turn * low + shift) * (turn * high + shift) <= 0
        flat = 0.25 / np.cosh(np.array([0.0 if inside else ends.min(), ends.max()]) / 2) ** 2
        values = steep * turn * (self.plus[0] - self.plus[1]) * flat
        return float(values.min() - 1e-12), float(values.max() + 1e-12)

    def keeps(self, low: float, high: float) -> bool:
        """Whether one piece is read, of a `times` that multiplies exactly."""
        if self.single:
            return self._exact
        hard = self.sharpness == HARD
        return hard and self._exact and int(self.crossings(low, high)[0].sum()) == 1

    @property
    def _exact(self) -> bool:
        return bool(np.isin(self.times, (-1.0, 0.0, 1.0)).all()) and (self.single or not self.plus.any())


def bounds(prompt: Prompt) -> tuple[float, ...]:
    """Proved distances of the weights after every step from the exact iterates, known before the model runs.

    Args:
        prompt: What the model will be asked; its text is `text_of(prompt)`.
    Returns:
        A bound for every step in the sup norm; infinite from the step on at which nothing can be said: weights above
        8, or so wide a range that every piece of a gate may be read.

    Example:
        >>> bounds(prompt(Ridge(0.3, steps=30), x, y))[-1] < 1e-6
        True
    """
    steps = prompt.until - prompt.first
    with ball_arithmetic(PRECISION):
        balls = exact_iterates(prompt, steps)
        path = np.array([[float(ball.mid()) for ball in row] for row in balls]).reshape(steps, len(prompt.start))
        around = np.array([[float(ball.rad()) for ball in row] for row in balls]).reshape(path.shape)
    before, start = np.array(prompt.before, float), np.array(prompt.start, float)
    path = np.vstack([before, start, path]) * UNIT
    tube = Tube(prompt)
    found: list[float] = []
    for t in range(steps):
        with np.errstate(over="ignore", invalid="ignore"):
            reached = tube.step(path[t + 1], path[t], path[t + 2])
        if not math.isfinite(reached) or np.abs(path[t + 2]).max() + reached > HIGHEST:
            return (*found, *[math.inf] * (steps - t))
        found.append(reached + float(around[t].max()) * UNIT)
    return tuple(found)


class Tube:
    """Around the exact path: generators of the deviations of the last two iterates, columns (features, generators)."""

    def __init__(self, prompt: Prompt) -> None:
        signs = np.array([target // 10**8 if prompt.margin else 1 for target in prompt.targets], dtype=np.float64)
        rows = np.array(prompt.rows, dtype=np.float64).reshape(len(signs), len(prompt.start))
        high = np.round(rows / 1e6)
        self.x, self.y = rows * UNIT * signs[:, None], np.array(prompt.targets, dtype=np.float64) * UNIT
        self.x_h, self.x_l = np.abs(high), np.abs(rows - 1e6 * high) * UNIT
        self.y_h, self.y_l = np.abs(self.y).max(initial=0.0), np.abs(self.y - np.round(self.y, 2))
        if prompt.margin:
            self.y = np.zeros_like(self.y)
        self.rate, self.ridge, self.momentum = (
            number * UNIT for number in (prompt.rate, prompt.ridge, prompt.momentum)
        )
        self.loss, self.prox = Pieces.of(prompt.loss), Pieces.of(prompt.prox)
        self.now = self.last = np.zeros((len(prompt.start), 0))

    def step(self, w: Array, before: Array, after: Array) -> float:
        """One step further, from the exact iterates w and before to after: the largest deviation there."""
        n, d = self.x.shape
        reach = np.abs(self.now).sum(axis=1)
        wide = np.abs(self.x @ self.now).sum(axis=1) * SPARE
        r, most_w, moved = self.x @ w - self.y, np.abs(w) + reach, np.abs(w - before) + reach
        moved = moved + np.abs(self.last).sum(axis=1)

        # One step's own errors, at any weights of the tube; none are known where whole parts are not exact.
        if (self.x_h @ (100 * most_w + 1)).max(initial=0.0) + 1e4 * self.y_h + 200 > 2.0**24:
            return math.inf
        rest = self.x_l @ most_w + np.abs(self.x).sum(axis=1) * 0.01 + self.y_l
        off_r = (2 * d + 12) * U * rest + LEAK * (np.abs(self.x).sum(axis=1) + most_w.sum() + 1)
        low, high = r - wide - off_r, r + wide + off_r
        steep = np.array([self.loss.steepness(a, b) for a, b in zip(low, high, strict=True)]).reshape(n, 2)
        f = (np.outer(np.maximum(np.abs(low), np.abs(high)), np.abs(self.loss.times)) + np.abs(self.loss.plus)).max(
            axis=1
        )
        if f.max(initial=0.0) > 2.0**13:
            return math.inf
        gating = np.array([self.loss.gating(a, b) for a, b in zip(low, high, strict=True)])
        off_f = np.array([self.loss.rounding(a, b) for a, b in zip(low, high, strict=True)]) + gating
        off_f += np.abs(steep).max(axis=1) * off_r
        small = GRID * self.x_h + 100 * f[:, None] * self.x_l
        off_sum = 100 * np.abs(self.x).T @ off_f + (n + 17) * U * small.sum(axis=0)
        whole = f @ self.x_h
        off_sum += np.where(whole > 2.0**16, (n + 17) * U * whole, 0.0)
        mean = f @ np.abs(self.x) / n
        parts = 0.01 + self.rate * self.ridge * most_w + self.momentum * 0.02 + 0.005 * moved
        off_u = (
            20 * U * parts + 8 * U * self.rate * mean + self.rate * off_sum / (100 * n) + 2 * LEAK * (1 + self.momentum)
        )

        # Where the exact steps from the tube lead.
        slope, radius = steep.mean(axis=1), np.ptp(steep, axis=1) / 2
        inner = self.now - self.rate * (self.x.T @ (slope[:, None] * (self.x @ self.now)) / n + self.ridge * self.now)
        inner = inner + self.momentum * (self.now - self.last)
        jumps = gating if self.loss.sharpness == HARD else 0.0
        spread = self.rate / n * np.abs(self.x).T @ (radius * wide + jumps)
        at_u = self._inner(w, before, r)
        width = (np.abs(inner).sum(axis=1) + spread + off_u) * SPARE + 1e-7  # of at_u, where a kink is met
        low, high = at_u - width, at_u + width
        steep = np.array([self.prox.steepness(a, b) for a, b in zip(low, high, strict=True)]).reshape(d, 2)
        off_g = self._prox_error(low, high, parts + self.rate * mean, most_w + self.momentum * moved)
        slope, radius = steep.mean(axis=1), np.ptp(steep, axis=1) / 2
        fresh = np.abs(slope) * (spread + off_u) + radius * width + off_g + self._rounding(np.abs(after) + width)
        self.last, self.now = (
            np.hstack([self.now, np.zeros((d, d))]),
            np.hstack([slope[:, None] * inner, np.diag(fresh * SPARE)]),
        )
        return float(np.abs(self.now).sum(axis=1).max() * SPARE)

    def _inner(self, w: Array, before: Array, r: Array) -> Array:
        """u of the exact step, to 1e-7: a hard gate is taken for a soft one of its sharpness."""
        loss = self.loss
        scores = 2.0**loss.sharpness * (np.outer(r, loss.slope) + loss.bias)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        lines = np.outer(r, loss.times) + loss.plus
        f = (weights * lines).sum(axis=1) / weights.sum(axis=1)
        u: Array = w - self.rate * (self.x.T @ f / len(r) + self.ridge * w) + self.momentum * (w - before)
        return u

    def _prox_error(self, low: Array, high: Array, rest: Array, whole: Array) -> Array:
        """Of g, read as times·whole + times·rest + plus."""
        gate, found = self.prox, np.zeros(len(low))
        largest, count = float(np.abs(gate.times).max()), len(gate.slope)
        for j, (a, b) in enumerate(zip(low, high, strict=True)):
            found[j] = 6 * U * (largest * rest[j] + np.abs(gate.plus).max() + 0.02)
            if not gate.keeps(a, b):
                found[j] += gate.rounding(a, b) + gate.gating(a, b) + (count + 12) * U * largest * (whole[j] + rest[j])
        return found

    @staticmethod
    def _rounding(weights: Array) -> Array:
        """Of a weight that is written: half a unit of 1e-8 and what scores of words may be off by."""
        left = 100 * weights + 1
        for _ in range(3):
            left = np.where(left < 2000, 0.5 + 6 * U * left**2, np.inf)
            found, left = left, 1000 * left
        return np.asarray(found * UNIT)
