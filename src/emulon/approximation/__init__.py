"""One softmax as a scalar function: paper, spectral and piecewise grids."""

from emulon.approximation.approximate import Approximation, approximate
from emulon.approximation.grid import Grid

__all__ = ["Approximation", "Grid", "approximate"]
