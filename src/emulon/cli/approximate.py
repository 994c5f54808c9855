"""`emulon approximate`: one softmax as a function of one number, with a proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, Positive
from emulon.report.terminal import say, table
from emulon.softmax import approximate

EXAMPLES = """example:
  emulon approximate "Max(0, t)" -4 4 --tolerance 1e-6
The expression is sympy's, in t. A negative bound that starts with a minus sign is fine."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Make one softmax act as a function of one number, with a proof."""

    expression: Positional[Annotated[str, arg(metavar="EXPR")]]
    """in t, as "tanh(5*t)\""""
    lo: Positional[Annotated[float, arg(metavar="LO")]]
    """the left end of the interval"""
    hi: Positional[Annotated[float, arg(metavar="HI")]]
    """the right end"""
    tolerance: Positive = 1e-8
    """largest error allowed"""


def main(options: Options) -> int:
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
