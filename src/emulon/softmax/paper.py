"""The paper's own grid: exactly on the range, values f(L), β large. First order: the error is about the spacing."""

from __future__ import annotations

import math

import numpy as np
import torch

from emulon.softmax.grid import Grid
from emulon.softmax.spectral import Rounding, Target, cost, dense

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
