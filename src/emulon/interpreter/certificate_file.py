"""Certificate files: everything that a checker which knows nothing of emulon needs, to prove a program's promise again.

Claims are what was proved here; what follows from them is computed in the checker's own arithmetic, to 25 digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emulon.certify import checker, rounding
from emulon.certify.interpolation import prove
from emulon.evaluation import ball_arithmetic
from emulon.expression import parse
from emulon.interpreter.module import Interpreter
from emulon.interpreter.phase import ProvedBounds
from emulon.interpreter.program import Program


def certificate_of(program: Program, interpreter: Interpreter, files: dict[str, Path]) -> dict[str, Any]:
    """Of a program on an interpreter, as their `files`, by these two words, hold them."""
    bounds = {"gradient": program.gradient_bounds, "proximal": program.proximal_bounds}
    certificate: dict[str, Any] = {
        "format": checker.FORMAT,
        **{name: checker.section_of(str(path)) for name, path in files.items()},
        "claims": {name: None if each is None else _of_phase(each) for name, each in bounds.items()},
    }
    claims = certificate["claims"]
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        claims["line"] = _of_line(interpreter, program.capacity.reach, checker.Softmax(certificate["interpreter"]))
        certificate |= checker.derived(certificate)
    return certificate | {"sha256": checker.hashes(certificate)}


def _of_phase(bounds: ProvedBounds) -> dict[str, str]:
    return {name: repr(getattr(bounds, name)) for name in checker.PHASE}


def _of_line(interpreter: Interpreter, reach: float, softmax: checker.Softmax) -> list[dict[str, Any]]:
    """What is proved of the number line between each of its magnitudes and the next, as far as the program goes."""
    line, start, bands = interpreter.line, 0.0, list[dict[str, Any]]()
    numbers, identity = line.grid.numbers, parse("t")
    for end in line.reaches:
        target = rounding.unit(interpreter.dtype) * end
        sides = [prove(numbers, identity, *side, target=target) for side in ((start, end), (-end, -start))]
        band: dict[str, Any] = {"to": repr(end)}
        band["interpolation"] = repr(max(each.error for each in sides))
        band |= {name: repr(max(getattr(each, name) for each in sides)) for name in ("deviation", "size")}
        claim = {name: band[name] for name in checker.PROVED}
        matter = [
            checker.prove(softmax, checker.Function("t"), side, (), claim, "the number line")
            for side in ((start, end), (-end, -start))
        ]
        band |= checker.about_keys(softmax, end, set.union(*matter))
        bands.append(band)
        if reach <= end:
            break
        start = end
    return bands
