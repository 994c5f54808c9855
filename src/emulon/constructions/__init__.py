"""Theorems made into weights: one construction a file."""

from emulon.constructions.hopfield import HopfieldResidualMap
from emulon.constructions.residual_map import ResidualMap

__all__ = ["HopfieldResidualMap", "ResidualMap"]
