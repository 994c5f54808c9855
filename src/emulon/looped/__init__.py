"""Looped transformers whose middle is an iterative solver, written by hand and certified (Gao et al. 2024)."""

from emulon.looped.auto_regression import LoopedAutoRegression
from emulon.looped.causal_gradient_descent import CausalLoopedGradientDescent
from emulon.looped.causal_newton import CausalLoopedNewton
from emulon.looped.chain_of_thought import LoopedChainOfThought
from emulon.looped.convergence import ConvergenceCurve, convergence
from emulon.looped.gradient_descent import LoopedGradientDescent
from emulon.looped.heads import position_codes
from emulon.looped.layer import Frame, Layer, Size
from emulon.looped.newton import LoopedNewton
from emulon.looped.representation import RepresentationNetwork
from emulon.looped.stencil import Stencil
from emulon.looped.transformer import LoopedRegression, LoopedRun, LoopedTransformer

__all__ = [
    "CausalLoopedGradientDescent",
    "CausalLoopedNewton",
    "ConvergenceCurve",
    "Frame",
    "Layer",
    "LoopedAutoRegression",
    "LoopedChainOfThought",
    "LoopedGradientDescent",
    "LoopedNewton",
    "LoopedRegression",
    "LoopedRun",
    "LoopedTransformer",
    "RepresentationNetwork",
    "Size",
    "Stencil",
    "convergence",
    "position_codes",
]
