"""Errors of learners over the number of in-context samples, beside the baselines': from kept numbers to figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulon.core.files import write_atomically, write_json
from emulon.report.chart import chart
from emulon.report.figure import Figure, Panel, Series
from emulon.training import Trained


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
