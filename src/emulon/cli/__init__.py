"""`emulon COMMAND …`: finds the command's module, and turns every refusal into one line on stderr.

Exit codes: 0 done, 1 where work failed half-way, 2 for a request that makes no sense, 130 when interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import emulon
from emulon.core.errors import EmulonError, WorkFailed, unknown

# Each is a module of emulon.cli, imported when it is its turn: help and a misspelt name need not wait for torch.
COMMANDS = {
    "run": "run algorithms on data through one frozen interpreter, and compare",
    "predict": "predict the rows of a new table with a model that run has fitted",
    "compile": "write an interpreter and a program (the prompt) as files",
    "compile-network": "write an interpreter and a network (its weights in the prompt) as files",
    "exec": "run a program's file on an interpreter's file",
    "exec-network": "run a compiled network on rows of numbers, with an audit and a page",
    "export": "write models as ONNX files, and programs as the prompts that run on them",
    "show": "show what is in a program's prompt, row by row",
    "certify": "write a program's certificate, with all that is needed to check it",
    "check": "check a certificate or a transcript, trusting nothing of emulon",
    "playground": "open the playground in the browser: one frozen transformer, many algorithms",
    "approximate": "make one softmax act as a function of one number, with a proof",
    "train": "train a transformer that has to find an algorithm itself",
    "sweep": "train every run of a grid, on a cluster or on this machine",
    "report": "write a training run's page: curves, baselines, and its algorithm over time",
    "identify": "say which algorithm an in-context learner runs",
    "probe": "look for an algorithm's quantities inside a learner",
    "plant": "write a GPT-2 with a planted learning algorithm, and the truth about it",
    "benchmark": "judge methods of interpretability on models whose mechanism is known",
}
# Names of 0.2, which go with 0.4: commands and options.
EARLIER = {"specimen": "plant", "--disguise": "--obfuscate", "--specimens": "--models"}
# Scripts of the repository; they were commands.
MOVED = {"reproduce": "python -m reproduce", "fuzz": "make fuzz MINUTES=10"}
MOVED |= {name: f"python -m benchmarks.{name}" for name in ("bench", "speedrun")}
MOVED |= {name: f"python -m reproduce.text {name}" for name in ("corpus", "translate", "classify")}
HELP = """usage: emulon COMMAND … | emulon COMMAND --help | emulon --version

Learning algorithms compiled into one frozen softmax transformer, with a proved error.

commands:
{commands}

examples:
  emulon run                                   every regression algorithm on the diabetes data, with a report
  emulon run ridge lasso --data wine.csv --target quality
  emulon compile ridge --out files             the interpreter and the prompt as files
  emulon exec files/interpreter.safetensors files/program.safetensors
  emulon approximate "tanh(5*t)" -1 1          one softmax as a function, with a proof"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    words = _current(words)
    command = words[0] if words else "--help"
    if command in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {name:<15} {what}" for name, what in COMMANDS.items())))
        return 0
    if command == "--version":
        print(f"emulon {emulon.__version__}")
        return 0
    if command in MOVED:
        return _refuse("emulon", f"{command} is {MOVED[command]} now, in a checkout of the repository")
    if command not in COMMANDS:
        kind = "option" if command.startswith("-") else "command"
        return _refuse("emulon", unknown(kind, command, ("--help", "--version") if kind == "option" else COMMANDS))
    # Threads that spin long while they wait take the cores from those that work: where another process holds one of
    # two, a learner trained at a thirtieth of its speed. Read when torch is imported, so here.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Commands say in a line of their own where a tolerance is not kept.
    warnings.filterwarnings("ignore", "the (interpolation|certificate) of ", UserWarning)
    try:
        return _run(command, words[1:])
    except WorkFailed as error:
        return _refuse(f"emulon {command}", str(error), 1)
    except MemoryError as error:
        return _refuse(f"emulon {command}", f"out of memory: {error}", 1)
    # Errors meant for the user; anything else is a bug and keeps its traceback.
    except (EmulonError, OSError) as error:
        return _refuse(f"emulon {command}", str(error))
    except KeyboardInterrupt as stop:  # one of training says what was kept, and by which signal it was stopped
        return _refuse(f"emulon {command}", str(stop) or "stopped", 128 + getattr(stop, "signal", signal.SIGINT))


def _current(words: list[str]) -> list[str]:
    """The words with today's names for those of 0.2, each said on stderr."""
    if words[:1] not in (["specimen"], ["benchmark"]):
        return words
    for old in filter(EARLIER.__contains__, words):
        print(f"emulon: {old} is {EARLIER[old]} since 0.3; the earlier name goes with 0.4", file=sys.stderr)
    return [EARLIER.get(word, word) for word in words]


def _run(command: str, words: Sequence[str]) -> int:
    from emulon.cli.options import BadUsage, read

    module = import_module(f"emulon.cli.{command.replace('-', '_')}")
    try:
        if hasattr(module, "check"):  # where importing the options takes long
            module.check(words)
        options = read(module.Options, words, command)
    except SystemExit as stop:  # tyro has printed the help
        print(f"\n{module.EXAMPLES}")
        return int(stop.code or 0)
    except BadUsage as error:
        raise BadUsage(f"{error} (see emulon {command} --help)") from None
    return int(module.main(options))


def _refuse(who: str, reason: str, code: int = 2) -> int:
    print(f"{who}: {' '.join(reason.split())}", file=sys.stderr)
    return code
