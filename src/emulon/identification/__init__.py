"""Identification: which algorithm a predictor runs, and where its hidden states hold what. Numbers, never plots."""

from typing import Any

from emulon.core.deprecated import renamed
from emulon.identification.adapters import LAYOUTS, ModulePredictor, adapt
from emulon.identification.analysis import (
    Analysis,
    Comparison,
    RidgeCell,
    RidgeFit,
    analyse,
    best_ridge,
    compare,
    ridge_table,
    telling,
)
from emulon.identification.curves import Curve, Interval
from emulon.identification.differences import (
    ImplicitWeights,
    Sensitivity,
    implicit_weights,
    learning_curve,
    sensitivity,
    squared_prediction_difference,
    weight_difference,
)
from emulon.identification.identify import (
    AlgorithmPhase,
    Identification,
    Match,
    depth_sweep,
    identify,
    over_training,
    trainer,
)
from emulon.identification.probes import (
    AttentionScores,
    HiddenStates,
    ProbeScores,
    ProbeTraining,
    attention_probe,
    attention_probes,
    hidden_states,
    linear_probe,
    moments,
    prefix_weights,
    register_probe,
    standardised,
    statistics_of,
)
from emulon.identification.references import REFERENCES, Reference, reference, reference_named
from emulon.identification.sampling import Prefixes, Sampling, draw

__all__ = [
    "LAYOUTS",
    "REFERENCES",
    "AlgorithmPhase",
    "Analysis",
    "AttentionScores",
    "Comparison",
    "Curve",
    "HiddenStates",
    "Identification",
    "ImplicitWeights",
    "Interval",
    "Match",
    "ModulePredictor",
    "Prefixes",
    "ProbeScores",
    "ProbeTraining",
    "Reference",
    "RidgeCell",
    "RidgeFit",
    "Sampling",
    "Sensitivity",
    "adapt",
    "analyse",
    "attention_probe",
    "attention_probes",
    "best_ridge",
    "compare",
    "depth_sweep",
    "draw",
    "hidden_states",
    "identify",
    "implicit_weights",
    "learning_curve",
    "linear_probe",
    "moments",
    "over_training",
    "prefix_weights",
    "reference",
    "reference_named",
    "register_probe",
    "ridge_table",
    "sensitivity",
    "squared_prediction_difference",
    "standardised",
    "statistics_of",
    "telling",
    "trainer",
    "weight_difference",
]


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, {"Interrogation": "Analysis", "interrogate": "analyse"})
