"""Fitting a reference's parameters to a predictor's answers: the whole grid at once, then a narrowing 1-D search."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.interrogate.exam import Exam
from emulon.interrogate.reference import Parameters, Real, Reference, Whole

# Points across a bracket; each round narrows it to the two around the best, a sixth of it.
ACROSS = 13
ROUNDS = 14
# Whole values that stay in the race after the first look, the second, …, and at the end.
SHORT_LISTS = (24, 12, 6)
FINALISTS = 3
# Whole values that the grid left out are tried only where the fit is this close already.
CLOSE = 1e-3
# Below this squared relative error a fit is exact as far as float64 tells.
EXACT = 1e-20


def fit(reference: Reference, few: Exam, many: Exam) -> Parameters:
    """The parameters that bring the reference nearest: a wide search on few datasets, the end of it on many."""
    whole, real = reference.whole, reference.real
    if whole and real:
        return dict(zip((whole.name, real.name), _best_pair(reference, whole, real, few, many), strict=True))
    if real:
        return {real.name: _best_real(reference, real, few, many)}
    return {whole.name: _best_whole(reference, whole, few, many)} if whole else {}


def _best_pair(reference: Reference, whole: Whole, real: Real, few: Exam, many: Exam) -> tuple[int, float]:
    """Every whole value with the whole grid; then fewer and fewer whole values, with ever finer real ones.

    Neighbouring whole values imitate each other so well (a part in 10⁷) that they must be compared at that precision.
    """
    counted, grid = torch.tensor(whole.values), real.grid(many.prefixes).log()
    step = width = grid[1] - grid[0]
    fine = grid[_table(few, reference, counted, grid.expand(len(counted), -1)).argmin(dim=1)]
    for keep in SHORT_LISTS:
        fine, loss = _narrow(few, reference, counted, fine, width, 2, 0.0)
        kept = loss.topk(min(keep, len(counted)), largest=False).indices
        counted, fine, loss, width = counted[kept], fine[kept], loss[kept], width / 16
    if loss.min() < CLOSE:
        counted, fine = _with_those_between(whole, counted, fine, loss)
        fine, loss = _narrow(few, reference, counted, fine, step / 8, ROUNDS, 0.02)
    kept = loss.topk(min(FINALISTS, len(counted)), largest=False).indices
    fine, loss = _narrow(many, reference, counted[kept], fine[kept], step / 2, ROUNDS, 1e-3)
    return int(counted[kept][loss.argmin()]), fine[loss.argmin()].exp().item()


def _best_real(reference: Reference, real: Real, few: Exam, many: Exam) -> float:
    nothing, grid = torch.tensor([0]), real.grid(many.prefixes).log()
    step = grid[1] - grid[0]
    start = grid[_table(few, reference, nothing, grid.unsqueeze(0)).argmin(dim=1)]
    start, _ = _narrow(few, reference, nothing, start, step, ROUNDS, 0.02)
    best, _ = _narrow(many, reference, nothing, start, step, ROUNDS, 1e-3)
    return best.exp().item()


def _best_whole(reference: Reference, whole: Whole, few: Exam, many: Exam) -> int:
    values = torch.tensor(whole.values)
    best = int(few.losses(reference, values, torch.zeros(len(values)).double()).argmin())
    low, high = int(values[max(best - 1, 0)]), int(values[min(best + 1, len(values) - 1)])
    near = torch.arange(low, high + 1)
    return int(near[many.losses(reference, near, torch.zeros(len(near)).double()).argmin()])


def _table(exam: Exam, reference: Reference, whole: Tensor, logs: Tensor) -> Tensor:
    """Losses of every whole value with each of its own real ones, given as logarithms (wholes, reals)."""
    repeated = whole.unsqueeze(1).expand(logs.shape).reshape(-1)
    return exam.losses(reference, repeated, logs.exp().reshape(-1)).reshape(logs.shape)


def _narrow(
    exam: Exam, reference: Reference, whole: Tensor, centre: Tensor, width: Tensor, rounds: int, patience: float
) -> tuple[Tensor, Tensor]:
    """For every whole value the best logarithm within centre ± width, and its loss.

    Stops when two rounds in turn improve none of the losses by more than the fraction `patience`.
    """
    best, loss, idle = centre, torch.full_like(centre, torch.inf), 0
    across = torch.linspace(-1, 1, ACROSS, dtype=torch.float64)
    for _ in range(rounds):
        points = best[:, None] + width * across
        found, place = _table(exam, reference, whole, points).min(dim=1)
        improved = found < loss * (1 - patience)
        best = torch.where(found < loss, points.gather(1, place[:, None]).squeeze(1), best)
        loss = torch.minimum(found, loss)
        idle = 0 if improved.any() else idle + 1
        if idle == 2 or loss.min() <= EXACT:
            break
        width = 2 * width / (ACROSS - 1)
    return best, loss


def _with_those_between(whole: Whole, counted: Tensor, real: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    """The best whole values so far, and all that the grid had left out around the best of them.

    k steps of size η and k′ of size ηk/k′ are much alike, so that is where the search for those left out begins.
    """
    order = loss.argsort().tolist()
    best = int(counted[order[0]])
    place = whole.values.index(best)
    around = range(whole.values[max(place - 2, 0)], whole.values[min(place + 2, len(whole.values) - 1)] + 1)
    known = {int(counted[i]): real[i] for i in order}
    left_out = [k for k in around if k not in known and k not in whole.values]
    known |= {k: real[order[0]] + math.log(best / k) for k in left_out}
    return torch.tensor(list(known)), torch.stack(list(known.values()))
