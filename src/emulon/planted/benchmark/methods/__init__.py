"""Ours, a short file each; importing this registers them."""

from emulon.planted.benchmark.methods.activation_patching import activation_patching
from emulon.planted.benchmark.methods.attribution_patching import attribution_patching
from emulon.planted.benchmark.methods.control_probe import control_probe
from emulon.planted.benchmark.methods.coordinate_probe import coordinate_probe
from emulon.planted.benchmark.methods.identified import identified
from emulon.planted.benchmark.methods.linear_probe import linear_probe
from emulon.planted.benchmark.methods.mlp_probe import mlp_probe
from emulon.planted.benchmark.methods.random import random
from emulon.planted.benchmark.methods.readout_attribution import readout_attribution

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
