"""Interrogation: which algorithm a predictor runs, and where its hidden states hold what. Numbers, never plots."""

from emulon.interrogate.identification import Identification, Match
from emulon.interrogate.identify import identify
from emulon.interrogate.implicit_weights import ImplicitWeights, implicit_weights, weight_difference
from emulon.interrogate.prediction_difference import learning_curve, squared_prediction_difference
from emulon.interrogate.sensitivity import Sensitivity, sensitivity
from emulon.interrogate.task import LinearTask, Task

__all__ = [
    "Identification",
    "ImplicitWeights",
    "LinearTask",
    "Match",
    "Sensitivity",
    "Task",
    "identify",
    "implicit_weights",
    "learning_curve",
    "sensitivity",
    "squared_prediction_difference",
    "weight_difference",
]
