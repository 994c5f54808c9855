"""How surely a fitted parameter is known: a bootstrap over the datasets that it was fitted on."""

from __future__ import annotations

import math

import torch

from emulon.interrogate.curves import Interval, bootstrap_means, bounds
from emulon.interrogate.fit import Observations
from emulon.interrogate.references import Parameters, Reference

# Half the width, in log θ, across which a reference is taken as linear.
STEP = 1e-4
# No interval is narrower: what a search in float64 resolves where answers are exact.
RESOLUTION = 1e-6


def parameter_interval(reference: Reference, fitted: Parameters, observed: Observations) -> Interval | None:
    """95 % for the continuous parameter, the integer one taken as it is; None where there is none, or nothing depends
    on it.

    Around the fit answers are linear in log θ, so that each resampled set of datasets has its best θ in closed form,
    θ·exp(−ΣJr/ΣJ²) with r what is left and J how it changes: one Gauss–Newton step for each instead of a search. As
    datasets are resampled whole, what goes together at different numbers of examples stays together.
    """
    if reference.continuous is None:
        return None
    name = reference.continuous.name
    value = float(fitted[name])
    here, above, below = (
        reference.predict(observed.prefixes, {**fitted, name: value * math.exp(move)}) for move in (0.0, STEP, -STEP)
    )
    slope = (above - below) / (2 * STEP)
    across = (slope * (here - observed.answers) / observed.scale).mean(dim=1)
    along = (slope.square() / observed.scale).mean(dim=1)
    sums = bootstrap_means(torch.stack([across, along], dim=1))
    if not (along.sum() > 0 and sums.isfinite().all() and (sums[:, 1] > 0).all()):
        return None
    low, high = (end.item() for end in bounds((-sums[:, :1] / sums[:, 1:]).double()))
    return Interval(value, value * math.exp(low - RESOLUTION), value * math.exp(high + RESOLUTION))
