"""How surely a fitted parameter is known: a jackknife over datasets."""

from __future__ import annotations

import math

from emulon.identification.curves import Interval
from emulon.identification.fit import Observations
from emulon.identification.references import Parameters, Reference

# Half the width, in log θ, across which a reference is taken as linear.
STEP = 1e-4
# No interval is narrower: what a search in float64 resolves where answers are exact.
RESOLUTION = 1e-6
NORMAL = 1.959964
# An interval that reaches farther, in log θ, says nothing.
WIDEST = 100.0


def parameter_interval(reference: Reference, fitted: Parameters, observed: Observations) -> Interval | None:
    """95 % for the continuous parameter, the integer one taken as it is; None where there is none, or next to nothing
    depends on it.

    Around the fit answers are linear in log θ, so that any set of datasets has its best θ in closed form,
    θ·exp(−ΣJr/ΣJ²) with r what is left and J how it changes: one Gauss–Newton step instead of a search. Leaving out one
    dataset after the other, whole, as what is left at different numbers of examples goes together, gives the variance
    of the best log θ (Efron and Tibshirani 1993, chapter 11). Some datasets weigh much more than others, and a
    bootstrap's percentiles were a little too narrow for that.
    """
    if reference.continuous is None:
        return None
    name = reference.continuous.name
    value = float(fitted[name])
    here, above, below = (
        reference.predict(observed.prefixes, {**fitted, name: value * math.exp(move)}) for move in (0.0, STEP, -STEP)
    )
    slope = (above - below) / (2 * STEP)
    across = (slope * (here - observed.answers) / observed.scale).sum(dim=1)
    along = (slope.square() / observed.scale).sum(dim=1)
    others = along.sum() - along
    if not (others > 0).all():
        return None
    count, best = len(along), -(across.sum() / along.sum()).item()
    without = (across - across.sum()) / others
    error = math.sqrt((count - 1) / count * (without - without.mean()).square().sum().item())
    if not math.isfinite(best + error):
        return None
    # Student's t to its first order, as the error is estimated too.
    half = NORMAL * (1 + (NORMAL**2 + 1) / (4 * (count - 1))) * error + RESOLUTION
    if abs(best) + half > WIDEST:
        return None
    return Interval(value, value * math.exp(best - half), value * math.exp(best + half))
