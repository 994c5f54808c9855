"""Checks of a run of descent: everything that its certificate assumes about the data and the path."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from emulon.algorithms.gradient_descent import look_ahead
from emulon.certify import Domain, rounding
from emulon.certify.domain import SLACK, enclosure, require_finite, require_shape, require_within
from emulon.core import Progress, silent
from emulon.core.arrays import at_a_time
from emulon.core.errors import OutOfDomain
from emulon.expressions import parse
from emulon.interpreter.plan import Plan, Slopes, require_gentle

# (number of the step, state, the one before it) ↦ the next.
Step = Callable[[int, Tensor, Tensor], Tensor]
# States that are looked at together, at most, and residuals of theirs that are computed together; seconds after which
# one does not wait for more of them.
TOGETHER, LOOKED_AT, PATIENCE = 64, 1 << 17, 0.5


def require_in_domain(
    domain: Domain, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"], w: Float[Tensor, "*batch d"]
) -> None:
    """Refuse data of the wrong shape, not finite, or outside the bounds, which are kept to the last bit.

    Sums are computed in float64; where rounding could decide, they are formed again exactly.
    """
    require_data_in_domain(domain, x, y)
    require_shape(w, "w", domain.features)
    require_weights_in_domain(domain, x.double(), y.double(), w.unsqueeze(-2))


def require_data_in_domain(domain: Domain, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"]) -> None:
    """The part of `require_in_domain` that does not depend on the weights."""
    require_shape(x, "x", domain.samples, domain.features)
    require_shape(y, "y", domain.samples)
    require_within(domain.x, x=x)
    require_within(domain.y, y=y)


def require_weights_in_domain(
    domain: Domain, x: Float64[Tensor, "*batch n d"], y: Float64[Tensor, "*batch n"], path: Float[Tensor, "*batch t d"]
) -> None:
    """The part that does, for data in the domain; `path` holds several states, each checked with all data."""
    require_within(domain.w, w=path)
    w = path.double()
    if domain.residual < domain.widest:
        _require_sums("w·x − y", domain.residual, domain.absolute, x, y, w)
    if domain.absolute < domain.widest:
        _require_sums("w|·|x| + |y", domain.absolute, domain.absolute, x.abs(), -y.abs(), w.abs())


def _require_sums(what: str, bound: float, absolute: float, x: Tensor, y: Tensor, w: Tensor) -> None:
    y = y.unsqueeze(-2)
    sums = (w @ x.mT - y).abs()
    doubt = rounding.dot(x.shape[-1] + 5, max(absolute, bound), torch.float64)
    if bool((sums < bound - doubt).all()):
        return
    near = (sums - bound).abs() <= doubt
    require_within(bound, **{what: sums.where(~near, 0.0)})
    if near.any():
        shape = (*sums.shape, x.shape[-1])
        each = (x.unsqueeze(-3).expand(shape), y.expand(sums.shape), w.unsqueeze(-2).expand(shape))
        rows = zip(*(part[near].tolist() for part in each), strict=True)
        if any(abs(_exactly(*row)) > Fraction(bound) for row in rows):
            raise OutOfDomain(
                f"|{what}| is above {bound:.6g}, which the domain was built for, in the last place; build a wider one"
            )


def _exactly(x: list[float], y: float, w: list[float]) -> Fraction:
    return sum((Fraction(a) * Fraction(b) for a, b in zip(x, w, strict=True)), -Fraction(y))


def require_step_size(plan: Plan, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"]) -> None:
    """Refuse data on which an algorithm that leaves its step size to the data would take another than the plan's."""
    if not plan.step_from_data:
        return
    free = replace(plan.descent, step_size=None)
    sizes = free.resolved_step_size(x, y)
    if ((sizes - plan.step_size).abs() > plan.step_size * SLACK).any():
        other = sizes.flatten()[(sizes - plan.step_size).abs().argmax()].item()
        raise OutOfDomain(
            f"the algorithm would take steps of {other:.6g} on this data, and was made with {plan.step_size:.6g} for "
            "others; make it for this data, or give it a step_size"
        )


