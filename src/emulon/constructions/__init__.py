"""Theorems made into weights: one construction a file."""

from emulon.constructions.gradient_descent import GradientDescent
from emulon.constructions.gradient_step import GradientStep
from emulon.constructions.hopfield import HopfieldResidualMap
from emulon.constructions.residual_map import ResidualMap

__all__ = ["GradientDescent", "GradientStep", "HopfieldResidualMap", "ResidualMap"]
