"""The page of a network: every layer as a phase of the frozen transformer, what it cost and how far off it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulon.expressions import parse
from emulon.networks import NetworkRun
from emulon.networks.elementwise import Elementwise, FunctionPhase, GatePhase
from emulon.networks.linear import LinearPhase
from emulon.networks.program import ROWS, PhaseStatistics
from emulon.report.chart import BLUE, GREY, LEAST, chart
from emulon.report.figure import Figure, Heat, Panel, Series
from emulon.report.page import fill, write_page
from emulon.report.prompt import network_facts

# Phases that are drawn one by one; a transformer has hundreds.
DRAWN = 12


def write(run: NetworkRun, folder: Path, audited: bool = True) -> Path:
    """Write the page; `audited`: with the bound of the whole run, which takes long for a deep network."""
    phases = run.statistics()
    drawn = telling(phases)
    return write_page(
        fill(
            "network.html",
            run=run,
            audit=run.audit.bound if audited else None,
            told=network_facts(run.program),
            looked=min(ROWS, len(run.inputs)),
            rows=[_row(run, number, each) for number, each in enumerate(phases, start=1)],
            course=course(run, phases),
            pictures=[picture(each) for each in drawn],
            left=len(phases) - len(drawn),
        ),
        folder,
    )


def telling(phases: Sequence[PhaseStatistics]) -> list[PhaseStatistics]:
    """All, or of many the first few of every kind, functions that differ, in order."""
    if len(phases) <= DRAWN:
        return [each for each in phases if each.phase.kind != "constant"]
    found: dict[str, list[PhaseStatistics]] = {"attention": [], "elementwise": [], "linear": []}
    drawn = set[str]()
    for each in phases:
        layer = each.phase.layer
        again = isinstance(layer, Elementwise) and layer.f in drawn
        if layer.kind in found and len(found[layer.kind]) < DRAWN // 3 and not again:
            found[layer.kind].append(each)
            drawn |= {layer.f} if isinstance(layer, Elementwise) else set()
    return [each for each in phases if any(each in some for some in found.values())]


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


def picture(each: PhaseStatistics) -> str:
    """A linear map's W_V, a function with its softmax, or where the queries of an attention look."""
    phase = each.phase
    name = phase.layer.name
    look: dict[str, Any] = {"title": name if len(name) <= 30 else f"{name[:29]}…", "size": (2.6, 2.1)}
    if isinstance(phase, LinearPhase):
        heat = Heat(phase.rows().numpy(), signed=True, bar="")
        return chart(Figure([Panel("x, and 1 for the bias", "row of W_V", heat=heat, **look)]))
    if isinstance(phase, FunctionPhase | GatePhase):
        return chart(Figure([Panel("t", "", _function(phase), **look)]))
    if each.weights is None:
        return chart(Figure([Panel("", "", **look)]))
    return chart(Figure([Panel("token", "query", heat=Heat(each.weights.numpy(), bar=""), **look)]))


def _function(phase: FunctionPhase | GatePhase) -> list[Series]:
    """The function, and what its keys make of it."""
    lo, hi = phase.ranges.inputs.ends
    s = np.linspace(lo, hi, 401)
    truth = parse(phase.layer.f)(torch.from_numpy(s)).tolist()
    if isinstance(phase, FunctionPhase):
        numbers = phase.softmax.grid.numbers
        name, made = f"{len(numbers.values)} keys", numbers.weights(s) @ numbers.values
    else:
        share = 1 / (1 + np.exp(-np.clip(phase.sharpness * s, -500, 500)))
        name, made = "two keys", s * (phase.layer.low + (1 - phase.layer.low) * share)
    return [Series("function", s.tolist(), truth, colour=GREY, width=3), Series(name, s.tolist(), made.tolist())]
