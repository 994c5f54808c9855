"""What a run really erred by, bounded afterwards: a float64 path beside it, and how far that is from the exact one.

Claim: ‖ŵ_T − w_T‖∞ ≤ ‖ŵ_T − v_T‖∞ + e_T, for any path v from the same start, with e_0 = 0 and
e_{t+1} = ρ_t·e_t + ‖v_{t+1} − Step(v_t)‖₂.
Proof. ‖v_{t+1} − w_{t+1}‖ ≤ ‖v_{t+1} − Step(v_t)‖ + ‖Step(v_t) − Step(w_t)‖, and between v_t and w_t the exact step is
ρ_t-Lipschitz. QED
v is the algorithm in plain float64: it is as near to the exact path as such arithmetic comes, so that only what the run
itself did wrong remains of the bound, and nothing is asked of the run. With v = ŵ the errors of all its steps would add
up as if none cancelled: 5 to 70 times more on tables, and jumps would leave their bands out.
Step is enclosed in balls, of one float or of twice the precision: as much is computed as e_T needs to be no larger than
what is seen (`GRADES`). ρ_t comes from the data's eigenvalues and from ℓ″ wherever v and w may be, which e_t itself
says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Certificate
from emulon.certify.balls import LIFT, Ball, Factor, FloatBall, product
from emulon.certify.composition import momentum_gains
from emulon.certify.functions import enclosed, undecided
from emulon.certify.rounding import gamma, unit
from emulon.certify.spectrum import enclosure
from emulon.core.errors import OutOfDomain
from emulon.expressions import Function, parse
from emulon.interpreter.curvature import Slopes
from emulon.interpreter.enclosure import distance_to_exact
from emulon.interpreter.plan import Plan

f64 = torch.float64
Kind = type[Ball] | type[FloatBall]
Range = tuple[float, float]
# Samples times steps whose residuals are looked at together: half a megabyte an array.
SLICE = 1 << 16
# What residuals and sums, and ℓ′, are enclosed with: the cheapest first. A path that may err so many times more than
# the run is seen to be off is looked at in the next; the first is not tried for a run that is off by less than a part.
GRADES: tuple[tuple[Kind, Kind], ...] = ((FloatBall, FloatBall), (Ball, FloatBall), (Ball, Ball))
LOOSE, COARSE = 1.5, 1e-10
# How often e_t is assumed, and the assumption checked, before nothing is promised.
ROUNDS = 6


def audited(plan: Plan, x: Tensor, y: Tensor, iterates: Tensor) -> Certificate:
    """Of the last of the iterates (..., steps + 1, features), for the worst dataset of a batch."""
    x, y = x.double(), y.double()
    try:
        path = plan.descent.iterates(x, y)
    except OutOfDomain:  # it overflows
        return Certificate({"float64 beside it": math.inf}, iterates.dtype, scope="run")
    away = (iterates[..., -1, :].double() - path[..., -1, :]).abs().amax(dim=-1) * LIFT
    if plan.descent.accelerated or plan.descent.batch is not None:
        own = _enclosed_error(plan, x, y, path[..., -1, :])
    else:
        coarse = bool((away > COARSE * path.abs().amax()).all())
        for grade in GRADES if coarse else GRADES[1:]:
            own = PathError(plan, x, y, path, *grade).after_all_steps()
            if bool((own <= LOOSE * away).all()):
                break
    away, own = (part.nan_to_num(nan=math.inf).flatten() for part in (away, own))
    worst = (away + own).argmax()
    terms = {"distance to float64": away[worst].item(), "float64's own error": own[worst].item()}
    return Certificate(terms, iterates.dtype, scope="run")


def _enclosed_error(plan: Plan, x: Tensor, y: Tensor, last: Tensor) -> Tensor:
    """How far float64 ended from the exact steps where these are no contraction, or not the same every time."""
    flat = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, y.shape[-1]), last.reshape(-1, last.shape[-1])
    found = [sum(distance_to_exact(plan, *each)) * LIFT for each in zip(*flat, strict=True)]
    return last.new_tensor(found).reshape(last.shape[:-1])


@dataclass(frozen=True)
class _Samples:
    """Some rows of the data, split for exact products once for all steps."""

    rows: Tensor

    @cached_property
    def across(self) -> Factor:
        return Factor.of(self.rows.mT)

    @cached_property
    def along(self) -> Factor:
        return Factor.of(self.rows)

    @cached_property
    def sizes(self) -> Tensor:
        return self.rows.abs() * (1 + gamma(self.rows.shape[-2], f64))

    def summed(self, value: FloatBall) -> Ball:
        """value·rows, nothing lost but the balls' own radii."""
        return product(value.high, self.along).widened(value.radius @ self.sizes)


