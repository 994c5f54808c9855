"""Errors of learners over the number of in-context samples, of one run and of a sweep: from kept numbers to figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from emulon.core.files import provenance, write_atomically, write_json
from emulon.report.chart import chart
from emulon.report.figure import Figure, Panel, Series
from emulon.training import Trained
from emulon.training.grid import CURVE, Run


def keep_curve(folder: Path, trained: Trained) -> None:
    """The learner's error beside the baselines', what it took, and the picture of it."""
    write_json(folder / "curve.json", trained.record())
    draw_curve(folder)


def draw_curve(folder: Path) -> None:
    """curve.svg, from curve.json alone."""
    record = json.loads((folder / "curve.json").read_text())
    write_atomically(folder / "curve.svg", chart(run_figure(record)))


def run_figure(record: Mapping[str, Any]) -> Figure:
    """One run's, from its curve.json: over in-context samples, or, where these are no part of it, over training."""
    if len(record["curve"]) == 1 and record.get("history"):
        steps, errors = zip(*((each["step"], each["error"]) for each in record["history"]), strict=True)
        series = [Series(record["config"]["model"], steps, errors)]
        series += [Series(name, steps, len(steps) * curve, "dashes") for name, curve in record["baselines"].items()]
        return Figure([Panel("training steps", record["measure"], series, title=record["config"]["task"])])
    learner = Series(record["config"]["model"], range(len(record["curve"])), record["curve"])
    return Figure([_panel(f"{record['config']['task']}, {record['steps']} steps", [learner], record["baselines"])])


def _panel(title: str, learners: Sequence[Series], baselines: Mapping[str, Sequence[float]]) -> Panel:
    """Baselines are cut off far from the learners: least squares explodes where samples and features are as many, and
    an oracle may be exact."""
    errors = [y for learner in learners for y in learner.y]
    low, high = min(errors) / 10, 3 * max(errors)
    dashed = [_cut(name, curve, low, high) for name, curve in baselines.items()]
    return Panel("in-context samples", "squared error", [*learners, *dashed], title=title, log_y=True)


def _cut(name: str, curve: Sequence[float], low: float, high: float) -> Series:
    beyond = [y for y in curve if not low <= y <= high]
    label = f"{name} (to {max(beyond, key=lambda y: abs(math.log(max(y, 1e-300)))):.0e})" if beyond else name
    shown = [y if low <= y <= high else math.nan for y in curve]
    return Series(label, range(len(curve)), shown, mark="dashes", of=name)


# Squared errors after d and 2d examples, d the number of features, over d, and after as many as there are; texts have
# neither examples nor features.
TEXT = "cross_entropy"
ERRORS = {"after_d": "after d examples", "after_2d": "after 2d examples", "last": "after all examples"}
ERRORS[TEXT] = "cross entropy"


def keep_sweep(folder: Path, runs: Sequence[Run], reasons: Mapping[str, str]) -> dict[str, Any]:
    """sweep.json, sweep.svg and every run's own picture."""
    rows = [sweep_row(run) | ({"failed": reasons[run.name]} if run.name in reasons else {}) for run in runs]
    varies = {name: list(dict.fromkeys(run.values[name] for run in runs)) for name in runs[0].values}
    record = provenance() | {"varies": varies, "runs": rows}
    write_json(folder / "sweep.json", record)
    for run in runs:
        if run.finished:
            draw_curve(run.folder)
    if figure := sweep_figure(record):
        write_atomically(folder / "sweep.svg", chart(figure))
    return record


def sweep_row(run: Run) -> dict[str, Any]:
    """A run's line in sweep.json; without errors where it is not finished."""
    row: dict[str, Any] = {"name": run.name, "values": dict(run.values)}
    if not run.finished:
        return row | {"steps": run.steps_done}
    record = json.loads((run.folder / CURVE).read_text())
    d, curve = run.config.task.features, record["curve"]
    errors = {"after_d": d, "after_2d": 2 * d, "last": len(curve) - 1}
    if record.get("measure", "").startswith(ERRORS[TEXT]):
        row[TEXT] = curve[-1]
    else:
        row |= {name: curve[n] / d for name, n in errors.items() if n < len(curve)}
    taken = ("steps", "from_step", "seconds", "machine", "torch", "commit", "time")
    return row | {name: record[name] for name in taken}


def sweep_figure(record: Mapping[str, Any]) -> Figure | None:
    """A panel for each error that some run has: over what varies most, a line for each combination of the rest, from
    the best seed to the worst around their median. None where no run is finished."""
    rows = [row for row in record["runs"] if "last" in row or TEXT in row]
    varies = record["varies"]
    axis = max(varies, key=lambda name: (name != "seed", _numeric(varies[name]), len(varies[name])))
    measured = [name for name in ERRORS if any(name in row for row in rows)]
    if {"after_d", "after_2d"} <= set(measured):
        measured.remove("last")
    panels = [_errors_panel([row for row in rows if name in row], axis, varies, name) for name in measured]
    return Figure(panels) if panels else None


def _errors_panel(
    rows: Sequence[Mapping[str, Any]], axis: str, varies: Mapping[str, Sequence[Any]], error: str
) -> Panel:
    places, numeric = list(varies[axis]), _numeric(varies[axis])
    if numeric:
        places.sort()
    lines: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        rest = [f"{name} {value}" for name, value in row["values"].items() if name not in (axis, "seed")]
        lines.setdefault(", ".join(rest), {}).setdefault(row["values"][axis], []).append(row[error])
    series = []
    for label, line in lines.items():
        errors = [line.get(place, [math.nan]) for place in places]
        several = any(len(each) > 1 for each in errors)
        series.append(
            Series(
                label or ERRORS[error],
                places if numeric else [str(place) for place in places],
                [median(each) for each in errors],
                mark="line" if numeric else "bars",
                low=[min(each) for each in errors] if several else None,
                high=[max(each) for each in errors] if several else None,
            )
        )
    log_x = numeric and min(places) > 0 and max(places) >= 10 * min(places)
    label = ERRORS[TEXT] if error == TEXT else "squared error / d"
    return Panel(axis, label, series, title=ERRORS[error], log_x=log_x, log_y=True)


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
