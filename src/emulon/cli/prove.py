"""`emulon approximate` and `emulon check`: one softmax as a function with a proof, and certificates checked."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from emulon.certify import checker, transcript_checker
from emulon.cli.options import BadUsage, Command, CommandOptions, Positive, shown
from emulon.expressions.evaluation import ball_arithmetic
from emulon.report.terminal import say, table
from emulon.softmax import approximate

APPROXIMATE_EXAMPLES = """example:
  emulon approximate "Max(0, t)" -4 4 --tolerance 1e-6
The expression is sympy's, in t. A negative bound that starts with a minus sign is fine."""


@dataclass(frozen=True, kw_only=True)
class ApproximateOptions(CommandOptions):
    """Make one softmax act as a function of one number, with a proof."""

    expression: Positional[Annotated[str, arg(metavar="EXPR")]]
    """in t, as "tanh(5*t)\""""
    lo: Positional[Annotated[float, arg(metavar="LO")]]
    """the left end of the interval"""
    hi: Positional[Annotated[float, arg(metavar="HI")]]
    """the right end"""
    tolerance: Positive = 1e-8
    """largest error allowed"""


def approximate_main(options: ApproximateOptions) -> int:
    softmax = approximate(options.expression, (options.lo, options.hi), tolerance=options.tolerance)
    points = torch.linspace(options.lo, options.hi, 9, dtype=torch.float64, device="cpu")
    rows = [
        (f"{t:.6g}", f"{exact:.12g}", f"{ours:.12g}", f"{ours - exact:+.1e}")
        for t, exact, ours in zip(points, softmax.function(points), softmax(points), strict=True)
    ]
    title = f"{options.expression} by one softmax over {softmax.keys} keys ({softmax.grid.way})"
    say(table(("t", "function", "softmax", "difference"), rows, title=title), f"certificate {softmax.certificate}")
    grid = {name: getattr(softmax, name).tolist() for name in ("slopes", "intercepts", "values")}
    return options.finish({"keys": softmax.keys, "bound": softmax.certificate.bound, **grid})


CHECK_EXAMPLES = """examples:
  emulon check certificate.json --interpreter files/interpreter.safetensors --program files/program.safetensors
  emulon check transcript.txt --within 2e-7    a prompt and the weights that a model wrote after it
Exit code 0: it holds. 1: it does not, and a line says what is wrong. 2: it cannot be read."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(CommandOptions):
    """Check a certificate of emulon compile --certificate, or a transcript of emulon llama."""

    certificate: Positional[Annotated[Path, arg(metavar="FILE")]]
    """a certificate or a transcript"""
    interpreter: Annotated[Path | None, shown("INTERPRETER")] = None
    """check that it is about this file"""
    program: Annotated[Path | None, shown("PROGRAM")] = None
    """check that it is about this file"""
    within: Annotated[Positive | None, shown("NUMBER")] = None
    """how far a written weight of a transcript may be from the exact one (1e-6)"""


def check_main(options: CheckOptions) -> int:
    words, found, refused = [str(options.certificate)], io.StringIO(), io.StringIO()
    try:
        with open(options.certificate, "rb") as file:
            transcript = file.read(100).lstrip().startswith(b"until:")  # as a prompt does
    except OSError:  # the checker of certificates says why
        transcript = False
    if options.within is not None:
        if not transcript:
            raise BadUsage("--within is for transcripts; a certificate has its own bound")
        words += ["--within", str(options.within)]
    for name in () if transcript else ("interpreter", "program"):
        if (file := getattr(options, name)) is not None:
            words += [f"--{name}", str(file)]
    module = transcript_checker if transcript else checker
    precision = (module.PRECISION,) if transcript else (module.PRECISION, checker.ORDER + 1)
    with ball_arithmetic(*precision), contextlib.redirect_stdout(found), contextlib.redirect_stderr(refused):
        code = module.main(words)
    finding = (refused if code else found).getvalue().strip()
    if code:
        print(finding, file=sys.stderr)
    else:
        say(finding)
    return options.finish({"holds": code == 0, "finding": finding}) or code


COMMANDS = {
    "approximate": Command(ApproximateOptions, approximate_main, APPROXIMATE_EXAMPLES),
    "check": Command(CheckOptions, check_main, CHECK_EXAMPLES),
}
