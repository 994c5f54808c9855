"""Any network by prompt: its weights stand in the prompt, and the interpreter of `compile` runs it."""

from emulon.networks.compiler import compile_network
from emulon.networks.composition import Composition, by_prompt, then
from emulon.networks.files import load_network, save_network
from emulon.networks.iteration import IterationProgram, IterationRun, compile_iteration
from emulon.networks.modules import Expression, classes_of
from emulon.networks.program import NetworkProgram, NetworkRun
from emulon.networks.ranges import Box
from emulon.networks.tracing import traced
from emulon.networks.transformer import Heads, heads_of

__all__ = [
    "Box",
    "Composition",
    "Expression",
    "Heads",
    "IterationProgram",
    "IterationRun",
    "NetworkProgram",
    "NetworkRun",
    "by_prompt",
    "classes_of",
    "compile_iteration",
    "compile_network",
    "heads_of",
    "load_network",
    "save_network",
    "then",
    "traced",
]
