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
from emulon.report.chart import BLUE, GREY, ORANGE, as_svg, canvas
from emulon.report.page import fill, write_page
from emulon.report.prompt import network_facts

# Phases that are drawn one by one; a transformer has hundreds.
DRAWN = 12
# Markers for so many phases, and where a logarithm stands for zero.
MARKED, LEAST = 24, 1e-17


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


@as_svg
def course(run: NetworkRun, phases: Sequence[PhaseStatistics]) -> Any:
    """From phase to phase: what each may add, how far the registers are from the exact network's, and the time."""
    numbers, line = range(1, len(phases) + 1), run.interpreter.identity
    bounds = [max(each.phase.own_error(line), LEAST) for each in phases]
    off = [max(each.distance, LEAST) if math.isfinite(each.distance) else math.nan for each in phases]
    marker = "o" if len(phases) <= MARKED else ""
    figure = canvas(7.2, 2.4)
    left, right = figure.subplots(1, 2)
    left.semilogy(numbers, bounds, marker=marker, markersize=3, color=ORANGE, linestyle="--", label="may add")
    left.semilogy(numbers, off, marker=marker, markersize=3, color=BLUE, label="register is off by")
    left.set_ylabel("error")
    left.legend(frameon=False, fontsize=7)
    right.bar(numbers, [1e3 * each.seconds for each in phases], color=BLUE)
    right.set_ylabel("milliseconds")
    for axis in (left, right):
        axis.set_xlabel("phase")
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


@as_svg
def picture(each: PhaseStatistics) -> Any:
    """A linear map's W_V, a function with its softmax, or where the queries of an attention look."""
    figure = canvas(2.6, 1.9)
    axis = figure.subplots()
    phase = each.phase
    axis.set_title(phase.layer.name if len(phase.layer.name) <= 38 else f"{phase.layer.name[:37]}…", fontsize=7)
    if isinstance(phase, LinearPhase):
        rows = phase.rows().numpy()
        most = max(float(np.abs(rows).max()), 1e-300)
        figure.colorbar(axis.imshow(rows, aspect="auto", cmap="PuOr", vmin=-most, vmax=most, interpolation="nearest"))
        axis.set_xlabel("x, and 1 for the bias")
        axis.set_ylabel("row of W_V")
    elif isinstance(phase, FunctionPhase | GatePhase):
        _function(axis, phase)
    elif each.weights is not None:
        figure.colorbar(axis.imshow(each.weights.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest"))
        axis.set_xlabel("token")
        axis.set_ylabel("query")
    for side in (axis.xaxis, axis.yaxis) if not isinstance(phase, FunctionPhase | GatePhase) else ():
        side.get_major_locator().set_params(integer=True)
    return figure


def _function(axis: Any, phase: FunctionPhase | GatePhase) -> None:
    lo, hi = phase.ranges.inputs.ends
    s = np.linspace(lo, hi, 401)
    axis.plot(s, parse(phase.layer.f)(torch.from_numpy(s)).numpy(), color=GREY, linewidth=3, label="function")
    if isinstance(phase, FunctionPhase):
        numbers = phase.softmax.grid.numbers
        axis.plot(s, numbers.weights(s) @ numbers.values, color=BLUE, linewidth=1, label=f"{len(numbers.values)} keys")
    else:
        axis.plot(
            s,
            s * (phase.layer.low + (1 - phase.layer.low) / (1 + np.exp(-np.clip(phase.sharpness * s, -500, 500)))),
            color=ORANGE,
            linewidth=1,
            label="two keys",
        )
    axis.set_xlabel("t")
    axis.legend(frameon=False, fontsize=6)
