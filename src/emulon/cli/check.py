"""`emulon check`: does a certificate hold? Asked of `certify/checker.py`, which knows nothing of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, shown

EXAMPLES = """example:
  emulon check certificate.json --interpreter files/interpreter.safetensors --program files/program.safetensors
Exit code 0: it holds. 1: it does not, and a line says which field is wrong. 2: it cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Check a certificate of emulon certify."""

    certificate: Positional[Annotated[Path, arg(metavar="CERTIFICATE")]]
    """a file of emulon certify"""
    interpreter: Annotated[Path | None, shown("INTERPRETER")] = None
    """check that it is about this file"""
    program: Annotated[Path | None, shown("PROGRAM")] = None
    """check that it is about this file"""


def main(options: Options) -> int:
    from emulon.certify import checker
    from emulon.expressions.evaluation import ball_arithmetic

    words = [str(options.certificate)]
    for name in ("interpreter", "program"):
        if (file := getattr(options, name)) is not None:
            words += [f"--{name}", str(file)]
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        return checker.main(words)
