"""One frozen two-layer transformer, every algorithm by prompt."""

from emulon.interpreter.compiler import compile
from emulon.interpreter.files import BadFile, load_interpreter, load_program, save
from emulon.interpreter.interpreter import Capacity, Interpreter
from emulon.interpreter.program import Program
from emulon.interpreter.run import Run, run

__all__ = [
    "BadFile",
    "Capacity",
    "Interpreter",
    "Program",
    "Run",
    "compile",
    "load_interpreter",
    "load_program",
    "run",
    "save",
]
