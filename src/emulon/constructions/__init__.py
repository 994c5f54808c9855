"""Theorems made into weights."""

from emulon.constructions.emulated_head import HeadInEmbedding, HeadInTokens
from emulon.constructions.gradient_step import DescentInContext, GradientStep
from emulon.constructions.linear_layer import LinearLayer, ScalarHeads
from emulon.constructions.residual_map import HopfieldResidualMap, ResidualMap
from emulon.constructions.truncated_linear import TruncatedLinear

__all__ = [
    "DescentInContext",
    "GradientStep",
    "HeadInEmbedding",
    "HeadInTokens",
    "HopfieldResidualMap",
    "LinearLayer",
    "ResidualMap",
    "ScalarHeads",
    "TruncatedLinear",
]
