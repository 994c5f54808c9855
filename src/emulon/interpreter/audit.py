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
from jaxtyping import Float64
from torch import Tensor

from emulon.algorithms.losses import TemplateData
from emulon.certify import Certificate
from emulon.certify.balls import LIFT, UNDERFLOW, Ball, Factor, FloatBall, product, rounded_product, split_product
from emulon.certify.domain import enclosure
from emulon.certify.functions import CELLS, Cells, enclosed, undecided
from emulon.certify.rounding import gamma, momentum_gains, unit
from emulon.core.errors import BadExpression, OutOfDomain
from emulon.expressions import Function, parse
from emulon.expressions.evaluation import any_of, arb_matrix, ball_arithmetic
from emulon.interpreter.plan import Plan, Slopes

f64 = torch.float64
Kind = type[Ball] | type[FloatBall]
Range = tuple[Tensor, Tensor]
# Where errors shrink faster than this from step to step, it is not asked whether they do so faster still.
STEADY = 0.5
# Residuals (datasets × steps × samples) that are enclosed together: their arrays stay in cache.
SLICE = 1 << 16
# Samples, and states near one another, that a table is asked for together: sums of so many lose little.
WIDE, LONGEST = 2048, 64
# ℓ′ is tabulated where this many times as many residuals as cells are asked for: a cell takes as long as so many.
WORTH = 1000
# What residuals and ℓ′ are enclosed with, the cheaper first: a path is looked at again where that may make the bound so
# many times smaller.
GRADES: tuple[Kind, ...] = (FloatBall, Ball)
LOOSE = 2.0
# How often e_t is assumed, and the assumption checked, before nothing is promised.
ROUNDS = 6
# Bits: so many in all, and for every step, and how often they are doubled. Constants of a loss are kept to 1,024.
BITS, BITS_A_STEP, TRIES = 128, 2, 3
NARROW = 2.0**-80


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
        for grade in GRADES:
            error = PathError(plan, x, y, path, grade)
            own = error.after_all_steps()
            if plan.loss.derivative == "t" or bool((away + own <= LOOSE * (away + own * (1 - error.unsure))).all()):
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
    """Some samples, x with −y beside it where some are not zero, split for exact products once for all steps."""

    rows: Tensor
    features: int

    @cached_property
    def across(self) -> Factor:
        return Factor.of(self.rows.mT)

    @cached_property
    def along(self) -> Factor:
        return Factor.of(self.rows[..., : self.features])

    @cached_property
    def lengths(self) -> Tensor:
        """Above ‖x‖₂ of each sample, (..., samples)."""
        return _norm(self.rows[..., : self.features])

    def residuals(self, states: Tensor, kind: Kind) -> Any:
        """w·x − y, in balls of one kind; the states have a 1 beside them, for y, where some y is not zero."""
        return product(states, self.across) if kind is Ball else rounded_product(states, self.across)

    def summed(self, value: Any) -> tuple[Ball, Tensor]:
        """value·x, and how far it may be off beyond its ball, in the 2-norm: Σ radius·‖x‖₂ for balls of one float."""
        if isinstance(value, Ball):
            return value.matmul(self.rows[..., : self.features]), value.high.new_zeros(())
        lift = 1 + gamma(self.rows.shape[-2] + 4, f64)
        off = (value.radius @ self.lengths.unsqueeze(-1)).squeeze(-1) * lift + UNDERFLOW
        return product(value.high, self.along), off


