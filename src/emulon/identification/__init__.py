"""Identification: which algorithm a predictor runs, and where its hidden states hold what. Numbers, never plots."""

from typing import Any

from emulon.core.names import renamed
from emulon.identification.adapters import LAYOUTS, ModulePredictor, adapt
from emulon.identification.analysis import (
    Analysis,
    Comparison,
    RidgeFit,
    analyse,
    best_ridge,
    squared_prediction_difference,
    telling,
    weight_difference,
)
from emulon.identification.identify import AlgorithmPhase, Identification, Match, identify, over_training
from emulon.identification.probes import HiddenStates, ProbeScores, hidden_states, linear_probe, moments, prefix_weights
from emulon.identification.references import REFERENCES, Reference, reference, reference_named
from emulon.identification.sampling import Curve, Interval, Prefixes, Sampling, draw

__all__ = [
    "LAYOUTS",
    "REFERENCES",
    "AlgorithmPhase",
    "Analysis",
    "Comparison",
    "Curve",
    "HiddenStates",
    "Identification",
    "Interval",
    "Match",
    "ModulePredictor",
    "Prefixes",
    "ProbeScores",
    "Reference",
    "RidgeFit",
    "Sampling",
    "adapt",
    "analyse",
    "best_ridge",
    "draw",
    "hidden_states",
    "identify",
    "linear_probe",
    "moments",
    "over_training",
    "prefix_weights",
    "reference",
    "reference_named",
    "squared_prediction_difference",
    "telling",
    "weight_difference",
]


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, {"Interrogation": "Analysis", "interrogate": "analyse"})
