"""The tables and figures of the page of performance, from results/bench/: the keys of a record's rows are columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulon.report.figure import Figure, Panel, Series, chart
from reproduce.index import table

BENCH = Path(__file__).parents[2] / "results" / "bench"
# Over what a part is drawn, and which of its columns; each on logarithmic axes, over rows that are alike otherwise.
DRAWN: dict[str, dict[str, tuple[str, ...]]] = {
    "rows": {"rows": ("seconds", "gigabytes")},
    "planted": {"features": ("answer", "exact")},
    "training": {"width": ("ours", "hugging face", "products"), "layers": ("ours", "hugging face", "products")},
}
HIDDEN = ("benchmark", "least", "most", "first", "runs")


def part(name: str) -> str:
    """A line that says where the numbers come from, the table, and the figure where something grows."""
    file = BENCH / f"{name}.json"
    if not file.exists():
        return f"*Not measured: `python -m benchmarks.performance {name}` does.*\n"
    record = json.loads(file.read_text())
    rows = next(record[key] for key in ("rows", "timings", "networks", "lines") if key in record)
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in HIDDEN]
    columns = [key for key in columns if any(row.get(key) for row in rows)]
    told = f"{record['machine']}, torch {record['torch']}, commit {record['commit'][:7]}, {record['time'][:10]}."
    cells = [tuple(_cell(row.get(key)) for key in columns) for row in rows]
    heads = tuple(key.replace("_", " ") for key in columns)
    figures = [_drawn(rows, over, what) for over, what in DRAWN.get(name, {}).items()]
    return "\n\n".join([told, table(heads, cells), *figures, ""])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _drawn(rows: Sequence[Mapping[str, Any]], over: str, what: Sequence[str]) -> str:
    """A panel for each group of rows that differ in `over` (and in what is measured) alone."""
    others = [key for key in DRAWN["training"] if key != over]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        # A planted model's width follows from its features.
        sizes = () if "mechanism" in row else (row.get(key) for key in others)
        groups.setdefault((row.get("mechanism"), *sizes), []).append(row)
    panels = []
    for key, alike in groups.items():
        alike = sorted(alike, key=lambda row: row[over])
        places = [row[over] for row in alike]
        if len(set(places)) < 3:
            continue
        series = [Series(name, places, [row[name] for row in alike]) for name in what if name in alike[0]]
        title = key[0] or ", ".join(f"{value} {name}" for name, value in zip(others, key[1:], strict=True) if value)
        panels.append(Panel(over, "seconds", series, title=title, log_x=True, log_y=True))
    return f"<div>{chart(Figure(panels))}</div>" if panels else ""
