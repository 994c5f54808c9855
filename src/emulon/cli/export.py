"""`emulon export`: models as ONNX files, programs as prompts, for runtimes that need nothing of emulon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from torch import Tensor
from tyro.conf import Positional, arg

from emulon.cli.compile import is_network as is_target
from emulon.cli.data import DescentOptions
from emulon.cli.options import BadUsage
from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, write_atomically
from emulon.export import interpreter_to_onnx, learner_to_onnx, machine_to_onnx, save_prompt
from emulon.export.graph import onnx_package
from emulon.identification.loading import load_object
from emulon.interpreter import Program, load_program
from emulon.machine.transformer import Transformer
from emulon.models import Learner
from emulon.report.terminal import say
from emulon.run import algorithm_with, algorithms_asked, common_kind, interpreter_for, program_for, require_taken

EXAMPLES = """examples:
  emulon export ridge lasso --data diabetes --out files   interpreter.onnx; ridge.safetensors, ridge.csv; lasso's
  emulon export files/program.safetensors --out files     a program of emulon compile, with its interpreter
  emulon export results/learners/small_learner --out files
  emulon export machines.py:sgd --out files               a function that returns a compiled register machine
A program comes with the rows that it was compiled on, standardised as emulon run does. With onnxruntime alone:
  python examples/run_onnx.py files/interpreter.onnx files/ridge.safetensors files/ridge.csv"""


@dataclass(frozen=True, kw_only=True)
class Options(DescentOptions):
    """Write models as ONNX files, and programs as the prompts that run on them."""

    what: Positional[Annotated[tuple[str, ...], arg(metavar="WHAT [WHAT ...]")]]
    """algorithms and programs' files, which share one interpreter; or a run, or module:name of a machine or learner"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the files"""


def main(options: Options) -> int:
    if not options.what:
        raise BadUsage("WHAT is missing (see emulon export --help)")
    algorithms_asked([word for word in options.what if not is_target(word)])
    onnx_package()  # refused now where it is missing, not after a minute's work
    make_folder(options.out)
    models = [word for word in options.what if is_target(word) and not word.endswith(".safetensors")]
    if models and len(options.what) > 1:
        raise EmulonError(f"{models[0]} is a model of its own and shares no interpreter; export it by itself")
    files = [_export_model(models[0], options.out)] if models else _export_programs(options)
    return options.finish({"files": [str(file) for file in files]})


def _export_model(target: str, out: Path) -> Path:
    thing = load_object(target)
    path = out / f"{Path(target.rpartition(':')[2]).name}.onnx"
    if isinstance(thing, Transformer):
        write_atomically(path, machine_to_onnx(thing))
    elif isinstance(thing, Learner):
        write_atomically(path, learner_to_onnx(thing))
    else:
        raise EmulonError(f"{target} is a {type(thing).__name__}, neither a compiled register machine nor a learner")
    say(path)
    return path


def _export_programs(options: Options) -> list[Path]:
    programs, written = _programs(options)
    interpreter = interpreter_for(list(programs.values()), "reference")
    path = options.out / "interpreter.onnx"
    write_atomically(path, interpreter_to_onnx(interpreter))
    say(path)
    for name, program in programs.items():
        written.append(options.out / f"{name}.safetensors")
        save_prompt(program, interpreter.capacity, written[-1])
        say(f"{written[-1]}  certificate {interpreter.certificate(program)}")
    say(f"interpreter sha256 {interpreter.sha256}")
    return [path, *written]


def _programs(options: Options) -> tuple[dict[str, Program], list[Path]]:
    """By the names of their files, and the rows of those compiled here; nothing that is read here is written over."""
    programs, rows, named = {}, [], algorithms_asked([word for word in options.what if not is_target(word)])
    data = options.load(common_kind(list(named.values()))) if named else None
    require_taken(list(named.values()), options.settings)
    for name, each in named.items():
        assert data is not None
        algorithm = algorithm_with(each, options.steps, options.settings)
        program = programs[name] = program_for(algorithm, data, options.tolerance, options.margin or 1.0)
        options.note_tolerance(program)
        rows += _write_rows(*data.problem(program.loss), options.out / name)
    for word in filter(is_target, options.what):
        programs[f"{Path(word).stem}_prompt"] = load_program(word)
    return programs, rows


def _write_rows(x: Tensor, y: Tensor, path: Path) -> list[Path]:
    """Write the training rows of a program in its own units, to the last bit, the target in the last column.

    Of several classes (x and y then have a leading axis) each has a file of its own, numbered from 1.
    """
    problems, written = list(zip(x, y, strict=True)) if y.ndim > 1 else [(x, y)], []
    for number, (inputs, targets) in enumerate(problems, start=1):
        rows = [",".join(map(repr, [*row, own])) for row, own in zip(inputs.tolist(), targets.tolist(), strict=True)]
        written.append(path.with_name(f"{path.name}{'' if len(problems) == 1 else f'_{number}'}.csv"))
        write_atomically(written[-1], "\n".join(rows) + "\n")
        say(written[-1])
    return written
