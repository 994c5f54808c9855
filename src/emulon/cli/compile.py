"""`emulon compile`: an interpreter and a program, its prompt, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.cli.data import DescentOptions

EXAMPLES = """example:
  emulon compile lasso --data diabetes --out files
writes files/interpreter.safetensors and files/program.safetensors; emulon exec runs them."""


@dataclass(frozen=True, kw_only=True)
class Options(DescentOptions):
    """Write an interpreter and a program (the prompt) as files."""

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """what the program does, as emulon run names it"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the two files"""


def main(options: Options) -> int:
    options.check(options.algorithm)
    from emulon.core.files import make_folder
    from emulon.interpreter import save
    from emulon.run import (
        algorithm_named,
        algorithm_with,
        interpreter_for,
        kind_of,
        program_for,
        require_taken,
    )

    named = algorithm_named(options.algorithm)
    require_taken([named], options.settings)
    make_folder(options.out)
    algorithm = algorithm_with(named, options.steps, options.settings)
    program = program_for(algorithm, options.load(kind_of(named)), options.tolerance, options.margin)
    interpreter = interpreter_for([program])
    for thing, name in ((interpreter, "interpreter"), (program, "program")):
        save(thing, options.out / f"{name}.safetensors")
        print(options.out / f"{name}.safetensors")
    print(f"interpreter sha256 {interpreter.sha256}")
    print(f"certificate {interpreter.certificate(program)}")
    options.tell(program)
    return 0
