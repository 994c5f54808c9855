"""What a run has fitted, as pictures: coefficients beside scikit-learn's, answers beside the truth, the objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from emulon.report.chart import BLUE, GREY, ORANGE, as_svg, canvas
from emulon.run import Result, answers
from emulon.tables.data import Data

# Bars beyond these would be too thin to read, and steps beyond these are between two pixels.
MOST_BARS, MOST_STEPS = 20, 64


@as_svg
def coefficients(result: Result, data: Data) -> Any:
    """The largest weights, of the first class where there are several, and scikit-learn's of the same objective."""
    ours = np.atleast_2d(result.run.weights.double().numpy())[0]
    theirs = None if result.theirs is None else np.atleast_2d(result.theirs)[0]
    shown = np.argsort(-np.abs(ours), kind="stable")[:MOST_BARS]
    names = [data.names(result.run.program.loss)[i] for i in shown]
    figure = canvas(3.6, 0.7 + 0.2 * len(shown))
    axis = figure.subplots()
    places = np.arange(len(shown))
    thickness = 0.8 if theirs is None else 0.4
    axis.barh(places - (0.0 if theirs is None else 0.2), ours[shown], thickness, color=BLUE, label="frozen transformer")
    if theirs is not None:
        axis.barh(places + 0.2, theirs[shown], thickness, color=ORANGE, label="scikit-learn")
    axis.axvline(0, color=GREY, linewidth=0.6)
    axis.set_yticks(places, [name if len(name) <= 24 else f"{name[:23]}…" for name in names])
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    several = f", {data.classes[0]}" if result.run.weights.ndim > 1 else ""
    cut = f": the largest {len(shown)} of {len(ours)}" if len(shown) < len(ours) else ""
    axis.set_title(f"{result.name}{several}{cut}")
    figure.legend(frameon=False, fontsize=7, loc="outside lower center", ncols=2)
    return figure


@as_svg
def predicted(result: Result, data: Data) -> Any:
    """On the held-out rows: a point each, or for classes a count for each pair of true and predicted."""
    said = answers(result.run, data, data.x_test)
    figure = canvas(3.0, 2.8)
    axis = figure.subplots()
    axis.set_title(f"{result.name}: {result.score:.4f}")
    if data.kind == "regression":
        ends = [min(said.min(), data.y_test.min()), max(said.max(), data.y_test.max())]
        axis.plot(ends, ends, color=GREY, linewidth=0.8)
        axis.plot(data.y_test, said, "o", color=BLUE, markersize=2.5, alpha=0.7)
        axis.set_xlabel(f"{data.target}, held out")
        axis.set_ylabel("predicted")
        return figure
    counts = np.array([[np.sum((data.y_test == a) & (said == b)) for b in data.classes] for a in data.classes])
    axis.imshow(counts, cmap="Blues", vmin=0)
    for row, column in np.ndindex(counts.shape):
        colour = "white" if counts[row, column] > counts.max() / 2 else "#222222"
        axis.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=7)
    axis.set_xticks(range(len(data.classes)), data.classes)
    axis.set_yticks(range(len(data.classes)), data.classes)
    axis.set_xlabel("predicted")
    axis.set_ylabel(f"{data.target}, held out")
    return figure


@as_svg
def objective(result: Result) -> Any:
    """After every step, of the weights that the frozen transformer has; dashed, of scikit-learn's."""
    run, program = result.run, result.run.program
    descent = replace(program.descent, momentum=0.0, accelerated=False, batch=None)
    x, y = run.x.double(), run.y.double()
    steps = np.unique(np.linspace(0, program.steps, MOST_STEPS).round().astype(int))
    values = [descent.objective(x, y, run.iterates[..., step, :].double()).mean().item() for step in steps]
    figure = canvas(3.6, 2.0)
    axis = figure.subplots()
    axis.plot(steps, values, color=BLUE, linewidth=1.2, label="frozen transformer")
    if result.theirs is not None:
        least = descent.objective(x, y, torch.from_numpy(result.theirs)).mean().item()
        axis.axhline(least, color=ORANGE, linestyle="--", linewidth=1, label="scikit-learn's minimum")
    axis.set_title(result.name)
    axis.set_xlabel("steps")
    axis.set_ylabel("objective")
    axis.legend(frameon=False, fontsize=7)
    return figure
