"""The figure of a depth sweep: what the references leave unexplained of learners of growing depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from emulon.report.chart import BLUE, GREY, INK, ORANGE, as_svg

# The kinds of Figure 3 of `003_…`: of several references of a kind the nearest is drawn.
KINDS = {
    "gradient descent": ORANGE,
    "ridge": "#4f8a5b",
    "ols": BLUE,
    "newton": INK,
}


def kind_of(reference: str) -> str:
    """Which line of the figure a reference belongs to; its own name where there is none."""
    return next((kind for kind in KINDS if reference.startswith(kind)), reference)


@as_svg
def phases_figure(phases: Sequence[Mapping[str, Any]]) -> Any:
    """A line for each kind of reference with its interval; behind it the colour of the nearest kind, pale where the
    verdict is none of these. Takes the numbers of `Phase.as_numbers`, as a file keeps them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(phases))
    for kind, colour in KINDS.items():
        best = [_nearest(phase, kind) for phase in phases]
        value, low, high = (np.array([one[end] for one in best]) for end in ("value", "low", "high"))
        axes.plot(places, value, "o-", color=colour, markersize=3, linewidth=1.2, label=kind)
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    for place, phase in zip(places, phases, strict=True):
        kind = kind_of(phase["ranking"][0]["name"])
        found = phase["algorithm"] == phase["ranking"][0]["name"]
        axes.axvspan(
            place - 0.5, place + 0.5, color=KINDS.get(kind or "", GREY), alpha=0.2 if found else 0.06, linewidth=0
        )
    axes.set_yscale("log")
    axes.set_xlim(-0.5, len(phases) - 0.5)
    axes.set_xticks(list(places), [str(phase["depth"]) for phase in phases])
    axes.set_xlabel("layers")
    axes.set_ylabel("unexplained part of the learner's variance")
    axes.legend(frameon=False, fontsize=7)
    return figure


def _nearest(phase: Mapping[str, Any], kind: str) -> Mapping[str, float]:
    return min(
        (match["unexplained"] for match in phase["ranking"] if kind_of(match["name"]) == kind),
        key=lambda interval: interval["value"],
    )