@dataclass(frozen=True)
class PathError:
    """How far a path (..., steps + 1, features) may be from the exact one of a plan on these data, in the 2-norm.

    Residuals and ℓ′ are enclosed in balls of one kind, and sums in those of twice the precision.
    """

    plan: Plan
    x: Tensor
    y: Tensor
    path: Tensor
    kind: Kind = Ball

    @cached_property
    def slope(self) -> Function:
        """ℓ′."""
        return parse(self.plan.loss.derivative)

    @cached_property
    def data(self) -> TemplateData:
        return self.plan.loss.template_data(self.x, self.y)

    @cached_property
    def spectrum(self) -> Range:
        """Between which numbers the eigenvalues of XᵀX/n are."""
        return enclosure(self.data.x)

    @cached_property
    def reach(self) -> Range:
        """Between which numbers each residual stays before all steps.

        A sum of d products and −y is off by γ_{d+1} times the sum of their magnitudes, at most ‖x‖·max‖w‖ + |y|.
        """
        states, ends = self.path[..., :-1, :], list[Range]()
        longest = _norm(states).amax(dim=-1, keepdim=True)
        count = max(1, self._together // states.shape[-2])
        for x, y in zip(self.data.x.split(count, dim=-2), self.data.y.split(count, dim=-1), strict=True):
            products = states @ x.mT
            off = (_norm(x) * longest + y.abs()) * (gamma(x.shape[-1] + 2, f64) * LIFT)
            ends.append((products.amin(dim=-2) - y - off, products.amax(dim=-2) - y + off))
        low, high = (torch.cat(part, dim=-1) for part in zip(*ends, strict=True))
        return low, high

    @property
    def _together(self) -> int:
        """Steps × samples of every dataset that are looked at together."""
        return max(1, SLICE // self.data.x.shape[:-2].numel())

    def after_all_steps(self) -> Tensor:
        """e_T, dataset by dataset; infinite or NaN where nothing can be said."""
        if self.path.shape[-2] == 1:
            return torch.zeros_like(self.path[..., 0, 0])
        if not is_linear(self.slope):
            return self._grown_between()
        if self.plan.descent.momentum:
            return self._with_momentum(self.defects, *self.spectrum)
        return _grown(self.defects, self._ratio(1.0, 1.0, *self.spectrum))[1]

    @property
    def unsure(self) -> Tensor:
        """About which part of e_T balls of twice the precision would not leave, dataset by dataset."""
        if not self.slope.continuous or self.path.shape[-2] == 1:
            return torch.ones_like(self.path[..., 0, 0])
        return self.plan.step_size * self._gradients[1].sum(dim=-1) / self.defects.sum(dim=-1)

    @cached_property
    def defects(self) -> Tensor:
        """‖v_{t+1} − Step(v_t)‖₂, (..., steps).

        The soft threshold is 1-Lipschitz in the 2-norm: what a gradient is off moves a step by no more than η times it.
        """
        (gradient, off), fixed = self._gradients, self.data.fixed
        path, w = self.path, Ball.of(self.path[..., :-1, :])
        change = w - torch.cat([path[..., :1, :], path[..., :-2, :]], dim=-2)
        gradient = gradient if fixed is None else gradient - _mean(fixed)
        stepped = self.plan.descent.step(Ball.of(self.plan.step_size), w, gradient, change, soft_thresholded)
        return (_norm((stepped - path[..., 1:, :]).size) + self.plan.step_size * off) * LIFT

    @cached_property
    def _gradients(self) -> tuple[Ball, Tensor]:
        """The mean of ℓ′·x before every step, (..., steps, features).

        The second is how far gradients may be off beyond their balls, in the 2-norm, (..., steps).
        """
        (rows, targets, _), linear = self.data, is_linear(self.slope)
        states, places = _distinct(self.path[..., :-1, :])
        cells = None
        if not linear and self.kind is FloatBall and states.shape[-2] * targets.numel() >= WORTH * CELLS:
            cells = Cells.of(self.slope, self.reach[0].amin().item(), self.reach[1].amax().item())
        total, off = self._by_balls(states) if cells is None else self._by_cells(cells, states)
        gradient = total.apply(lambda part: part[..., places, :]) / float(rows.shape[-2])
        return gradient, off[..., places] / rows.shape[-2] * LIFT

    def _parts(self, states: Tensor) -> Iterator[tuple[slice, slice, _Samples, Tensor]]:
        """Some of the states, to be multiplied by some samples, and which these are.

        Samples outside, steps inside: the data are read and split once. Never more than about SLICE residuals exist at
        a time, whatever the number of samples: they are computed again for every use.
        """
        (rows, targets, _), together, steps = self.data, self._together, states.shape[-2]
        both = rows
        if any_of(targets != 0):
            states, both = _with_one(states), torch.cat([rows, -targets.unsqueeze(-1)], dim=-1)
        wide = max(together // steps, math.isqrt(together))
        high = max(1, together // wide)
        for sample in range(0, rows.shape[-2], wide):
            own = slice(sample, sample + wide)
            some = _Samples(both[..., own, :], rows.shape[-1])
            for step in range(0, steps, high):
                when = slice(step, min(step + high, steps))
                yield when, own, some, states[..., when, :]

    def _by_balls(self, states: Tensor) -> tuple[Ball, Tensor]:
        """The sum of ℓ′·x at every state, and how far it may be off beyond its ball, in the 2-norm."""
        totals: dict[int, tuple[Ball, Tensor]] = {}
        linear = is_linear(self.slope)
        for when, _, some, w in self._parts(states):
            s = some.residuals(w, Ball if linear else self.kind)
            part, off = some.summed(s if linear else enclosed(self.slope, s))
            if when.start in totals:
                total, more = totals[when.start]
                part, off = total + part, (more + off) * LIFT
            totals[when.start] = part, off.expand(part.high.shape[:-1])
        balls, offs = zip(*totals.values(), strict=True)
        parts = zip(*(vars(one).values() for one in balls), strict=True)
        return Ball(*(torch.cat(part, dim=-2) for part in parts)), torch.cat(offs, dim=-1)

    def _by_cells(self, cells: Cells, states: Tensor) -> tuple[Ball, Tensor]:
        """As `_by_balls`, for a tabulated ℓ′.

        Residuals are looked up at some states, the first of every run that stays near it. From there to the others ℓ′
        changes by little, with |x·δ| ≤ move, and float64 is enough.
        Claim: their sums are off by γ_k·steepest·‖δ‖·√(Σ(x·u)²·Σ‖x‖²) beyond what each change is, u = δ/‖δ‖ and k the
        roundings of a sum; and x·δ itself is rounded by γ_{d+2}·‖x‖·‖δ‖. Proof. Σ|x·δ|·‖x‖, by Cauchy and Schwarz. QED
        """
        rows, targets, _ = self.data
        lengths, samples = _norm(rows), rows.shape[-2]
        runs = list(_near(states, cells.move / lengths.amax().item()))
        wide = max(1, min(WIDE, self._together // len(runs)))
        starts = _with_one(states[..., [run.start for run in runs], :])
        moves = torch.cat([states[..., run, :] - states[..., run.start : run.start + 1, :] for run in runs], dim=-2)
        changes, totals, worst = torch.zeros_like(states), list[Ball](), 0.0
        for x, y in zip(rows.split(wide, dim=-2), targets.split(wide, dim=-1), strict=True):
            some = _Samples(torch.cat([x, -y.unsqueeze(-1)], dim=-1), x.shape[-1])
            high, low, off = split_product(starts, some.across)
            value, rest, error = cells.read(high, low, off.amax().item())
            totals = [sum(totals, product(value, some.along) + product(rest, some.along))]
            for number, run in enumerate(runs):
                by = moves[..., run, :][..., 1:, :] @ x.mT
                if by.shape[-2]:
                    change, more = cells.change(high[..., number, :], low[..., number, :], by, off.amax().item())
                    changes[..., run, :][..., 1:, :] += change @ x
                    error += more
            worst = max(worst, error)
        total = totals[0]
        squares, roundings = lengths.square().sum(dim=-1, keepdim=True), wide + samples // wide + 4
        along = (self.spectrum[1].unsqueeze(-1) * samples * squares).sqrt()
        rounded = (gamma(roundings, f64) * along + gamma(rows.shape[-1] + 2, f64) * squares) * cells.steepest
        off = worst * lengths.sum(dim=-1, keepdim=True) + rounded * _norm(moves)
        places = [number for number, run in enumerate(runs) for _ in range(run.start, run.stop)]
        return total.apply(lambda part: part[..., places, :]) + changes, off * (1 + gamma(samples + 4, f64)) * LIFT

    def _ratio(self, lowest: float, highest: float, low: Tensor, top: Tensor) -> Tensor:
        """ρ where lowest ≤ ℓ″ ≤ highest, of each dataset: the Hessian lies between these times its own eigenvalues."""
        return self._contraction(lowest * (low if lowest >= 0 else top), highest * (top if highest >= 0 else low))

    def _contraction(self, flattest: Tensor, steepest: Tensor) -> Tensor:
        """ρ where the eigenvalues of the loss's Hessian are between these."""
        sides = ((1 - self.plan.step_size * (self.plan.descent.l2 + edge)).abs() for edge in (flattest, steepest))
        return _lifted(torch.maximum(*sides))

    def _with_momentum(self, defects: Tensor, low: Tensor, top: Tensor) -> Tensor:
        """The errors of all steps, each times what `momentum_gains` makes of it."""
        plan = self.plan
        away = torch.stack(
            [1 + plan.descent.momentum - plan.step_size * (plan.descent.l2 + edge) for edge in (low, top)]
        )
        gains = momentum_gains(plan.steps, _lifted(away.abs().max()).item(), plan.descent.momentum)
        return (defects * defects.new_tensor(gains).flip(0)).sum(dim=-1) * (1 + 1e-9)

    def _grown_between(self) -> Tensor:
        """e_T where ℓ″ has to be looked at: e is assumed, ρ follows, and e must come out no larger.

        Claim: of a convex loss the Hessian between v_t and w_t is at least Xᵀ·diag(c)·X/n, where c_i is the least ℓ″
        wherever the residual of sample i may be. Proof. It is such a matrix with a c_i that is ℓ″ in the mean. QED
        """
        f, defects, spectrum, rows = self.slope, self.defects, self.spectrum, self.data.x
        slopes, lengths, before_steps = Slopes(f), _norm(rows).unsqueeze(-2), self.path[..., :-1, :]
        assumed = 2 * _grown(defects, torch.ones_like(spectrum[0]))[0]
        for _ in range(ROUNDS):
            if not bool(assumed.isfinite().all()):
                break
            either, shift = torch.zeros_like(defects, dtype=torch.bool), torch.zeros_like(defects)
            room = assumed.amax(dim=-1, keepdim=True) * lengths.squeeze(-2)
            ends = [end + side * (room + 1e-12 * end.abs()) for end, side in zip(self.reach, (-1, 1), strict=True)]
            low, high = ends[0].min().item(), ends[1].max().item()
            # Where there are jumps, sample by sample: which of them may be on either side of one? Between two residuals
            # a continuous f changes by a slope between its lowest and highest times their distance, kinks or no kinks.
            for when, own, some, w in () if f.continuous else self._parts(before_steps):
                s = some.residuals(w, self.kind).widened(assumed[..., when].unsqueeze(-1) * lengths[..., own])
                open_, apart = undecided(f, s, lengths[..., own])
                either[..., when] |= open_
                shift[..., when] += apart
            lowest, highest = slopes.between(low, high)
            shift = shift / float(rows.shape[-2]) * (1 + 1e-9)
            one = self._ratio(lowest, highest, *spectrum)
            if lowest >= 0 and highest > 0 and bool((one > STEADY).any()):
                flattest = weighted_smallest(rows, slopes.lowest_of(*ends))
                one = torch.minimum(one, self._contraction(flattest, highest * spectrum[1]))
            one = one.unsqueeze(-1)
            # A sample that may be on either side of a jump has no slope: what it may change is added instead.
            other = self._ratio(min(lowest, 0.0), max(highest, 0.0), *spectrum).unsqueeze(-1)
            before, after = _grown(defects + self.plan.step_size * shift, torch.where(either, other, one))
            if bool((before <= assumed).all()):
                return after
            assumed = 2 * before
        return torch.full_like(defects[..., 0], math.inf)


def _near(states: Tensor, most: float) -> Iterator[slice]:
    """Runs of states that are no farther than this from the first of them, in the 2-norm, of LONGEST at most."""
    first = 0
    while first < states.shape[-2]:
        some = states[..., first : first + LONGEST, :]
        away = _norm(some - some[..., :1, :]).reshape(-1, some.shape[-2]).amax(dim=0)
        near = (away <= most).cumprod(dim=0).sum().item()
        yield slice(first, first + max(1, int(near)))
        first += max(1, int(near))


def weighted_smallest(rows: Tensor, weights: Tensor) -> Tensor:
    """Below λmin(Xᵀ·diag(c)·X/n) for weights c ≥ 0, dataset by dataset.

    Claim: rows times √c as computed have a Gram matrix that is off by at most 8u times its trace. Proof. Root and
    product round once each: each entry of a scaled row by 2.1u of itself, each product of two by 4.3u, and the sums of
    their magnitudes are entries of a matrix whose norm is at most its trace, which is computed to within a half. QED
    """
    scaled = rows * weights.clamp(min=0).sqrt().unsqueeze(-1)
    trace = scaled.square().sum(dim=(-2, -1)) / rows.shape[-2]
    return (enclosure(scaled)[0] - 8 * unit(f64) * trace).clamp(min=0)


def is_linear(f: Function) -> bool:
    """Whether f(t) = t, as of the squared loss."""
    return bool(f.smooth == parse("t").smooth)


def _distinct(states: Tensor) -> tuple[Tensor, Tensor]:
    """States (..., steps, features) of which no two are equal in all datasets, and where each step's is: a path that
    has arrived stays where it is, or goes round between neighbouring floats."""
    rows = states.movedim(-2, 0)
    numbers, places, kept = dict[bytes, int](), list[int](), list[int]()
    for step, row in enumerate(rows.reshape(len(rows), -1).detach().cpu().numpy()):
        places.append(numbers.setdefault(row.tobytes(), len(kept)))
        if len(numbers) > len(kept):
            kept.append(step)
    return states[..., kept, :], torch.tensor(places, device=states.device)


def _with_one(states: Tensor) -> Tensor:
    return torch.cat([states, torch.ones_like(states[..., :1])], dim=-1)


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


def distance_to_exact(
    plan: Plan,
    x: Float64[Tensor, "samples features"],
    y: Float64[Tensor, " samples"],
    weights: Float64[Tensor, " features"],
) -> tuple[float, float]:
    """How far these weights are from the middle of the exact ones' enclosure, and its radius, both from above.

    Infinite where the steps cannot be followed.
    """
    from flint import arb

    size = max(1.0, weights.abs().max().item())
    away = radius = math.inf
    for attempt in range(TRIES):
        with ball_arithmetic((BITS + BITS_A_STEP * plan.steps) << attempt):
            try:
                exact = _weights(plan, x, y)
            except BadExpression:
                continue
            if not all(one.is_finite() for one in exact):
                continue
            off = [abs(arb(own) - one.mid()) for own, one in zip(weights.tolist(), exact, strict=True)]
            away, radius = (max(map(_above, part)) for part in (off, [one.rad() for one in exact]))
        if radius <= NARROW * size:
            break
    return away, radius


def _above(number: Any) -> float:
    """A float that is not below its magnitude."""
    value = float(number.abs_upper())
    return math.nextafter(value, math.inf) if value else 0.0


def _weights(plan: Plan, x: Tensor, y: Tensor) -> list[Any]:
    """After all steps, as balls. None has momentum: that goes with neither acceleration nor batches."""
    from flint import arb, arb_mat

    f, eta = parse(plan.loss.derivative), arb(plan.step_size)
    seen = plan.batches(plan.loss.template_data(x, y)), plan.batches(TemplateData(x, y, None))
    linear = f.smooth == parse("t").smooth
    used = zip(*(part[: plan.steps] for part in seen), strict=True)
    batches = [_Batch(inner, given.y, linear) for inner, given in used]
    w = before = arb_mat(x.shape[-1], 1)
    for number in range(plan.steps):
        start = w + (w - before) * (arb(number) / (number + 3)) if plan.descent.accelerated else w
        gradient = batches[number % len(batches)].gradient(f, start)
        w, before = plan.descent.step(eta, start, gradient, w - before, _soft_thresholded), w
    entries: list[Any] = w.entries()
    return entries


class _Batch:
    """Data as a loss sees them; for the squared loss only XᵀX and Xᵀy are needed."""

    def __init__(self, data: TemplateData, targets: Tensor, linear: bool) -> None:
        self.samples, self.linear, self.fixed = len(data.x), linear, None
        self.x, self.y = arb_matrix(data.x), arb_matrix(data.y.unsqueeze(-1))
        self.across = self.x.transpose()
        if linear:
            self.gram, self.target = self.across * self.x, self.across * self.y
        elif data.fixed is not None:
            # What is fixed is y·x, which float64 has rounded: here it is formed again.
            self.fixed = self.across * arb_matrix(targets.unsqueeze(-1))

    def gradient(self, f: Function, w: Any) -> Any:
        from flint import arb, arb_mat

        if self.linear:
            total = self.gram * w - self.target
        else:
            residuals = (self.x * w - self.y).entries()
            total = self.across * arb_mat(self.samples, 1, [f.arb_value(s) for s in residuals])
        return (total if self.fixed is None else total - self.fixed) * (1 / arb(self.samples))


def _soft_thresholded(v: Any, threshold: Any) -> Any:
    """max(v − θ, 0) + min(v + θ, 0), entry by entry: continuous, so that no sign has to be known."""
    from flint import arb, arb_mat

    zero = arb(0)
    entries = [(each - threshold).max(zero) + (each + threshold).min(zero) for each in v.entries()]
    return arb_mat(v.nrows(), v.ncols(), entries)
