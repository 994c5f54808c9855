"""How steep a loss's derivative gets, enclosed with certainty: what makes steps of gradient descent non-expansive."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from emulon.evaluation import ball_arithmetic
from emulon.expression import Function

# (left, right, lower, upper): f′ lies within (lower, upper) on [left, right].
Cell = tuple[float, float, float, float]
CELLS = 16
MOST_CELLS = 200
MOST_HALVINGS = 4000
# Bounds are tight to this part of themselves, or to that part of the largest slope.
TIGHT, NEGLIGIBLE = 1e-2, 1e-10


class Slopes:
    """The range of f′, jumps of f left out, in ball arithmetic.

    On a cell around c, f′ lies in f′(c) + f″(cell)·(cell − c): exact to second order. Where a cell holds a break of f,
    both of its branches are counted.
    """

    def __init__(self, f: Function) -> None:
        self.slope = f.derivative()
        self._known: dict[tuple[float, int], float] = {}

    def between(self, lo: float, hi: float) -> tuple[float, float]:
        """(below the infimum, above the supremum) of f′ on [lo, hi]."""
        with ball_arithmetic():
            edges = [lo + (hi - lo) * k / CELLS for k in range(CELLS)] + [hi]
            cells = [self._enclose(left, right) for left, right in pairwise(edges)]
            highest = self._refined(cells, lambda cell: cell[3])
            lowest = -self._refined(cells, lambda cell: -cell[2])
        # One more last place each way, for the conversion to floats.
        return lowest - 1e-15 * abs(lowest), highest + 1e-15 * abs(highest)

    def at_most(self, top: float, lo: float, hi: float) -> bool:
        """Whether f′ ≤ top on [lo, hi] for certain: cells are halved until each says so, or one says no."""
        with ball_arithmetic():
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
        with ball_arithmetic():
            for cell in range(first, last):
                if (width, cell) not in self._known:
                    self._known[width, cell] = self._enclose(cell * width, (cell + 1) * width)[3]
            ends = [(lo, first * width), (last * width, hi)] if first <= last else [(lo, hi)]
            tops = [self._enclose(*end)[3] for end in ends]
        highest = max([*tops, *(self._known[width, cell] for cell in range(first, last))])
        return highest + 1e-15 * abs(highest)

    def _enclose(self, left: float, right: float) -> Cell:
        from flint import arb, arb_series

        ball, center = arb(left).union(arb(right)), arb((left + right) / 2)
        values = []
        try:
            for signs in self.slope.arb_branches(left, right):
                whole = arb_series([0]) + self.slope.arb_series(arb_series([ball, 1]), signs)
                at_center = arb_series([0]) + self.slope.arb_series(arb_series([center]), signs)
                values.append(at_center[0] + whole[1] * (ball - center))
        except (ValueError, ZeroDivisionError):  # a division by a ball around zero
            return left, right, -math.inf, math.inf
        if not all(value.is_finite() for value in values):
            return left, right, -math.inf, math.inf
        return left, right, min(float(v.lower()) for v in values), max(float(v.upper()) for v in values)

    def _refined(self, cells: list[Cell], bound: Callable[[Cell], float]) -> float:
        """The largest bound over the cells, the worst of them halved as long as it may be loose."""
        cells = list(cells)
        while len(cells) < MOST_CELLS:
            worst = max(cells, key=bound)
            left, right, lower, upper = worst
            scale = max((max(-cell[2], cell[3]) for cell in cells if math.isfinite(cell[3])), default=0.0)
            if math.isfinite(upper) and upper - lower <= max(TIGHT * abs(bound(worst)), NEGLIGIBLE * scale):
                break
            cells.remove(worst)
            middle = (left + right) / 2
            cells += [self._enclose(left, middle), self._enclose(middle, right)]
        return max(map(bound, cells))
