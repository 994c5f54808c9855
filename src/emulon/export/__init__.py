"""Models as ONNX files, and programs as the prompts that run on them: for runtimes that know nothing of emulon.

`interpreter`: the frozen module, one file for every algorithm. `prompt`: a program as the fixed coefficients of its
prompt. `decoder`: register machines and learners.
"""

from emulon.export.decoder import learner_to_onnx, machine_to_onnx
from emulon.export.graph import NeedsOnnx
from emulon.export.interpreter import interpreter_to_onnx
from emulon.export.prompt import prompt_of, save_prompt

__all__ = ["NeedsOnnx", "interpreter_to_onnx", "learner_to_onnx", "machine_to_onnx", "prompt_of", "save_prompt"]
