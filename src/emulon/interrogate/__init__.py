"""Interrogation: which algorithm a predictor runs, and where its hidden states hold what. Numbers, never plots."""

from emulon.interrogate.attention_probe import AttentionScores, attention_probe
from emulon.interrogate.comparison import Comparison, compare, telling
from emulon.interrogate.curve import Curve
from emulon.interrogate.depth_sweep import Phase, depth_sweep, trainer
from emulon.interrogate.hidden_states import HiddenStates, hidden_states
from emulon.interrogate.identification import Identification, Match
from emulon.interrogate.identify import identify
from emulon.interrogate.implicit_weights import ImplicitWeights, implicit_weights, weight_difference
from emulon.interrogate.interrogation import Interrogation, interrogate
from emulon.interrogate.interval import Interval
from emulon.interrogate.linear_probe import ProbeScores, linear_probe, register_probe
from emulon.interrogate.prediction_difference import learning_curve, squared_prediction_difference
from emulon.interrogate.probe_target import moments, prefix_weights
from emulon.interrogate.reference import Reference
from emulon.interrogate.references import REFERENCES
from emulon.interrogate.ridge_fit import RidgeCell, RidgeFit, best_ridge, ridge_table
from emulon.interrogate.sampling import Sampling
from emulon.interrogate.sensitivity import Sensitivity, sensitivity

__all__ = [
    "REFERENCES",
    "AttentionScores",
    "Comparison",
    "Curve",
    "HiddenStates",
    "Identification",
    "ImplicitWeights",
    "Interrogation",
    "Interval",
    "Match",
    "Phase",
    "ProbeScores",
    "Reference",
    "RidgeCell",
    "RidgeFit",
    "Sampling",
    "Sensitivity",
    "attention_probe",
    "best_ridge",
    "compare",
    "depth_sweep",
    "hidden_states",
    "identify",
    "implicit_weights",
    "interrogate",
    "learning_curve",
    "linear_probe",
    "moments",
    "prefix_weights",
    "register_probe",
    "ridge_table",
    "sensitivity",
    "squared_prediction_difference",
    "telling",
    "trainer",
    "weight_difference",
]
