"""What a benchmark of methods leaves: its numbers as JSON, its table, and its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulon.core.files import provenance
from emulon.identification.sampling import Interval
from emulon.planted.benchmark import ALL, MEASURES, PLAIN, Cell, Row, over_variants, summary
from emulon.planted.benchmark.split import BadEntry
from emulon.report.figure import Figure, Panel, Series, chart
from emulon.report.page import fill, write_page

# Scores are kept to six digits.
ROUNDED = 1e-6
# Those that are drawn; the others are in the table.
DRAWN = ("where", "what", "circuit", "which")


def record(
    rows: Sequence[Row], cells: Sequence[Cell], seeds: Sequence[int], seconds: float, architecture: str
) -> dict[str, Any]:
    """Everything that was measured: `scores` by method, measure and variant, model after model, null where there
    was nothing to score."""
    kept: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for row in rows:
        for measure, value in row.scores.items():
            scores = kept.setdefault(row.method, {}).setdefault(measure, {}).setdefault(row.variant, [])
            scores.append(round(value, 6) if value == value else None)
    covered = {name: over_variants(rows, name, "coverage") for name in kept}
    seconds_of = {name: [row.seconds for row in rows if row.method == name] for name in kept}
    return {
        **provenance(),
        "models": len(seeds),
        "seed": seeds[0],
        "seconds": round(seconds, 1),
        "architecture": architecture,
        "measures": {name: what for name, (what, _) in MEASURES.items()},
        "seconds_per_model": {name: round(sum(each) / len(each), 4) for name, each in seconds_of.items()},
        "missing": {row.method: row.missing for row in rows if row.missing},
        "mechanisms": list({row.seed: row.mechanism for row in rows}.values()),
        "coverage": {name: {**asdict(one[0]), "intervals": one[1]} for name, one in covered.items() if one is not None},
        "cells": [asdict(cell) for cell in cells],
        "scores": kept,
    }


def table_rows(cells: Sequence[Cell], variants: Sequence[str], missing: Mapping[str, str]) -> list[tuple[str, ...]]:
    """A row for every method and measure, a column for every variant; `missing` are methods that could not run."""
    by_key = {(cell.method, cell.measure, cell.variant): cell for cell in cells}
    keys = dict.fromkeys((cell.method, cell.measure) for cell in cells)
    order = sorted(keys, key=lambda key: (list(MEASURES).index(key[1]), key[0] == "random"))
    made = [(*key, *(_formatted(by_key.get((*key, variant))) for variant in variants)) for key in order]
    return made + [(name, why, *("–" for _ in variants)) for name, why in missing.items()]


def coverage_lines(made: Mapping[str, Any]) -> list[str]:
    """A sentence for every method that gave intervals."""
    return [
        f"{name}'s 95 % intervals hold the parameter {one['value']:.1%} of the time "
        f"({one['low']:.1%} … {one['high']:.1%}; {one['intervals']} intervals, all variants together)"
        for name, one in made["coverage"].items()
        if name != "random"
    ]


def _formatted(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{cell.score.value:.2f}±{(cell.score.high - cell.score.low) / 2:.2f}{cell.moved}"


def write(made: Mapping[str, Any], folder: Path) -> Path:
    """From a record, as `emulon benchmark --json` writes it."""
    cells = [cell_of(one) for one in made["cells"]]
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    drawn = [name for name in DRAWN if any(cell.measure == name for cell in cells)]
    page = fill(
        "benchmark.html",
        made=made,
        variants=variants,
        rows=table_rows(cells, variants, made.get("missing", {})),
        figures=[(name, MEASURES[name][0], chart(figure(cells, name))) for name in drawn],
        measures=MEASURES,
        covered=coverage_lines(made),
    )
    return write_page(page, folder)


def check(made: Mapping[str, Any]) -> None:
    """Refuse a record whose means are not those of its scores."""
    try:
        rows = [
            Row(made["seed"] + index, "", variant, method, {measure: math.nan if value is None else float(value)})
            for method, of in made["scores"].items()
            for measure, variants in of.items()
            for variant, values in variants.items()
            for index, value in enumerate(values)
        ]
        means = {(one.method, one.measure, one.variant): one.score.value for one in summary(rows)}
        told = {(one["method"], one["measure"], one["variant"]): one["score"]["value"] for one in made["cells"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadEntry(f"it is no record of this version ({type(error).__name__}: {error})") from None
    if means.keys() != told.keys() or any(abs(means[key] - told[key]) > ROUNDED for key in told):
        raise BadEntry("its means are not those of its scores")


def cell_of(told: Mapping[str, Any]) -> Cell:
    """A cell of a record's `cells`."""
    change = told["change"]
    changed = None if change is None else Interval(**change)
    return Cell(**{**told, "score": Interval(**told["score"]), "change": changed})


def figure(cells: Sequence[Cell], measure: str) -> Figure:
    """Bars by method: in the plain, and in all obfuscations at once or the last variant that there is."""
    chosen = [cell for cell in cells if cell.measure == measure]
    last = ALL if any(cell.variant == ALL for cell in chosen) else chosen[-1].variant
    series = []
    for variant in dict.fromkeys((PLAIN, last)):
        of = [cell for cell in chosen if cell.variant == variant]
        if of:
            of.sort(key=lambda cell: cell.method == "random")
            names, values = [cell.method.replace("-", "\n") for cell in of], [cell.score.value for cell in of]
            low, high = [cell.score.low for cell in of], [cell.score.high for cell in of]
            series.append(Series(variant, names, values, "bars", low, high))
    return Figure([Panel("", measure, series)])
