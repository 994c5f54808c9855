"""How steep a loss's derivative gets, enclosed with certainty: what makes steps of gradient descent non-expansive."""

from __future__ import annotations

import math
from heapq import heapify, heappush, heapreplace
from itertools import pairwise

import torch
from torch import Tensor

from emulon.expressions import Function
from emulon.expressions.evaluation import ball_arithmetic

# (left, right, lower, upper): f′ lies within (lower, upper) on [left, right].
Cell = tuple[float, float, float, float]
CELLS = 16
MOST_CELLS = 500
MOST_HALVINGS = 4000
# Coefficients of f′ that a cell is enclosed with: along a path, where cells are narrow, two cost least.
ORDER, ALONG_A_PATH = 6, 2
# Cells that intervals of many samples share.
SHARED = 64
# Bounds are tight to this part of themselves, or to that part of the largest slope.
TIGHT, NEGLIGIBLE = 1e-2, 1e-10


class Slopes:
    """The range of f′, jumps of f left out, in ball arithmetic.

    On a cell around c, f′ lies in Σ_k f′_k(c)·(cell − c)ᵏ, its Taylor coefficients at c but for the last one, which is
    that of the whole cell (Lagrange). Where a cell holds a break of f, both of its branches are counted.
    """

    def __init__(self, f: Function) -> None:
        self.slope = f.derivative()
        self._known: dict[tuple[float, int], float] = {}

    def between(self, lo: float, hi: float) -> tuple[float, float]:
        """(below the infimum, above the supremum) of f′ on [lo, hi]."""
        with ball_arithmetic(order=ORDER):
            edges = [lo + (hi - lo) * k / CELLS for k in range(CELLS)] + [hi]
            cells = [self._enclose(left, right) for left, right in pairwise(edges)]
            highest = self._refined(cells)
            lowest = -self._refined([(left, right, -upper, -lower) for left, right, lower, upper in cells], -1)
        return lowest, highest

    def at_most(self, top: float, lo: float, hi: float) -> bool:
        """Whether f′ ≤ top on [lo, hi] for certain: cells are halved until each says so, or one says no."""
        with ball_arithmetic(order=ORDER):
            cells = [(lo, hi)]
            for _ in range(MOST_HALVINGS):
                if not cells:
                    return True
                left, right, lower, upper = self._enclose(*cells.pop())
                if upper <= top:
                    continue
                middle = (left + right) / 2
                if lower > top or not left < middle < right:
                    return False
                cells += [(left, middle), (middle, right)]
        return not cells

    def steepest(self, lo: float, hi: float) -> float:
        """Above the supremum of f′ on [lo, hi]; cells are kept, so that an interval like the last one costs little."""
        if not math.isfinite(hi - lo):
            return math.inf
        width = 2.0 ** math.floor(math.log2(max((hi - lo) / CELLS**2, 1e-300 + 1e-12 * max(abs(lo), abs(hi)))))
        first, last = math.floor(lo / width) + 1, math.floor(hi / width)
        with ball_arithmetic(order=ALONG_A_PATH):
            for cell in range(first, last):
                if (width, cell) not in self._known:
                    self._known[width, cell] = self._enclose(cell * width, (cell + 1) * width)[3]
            ends = [(lo, first * width), (last * width, hi)] if first <= last else [(lo, hi)]
            tops = [self._enclose(*end)[3] for end in ends]
        return max([*tops, *(self._known[width, cell] for cell in range(first, last))])

    def lowest_of(self, low: Tensor, high: Tensor) -> Tensor:
        """Below the infimum of f′ on each of these intervals, from cells that all of them share."""
        start, stop = low.min().item(), high.max().item()
        if not math.isfinite(stop - start):
            return torch.full_like(low, -math.inf)
        width = max((stop - start) / SHARED, 1e-300 + 1e-12 * max(abs(start), abs(stop)))
        edges = [start + width * k for k in range(-1, SHARED + 2)]
        with ball_arithmetic(order=ALONG_A_PATH):
            below = torch.tensor([self._enclose(*edge)[2] for edge in pairwise(edges)], dtype=low.dtype, device="cpu")
        # An index may be off by one where an end is next to an edge: one cell more is looked at on each side.
        first = ((low - start) / width).floor().long().clamp(0, SHARED - 1)
        last = ((high - start) / width).floor().long().clamp(0, SHARED - 1) + 2
        least = torch.full((len(below), len(below)), -math.inf, dtype=low.dtype, device="cpu")
        for cell in range(len(below)):
            least[cell, cell:] = below[cell:].cummin(dim=0).values
        return least[first, last]

    def _enclose(self, left: float, right: float) -> Cell:
        from flint import arb, arb_series, ctx

        ball, center = arb(left).union(arb(right)), arb((left + right) / 2)
        values, last, unknown = [], ctx.cap - 1, (left, right, -math.inf, math.inf)
        try:
            for signs in self.slope.arb_branches(left, right):
                whole = arb_series([0]) + self.slope.arb_series(arb_series([ball, 1]), signs)
                at_center = arb_series([0]) + self.slope.arb_series(arb_series([center, 1]), signs)
                value = whole[last]
                for k in reversed(range(last)):
                    value = at_center[k] + value * (ball - center)
                values.append(value)
        except (ValueError, ZeroDivisionError):  # a division by a ball around zero, or too many branches
            return unknown
        if not all(value.is_finite() for value in values):
            return unknown
        # Of balls with 53 bits both ends are floats: converting them rounds nothing.
        return left, right, min(float(v.lower()) for v in values), max(float(v.upper()) for v in values)

    def _refined(self, cells: list[Cell], side: int = 1) -> float:
        """Above side·f′ on all cells, which hold its ranges; the worst is halved as long as none may come near it.

        At a kink no cell ever gets tight, but what it may be is soon seen beside it.
        """
        heap = [(-cell[3], cell) for cell in cells]
        heapify(heap)
        scale, reached = _steepest(cells), max(cell[2] for cell in cells)
        for _ in range(MOST_CELLS):
            left, right, lower, upper = heap[0][1]
            if math.isfinite(upper) and upper - reached <= max(TIGHT * abs(upper), NEGLIGIBLE * scale):
                break
            middle = (left + right) / 2
            halves = [self._enclose(left, middle), self._enclose(middle, right)]
            halves = halves if side > 0 else [(a, b, -top, -least) for a, b, least, top in halves]
            heapreplace(heap, (-halves[0][3], halves[0]))
            heappush(heap, (-halves[1][3], halves[1]))
            reached = max(reached, halves[0][2], halves[1][2])
            if upper >= scale or -lower >= scale:
                scale = _steepest([cell for _, cell in heap])
        return -heap[0][0]


def _steepest(cells: list[Cell]) -> float:
    return max((max(-cell[2], cell[3]) for cell in cells if math.isfinite(cell[3])), default=0.0)
