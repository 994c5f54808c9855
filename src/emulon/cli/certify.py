"""`emulon certify`: a program's certificate as a file that can be checked without emulon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.certify.checker import canonical
from emulon.cli.options import CommandOptions, shown
from emulon.core.files import write_atomically
from emulon.interpreter import Interpreter, load_interpreter, load_program, save
from emulon.interpreter.certificate_file import certificate_of
from emulon.report.terminal import say

EXAMPLES = """example:
  emulon certify files/program.safetensors --interpreter files/interpreter.safetensors --out certificate.json
  emulon check certificate.json
The certificate holds every number of both files: neither is needed to check it."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Write a program's certificate, with all that is needed to check it."""

    program: Positional[Annotated[Path, arg(metavar="PROGRAM")]]
    """a file of emulon compile"""
    out: Annotated[Path, arg(metavar="FILE.json")]
    """the certificate"""
    interpreter: Annotated[Path | None, shown("INTERPRETER")] = None
    """the interpreter's file (default: the smallest interpreter that the program fits into)"""


def main(options: Options) -> int:
    program = load_program(options.program)
    with TemporaryDirectory() as folder:
        file = options.interpreter
        if file is None:
            file = Path(folder) / "interpreter"
            save(Interpreter.fitting(program), file)
        interpreter = load_interpreter(file)
        interpreter.require_program(program)
        certificate = certificate_of(program, interpreter, {"program": options.program, "interpreter": file})
    write_atomically(options.out, canonical(certificate))
    bound = float(certificate["follows"]["bound"])
    say(f"{options.out}: every weight is within {bound:.3e}", f"certificate {interpreter.certificate(program)}")
    return options.finish({"certificate": str(options.out), "bound": bound, "interpreter sha256": interpreter.sha256})
