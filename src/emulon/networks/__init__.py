"""Any network by prompt: its weights stand in the prompt, and the interpreter of `compile` runs it."""

from emulon.networks.builder import traced
from emulon.networks.compiler import compile_iteration, compile_network
from emulon.networks.files import load_network, save_network
from emulon.networks.layers import Box
from emulon.networks.modules import Expression, Heads, classes_of, heads_of
from emulon.networks.program import NetworkProgram, NetworkRun

__all__ = [
    "Box",
    "Expression",
    "Heads",
    "NetworkProgram",
    "NetworkRun",
    "classes_of",
    "compile_iteration",
    "compile_network",
    "heads_of",
    "load_network",
    "save_network",
    "traced",
]
