"""Ours, a short file each; importing this registers them."""

from emulon.benchmark.methods.activation_patching import activation_patching
from emulon.benchmark.methods.attribution_patching import attribution_patching
from emulon.benchmark.methods.control_probe import control_probe
from emulon.benchmark.methods.coordinate_probe import coordinate_probe
from emulon.benchmark.methods.identified import identified
from emulon.benchmark.methods.linear_probe import linear_probe
from emulon.benchmark.methods.mlp_probe import mlp_probe
from emulon.benchmark.methods.random import random
from emulon.benchmark.methods.readout_attribution import readout_attribution

__all__ = [
    "activation_patching",
    "attribution_patching",
    "control_probe",
    "coordinate_probe",
    "identified",
    "linear_probe",
    "mlp_probe",
    "random",
    "readout_attribution",
]
