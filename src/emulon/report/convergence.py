"""The figure of two solvers side by side: distance to least squares over the loops, transformer and exact iterates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulon.looped import ConvergenceCurve
from emulon.report.chart import BLUE, INK, ORANGE, as_svg


@as_svg
def convergence_figure(curves: Sequence[ConvergenceCurve]) -> Any:
    """One line a solver inside the transformer, dots for its exact iterates: where they meet, loop and solver agree."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 2.8), layout="constrained")
    axes = figure.add_subplot()
    for curve, colour in zip(curves, (BLUE, ORANGE, INK), strict=False):
        loops = np.arange(len(curve.transformer))
        axes.semilogy(
            loops, np.maximum(curve.transformer, 1e-17), color=colour, lw=1.2, label=f"{curve.name}, transformer"
        )
        every = max(1, len(loops) // 30)
        exact = np.maximum(curve.exact, 1e-17)[::every]
        axes.semilogy(loops[::every], exact, ".", color=colour, ms=4, label=f"{curve.name}, exact")
    axes.set_xlabel("loops")
    axes.set_ylabel("distance to least squares")
    axes.legend(frameon=False, fontsize=7)
    return figure
