"""`emulon compile`, `emulon exec` and `emulon export`: interpreters and programs as files."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor
from tyro.conf import Positional, arg

from emulon.certify.certificate import READS
from emulon.certify.checker import canonical
from emulon.cli.options import BadUsage, Command, Positive, shown
from emulon.cli.run import DataOptions, DescentOptions, save_weights, weights_of
from emulon.core.arrays import as_tensor
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.core.files import csv_text, make_folder, write_atomically, write_json
from emulon.export import interpreter_to_onnx, onnx_package, save_prompt
from emulon.identification.loading import is_run, load_object
from emulon.interpreter import Interpreter, Program, kind_of, load_interpreter, load_program, save
from emulon.interpreter.certificate_file import certificate_of
from emulon.networks import NetworkProgram, compile_network, load_network, save_network
from emulon.report.learners import write_network
from emulon.report.terminal import progress, say
from emulon.run import (
    algorithm_named,
    algorithms_asked,
    answers,
    common_kind,
    interpreter_for,
    program_for,
    with_settings,
)
from emulon.tasks import RegressionTask
from emulon.training import RunFolder

WRITTEN = (".csv", ".npy")


def read_rows(path: Path) -> Tensor:
    """A .csv with a line of names first, or a .npy."""
    try:
        numbers = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise EmulonError(
            f"{path} cannot be read as numbers ({why}); give a .csv with a line of names, or a .npy"
        ) from None
    return as_tensor(numbers, str(path))


def write_rows(outputs: Tensor, path: Path) -> None:
    """To the last bit, in either kind of file."""
    if path.suffix == ".csv":
        write_atomically(path, as_csv(outputs))
        return
    numbers = io.BytesIO()
    np.save(numbers, outputs.numpy())
    write_atomically(path, numbers.getvalue())


def as_csv(outputs: Tensor) -> str:
    """A line for each row, all of its numbers beside each other."""
    lines = outputs.reshape(len(outputs), -1).tolist()
    names = [f"output {number}" for number in range(len(lines[0]) if lines else 0)]
    return csv_text([("row", *names), *((number, *line) for number, line in enumerate(lines, start=1))])


# Prompts of its own task on which a learner's ranges are seen.
PROMPTS = 1024
COMPILE_EXAMPLES = """examples:
  emulon compile lasso --data diabetes --out files           interpreter.safetensors and program.safetensors
  emulon compile runs/small --out files                      a trained learner, ranges from prompts of its own task
  emulon compile mine.py:network --data x.csv --out files    a torch module or an MLP of scikit-learn
  emulon compile mine.py:network --domain 3 --out files      for every input with |x| up to 3
  emulon compile fitted.skops --data x.csv --out files       an MLP of scikit-learn that skops has saved
A network is written as files/network.safetensors. emulon show tells what is in the files, and emulon exec runs them."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions(DescentOptions):
    """Write an interpreter and a program (an algorithm or a network as its prompt) as files.

    For a network --data has inputs to see ranges on, a row each: .csv (a line of names first) or .npy.
    """

    what: Positional[Annotated[str, arg(metavar="WHAT")]]
    """an algorithm, as emulon run names it; or a network: a run folder, FILE.skops, or module:name (file.py:name) of a
    torch module or a fitted MLP of scikit-learn"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the two files"""
    certificate: bool = False
    """of an algorithm: also certificate.json, which holds every number of both files, for emulon check"""
    domain: Annotated[Positive | None, shown("BOUND")] = None
    """of a network: a bound on |x| instead of data"""


def compile_main(options: CompileOptions) -> int:
    return _compile_network(options) if is_network(options.what) else _compile_algorithm(options)


def is_network(what: str) -> bool:
    """Whether this names a network, not an algorithm: a path, or module:name."""
    return ":" in what or "/" in what or what.endswith((".safetensors", ".skops")) or Path(what).exists()


