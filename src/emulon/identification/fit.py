"""Fitting a reference's parameters to a predictor's answers (the whole grid at once, then a narrowing 1-D search), and
how surely the fit is known (a jackknife over datasets)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.identification.references import ContinuousParameter, IntegerParameter, Parameters, Reference
from emulon.identification.sampling import Answers, Interval, Prefixes

# Numbers held at once while a grid is tried.
MOST_NUMBERS = 500_000
# A reference that overflows is this far away.
FARTHEST = 1e30
# Points across a bracket; each round narrows it to the two around the best, a sixth of it.
ACROSS = 13
ROUNDS = 14
# Integer values that stay in the race after the first look, the second, …, and at the end.
SHORT_LISTS = (24, 12, 6)
FINALISTS = 3
# Integer values that the grid left out are tried only where the fit is this close already.
CLOSE = 1e-3
# Below this squared relative error a fit is exact as far as float64 tells.
EXACT = 1e-20

# Half the width, in log θ, across which a reference is taken as linear.
LOG_STEP = 1e-4
# No interval is narrower: what a search in float64 resolves where answers are exact.
RESOLUTION = 1e-6
NORMAL = 1.959964
# An interval that reaches farther, in log θ, is not reported.
WIDEST = 100.0


@dataclass(frozen=True)
class Observations:
    """A predictor's answers, to be imitated; squared errors are divided by `scale`, one for each count."""

    prefixes: Prefixes
    answers: Answers
    scale: Float[Tensor, " counts"]

    def take(self, datasets: slice, counts: int | None = None) -> Observations:
        """Some of the datasets, and at most so many of the counts."""
        prefixes = self.prefixes.take(datasets, counts)
        columns = [self.prefixes.counts.index(n) for n in prefixes.counts]
        return Observations(prefixes, self.answers[datasets][:, columns], self.scale[columns])

    def errors(
        self, predictions: Float[Tensor, "*settings datasets counts"]
    ) -> Float[Tensor, "*settings datasets counts"]:
        """Squared and scaled; what overflowed is infinitely wrong, or as good as."""
        wrong = (predictions - self.answers).square() / self.scale
        return wrong.nan_to_num_(nan=FARTHEST, posinf=FARTHEST).clamp_(max=FARTHEST)

    def losses(self, reference: Reference, integers: Tensor, continuous: Tensor) -> Float[Tensor, " settings"]:
        """The mean error of a reference with each of these settings."""
        each = self.prefixes.datasets * len(self.prefixes.counts) * self.prefixes.features
        size = max(1, MOST_NUMBERS // each)
        parts = [slice(start, start + size) for start in range(0, len(integers), size)]
        tried = (reference.respond(self.prefixes, integers[part], continuous[part]) for part in parts)
        return torch.cat([self.errors(predictions).mean(dim=(1, 2)) for predictions in tried])


def fit(reference: Reference, few: Observations, many: Observations) -> Parameters:
    """The parameters that bring the reference nearest: a wide search on few datasets, the end of it on many."""
    integer, continuous = reference.integer, reference.continuous
    if integer and continuous:
        best = _best_pair(reference, integer, continuous, few, many)
        return dict(zip((integer.name, continuous.name), best, strict=True))
    if continuous:
        return {continuous.name: _best_continuous(reference, continuous, few, many)}
    return {integer.name: _best_integer(reference, integer, few, many)} if integer else {}


def _best_pair(
    reference: Reference,
    integer: IntegerParameter,
    continuous: ContinuousParameter,
    few: Observations,
    many: Observations,
) -> tuple[int, float]:
    """Every integer value with the whole grid; then fewer and fewer of them, with ever finer continuous ones.

    Neighbouring integers imitate each other so well (a part in 10⁷) that they must be compared at that precision.
    """
    counted, grid = torch.tensor(integer.values, device="cpu"), continuous.grid(many.prefixes).log()
    step = width = grid[1] - grid[0]
    fine = grid[_table(few, reference, counted, grid.expand(len(counted), -1)).argmin(dim=1)]
    for keep in SHORT_LISTS:
        fine, loss = _narrow(few, reference, counted, fine, width, 2, 0.0)
        kept = loss.topk(min(keep, len(counted)), largest=False).indices
        counted, fine, loss, width = counted[kept], fine[kept], loss[kept], width / 16
    if loss.min() < CLOSE:
        counted, fine = _with_those_between(integer, counted, fine, loss)
        fine, loss = _narrow(few, reference, counted, fine, step / 8, ROUNDS, 0.02)
    kept = loss.topk(min(FINALISTS, len(counted)), largest=False).indices
    fine, loss = _narrow(many, reference, counted[kept], fine[kept], step / 2, ROUNDS, 1e-3)
    return int(counted[kept][loss.argmin()]), fine[loss.argmin()].exp().item()


def _best_continuous(
    reference: Reference, continuous: ContinuousParameter, few: Observations, many: Observations
) -> float:
    nothing, grid = torch.tensor([0], device="cpu"), continuous.grid(many.prefixes).log()
    step = grid[1] - grid[0]
    start = grid[_table(few, reference, nothing, grid.unsqueeze(0)).argmin(dim=1)]
    start, _ = _narrow(few, reference, nothing, start, step, ROUNDS, 0.02)
    best, _ = _narrow(many, reference, nothing, start, step, ROUNDS, 1e-3)
    return best.exp().item()


def _best_integer(reference: Reference, integer: IntegerParameter, few: Observations, many: Observations) -> int:
    values = torch.tensor(integer.values, device="cpu")
    best = int(few.losses(reference, values, torch.zeros(len(values), device="cpu").double()).argmin())
    low, high = int(values[max(best - 1, 0)]), int(values[min(best + 1, len(values) - 1)])
    near = torch.arange(low, high + 1, device="cpu")
    return int(near[many.losses(reference, near, torch.zeros(len(near), device="cpu").double()).argmin()])


def _table(observed: Observations, reference: Reference, integers: Tensor, logs: Tensor) -> Tensor:
    """Losses of every integer with each of its own continuous values, given as logarithms (integers, values)."""
    repeated = integers.unsqueeze(1).expand(logs.shape).reshape(-1)
    return observed.losses(reference, repeated, logs.exp().reshape(-1)).reshape(logs.shape)


def _narrow(
    observed: Observations,
    reference: Reference,
    integers: Tensor,
    centre: Tensor,
    width: Tensor,
    rounds: int,
    patience: float,
) -> tuple[Tensor, Tensor]:
    """For every integer the best logarithm within centre ± width, and its loss.

    Stops when two rounds in turn improve none of the losses by more than the fraction `patience`.
    """
    best, loss, stalled = centre, torch.full_like(centre, torch.inf), 0
    across = torch.linspace(-1, 1, ACROSS, dtype=torch.float64, device="cpu")
    for _ in range(rounds):
        points = best[:, None] + width * across
        lowest, place = _table(observed, reference, integers, points).min(dim=1)
        improved = lowest < loss * (1 - patience)
        best = torch.where(lowest < loss, points.gather(1, place[:, None]).squeeze(1), best)
        loss = torch.minimum(lowest, loss)
        stalled = 0 if improved.any() else stalled + 1
        if stalled == 2 or loss.min() <= EXACT:
            break
        width = 2 * width / (ACROSS - 1)
    return best, loss


def _with_those_between(
    integer: IntegerParameter, counted: Tensor, logs: Tensor, loss: Tensor
) -> tuple[Tensor, Tensor]:
    """The best integers so far, and all that the grid had left out around the best of them.

    k steps of size η and k′ of size ηk/k′ are much alike, so that is where the search for those left out begins.
    """
    order = loss.argsort().tolist()
    best = int(counted[order[0]])
    place = integer.values.index(best)
    around = range(integer.values[max(place - 2, 0)], integer.values[min(place + 2, len(integer.values) - 1)] + 1)
    known = {int(counted[i]): logs[i] for i in order}
    left_out = [k for k in around if k not in known and k not in integer.values]
    known |= {k: logs[order[0]] + math.log(best / k) for k in left_out}
    return torch.tensor(list(known), device="cpu"), torch.stack(list(known.values()))


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
    moved = [{**fitted, name: value * math.exp(move)} for move in (0.0, LOG_STEP, -LOG_STEP)]
    here, above, below = (reference.predict(observed.prefixes, parameters) for parameters in moved)
    slope = (above - below) / (2 * LOG_STEP)
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
