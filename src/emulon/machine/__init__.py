"""The register machine of Akyürek et al. 2022: programs over named registers, compiled into GPT-2 blocks."""

from emulon.core.errors import BadProgram
from emulon.machine.instruction import AffineForm, Invariant, Register
from emulon.machine.program import RegisterProgram
from emulon.machine.targets.gpt2 import predict_gpt2, save_gpt2, to_gpt2, to_transformer_lens
from emulon.machine.targets.llama import LlamaProgram, compile_llama, write_llama
from emulon.machine.token_program import Back, TokenProgram
from emulon.machine.tokens import Average, Interleaved, Lookup, Matched
from emulon.machine.transformer import Transformer

__all__ = [
    "AffineForm",
    "Average",
    "Back",
    "BadProgram",
    "Interleaved",
    "Invariant",
    "LlamaProgram",
    "Lookup",
    "Matched",
    "Register",
    "RegisterProgram",
    "TokenProgram",
    "Transformer",
    "compile_llama",
    "predict_gpt2",
    "save_gpt2",
    "to_gpt2",
    "to_transformer_lens",
    "write_llama",
]
