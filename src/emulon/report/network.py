"""The page of a network: every layer as a phase of the frozen transformer, what it cost and how far off it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulon.interpreter.identity_grid import identity_grid
from emulon.networks import NetworkProgram, NetworkRun
from emulon.networks.program import ROWS, PhaseStatistics
from emulon.report.figure import BLUE, LEAST, Figure, Panel, Series, chart
from emulon.report.page import fill, write_page


def write(run: NetworkRun, folder: Path, audited: bool = True) -> Path:
    """Write the page; `audited`: with the bound of the whole run, which takes long for a deep network."""
    phases = run.statistics()
    return write_page(
        fill(
            "network.html",
            run=run,
            audit=run.audit.bound if audited else None,
            told=network_facts(run.program),
            looked=min(ROWS, len(run.inputs)),
            rows=[_row(run, number, each) for number, each in enumerate(phases, start=1)],
            course=course(run, phases),
        ),
        folder,
    )


def _row(run: NetworkRun, number: int, each: PhaseStatistics) -> dict[str, Any]:
    phase = each.phase
    lo, hi = phase.ranges.output.ends
    term = run.certificate.terms[phase.layer.name]
    return {
        "number": number,
        "layer": phase.layer.name,
        "reads": ", ".join(map(str, phase.layer.reads)) or "–",
        "kind": phase.kind,
        "prompt": phase.description(),
        "tokens": f"{each.tokens:,}",
        "a prompt": f"{each.keys:,}",
        "range": f"({lo:.3g}, {hi:.3g})",
        "bound": f"{phase.own_error(run.interpreter.identity):.1e}",
        "term": f"{term:.1e}" if math.isfinite(term) else "–",
        "off": f"{each.distance:.1e}" if math.isfinite(each.distance) else "–",
        "milliseconds": f"{1e3 * each.seconds:.2f}",
    }


def course(run: NetworkRun, phases: Sequence[PhaseStatistics]) -> str:
    """From phase to phase: what each may add, how far the registers are from the exact network's, and the time."""
    numbers, line = range(1, len(phases) + 1), run.interpreter.identity
    bounds = [max(each.phase.own_error(line), LEAST) for each in phases]
    off = [max(each.distance, LEAST) if math.isfinite(each.distance) else math.nan for each in phases]
    errors = [Series("register is off by", numbers, off), Series("may add", numbers, bounds, "dashes")]
    times = [Series("milliseconds", numbers, [1e3 * each.seconds for each in phases], colour=BLUE)]
    size = (3.6, 2.4)
    panels = [Panel("phase", "error", errors, log_y=True, size=size), Panel("phase", "milliseconds", times, size=size)]
    return chart(Figure(panels))


def network_facts(program: NetworkProgram) -> list[tuple[str, str]]:
    """What a network says about itself in a line each."""
    capacity, (lo, hi) = program.capacity, program.box.ends
    seen = "for every input of the domain" if program.source == "domain" else "seen on data, checked by every run"
    return [
        ("network", f"{program.name}: {program.shape} to {program.out_shape}, {len(program.phases)} phases"),
        ("inputs", f"within ({lo:.4g}, {hi:.4g}); ranges {seen}"),
        (
            "needs",
            f"{capacity.tokens} tokens of {capacity.features}, width {capacity.width}, up to {capacity.reach:.4g}",
        ),
        ("certificate", str(program.certificate)),
    ]


def network_rows(program: NetworkProgram) -> list[tuple[str, str, str, str, str, str]]:
    """Phase by phase: layer, registers, kind, prompt, range of what is written, and its own error at most."""
    line, rows = identity_grid(program.capacity.reach), []
    for phase in program.phases:
        lo, hi = phase.ranges.output.ends
        reads = ", ".join(map(str, phase.layer.reads)) or "–"
        own = f"{phase.own_error(line):.1e}"
        rows.append((phase.layer.name, reads, phase.kind, phase.description(), f"({lo:.4g}, {hi:.4g})", own))
    return rows
