"""Models as ONNX files, and programs as the prompts that run on them: for runtimes without emulon.

`interpreter`: the frozen module, one file for every algorithm, and programs as the fixed coefficients of their
prompts. `onnx`: graphs, register machines and learners.
"""

from emulon.export.interpreter import interpreter_to_onnx, prompt_of, save_prompt
from emulon.export.onnx import NeedsOnnx, learner_to_onnx, machine_to_onnx

__all__ = ["NeedsOnnx", "interpreter_to_onnx", "learner_to_onnx", "machine_to_onnx", "prompt_of", "save_prompt"]
