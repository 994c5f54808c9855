"""`emulon exec`: a compiled program on a table, or a compiled network on rows of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor
from tyro.conf import Positional, arg

from emulon.certify.certificate import READS
from emulon.cli.data import DataOptions, save_weights, weights_of
from emulon.cli.options import BadUsage, shown
from emulon.cli.rows import as_csv, read_rows, require_writable, write_rows
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.core.files import write_json
from emulon.interpreter import kind_of, load_interpreter, load_program
from emulon.networks import NetworkProgram, NetworkRun, load_network
from emulon.report.network import write
from emulon.report.terminal import progress, say
from emulon.run import held_out_score, run_program

EXAMPLES = """examples:
  emulon compile ridge --data diabetes --out files
  emulon exec files --data diabetes --out weights.csv      the weights of emulon run, to the bit
  emulon compile mine.py:network --data x.csv --out files
  emulon exec files --data x.csv --out y.csv               the outputs, and in y.json the bounds on their error
  emulon exec files --data x.npy --report page             a page: every layer as a phase of the frozen transformer
For a program the data, target, features and seed must be those of emulon compile. For a network, rows of images or
sequences are .npy or .safetensors, or a .csv with all numbers of a row beside each other."""


@dataclass(frozen=True, kw_only=True)
class Options(DataOptions):
    """Run a compiled program, or a compiled network with an audit of the run."""

    files: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR | INTERPRETER PROGRAM")]]
    """the folder of emulon compile, or its two files"""
    mode: Literal["fast", "reference"] = "fast"
    """reference: every token, head and score"""
    out: Annotated[Path | None, shown("FILE")] = None
    """of a program: the weights, as .csv, to the last bit; of a network: the outputs, as .csv or .safetensors, and
    beside them the bounds, as .json"""
    report: Annotated[Path | None, shown("DIR")] = None
    """of a network: write a page that shows the layers as phases"""
    audit: bool = True
    """of a network: bound the error of this run; deep networks take about a second a row for it"""


def main(options: Options) -> int:
    interpreter, program = _two_files(options.files)
    return _network(options, interpreter, program) if kind_of(program) == "network" else _table(options, options.files)


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


def _table(options: Options, files: tuple[Path, ...]) -> int:
    """A program's weights on a table, and their score on the rows held out."""
    if others := [name for name in ("report", "audit") if f"--{name}" in options.changed()]:
        raise BadUsage(f"--{others[0]} is for networks")
    first, second = _two_files(files)
    interpreter, program = load_interpreter(first), load_program(second)
    data = options.load(program.loss.link.kind)
    try:
        with progress() as report_progress:
            run = run_program(interpreter, program, data, options.mode, report_progress)
    except (BadShape, OutOfDomain) as error:
        advice = "give the data options that the program was compiled with: --data, --target, --features, --seed, …"
        raise EmulonError(f"the program does not fit this data or interpreter: {error}; {advice}") from None
    weights, score = weights_of(run, data), held_out_score(run, data)
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
    return options.finish(
        {
            "program": program.name,
            "score": score,
            "baseline": data.baseline_score,
            "bound": run.bounds.bound,
            "weights": {feature: weight for _, feature, weight, _ in weights},
            "interpreter sha256": list(run.sha256),
        }
    )


def _network(options: Options, first: Path, second: Path) -> int:
    """A network's outputs on rows of numbers, with bounds on their error."""
    if others := options.changed("files", "mode", "out", "report", "audit", "data"):
        raise BadUsage(f"{others[0]} is for programs, and {second} is a network")
    if options.data is None:
        raise BadUsage("--data is missing: a row for each input, as .csv (a line of names first), .npy or .safetensors")
    if options.out is not None:
        require_writable(options.out)
    options.require_writable(options.report)
    program, interpreter, data = load_network(second), load_interpreter(first), Path(options.data)
    x = _as_inputs(read_rows(data), program, data)
    try:
        with progress() as report_progress:
            run = interpreter.run(program, x, mode=options.mode, report_progress=report_progress)
            report_progress("auditing", 1.0)
            record = _record(run, options)
    except (BadShape, OutOfDomain) as error:
        raise EmulonError(f"the network does not run on {data}: {error}") from None
    # Where outputs are printed, nothing else is on standard output.
    printed = options.out is None
    if options.out is not None:
        write_rows(run.last, options.out)
        write_json(options.out.with_suffix(".json"), record)
    elif options.json != "-":
        print(as_csv(run.last), end="")
    say(
        f"{program.name}, {len(program.phases)} phases, {len(run.last)} rows, mode {options.mode}",
        *(f"error {line}" for line in _bounds(run, options)),
        f"interpreter sha256 before {run.sha256[0]}\n                   after  {run.sha256[1]}",
        err=printed,
    )
    if options.out is not None:
        say(f"{options.out}, {options.out.with_suffix('.json')}")
    if options.report is not None:
        say(f"report {write(run, options.report, options.audit)}", err=printed)
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


def _bounds(run: NetworkRun, options: Options) -> list[str]:
    """Without the terms, of which a network has one a layer: emulon show has them."""
    bounds = [run.audit, run.certificate] if options.audit else [run.certificate]
    size = run.last.abs().max().item()
    void = "; says nothing, it is above the largest output"
    return [f"≤ {one.bound:.2e} {READS[one.scope]}{'' if one.is_informative(size) else void}" for one in bounds]


def _record(run: NetworkRun, options: Options) -> dict[str, Any]:
    """What stands beside the outputs: bounds, where known, and on which interpreter they came out."""
    bound = run.certificate.bound
    return {
        "network": run.program.name,
        "inputs": str(options.data),
        "shape": list(run.last.shape),
        "mode": run.mode,
        "audit": run.audit.bound if options.audit else None,
        "certificate": bound if math.isfinite(bound) else None,
        "assumes": run.certificate.assumes,
        "interpreter sha256": list(run.sha256),
    }