def _compile_algorithm(options: CompileOptions) -> int:
    if options.domain is not None:
        raise BadUsage(f"--domain is for networks, and {options.what} is none")
    named = algorithm_named(options.what)
    [algorithm] = with_settings([named], options.steps, options.settings)
    make_folder(options.out)
    program = program_for(algorithm, options.load(common_kind([named])), options.tolerance, options.margin or 1.0)
    interpreter = interpreter_for([program])
    files = [options.out / "interpreter.safetensors", options.out / "program.safetensors"]
    save(interpreter, files[0])
    save(program, files[1])
    options.note_tolerance(program)
    if options.certificate:
        proof = certificate_of(program, interpreter, {"program": files[1], "interpreter": files[0]})
        files.append(options.out / "certificate.json")
        write_atomically(files[-1], canonical(proof))
    return _finish(options, files, interpreter, interpreter.certificate(program))


def _compile_network(options: CompileOptions) -> int:
    if others := options.changed("what", "out", "data", "domain", "tolerance", "margin"):
        raise BadUsage(f"{others[0]} is for algorithms, and {options.what} is a network")
    if options.data is not None and options.domain is not None:
        raise BadUsage("give --data or --domain, not both")
    data = None if options.data is None else read_rows(Path(options.data))
    model, folder = load_object(options.what), Path(options.what)
    if data is None and options.domain is None:
        if not is_run(folder):
            raise BadUsage("give --data FILE to see ranges on, or --domain BOUND")
        task = RunFolder(folder).config().make_task()
        if not isinstance(task, RegressionTask):
            raise EmulonError(f"{folder} was not trained on a regression; give --data FILE with its inputs")
        drawn = task.held_out(0, PROMPTS, (model.tokens + 1) // 2)
        data = model._prompt(drawn.xs, drawn.ys[:, :-1]).double()
    make_folder(options.out)
    margin = 0.25 if options.margin is None else options.margin - 1
    program = compile_network(model, options.domain, options.tolerance or 1e-9, data=data, margin=margin)
    interpreter = Interpreter.fitting(program)
    files = [options.out / "interpreter.safetensors", options.out / "network.safetensors"]
    save(interpreter, files[0])
    save_network(program, files[1])
    say(f"{len(program.phases)} phases")
    return _finish(options, files, interpreter, program.certificate)


def _finish(options: CompileOptions, files: list[Path], interpreter: Interpreter, certificate: Any) -> int:
    say(*files, f"interpreter sha256 {interpreter.sha256}", f"certificate {certificate}")
    names = [str(file) for file in files]
    return options.finish({"files": names, "interpreter sha256": interpreter.sha256, "certificate": str(certificate)})


EXEC_EXAMPLES = """examples:
  emulon compile ridge --data diabetes --out files
  emulon exec files --data diabetes --out weights.csv      the weights of emulon run, to the bit
  emulon compile mine.py:network --data x.csv --out files
  emulon exec files --data x.csv --out y.csv               the outputs, and in y.json the bounds on their error
  emulon exec files --data x.npy --report page             a page: every layer as a phase of the frozen transformer
For a program the data, target, features and seed must be those of emulon compile. For a network, rows of images or
sequences are .npy, or a .csv with all numbers of a row beside each other."""


@dataclass(frozen=True, kw_only=True)
class ExecOptions(DataOptions):
    """Run a compiled program, or a compiled network with an audit of the run."""

    files: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR | INTERPRETER PROGRAM")]]
    """the folder of emulon compile, or its two files"""
    mode: Literal["fast", "reference"] = "fast"
    """reference: every token, head and score"""
    out: Annotated[Path | None, shown("FILE")] = None
    """of a program: the weights, as .csv, to the last bit; of a network: the outputs, as .csv or .npy, and
    beside them the bounds, as .json"""
    report: Annotated[Path | None, shown("DIR")] = None
    """of a network: write a page that shows the layers as phases"""
    audit: bool = True
    """of a network: bound the error of this run; deep networks take about a second a row for it"""


def exec_main(options: ExecOptions) -> int:
    interpreter, program = _two_files(options.files)
    run = _run_network if kind_of(program) == "network" else _run_program
    return run(options, interpreter, program)


def _two_files(files: tuple[Path, ...]) -> tuple[Path, Path]:
    if len(files) == 1 and files[0].is_dir():
        compiled = [files[0] / f"{kind}.safetensors" for kind in ("program", "network")]
        there = [path for path in compiled if path.exists()]
        if len(there) == 2:
            raise BadUsage(f"{files[0]} holds a program and a network; name the interpreter's file and one of them")
        return files[0] / "interpreter.safetensors", (there or compiled)[0]
    if len(files) != 2:
        raise BadUsage("name the folder of emulon compile, or the interpreter's file and the program's")
    return files[0], files[1]


def _run_program(options: ExecOptions, first: Path, second: Path) -> int:
    """A program's weights on a table, and their score on the rows held out."""
    if others := [name for name in ("report", "audit") if f"--{name}" in options.changed()]:
        raise BadUsage(f"--{others[0]} is for networks")
    interpreter, program = load_interpreter(first), load_program(second)
    data = options.load(program.loss.link.kind)
    try:
        with progress() as report_progress:
            run = interpreter.run(program, *data.problem(program.loss), options.mode, report_progress)
    except (BadShape, OutOfDomain) as error:
        advice = "give the data options that the program was compiled with: --data, --target, --features, --seed, …"
        raise EmulonError(f"the program does not fit this data or interpreter: {error}; {advice}") from None
    weights, score = weights_of(run, data), data.score(answers(run, data, data.x_test))
    say(
        f"{program.name}, {program.steps} steps; held-out score {score:.4f}, of the baseline {data.baseline_score:.4f}",
        f"{'weight':<24} {'in original units':<24} feature",
        *(f"{weight:<+24.17g} {own:<+24.17g} {feature}" for _, feature, weight, own in weights),
        *(f"error {line}" for line in str(run.bounds).splitlines()),
        f"interpreter sha256 before {run.sha256[0]}\n                   after  {run.sha256[1]}",
    )
    if options.out is not None:
        save_weights(weights, options.out)
        say(options.out)
    record = {"program": program.name, "score": score, "baseline": data.baseline_score, "bound": run.bounds.bound}
    record["weights"] = {feature: weight for _, feature, weight, _ in weights}
    return options.finish(record | {"interpreter sha256": list(run.sha256)})


def _run_network(options: ExecOptions, first: Path, second: Path) -> int:
    """A network's outputs on rows of numbers, with bounds on their error."""
    if others := options.changed("files", "mode", "out", "report", "audit", "data"):
        raise BadUsage(f"{others[0]} is for programs, and {second} is a network")
    if options.data is None:
        raise BadUsage("--data is missing: a row for each input, as .csv (a line of names first) or .npy")
    if options.out is not None and options.out.suffix not in WRITTEN:  # refused before the work, not after
        raise EmulonError(f"{options.out} is neither .csv nor .npy; name the kind of file to write by its ending")
    options.require_writable(options.report)
    program, interpreter, data = load_network(second), load_interpreter(first), Path(options.data)
    x = _as_inputs(read_rows(data), program, data)
    try:
        with progress() as report_progress:
            run = interpreter.run(program, x, mode=options.mode, report_progress=report_progress)
            report_progress("auditing", 1.0)
            bounds = [run.audit, run.certificate] if options.audit else [run.certificate]
    except (BadShape, OutOfDomain) as error:
        raise EmulonError(f"the network does not run on {data}: {error}") from None
    bound, size = run.certificate.bound, run.last.abs().max().item()
    record = {
        "network": program.name,
        "inputs": str(options.data),
        "shape": list(run.last.shape),
        "mode": run.mode,
        "audit": run.audit.bound if options.audit else None,
        "certificate": bound if math.isfinite(bound) else None,
        "assumes": run.certificate.assumes,
        "interpreter sha256": list(run.sha256),
    }
    void = "; says nothing, it is above the largest output"
    # Where outputs are printed, nothing else is on standard output.
    printed = options.out is None
    if options.out is not None:
        write_rows(run.last, options.out)
        write_json(options.out.with_suffix(".json"), record)
    elif options.json != "-":
        print(as_csv(run.last), end="")
    say(
        f"{program.name}, {len(program.phases)} phases, {len(run.last)} rows, mode {options.mode}",
        # Without the terms, of which a network has one a layer: emulon show has them.
        *(f"error ≤ {b.bound:.2e} {READS[b.scope]}{'' if b.is_informative(size) else void}" for b in bounds),
        f"interpreter sha256 before {run.sha256[0]}\n                   after  {run.sha256[1]}",
        err=printed,
    )
    if options.out is not None:
        say(f"{options.out}, {options.out.with_suffix('.json')}")
    if options.report is not None:
        say(f"report {write_network(run, options.report, options.audit)}", err=printed)
    return options.finish(record | {"outputs": run.last.tolist()})


def _as_inputs(x: Tensor, program: NetworkProgram, path: Path) -> Tensor:
    """Lines of a table as what the network reads: images and sequences have all their numbers beside each other."""
    wanted = math.prod(program.shape)
    if not len(x):
        raise BadShape(f"{path} has no rows; give one for each input")
    if x.ndim != 2 or len(program.shape) == 1:
        return x
    if x.shape[1] != wanted:
        raise BadShape(f"{path} has {x.shape[1]} columns, and a row of {program.name} is {wanted}, {program.shape}")
    return x.reshape(-1, *program.shape)


EXPORT_EXAMPLES = """examples:
  emulon export ridge lasso --data diabetes --out files   interpreter.onnx; ridge.safetensors, ridge.csv; lasso's
  emulon export files/program.safetensors --out files     a program of emulon compile, with its interpreter
A program comes with the rows that it was compiled on, standardised as emulon run does. With onnxruntime alone:
  python examples/run_onnx.py files/interpreter.onnx files/ridge.safetensors files/ridge.csv"""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(DescentOptions):
    """Write the frozen interpreter as an ONNX file, and programs as the prompts that run on it."""

    what: Positional[Annotated[tuple[str, ...], arg(metavar="WHAT [WHAT ...]")]]
    """algorithms and programs' files, which share one interpreter"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the files"""


def export_main(options: ExportOptions) -> int:
    if not options.what:
        raise BadUsage("WHAT is missing (see emulon export --help)")
    algorithms_asked([word for word in options.what if not is_network(word)])
    onnx_package()  # refused now where it is missing, not after a minute's work
    make_folder(options.out)
    programs, written = _programs(options)
    interpreter = interpreter_for(list(programs.values()), "reference")
    written.insert(0, options.out / "interpreter.onnx")
    write_atomically(written[0], interpreter_to_onnx(interpreter))
    for name, program in programs.items():
        written.append(options.out / f"{name}.safetensors")
        save_prompt(program, interpreter.capacity, written[-1])
        say(f"{written[-1]}  certificate {interpreter.certificate(program)}")
    say(written[0], f"interpreter sha256 {interpreter.sha256}")
    return options.finish({"files": [str(file) for file in written]})


def _programs(options: ExportOptions) -> tuple[dict[str, Program], list[Path]]:
    """By the names of their files, and the rows of those compiled here; nothing that is read here is written over."""
    programs, rows, named = {}, [], algorithms_asked([word for word in options.what if not is_network(word)])
    if named:
        data = options.load(common_kind(list(named.values())))
        algorithms = with_settings(list(named.values()), options.steps, options.settings)
        for name, algorithm in zip(named, algorithms, strict=True):
            program = programs[name] = program_for(algorithm, data, options.tolerance, options.margin or 1.0)
            options.note_tolerance(program)
            rows += _write_rows(*data.problem(program.loss), options.out / name)
    for word in filter(is_network, options.what):
        programs[f"{Path(word).stem}_prompt"] = load_program(word)
    return programs, rows


def _write_rows(x: Tensor, y: Tensor, path: Path) -> list[Path]:
    """Write the training rows of a program in its own units, to the last bit, the target in the last column.

    Of several classes (x and y then have a leading axis) each has a file of its own, numbered from 1.
    """
    problems, written = list(zip(x, y, strict=True)) if y.ndim > 1 else [(x, y)], []
    for number, (inputs, targets) in enumerate(problems, start=1):
        rows = ([*row, own] for row, own in zip(inputs.tolist(), targets.tolist(), strict=True))
        written.append(path.with_name(f"{path.name}{'' if len(problems) == 1 else f'_{number}'}.csv"))
        write_atomically(written[-1], csv_text(rows))
        say(written[-1])
    return written


COMMANDS = {
    "compile": Command(CompileOptions, compile_main, COMPILE_EXAMPLES),
    "exec": Command(ExecOptions, exec_main, EXEC_EXAMPLES),
    "export": Command(ExportOptions, export_main, EXPORT_EXAMPLES),
}
