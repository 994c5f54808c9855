"""`emulon COMMAND …`: runs a command, and turns every refusal into one line on stderr.

Exit codes: 0 done, 1 where work failed half-way, 2 for a request that makes no sense, 130 when interrupted.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import tyro

import emulon
from emulon.cli.options import BadUsage, Command, CommandOptions, read
from emulon.core.errors import EmulonError, WorkFailed, unknown
from emulon.report.terminal import quiet

GROUPS = {
    "compile and run": {
        "run": "run algorithms on a table through one frozen interpreter, and compare",
        "predict": "predict the rows of a new table with a model that run has fitted",
        "compile": "write an interpreter and a program (an algorithm or a network as its prompt) as files",
        "exec": "run a compiled program or network from its files",
        "export": "write the interpreter as an ONNX file, and programs as the prompts that run on it",
    },
    "train and identify": {
        "train": "train a transformer that has to find an algorithm itself, or every one of a grid",
        "identify": "say which algorithm an in-context learner runs",
    },
    "planted models": {
        "plant": "write a GPT-2 with a planted learning algorithm, and the truth about it",
        "benchmark": "score methods of interpretability on models whose mechanism is known",
    },
    "stock models": {
        "llama": "a stock Llama that runs learning algorithms from a prompt of text: write, prompt, run",
        "canary": "known answers for inference engines: write, check",
    },
    "prove": {
        "approximate": "make one softmax act as a function of one number, with a proof",
        "check": "check a certificate or a transcript, trusting nothing of emulon",
    },
    "look": {
        "show": "show what is in a prompt, layer by layer, or how a training run went",
        "playground": "open the playground in the browser: one frozen transformer, many algorithms",
    },
}
COMMANDS = {name: what for group in GROUPS.values() for name, what in group.items()}
# The module of emulon.cli that a command stands in, imported when it is its turn; its own where there is no other.
MODULES = {"predict": "run", "exec": "compile", "export": "compile", "benchmark": "plant", "llama": "stock"}
MODULES |= {"canary": "stock", "approximate": "prove", "check": "prove", "show": "look", "playground": "look"}
# Commands and options of 0.2, which go with 0.4.
EARLIER = {
    "specimen": "plant",
    "compile-network": "compile",
    "exec-network": "exec",
    "sweep": "train",
    "report": "show",
    "--disguise": "--obfuscate",
    "--specimens": "--models",
    "--no-open": "--no-browser",
    "--path": "--mode",
}
# Commands that are gone, and what does the same; scripts are the repository's.
SCRIPTS = {"reproduce": "python -m reproduce", "fuzz": "make fuzz MINUTES=10"}
SCRIPTS |= {"bench": "python -m benchmarks.performance", "speedrun": "python -m benchmarks.speedrun"}
SCRIPTS |= {name: f"python -m reproduce.text {name}" for name in ("corpus", "translate", "classify")}
MOVED = {name: f"{script} now, in a checkout of the repository" for name, script in SCRIPTS.items()}
MOVED |= {"publish": "python examples/publish_collection.py FOLDER now, in a checkout of the repository"}
MOVED |= {"certify": "emulon compile … --certificate now", "probe": "emulon.identification.linear_probe now, in Python"}
HELP = """usage: emulon COMMAND … | emulon COMMAND --help | emulon --version | emulon --completion bash|zsh|tcsh

Learning algorithms compiled into one frozen softmax transformer, with a proved error.

{commands}
every command takes --json FILE (or -) and --quiet

