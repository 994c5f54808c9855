"""Certificate files: all that an independent checker needs to prove a program's certificate again.

Claims are what was proved here, proofs the cells in each of which the checker sees it at once; what follows from claims
is computed in the checker's own arithmetic, to 25 digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from emulon.certify import checker, rounding
from emulon.certify.interpolation import prove
from emulon.core.errors import EmulonError
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.module import Interpreter
from emulon.interpreter.program import Program

Ends = Sequence[float]
MOST_CELLS = 60_000


def certificate_of(program: Program, interpreter: Interpreter, files: dict[str, Path]) -> dict[str, Any]:
    """Of a program on an interpreter, as their `files`, by these two words, hold them."""
    made: dict[str, Any] = {name: checker.section_of(str(path)) for name, path in files.items()}
    bounds = {each.name: each.proved for each in program.phases}
    claims: dict[str, Any] = {}
    proofs: dict[str, Any] = {"lowest": {}}
    made |= {"claims": claims, "proofs": proofs}
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        whole = checker.Certificate(made)
        claims["line"], proofs["line"] = of_line(interpreter, program.capacity.reach, whole.line)
        for name, f in whole.phases().items():
            softmax, grid = checker.Softmax(whole.program, f"{name}."), whole.facts[name]["grid"]
            claims[name] = {each: getattr(bounds[name], each) for each in (*checker.PROVED, "leak")}
            proofs[name] = _seen(softmax, f, (grid["lo"], grid["hi"]), grid["bands"], claims[name])[0]
            proofs["lowest"][name] = _lowest(softmax, grid["lo"], grid["hi"])
        made["follows"] = whole.follows()
        proofs["curvature"] = _of_curvature(whole)
        try:
            checker.require_whole(made)
            whole.require_sound()
            whole.require_as_loaded()
        except checker.Refused as refused:
            raise EmulonError(f"the checker does not accept {refused}; there is no certificate") from None
    return made | {"format": checker.FORMAT, "sha256": checker.hashes(made)}


def of_line(
    interpreter: Interpreter, reach: float, softmax: checker.Softmax
) -> tuple[list[dict[str, Any]], list[list[float]]]:
    """What is proved of the identity grid between each of its magnitudes and the next, as far as the program goes."""
    line, start, bands, cells = interpreter.identity, 0.0, list[dict[str, Any]](), list[list[float]]()
    numbers, identity = line.grid.numbers, parse("t")
    for end in line.reaches:
        target = rounding.unit(interpreter.dtype) * end
        sides = [prove(numbers, identity, *side, target=target) for side in ((start, end), (-end, -start))]
        band: dict[str, Any] = {"to": end, "interpolation": max(each.error for each in sides)}
        band |= {name: max(getattr(each, name) for each in sides) for name in ("deviation", "size")}
        edges, matter = _seen(softmax, "t", (-end, end), [(-start, start)], band)
        bands.append(band | {"matter": sorted(matter)})
        cells.append(edges)
        if reach <= end:
            break
        start = end
    return bands, cells


def _seen(
    softmax: checker.Softmax, f: str, ends: Ends, bands: Sequence[Ends], claim: dict[str, Any]
) -> tuple[list[float], set[int]]:
    """Cells on each of which the checker sees what is claimed, and the keys that matter somewhere."""
    matter: set[int] = set()

    def seen(left: float, right: float) -> bool:
        found, keys = softmax.cell(f, left, right)
        holds = all(bound <= claim[name] for name, bound in zip(checker.PROVED, found, strict=True))
        matter.update(keys if holds else ())
        return holds

    return divided(ends, bands, seen), matter


def _lowest(softmax: checker.Softmax, lo: float, hi: float) -> list[float]:
    """Where the normaliser is lowest: floats, of which each is what those before it leave over."""
    from flint import arb

    low, high, parts = arb(lo), arb(hi), list[float]()
    for _ in range(checker.PRECISION // 2):
        middle = ((low + high) / 2).mid()
        low, high = (low, middle) if softmax.normaliser(middle)[1] > 0 else (middle, high)
    for _ in range(4):
        parts.append(float(low))
        low = low - arb(parts[-1])
    return parts


def _of_curvature(whole: checker.Certificate) -> list[float]:
    reach = float(whole.reach().upper()) * (1 + 2.0**-50)
    return divided((-reach, reach), whole.bands(), whole.flat)


def divided(ends: Ends, bands: Sequence[Ends], holds: Callable[[float, float], bool]) -> list[float]:
    """Edges of cells on each of which something is seen to hold, halved until it is; inside a band nothing is asked."""
    stops = sorted({*ends, *(min(max(edge, ends[0]), ends[1]) for band in bands for edge in band)})
    queue, edges = list(pairwise(stops))[::-1], [stops[0]]
    while queue:
        left, right = queue.pop()
        if any(lo <= left and right <= hi for lo, hi in bands) or _holds(holds, left, right):
            edges.append(right)
            continue
        if len(edges) > MOST_CELLS or not right - left > 2.0**-51 * (1 + abs(left)):
            raise EmulonError(f"the checker does not see near t = {left:.6g} what is promised; there is no certificate")
        queue += [((left + right) / 2, right), (left, (left + right) / 2)]
    return edges


def _holds(holds: Callable[[float, float], bool], left: float, right: float) -> bool:
    try:
        return holds(left, right)
    except (ZeroDivisionError, ValueError):  # a division by a ball around zero
        return False