@dataclass(frozen=True)
class PathError:
    """How far a path (..., steps + 1, features) may be from the exact one of a plan on these data, in the 2-norm.

    Residuals and sums are enclosed in balls of one kind, ℓ′ in those of another.
    """

    plan: Plan
    x: Tensor
    y: Tensor
    path: Tensor
    sums: Kind = Ball
    slopes: Kind = Ball

    def after_all_steps(self) -> Tensor:
        """e_T, dataset by dataset; infinite or NaN where nothing can be said."""
        if self.path.shape[-2] == 1:
            return torch.zeros_like(self.path[..., 0, 0])
        f = parse(self.plan.loss.derivative)
        rows, targets, fixed = self.plan.loss.template_data(self.x, self.y)
        defects, reach = self._defects(f, rows, targets, fixed)
        low, top = enclosure(rows)
        if f.smooth == parse("t").smooth:
            if self.plan.descent.momentum:
                return self._with_momentum(defects, low, top)
            return _grown(defects, self._ratio(1.0, 1.0, low, top))[1]
        return self._grown_between(f, rows, targets, defects, reach, (low, top))

    def _residuals(self, rows: Tensor, targets: Tensor, kind: Kind) -> Iterator[tuple[slice, slice, _Samples, Any]]:
        """w·x − y for the states before some steps on some samples, (..., steps, samples), and which these are.

        Never more than about SLICE at a time, whatever the number of samples: they are computed again for every use.
        """
        steps, samples = self.path.shape[-2] - 1, rows.shape[-2]
        wide = min(samples, SLICE)
        high = max(1, SLICE // wide)
        for step in range(0, steps, high):
            states = self.path[..., step : min(step + high, steps), :]
            for sample in range(0, samples, wide):
                own = slice(sample, min(sample + wide, samples))
                if not step or wide < samples:
                    some = _Samples(rows[..., own, :])
                s = product(states, some.across) if kind is Ball else FloatBall.of(states).matmul(some.rows.mT)
                yield slice(step, step + states.shape[-2]), own, some, s - targets[..., own].unsqueeze(-2)

    def _defects(self, f: Function, rows: Tensor, targets: Tensor, fixed: Tensor | None) -> tuple[Tensor, Range]:
        """‖v_{t+1} − Step(v_t)‖₂, (..., steps), and between which numbers all residuals are."""
        gradients: list[Ball] = []
        total: Any = None
        linear, low, high = f.smooth == parse("t").smooth, math.inf, -math.inf
        for _, own, some, s in self._residuals(rows, targets, self.sums):
            if not linear:
                s = s.shortened() if self.slopes is FloatBall else s
                low, high = _around(s, (low, high))
            value = s if linear else enclosed(f, s)
            part = value.matmul(some.rows) if type(value) is self.sums else some.summed(value)
            total = part if total is None else total + part
            if own.stop == rows.shape[-2]:
                gradients, total = [*gradients, total.lengthened()], None
        parts = zip(*(vars(one).values() for one in gradients), strict=True)
        gradient = Ball(*(torch.cat(part, dim=-2) for part in parts)) / float(rows.shape[-2])
        return self._defect(gradient if fixed is None else gradient - _mean(fixed)), (low, high)

    def _defect(self, gradient: Ball) -> Tensor:
        """Of all steps, given the gradient before each."""
        path, w = self.path, Ball.of(self.path[..., :-1, :])
        change = w - torch.cat([path[..., :1, :], path[..., :-2, :]], dim=-2)
        stepped = self.plan.descent.step(Ball.of(self.plan.step_size), w, gradient, change, soft_thresholded)
        return _norm((stepped - path[..., 1:, :]).size)

    def _ratio(self, lowest: float, highest: float, low: Tensor, top: Tensor) -> Tensor:
        """ρ where lowest ≤ ℓ″ ≤ highest, of each dataset: the Hessian lies between these times its own eigenvalues."""
        edges = (lowest * (low if lowest >= 0 else top), highest * (top if highest >= 0 else low))
        sides = ((1 - self.plan.step_size * (self.plan.descent.l2 + edge)).abs() for edge in edges)
        return _lifted(torch.maximum(*sides))

    def _with_momentum(self, defects: Tensor, low: Tensor, top: Tensor) -> Tensor:
        """The errors of all steps, each times what `momentum_gains` makes of it."""
        plan = self.plan
        away = torch.stack(
            [1 + plan.descent.momentum - plan.step_size * (plan.descent.l2 + edge) for edge in (low, top)]
        )
        gains = momentum_gains(plan.steps, _lifted(away.abs().max()).item(), plan.descent.momentum)
        return (defects * defects.new_tensor(gains).flip(0)).sum(dim=-1) * (1 + 1e-9)

    def _grown_between(
        self,
        f: Function,
        rows: Tensor,
        targets: Tensor,
        defects: Tensor,
        reach: Range,
        spectrum: tuple[Tensor, Tensor],
    ) -> Tensor:
        """e_T where ℓ″ has to be looked at: e is assumed, ρ follows, and e must come out no larger."""
        slopes, lengths = Slopes(f), _norm(rows).unsqueeze(-2)
        assumed = 2 * _grown(defects, torch.ones_like(spectrum[0]))[0]
        for _ in range(ROUNDS):
            if not bool(assumed.isfinite().all()):
                break
            either, shift = torch.zeros_like(defects, dtype=torch.bool), torch.zeros_like(defects)
            room = (assumed.max() * lengths.max()).item()
            low, high = (end + side * (room + 1e-12 * abs(end)) for end, side in zip(reach, (-1, 1), strict=True))
            # Where there are breaks, sample by sample: which of them may be on either side of one?
            for when, own, _, exact in self._residuals(rows, targets, self.slopes) if f.switches else ():
                s = exact.widened(assumed[..., when].unsqueeze(-1) * lengths[..., own])
                open_, apart = undecided(f, s, lengths[..., own])
                either[..., when] |= open_
                shift[..., when] += apart
            lowest, highest = slopes.between(low, high)
            shift = shift / float(rows.shape[-2]) * (1 + 1e-9)
            one = self._ratio(lowest, highest, *spectrum).unsqueeze(-1)
            # A sample that may be on either side of a break has no slope: what it may change is added instead.
            other = self._ratio(min(lowest, 0.0), max(highest, 0.0), *spectrum).unsqueeze(-1)
            before, after = _grown(defects + self.plan.step_size * shift, torch.where(either, other, one))
            if bool((before <= assumed).all()):
                return after
            assumed = 2 * before
        return torch.full_like(defects[..., 0], math.inf)


def _around(s: Ball | FloatBall, known: Range) -> Range:
    """A range that holds what is known and all of these balls."""
    short = s.shortened()
    low, high = (short.high - short.radius).amin().item(), (short.high + short.radius).amax().item()
    return min(low - 1e-12 * abs(low), known[0]), max(high + 1e-12 * abs(high), known[1])


def _norm(vectors: Tensor) -> Tensor:
    """‖·‖₂ of the last dimension, from above: a sum of d squares is off by a part γ_d, and its root by half of that."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return norms * (1 + gamma(vectors.shape[-1] + 2, f64))


def _lifted(away: Tensor) -> Tensor:
    """Above |1 + m − η·(l2 + λ)|: for m ≤ 1 and η·l2 ≤ 2 it is computed to within 8u, and 4u of itself."""
    return away * (1 + 1e-15) + 1e-15


def _grown(errors: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """e before every step, (..., steps), and after the last; ratio is (...) or (..., steps)."""
    ratio = ratio.unsqueeze(-1) if ratio.ndim < errors.ndim else ratio
    # Lifted before, not after: a step has two roundings.
    lifted = (part.unbind(dim=-1) for part in (errors * (1 + 1e-15), ratio.expand_as(errors) * (1 + 1e-15)))
    totals = [torch.zeros_like(errors[..., 0])]
    for error, growth in zip(*lifted, strict=True):
        totals.append(torch.addcmul(error, growth, totals[-1]))
    return torch.stack(totals[:-1], dim=-1), totals[-1]


def _mean(rows: Tensor) -> Ball:
    """Over the samples; each entry of `rows` is a product that was rounded once."""
    ones = rows.new_ones(1, rows.shape[-2])
    return product(ones, rows).widened(2 * unit(f64) * (ones @ rows.abs())) / float(rows.shape[-2])


def soft_thresholded(v: Ball, threshold: Ball) -> Ball:
    """It is 1-Lipschitz, so that only its own arithmetic widens a ball."""
    side = v.high.sign()
    left = Ball(v.high * side, v.low * side, v.radius) - threshold
    kept = (left.high > 0) * side
    return Ball(left.high * kept, left.low * kept, left.radius)
