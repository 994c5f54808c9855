"""AlgoFormer: transformers whose looped middle is an iterative solver, written by hand and certified."""

from emulon.algoformer.auto_regression_former import AutoRegressionFormer
from emulon.algoformer.causal_gradient_descent_former import CausalGradientDescentFormer
from emulon.algoformer.causal_newton_former import CausalNewtonFormer
from emulon.algoformer.chain_of_thought_former import ChainOfThoughtFormer
from emulon.algoformer.codes import position_codes
from emulon.algoformer.convergence import Curve, convergence
from emulon.algoformer.frame import Frame, Size
from emulon.algoformer.gradient_descent_former import GradientDescentFormer
from emulon.algoformer.layer import Layer
from emulon.algoformer.newton_former import NewtonFormer
from emulon.algoformer.representation import Representation
from emulon.algoformer.stencil import Stencil

__all__ = [
    "AutoRegressionFormer",
    "CausalGradientDescentFormer",
    "CausalNewtonFormer",
    "ChainOfThoughtFormer",
    "Curve",
    "Frame",
    "GradientDescentFormer",
    "Layer",
    "NewtonFormer",
    "Representation",
    "Size",
    "Stencil",
    "convergence",
    "position_codes",
]
