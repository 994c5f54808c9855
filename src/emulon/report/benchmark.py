"""What a benchmark of methods leaves: its numbers as JSON, its table, and its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulon.core.files import provenance
from emulon.identification.curves import Interval
from emulon.planted.benchmark import MEASURES, PLAIN, Cell, Row, over_dresses
from emulon.report.chart import chart
from emulon.report.figure import Figure, Panel, Series
from emulon.report.page import fill, write_page

# Those that are drawn; the others are in the table.
DRAWN = ("where", "what", "circuit", "which")


def record(rows: Sequence[Row], cells: Sequence[Cell], seeds: Sequence[int], seconds: float) -> dict[str, Any]:
    """Everything that was measured: `scores` by method, measure and dress, specimen after specimen, null where there
    was nothing to score."""
    kept: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for row in rows:
        for measure, value in row.scores.items():
            scores = kept.setdefault(row.method, {}).setdefault(measure, {}).setdefault(row.dress, [])
            scores.append(round(value, 6) if value == value else None)
    told: dict[str, Any] = {"specimens": len(seeds), "seed": seeds[0], "seconds": round(seconds, 1)}
    told["measures"] = {name: what for name, (what, _) in MEASURES.items()}
    covered = {name: over_dresses(rows, name, "coverage") for name in kept}
    coverage = {name: {**asdict(one[0]), "intervals": one[1]} for name, one in covered.items() if one is not None}
    mechanisms = list({row.seed: row.mechanism for row in rows}.values())
    told |= {"mechanisms": mechanisms, "coverage": coverage, "cells": [asdict(cell) for cell in cells], "scores": kept}
    return provenance() | told


def table_rows(cells: Sequence[Cell], dresses: Sequence[str]) -> list[tuple[str, ...]]:
    """A row for every method and measure, a column for every dress."""
    by_key = {(cell.method, cell.measure, cell.dress): cell for cell in cells}
    keys = dict.fromkeys((cell.method, cell.measure) for cell in cells)
    order = sorted(keys, key=lambda key: (list(MEASURES).index(key[1]), key[0] == "random"))
    return [(*key, *(_told(by_key.get((*key, dress))) for dress in dresses)) for key in order]


def coverage_told(made: Mapping[str, Any]) -> list[str]:
    """A sentence for every method that gave intervals."""
    return [
        f"{name}'s 95 % intervals hold the parameter {one['value']:.1%} of the time "
        f"({one['low']:.1%} … {one['high']:.1%}; {one['intervals']} intervals, all dresses together)"
        for name, one in made["coverage"].items()
        if name != "random"
    ]


def _told(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{cell.score.value:.2f}±{(cell.score.high - cell.score.low) / 2:.2f}{cell.moved}"


def write(made: Mapping[str, Any], folder: Path) -> Path:
    """From a record, as `emulon benchmark --json` writes it."""
    cells = [cell_of(one) for one in made["cells"]]
    dresses = list(dict.fromkeys(cell.dress for cell in cells))
    drawn = [name for name in DRAWN if any(cell.measure == name for cell in cells)]
    page = fill(
        "benchmark.html",
        made=made,
        dresses=dresses,
        rows=table_rows(cells, dresses),
        figures=[(name, MEASURES[name][0], chart(figure(cells, name))) for name in drawn],
        measures=MEASURES,
        covered=coverage_told(made),
    )
    return write_page(page, folder)


def cell_of(told: Mapping[str, Any]) -> Cell:
    change = told["change"]
    changed = None if change is None else Interval(**change)
    return Cell(**{**told, "score": Interval(**told["score"]), "change": changed})


def figure(cells: Sequence[Cell], measure: str) -> Figure:
    """Bars by method: in the plain, and in the last dress that there is."""
    chosen = [cell for cell in cells if cell.measure == measure]
    last = chosen[-1].dress
    series = []
    for dress in dict.fromkeys((PLAIN, last)):
        of = [cell for cell in chosen if cell.dress == dress]
        if of:
            of.sort(key=lambda cell: cell.method == "random")
            names, values = [cell.method.replace("-", "\n") for cell in of], [cell.score.value for cell in of]
            low, high = [cell.score.low for cell in of], [cell.score.high for cell in of]
            series.append(Series(dress, names, values, "bars", low, high))
    return Figure([Panel("", measure, series)])
