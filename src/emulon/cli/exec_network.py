"""`emulon exec-network`: a compiled network on rows of numbers."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, shown
from emulon.cli.rows import as_csv, read_rows, require_writable, write_rows
from emulon.core.errors import BadShape, EmulonError, OutOfDomain

if TYPE_CHECKING:
    from torch import Tensor

    from emulon.networks import NetworkProgram, NetworkRun

EXAMPLES = """examples:
  emulon compile-network mine.py:network --data x.csv --out files
  emulon exec-network files x.csv --out y.csv               the outputs, and in y.json what they are promised to be
  emulon exec-network files x.npy --report page             a page: every layer as a phase of the frozen transformer
Rows of images or sequences are .npy or .safetensors, or a .csv with all numbers of a row beside each other."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Run a compiled network on rows of numbers, with an audit of the run."""

    folder: Positional[Annotated[Path, arg(metavar="DIR")]]
    """a folder of emulon compile-network"""
    data: Positional[Annotated[Path, arg(metavar="INPUTS")]]
    """a row for each input: .csv (a line of names first), .npy or .safetensors"""
    out: Annotated[Path | None, shown("FILE")] = None
    """write outputs there, .csv or .safetensors, and what is promised of them beside it, as .json"""
    report: Annotated[Path | None, shown("DIR")] = None
    """write a page that shows the layers as phases"""
    mode: Literal["fast", "reference"] = "fast"
    """reference: every token, head and score"""
    audit: bool = True
    """bound the error of this run; deep networks take about a second a row for it"""


def main(options: Options) -> int:
    from emulon.core.files import make_folder, write_json
    from emulon.core.progress import progress_bar
    from emulon.interpreter import load_interpreter
    from emulon.networks import load_network

    if options.out is not None:
        require_writable(options.out)
    if options.report is not None:
        make_folder(options.report)
    program = load_network(options.folder / "network.safetensors")
    interpreter = load_interpreter(options.folder / "interpreter.safetensors")
    x = fitting(read_rows(options.data), program, options.data)
    try:
        with progress_bar() as report_progress:
            run = interpreter.run(program, x, mode=options.mode, report_progress=report_progress)
            report_progress("auditing", 1.0)
            told = facts(run, options)
    except (BadShape, OutOfDomain) as error:
        raise EmulonError(f"the network does not run on {options.data}: {error}") from None
    # Numbers that somebody may read on come alone on stdout.
    where = sys.stderr if options.out is None else sys.stdout
    if options.out is None:
        print(as_csv(run.last), end="")
    else:
        write_rows(run.last, options.out)
        write_json(options.out.with_suffix(".json"), told)
    print(f"{program.name}, {len(program.phases)} phases, {len(run.last)} rows, mode {options.mode}", file=where)
    for bound in bounds(run, options):
        print(f"error {bound}", file=where)
    print(f"interpreter sha256 before {run.sha256[0]}\n                   after  {run.sha256[1]}", file=where)
    if options.out is not None:
        print(f"{options.out}, {options.out.with_suffix('.json')}")
    if options.report is not None:
        from emulon.report.network import write

        print(f"report {write(run, options.report, options.audit)}", file=where)
    return 0


def fitting(x: Tensor, program: NetworkProgram, path: Path) -> Tensor:
    """Lines of a table as what the network reads: images and sequences have all their numbers beside each other."""
    wanted = math.prod(program.shape)
    if not len(x):
        raise BadShape(f"{path} has no rows; give one for each input")
    if x.ndim != 2 or len(program.shape) == 1:
        return x
    if x.shape[1] != wanted:
        raise BadShape(f"{path} has {x.shape[1]} columns, and a row of {program.name} is {wanted}, {program.shape}")
    return x.reshape(-1, *program.shape)


def bounds(run: NetworkRun, options: Options) -> list[str]:
    """Without the terms, of which a network has one a layer: emulon show has them."""
    from emulon.certify.certificate import READS

    bounds = [run.audit, run.certificate] if options.audit else [run.certificate]
    size = run.last.abs().max().item()
    void = "; says nothing, it is above the largest output"
    return [f"≤ {one.bound:.2e} {READS[one.scope]}{'' if one.is_informative(size) else void}" for one in bounds]


def facts(run: NetworkRun, options: Options) -> dict[str, Any]:
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