class CurvatureWatch:
    """Watches a plan run on data as its scalar function sees them: their spectrum once, and every state of the path.

    `bound` is how far the exact path may be from ours: what is asked of the loss is asked between the two. A bound that
    is larger than the weights themselves says nothing of the path, and only ours is looked at.
    """

    def __init__(self, plan: Plan, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"], bound: float) -> None:
        self.plan, self.x, self.y = plan, x.double(), y.double()
        bound = bound if bound <= plan.domain.w else 0.0
        self.low, self.high = enclosure(self.x)
        rounded = rounding.dot(x.shape[-1] + 3, plan.inner.absolute, torch.float64)
        self.doubt = bound * self.x.abs().sum(dim=-1) * (1 + SLACK) + rounded
        self._require_spectrum()
        self.slopes = None
        if math.isinf(curvature := plan.curvature(bound)):
            self.slopes = Slopes(parse(plan.loss.derivative))
        else:
            self._require_gentle(self.high.new_tensor(curvature))
        require_data_in_domain(plan.inner, self.x, self.y)

    def require(self, path: Float[Tensor, "*batch t d"]) -> None:
        """Refuse states that are not finite, outside the domain, or, all together, where the loss is too steep."""
        require_finite(w=path)
        size = max(1, at_a_time(LOOKED_AT, path.device) // max(path.shape[:-1].numel(), 1))
        parts = list(
            zip(*(part.split(size, dim=self.y.ndim - 1) for part in (self.x, self.y, self.doubt)), strict=True)
        )
        if self.slopes is not None:
            lows, highs = zip(*(self._ends(path.double(), *part) for part in parts), strict=True)
            low, high = torch.stack(lows).amin(dim=0), torch.stack(highs).amax(dim=0)
            ends = zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)
            self._require_gentle(low.new_tensor([self.slopes.steepest(*end) for end in ends]).reshape(low.shape))
        for x, y, _ in parts:
            require_weights_in_domain(self.plan.inner, x, y, path)

    def _ends(self, w: Tensor, x: Tensor, y: Tensor, doubt: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest residual over these samples and states, widened by `doubt`, dataset by dataset."""
        s = w @ x.mT - y.unsqueeze(-2)
        return (s - doubt.unsqueeze(-2)).amin(dim=(-2, -1)), (s + doubt.unsqueeze(-2)).amax(dim=(-2, -1))

    def before_step(self, w: Float[Tensor, "*batch d"], number: int) -> None:
        """Refuse a state that the step of this number may not start from."""
        try:
            self.require(w.unsqueeze(-2))
        except OutOfDomain as error:
            raise OutOfDomain(f"{error} (before step {number + 1})") from None

    def _require_spectrum(self) -> None:
        plan = self.plan
        flattest, steepest = self.low.min().item(), self.high.max().item()
        # What `Plan.flattest` grants: a part SLACK of the smallest eigenvalue, and of the largest.
        granted = plan.strong_convexity * (1 - SLACK) - SLACK * plan.max_step_times_smoothness / plan.step_size
        if plan.strong_convexity and flattest < granted:
            raise OutOfDomain(
                f"λmin(XᵀX/n) is {flattest:.4g}, below the promised strong_convexity {plan.strong_convexity:.4g}; "
                "lower it, or compile for this data"
            )
        # Losses that are not convex and proximal steps rest on it: how steep they are, and how far they may have to go.
        if (plan.negative_curvature or plan.descent.l1) and steepest > plan.largest_eigenvalue * (1 + SLACK):
            raise OutOfDomain(
                f"λmax(XᵀX/n) is {steepest:.4g}, above {plan.largest_eigenvalue:.4g} as promised; compile for this data"
            )

    def _require_gentle(self, curvature: Float[Tensor, "*batch"]) -> None:
        """η·L is no more than the plan says, L being curvature·λmax + l2 of every dataset."""
        plan = self.plan
        steepest = (curvature * self.high + plan.descent.l2).max().item()
        require_gentle(plan.step_size, steepest, plan.max_step_times_smoothness)


def watched_path(
    watches: Sequence[CurvatureWatch], start: Float[Tensor, "*batch d"], step: Step, report: Progress = silent
) -> Float[Tensor, "*batch iterates d"]:
    """All states of a run; those that steps start from are checked by the watches in turn before they are returned.

    States are checked together where none can be wrong, else one by one. A step may refuse a state, or diverge from it,
    before it was checked: the error is then that of the earliest bad state.
    """
    plan, path, asked, checked, begin = watches[0].plan, [start], list[Tensor](), 0, time.monotonic()

    def check() -> None:
        nonlocal checked, begin
        first, checked, begin = checked, len(asked), time.monotonic()
        try:
            for k, watch in enumerate(watches):
                if own := asked[first:][(k - first) % len(watches) :: len(watches)]:
                    watch.require(torch.stack(own, dim=-2))
        except OutOfDomain:  # the earliest of them is told, if one is wrong by itself
            for number, w in enumerate(asked[first:], first):
                watches[number % len(watches)].before_step(w, number)

    for number in range(plan.steps):
        w, before = path[-1], path[max(number - 1, 0)]
        asked.append(look_ahead(number, w, before) if plan.descent.accelerated else w)
        if len(asked) - checked >= TOGETHER or time.monotonic() - begin > PATIENCE:
            check()
            report(f"step {number} of {plan.steps}", number / plan.steps)
        try:
            path.append(step(number, asked[-1], before))
        except OutOfDomain:
            check()
            raise
    check()
    return torch.stack(path, dim=-2)
