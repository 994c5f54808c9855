"""A grid: the keys of one softmax that together act as a scalar function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import rounding
from emulon.certify.certificate import Band
from emulon.certify.interpolation import Keys
from emulon.certify.rounding import shifted_average

# Weights sampled at a time: as many as fit the cache well enough.
CHUNK = 1 << 21


@dataclass(frozen=True)
class Grid:
    """Keys with score_r(s) = slopes_r·s + intercepts_r and values_r, stored in the dtype they will run in.

    Args:
        slopes: Of scores, one a key.
        intercepts: Of scores.
        values: What the softmax averages.
        lo: Lower end of the interval.
        hi: Upper end.
        way: How it was made: "paper", "spectral" or "piecewise".
        bands: Intervals around jumps, which no bound covers.
    """

    slopes: Float[Tensor, " keys"]
    intercepts: Float[Tensor, " keys"]
    values: Float[Tensor, " keys"]
    lo: float
    hi: float
    way: str
    bands: tuple[Band, ...] = ()

    @classmethod
    def stored(
        cls,
        slopes: np.ndarray,
        intercepts: np.ndarray,
        values: np.ndarray,
        dtype: torch.dtype,
        lo: float,
        hi: float,
        way: str,
        bands: tuple[Band, ...] = (),
    ) -> Grid:
        """A grid from float64 arrays, each rounded to the dtype: from here on these numbers are exact."""
        tensors = [torch.tensor(part, dtype=dtype, device="cpu") for part in (slopes, intercepts, values)]
        return cls(tensors[0], tensors[1], tensors[2], lo, hi, way, bands)

    def __len__(self) -> int:
        return len(self.slopes)

    @property
    def dtype(self) -> torch.dtype:
        return self.slopes.dtype

    @property
    def range(self) -> float:
        """The largest |s| the grid is for."""
        return max(abs(self.lo), abs(self.hi))

    @cached_property
    def numbers(self) -> Keys:
        """The stored numbers, exactly, as float64 arrays."""
        return Keys(*(part.double().numpy() for part in (self.slopes, self.intercepts, self.values)))

    @cached_property
    def score_size(self) -> float:
        """max |slope·s| + |intercept| over keys and range: what rounding errors in scores are proportional to."""
        return float((np.abs(self.numbers.slopes) * self.range + np.abs(self.numbers.intercepts)).max())

    @cached_property
    def steepest(self) -> float:
        return float(np.abs(self.numbers.slopes).max())

    @cached_property
    def highest(self) -> float:
        """The largest |intercept|."""
        return float(np.abs(self.numbers.intercepts).max())

    @cached_property
    def largest(self) -> float:
        """The largest |value|."""
        return float(np.abs(self.numbers.values).max())

    @cached_property
    def log_normaliser_range(self) -> float:
        """Claim: at least sup − inf over [lo, hi] of log Σ_r exp(score_r(s)).

        It bounds how much another sample's tokens can outweigh one's own before routing.
        Proof. The function is convex: its sup is at an end, and it lies above its tangents. Where the slope changes
        sign between two points, its inf is between them and not below where their tangents meet; where it does not, the
        inf is at an end. Computed, a score is off by 3u·score_size at most, a logarithm by no more than that and
        (keys + 8)·u, exp being within four units in the last place, and a slope by as small a part of the largest,
        which times the width is below score_size again. A part 10⁻⁹ is a million times that. QED
        """
        values, slopes = self._log_normaliser(s := np.linspace(self.lo, self.hi, 33))
        highest, doubt = max(values[0], values[-1]), 1e-9 * (1 + self.score_size)
        if slopes[0] >= 0 or slopes[-1] <= 0:
            return float(highest - min(values[0], values[-1]) + doubt)
        for _ in range(2):
            right = int(np.searchsorted(slopes, 0.0).clip(1, len(s) - 1))
            values, slopes = self._log_normaliser(s := np.linspace(s[right - 1], s[right], 33))
        right = int(np.searchsorted(slopes, 0.0).clip(1, len(s) - 1))
        (low, high), (fall, rise) = values[right - 1 : right + 1], slopes[right - 1 : right + 1]
        width = s[right] - s[right - 1]
        lowest = min(low, high)
        if fall < 0 < rise:
            lowest = low + fall * np.clip((rise * width - (high - low)) / (rise - fall), 0.0, width)
        return float(highest - lowest + doubt)

    def _log_normaliser(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log Σ_r exp(score_r) and its derivative at every s."""
        weights = s[:, None] * self.numbers.slopes
        weights += self.numbers.intercepts
        top = weights.max(axis=1)
        weights -= top[:, None]
        np.exp(weights, out=weights)
        total = weights.sum(axis=1)
        return top + np.log(total), weights @ self.numbers.slopes / total

    def rounding_error(self, deviation: float, size: float, score_error: float | None = None) -> float:
        """Bound on what rounding adds to F(s), when scores are computed to within `score_error`.

        By default the score is the two-term product (s, 1)·(slope, intercept). `deviation` and `size` bound
        Σ w|v − F| and |F| for the exact weights w; those that are summed differ from them by factors within e^{±2δ}.
        """
        if score_error is None:
            score_error = rounding.dot(2, self.score_size, self.dtype)
        delta = rounding.softmax_weights(score_error, min(2 * self.score_size, 64.0), self.dtype)
        largest = self.largest
        magnitude = min((size + deviation) * math.exp(min(2 * delta, 700.0)), largest)
        # Weights below e⁻⁶⁴ may come out as anything smaller, and numbers below the dtype's smallest as zero.
        lost = len(self) * (2 * largest * math.exp(-64) + 4 * torch.finfo(self.dtype).tiny)
        return (
            shifted_average(delta, 2 * largest, deviation)
            + rounding.average(len(self), magnitude, self.dtype)
            + rounding.unit(self.dtype) * magnitude
            + lost
        )

    def typical_error(self, f: Callable[[np.ndarray], np.ndarray]) -> float:
        """The error to expect on ordinary data, rounding included: an estimate, to weigh grids by.

        Each score is off by an independent rounding of its own terms; data fill their range unevenly, so the geometric
        mean is taken over magnitudes from a fiftieth of the range to half of it. A bound must take the worst of all
        instead, which hides that close keys with small deviations round better in the middle of the range.
        """
        center, half = (self.lo + self.hi) / 2, (self.hi - self.lo) / 2
        parts = np.geomspace(0.02, 0.5, 160)
        s = center + half * np.concatenate([-parts, parts])
        weights = self.numbers.weights(s)
        values = weights @ self.numbers.values
        noise = np.abs(np.multiply.outer(s, self.numbers.slopes)) + np.abs(self.numbers.intercepts) + 2
        spread = np.square(weights * (self.numbers.values - values[:, None]) * noise).sum(axis=1)
        rounded = rounding.unit(self.dtype) ** 2 * (spread + values**2)
        return float(np.exp(np.log(np.square(values - f(s)) + rounded + 1e-300).mean() / 2))

    def sampled(self, f: np.ndarray, s: np.ndarray) -> tuple[float, float, float]:
        """(max |F − f|, max deviation, max |F|) at the points s, in float64: for searches, not a bound."""
        keep = np.ones(len(s), dtype=bool)
        for band in self.bands:
            keep &= (s <= band.lo) | (s >= band.hi)
        s, f = s[keep], f[keep]
        rows = max(1, CHUNK // len(self))
        keys = self.numbers
        parts = [
            statistics(keys.weights(s[k : k + rows]), keys.values, f[k : k + rows]) for k in range(0, len(s), rows)
        ]
        error, deviation, size = np.max(parts, axis=0).tolist()
        return error, deviation, size


def statistics(weights: np.ndarray, values: np.ndarray, f: np.ndarray) -> np.ndarray:
    """[max |F − f|, max Σ w|v − F|, max |F|] over points: weights (..., points, keys), values (..., keys)."""
    averages = (weights @ values[..., None])[..., 0]
    spread = np.abs(values[..., None, :] - averages[..., None])
    spread *= weights
    deviation = spread.sum(axis=-1).max(axis=-1)
    return np.stack([np.abs(averages - f).max(axis=-1), deviation, np.abs(averages).max(axis=-1)])
