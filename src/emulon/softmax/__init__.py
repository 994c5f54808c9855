"""One softmax as a scalar function: paper, spectral and piecewise grids."""

from emulon.softmax.approximate import Approximation, approximate
from emulon.softmax.grid import Grid

__all__ = ["Approximation", "Grid", "approximate"]
