"""One frozen two-layer transformer, every algorithm by prompt."""

from emulon.interpreter.compiler import compile
from emulon.interpreter.files import BadFile, kind_of, load_interpreter, load_program, save
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.interpreter.phase import TokenLayout
from emulon.interpreter.plan import Plan
from emulon.interpreter.program import Program, Run

__all__ = [
    "BadFile",
    "Capacity",
    "Interpreter",
    "Mode",
    "Plan",
    "Program",
    "Run",
    "TokenLayout",
    "compile",
    "kind_of",
    "load_interpreter",
    "load_program",
    "save",
]