examples:
  emulon run                                   every regression algorithm on the diabetes data, with a report
  emulon run ridge lasso --data wine.csv --target quality
  emulon compile ridge --out files             the interpreter and the prompt as files
  emulon exec files                            run them
  emulon approximate "tanh(5*t)" -1 1          one softmax as a function, with a proof"""


def main(argv: Sequence[str] | None = None) -> int:
    words = _current(list(sys.argv[1:] if argv is None else argv))
    command = words[0] if words else "--help"
    if command in ("-h", "--help"):
        groups = [[f"{name}:", *(f"  {word:<13} {what}" for word, what in of.items())] for name, of in GROUPS.items()]
        print(HELP.format(commands="\n".join(line for group in groups for line in [*group, ""])))
        return 0
    if command == "--version":
        print(f"emulon {emulon.__version__}")
        return 0
    if command in MOVED:
        return _refuse("emulon", f"{command} is {MOVED[command]}")
    options = ("--help", "--version", "--completion")
    if command not in (*COMMANDS, "--completion"):
        kind = "option" if command.startswith("-") else "command"
        return _refuse("emulon", unknown(kind, command, options if kind == "option" else COMMANDS))
    # Threads that spin long while they wait take the cores from those that work: where another process holds one of
    # two, a learner trained at a thirtieth of its speed. Read when torch is imported, so here.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Commands say in a line of their own where a tolerance is not kept.
    warnings.filterwarnings("ignore", "the (interpolation|certificate) of ", UserWarning)
    try:
        return print_completion(words[1:]) if command == "--completion" else _run(command, words[1:])
    except (WorkFailed, MemoryError) as error:
        return _refuse(f"emulon {command}", f"{'out of memory: ' * isinstance(error, MemoryError)}{error}", 1)
    # Errors meant for the user; anything else is a bug and keeps its traceback.
    except (EmulonError, OSError) as error:
        return _refuse(f"emulon {command}", str(error))
    except KeyboardInterrupt as stop:  # one of training says what was kept, and by which signal it was stopped
        return _refuse(f"emulon {command}", str(stop) or "stopped", 128 + getattr(stop, "signal", signal.SIGINT))


def command_of(name: str) -> Command:
    """The command of this name."""
    module = import_module(f"emulon.cli.{MODULES.get(name, name)}")
    found: dict[str, Command] = getattr(module, "COMMANDS", None) or {
        name: Command(module.Options, module.main, module.EXAMPLES)
    }
    return found[name]


def options_of(name: str, words: Sequence[str]) -> Any:
    """The options that the words after a command's name say; raises BadUsage, or SystemExit where help is printed."""
    kinds, words = command_of(name).options, list(words)
    if not isinstance(kinds, Mapping):
        return read(kinds, words, name)
    if not words or words[0] not in kinds:
        raise BadUsage(unknown(f"command {name}", words[0] if words else "", kinds))
    return read(kinds[words[0]], words[1:], f"{name} {words[0]}")


def _run(name: str, words: Sequence[str]) -> int:
    command = command_of(name)
    if list(words[:1]) in (["--help"], ["-h"]) and isinstance(command.options, Mapping):
        return _print_subcommands(name, command.options, command.examples)
    try:
        options = options_of(name, words)
    except SystemExit as stop:  # tyro has printed the help
        print(f"\n{command.examples}")
        return int(stop.code or 0)
    except BadUsage as error:
        raise BadUsage(f"{error} (see emulon {name} --help)") from None
    options.require_writable()
    with quiet(options.quiet or options.json == "-"):
        return command.main(options)


def _print_subcommands(name: str, kinds: Mapping[str, type[CommandOptions]], examples: str) -> int:
    print(f"usage: emulon {name} {'|'.join(kinds)} … | emulon {name} WORD --help\n\n{COMMANDS[name]}\n")
    for word, kind in kinds.items():
        print(f"  {word:8} {(kind.__doc__ or '').strip().partition(chr(10))[0]}")
    print(f"\n{examples}")
    return 0


def print_completion(words: Sequence[str]) -> int:
    """Print the script by which a shell completes commands and options."""
    shells = ("bash", "zsh", "tcsh")
    if len(words) != 1 or words[0] not in shells:
        raise BadUsage(unknown("shell", " ".join(words), shells))
    options = {name: command_of(name).options for name in COMMANDS}
    kinds = {name: _one_of(of) if isinstance(of, Mapping) else of for name, of in options.items()}
    try:
        tyro.cli(_one_of(kinds), prog="emulon", args=["--tyro-print-completion", words[0]])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _one_of(kinds: Mapping[str, Any]) -> Any:
    """A union of options for tyro, each behind a word."""
    return functools.reduce(operator.or_, [Annotated[each, tyro.conf.subcommand(name)] for name, each in kinds.items()])


def _current(words: list[str]) -> list[str]:
    """The words with today's names for those of 0.2, each said on stderr."""
    old = words[0] if words else ""
    if old not in (*EARLIER, "benchmark", "exec", "playground", "run"):
        return words

    def now(place: int, word: str) -> str:
        """A command's name, or an option's; other words are the user's own, as a folder called report."""
        return EARLIER.get(word, word) if place == 0 or word.startswith("--") else word

    for place, word in enumerate(words):
        if now(place, word) != word:
            print(f"emulon: {word} is {EARLIER[word]} since 0.3; the earlier name goes with 0.4", file=sys.stderr)
    rest = ["reference" if pair == ("--path", "faithful") else pair[1] for pair in itertools.pairwise(words)]
    if old == "exec-network" and rest[1:] and not rest[1].startswith("-"):
        rest[1:2] = ["--data", rest[1]]
    if old == "compile-network" and "--margin" in rest[:-1]:  # it was the part by which a range is widened
        place = rest.index("--margin") + 1
        rest[place] = str(1 + float(rest[place]))
    if old == "report" and rest:
        rest = ["--report" if word == "--out" else word for word in rest]
        rest += [] if "--report" in rest else ["--report", f"{rest[0]}/report"]
    return [now(place, word) for place, word in enumerate((old, *rest))]


def _refuse(who: str, reason: str, code: int = 2) -> int:
    print(f"{who}: {' '.join(reason.split())}", file=sys.stderr)
    return code
