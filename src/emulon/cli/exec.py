"""`emulon exec`: a program's file on an interpreter's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from emulon.cli.data import DataOptions, save_weights, weights_of
from emulon.cli.options import shown
from emulon.core.errors import BadShape, EmulonError, OutOfDomain

EXAMPLES = """example:
  emulon exec files/interpreter.safetensors files/program.safetensors --data diabetes --out weights.csv
The data, target, features and seed must be those of emulon compile; the weights are then those of emulon run,
to the bit."""


@dataclass(frozen=True, kw_only=True)
class Options(DataOptions):
    """Run a program's file on an interpreter's file."""

    interpreter: Positional[Annotated[Path, arg(metavar="INTERPRETER")]]
    """a file of emulon compile"""
    program: Positional[Annotated[Path, arg(metavar="PROGRAM")]]
    """a file of emulon compile"""
    mode: Literal["fast", "reference"] = "fast"
    """reference: every token, head and score"""
    out: Annotated[Path | None, shown("FILE.csv")] = None
    """save the weights here, to the last bit"""


def main(options: Options) -> int:
    options.check()
    from emulon.core.progress import progress_bar
    from emulon.interpreter import load_interpreter, load_program
    from emulon.run import held_out_score, run_program

    interpreter, program = load_interpreter(options.interpreter), load_program(options.program)
    data = options.load(program.loss.link.kind)
    try:
        with progress_bar() as report_progress:
            run = run_program(interpreter, program, data, options.mode, report_progress)
    except (BadShape, OutOfDomain) as error:
        advice = "give the data options that the program was compiled with: --data, --target, --features, --seed, …"
        raise EmulonError(f"the program does not fit this data or interpreter: {error}; {advice}") from None
    weights = weights_of(run, data)
    print(
        f"{program.name}, {program.steps} steps; held-out score {held_out_score(run, data):.4f}, of the "
        f"baseline {data.baseline_score:.4f}"
    )
    print(f"{'weight':<24} {'in original units':<24} feature")
    for _, feature, weight, own in weights:
        print(f"{weight:<+24.17g} {own:<+24.17g} {feature}")
    for bound in str(run.bounds).splitlines():
        print(f"error {bound}")
    print(f"interpreter sha256 before {run.sha256[0]}\n                   after  {run.sha256[1]}")
    if options.out is not None:
        save_weights(weights, options.out)
        print(options.out)
    return 0
