"""Looped transformers whose middle is an iterative solver, written by hand and certified (Gao et al. 2024)."""

from emulon.looped.causal import CausalLoopedGradientDescent
from emulon.looped.gradient_descent import LoopedGradientDescent, RepresentationNetwork
from emulon.looped.newton import LoopedNewton
from emulon.looped.sequences import LoopedAutoRegression, LoopedChainOfThought
from emulon.looped.transformer import LoopedRegression, LoopedRun, LoopedTransformer

__all__ = [
    "CausalLoopedGradientDescent",
    "LoopedAutoRegression",
    "LoopedChainOfThought",
    "LoopedGradientDescent",
    "LoopedNewton",
    "LoopedRegression",
    "LoopedRun",
    "LoopedTransformer",
    "RepresentationNetwork",
]
