"""The built-in methods; importing this package registers them."""

from emulon.planted.benchmark.methods.behaviour import identified, random
from emulon.planted.benchmark.methods.circuits import activation_patching, attribution_patching, readout_attribution
from emulon.planted.benchmark.methods.probes import control_probe, coordinate_probe, linear_probe, mlp_probe

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
