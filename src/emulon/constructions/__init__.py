"""Theorems made into weights: one construction a file."""

from emulon.constructions.gradient_descent import DescentInContext
from emulon.constructions.gradient_step import GradientStep
from emulon.constructions.head_in_embedding import HeadInEmbedding
from emulon.constructions.head_in_tokens import HeadInTokens
from emulon.constructions.hopfield import HopfieldResidualMap
from emulon.constructions.linear_layer import LinearLayer, ScalarHeads
from emulon.constructions.residual_map import ResidualMap
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
