"""The register machine: programs over named registers, compiled into GPT-2 blocks."""

from emulon.machine.errors import BadProgram
from emulon.machine.expression import Expression, Register
from emulon.machine.gpt2 import predict_gpt2, save_gpt2, to_gpt2, to_transformer_lens
from emulon.machine.instruction import Claim
from emulon.machine.program import Program
from emulon.machine.prompt import Interleaved
from emulon.machine.transformer import Transformer
from emulon.machine.where import Average, Lookup

__all__ = [
    "Average",
    "BadProgram",
    "Claim",
    "Expression",
    "Interleaved",
    "Lookup",
    "Program",
    "Register",
    "Transformer",
    "predict_gpt2",
    "save_gpt2",
    "to_gpt2",
    "to_transformer_lens",
]
