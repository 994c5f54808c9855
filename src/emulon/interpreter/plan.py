"""What an algorithm, a domain and data decide about descent, before any weight is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from heapq import heapify, heappush, heapreplace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from emulon.algorithms import Algorithm, GradientDescent
from emulon.algorithms.gradient_descent import in_batches
from emulon.algorithms.losses import Loss, TemplateData, registered
from emulon.certify import Domain, Spectrum
from emulon.certify.domain import SLACK, largest_eigenvalue, smallest_eigenvalue
from emulon.certify.rounding import (
    accumulated,
    accumulated_ahead,
    accumulated_ahead_on_quadratics,
    accumulated_with_momentum,
    step_lipschitz,
)
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.expressions import Function, parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.phase import ValueCoefficients

# Shares of a step's tolerance, (gradient, proximal step). Constructions promise all of it, rounding of the state
# included, and keep a part for that; the interpreter's tolerance is about interpolation alone.
CONSTRUCTION_SHARES = {False: (0.9, 0.0), True: (0.55, 0.36)}
INTERPRETER_SHARES = {False: (1.0, 0.0), True: (0.5, 0.5)}
# Samples that are looked at together.
ROWS = 4096
Data = tuple[Tensor, Tensor]
# (left, right, lower, upper): f′ lies within (lower, upper) on [left, right].
Cell = tuple[float, float, float, float]
CELLS = 16
MOST_CELLS = 500
MOST_HALVINGS = 4000
# Coefficients of f′ that a cell is enclosed with: along a path, where cells are narrow, two cost least.
ORDER, ALONG_A_PATH = 6, 2
# Cells that intervals of many samples share.
SHARED = 64
# Bounds are tight to this part of themselves, or to that part of the largest slope.
TIGHT, NEGLIGIBLE = 1e-2, 1e-10


@dataclass(frozen=True)
class Plan:
    """Descent on data of a domain, with the figures that say how far errors of single steps can grow.

    Attributes:
        name: Of the algorithm.
        descent: The exact algorithm, with the step size that is used.
        domain: Bounds on data and states; of single batches, where `rows` are more than the domain's samples.
        rows: Samples of the data.
        strong_convexity: Lower bound on λmin(XᵀX/n), where the loss makes use of it.
        negative_curvature: Upper bound on −ℓ″, 0 for a convex loss: enclosed in ball arithmetic for |residual| ≤
            `curvature_reach`, and only sampled where that is 0.
        max_step_times_smoothness: 1 or 2, a bound on step_size·L, L the largest eigenvalue of the Hessian; checked as
            the plan runs.
        step_from_data: Whether the algorithm leaves its step size to the data: data on which it would choose another
            are refused.
    """

    name: str
    descent: GradientDescent
    domain: Domain
    rows: int
    strong_convexity: float
    negative_curvature: float
    curvature_reach: float
    max_step_times_smoothness: float
    step_from_data: bool

    def changed(self, **changes: Any) -> Plan:
        """`dataclasses.replace` for fields of the plan and of its descent."""
        own = {each.name for each in fields(self)}
        inner = {name: value for name, value in changes.items() if name not in own}
        descent = replace(self.descent, **inner) if inner else self.descent
        return replace(self, **{"descent": descent} | {name: changes[name] for name in changes if name in own})

    @property
    def loss(self) -> Loss:
        return self.descent.loss

    @property
    def steps(self) -> int:
        return self.descent.steps

    @property
    def step_size(self) -> float:
        assert self.descent.step_size is not None
        return self.descent.step_size

    @property
    def inner(self) -> Domain:
        """Domain of the template data, on which the scalar function is evaluated."""
        return self.loss.link.template_domain(self.domain)

    @property
    def shrink(self) -> float:
        return 1 - self.step_size * self.descent.l2

    def batches(self, data: TemplateData) -> list[TemplateData]:
        """Data of each step in turn; after the last batch the first follows again."""
        size = self.descent.batch
        if size is None:
            return [data]
        x, y = in_batches(data.x, data.y, size)
        parts = zip(x.unbind(-3), y.unbind(-2), strict=True)
        if data.fixed is None:
            return [TemplateData(*part, None) for part in parts]
        fixes = in_batches(data.fixed, data.y, size)[0].unbind(-3)
        return [TemplateData(*part, fixed) for part, fixed in zip(parts, fixes, strict=True)]

    @property
    def quadratic(self) -> bool:
        """Whether errors meet the same symmetric matrix at every step."""
        return self.loss.derivative == "t" and not self.descent.l1 and self.descent.batch is None

    @property
    def fixed(self) -> float:
        """Bound on the entries of what tokens carry of the data, y_i·x_i for Poisson."""
        return self.loss.link.largest_fixed(self.domain)

    @property
    def value_coefficients(self) -> ValueCoefficients:
        """Of the gradient phase's W_V."""
        return ValueCoefficients(self.step_size, self.shrink, self.descent.momentum, self.fixed)

    @property
    def ahead(self) -> float:
        """Magnitude of w + β·(w − w_before), which an accelerated step rounds outside attention; 0 for other steps."""
        return 3 * self.domain.w if self.descent.accelerated else 0.0

    def moved(self, slope: float) -> float:
        """How far a step may move any weight, where |ℓ′| ≤ slope.

        Claim: |Σ_i ℓ′_i x_ik|/n ≤ √λmax(XᵀX/n)·slope, and ≤ max|x|·slope. Proof. The first is Cauchy and Schwarz, as
        Σ_i x_ik²/n is on the diagonal of XᵀX/n; the other is plain. QED
        """
        entry = min(self.domain.x, math.sqrt(self.largest_eigenvalue * (1 + 2 * SLACK)))
        return self.step_size * (entry * slope + self.fixed)

    @property
    def largest_eigenvalue(self) -> float:
        """A bound on λmax(XᵀX/n)."""
        return self.domain.largest

    @property
    def growth(self) -> float:
        """From the sup-norm error of one step to that of all: √d·(1 + ρ + … + ρ^{T−1}).

        ρ is the Lipschitz constant of the exact step: its Hessian lies between l2 + strong_convexity −
        negative_curvature·λmax and max_step_times_smoothness/step_size. Where ℓ is not convex, ρ is above 1 and errors
        grow. Momentum and acceleration have sums of their own.
        """
        if self.descent.accelerated:  # as on a quadratic: what is to be expected elsewhere, too
            return max(1.0, math.sqrt(self.domain.features) * accumulated_ahead_on_quadratics(1.0, self.steps, 0.0))
        return self._growth(0.0)

    @property
    def certified_growth(self) -> float:
        """`growth`, granted what checks and enclosures leave open: a part SLACK of everything they compare."""
        return self._growth(SLACK)

    def flattest(self, slack: float) -> float:
        """Below the smallest eigenvalue of the Hessian, given how much checks leave open."""
        unsure = slack * self.max_step_times_smoothness * (1 + 3 * slack) / self.step_size
        strong = max(0.0, self.strong_convexity * (1 - slack) - unsure)
        return self.descent.l2 + strong - self.negative_curvature * self.largest_eigenvalue * (1 + 2 * slack) - unsure

    def _growth(self, slack: float) -> float:
        top, flattest = self.max_step_times_smoothness * (1 + 3 * slack), self.flattest(slack)
        if momentum := self.descent.momentum:
            spread = max(abs(1 + momentum - edge) for edge in (self.step_size * flattest, top))
            grown = accumulated_with_momentum(1.0, self.steps, spread, momentum)
        elif self.descent.accelerated and self.quadratic and self.max_step_times_smoothness == 1:
            grown = accumulated_ahead_on_quadratics(1.0, self.steps, 3 * slack)
        elif self.descent.accelerated:
            grown = accumulated_ahead(1.0, self.steps, step_lipschitz(self.step_size, top / self.step_size, flattest))
        else:
            ratio = step_lipschitz(self.step_size, top / self.step_size, flattest)
            grown = accumulated(1.0, self.steps, ratio)
        return max(1.0, math.sqrt(self.domain.features) * grown)

    def proves(self, bound: float) -> bool:
        """Whether the curvature was enclosed wherever a path within `bound` of one in the domain can go."""
        return self.inner.residual + self.off(bound) <= self.curvature_reach

    def off(self, bound: float) -> float:
        """Largest distance of a residual on such a path from one in the domain."""
        return self.domain.features * self.domain.x * bound * (1 + SLACK)

    def curvature(self, bound: float) -> float:
        """sup ℓ″, where what the loss says of it is proved wherever such a path can go; infinite elsewhere.

        The losses that come with emulon state a curvature that holds. An infinite one is watched as the plan runs.
        Where the bound is infinite nothing need be proved.
        """
        reach, stated = self.inner.residual + self.off(bound), self.loss.curvature
        ours = registered(self.loss.name)
        if ours is not None and (ours.derivative, ours.curvature) == (self.loss.derivative, stated):
            return stated
        if math.isfinite(reach) and not curvature_holds(self.loss.derivative, stated, reach):
            return math.inf
        return stated

    @property
    def assumes(self) -> tuple[str, ...]:
        """What a certificate for the whole domain leaves to the run, or says of the algorithm it is about."""
        found = []
        top = self.max_step_times_smoothness
        if not self.step_size * (self.loss.curvature * self.largest_eigenvalue + self.descent.l2) <= top * (1 + SLACK):
            found.append(f"step_size·L ≤ {top:g}, which a run checks on its data")
        if self.step_from_data:
            found.append(f"the algorithm's step size is {self.step_size!r}, which data may choose to within {SLACK:g}")
        return tuple(found)

    @classmethod
    def of(cls, name: str, descent: GradientDescent, domain: Domain, data: Data | None) -> Plan:
        """For this domain, and with what data tell beyond it."""
        rows, domain = domain.samples, batch_domain(descent, domain)
        step_size = step_size_for(descent, domain, data)
        data = in_its_batches(descent, data)
        strong, top = strong_convexity_of(descent, data), max_step_times_smoothness(descent, step_size, domain, data)
        reach = 2 * descent.loss.link.template_domain(domain).residual
        curvature, reach = negative_curvature(descent.loss, reach)
        return cls(
            name=name,
            descent=replace(descent, step_size=step_size, batch=None if rows == domain.samples else domain.samples),
            domain=domain,
            rows=rows,
            strong_convexity=strong if top == 1 else 0.0,
            negative_curvature=curvature,
            curvature_reach=reach,
            max_step_times_smoothness=top if strong or descent.l2 or descent.accelerated else 2.0,
            step_from_data=descent.step_size is None,
        )


def with_proof(plan: Plan, bound: float) -> Plan:
    """The same, its curvature enclosed as far as `proves(bound)` needs, where that can be done."""
    reach = plan.inner.residual + plan.off(bound)
    if plan.proves(bound) or not plan.curvature_reach or not math.isfinite(reach):
        return plan
    found = enclosed_negative_curvature(plan.loss, reach)
    return plan if found is None or found > plan.negative_curvature else replace(plan, curvature_reach=reach)


def descent_of(algorithm: Algorithm) -> GradientDescent:
    """The gradient descent underneath, if that is what it is, and one that errors can be followed through."""
    descent = getattr(algorithm, "descent", None)
    if not isinstance(descent, GradientDescent):
        raise EmulonError(f"{type(algorithm).__name__} is not gradient descent on a loss; only that runs in context")
    if descent.momentum and (descent.loss.derivative != "t" or descent.l1):
        raise EmulonError("momentum has a certificate for the squared loss without an l1 penalty only; set it to 0")
    return descent


def domain_from_data(descent: GradientDescent, x: Tensor, y: Tensor, slack: float = 1.5) -> Domain:
    """Bounds that hold along the exact iterates on this data, times `slack`; a run checks them."""
    x, y = x.double(), y.double()
    path = descent.starts(descent.iterates(x, y))
    inner_x, inner_y, _ = descent.loss.template_data(x, y)
    residual = absolute = 0.0
    for rows, targets in zip(inner_x.split(ROWS, dim=-2), inner_y.unsqueeze(-1).split(ROWS, dim=-2), strict=True):
        residual = max(residual, (rows @ path.mT - targets).abs().max().item())
        absolute = max(absolute, (rows.abs() @ path.abs().mT + targets.abs()).max().item())
    wide = Domain.of(x, y, max(path.abs().max().item() * slack, 1e-3))
    return replace(wide, residual=residual * slack + 1e-3, absolute=absolute * slack + 1e-3)


def batch_domain(descent: GradientDescent, domain: Domain) -> Domain:
    """What a domain of whole datasets says of their batches: nothing of their spectrum."""
    if descent.batch is None or descent.batch >= domain.samples:
        return domain
    return replace(domain, samples=descent.batch, spectrum=Spectrum())


def in_its_batches(descent: GradientDescent, data: Data | None) -> Data | None:
    return data if data is None or descent.batch is None else in_batches(*data, descent.batch)


def step_size_for(descent: GradientDescent, domain: Domain, data: Data | None) -> float:
    """The algorithm's own, or the one it would choose on the data."""
    if descent.step_size is not None:
        return descent.step_size
    if data is not None:
        return one_step_size(descent, *data)
    if domain.spectrum.largest and descent.loss.curvature < math.inf:
        return 1 / (descent.loss.curvature * domain.spectrum.largest + descent.l2)
    raise EmulonError(
        f"{descent.loss.name} chooses its step size from the data; give step_size, data=(x, y), or a Domain.of(x, y)"
    )


def one_step_size(descent: GradientDescent, x: Tensor, y: Tensor) -> float:
    """The step size that all datasets of a batch have. A shorter one would be another algorithm."""
    sizes = descent.resolved_step_size(x, y)
    if (sizes.max() > sizes.min() * (1 + SLACK)).item():
        raise EmulonError(
            f"the datasets of this batch have different step sizes, {sizes.min().item():.4g} to "
            f"{sizes.max().item():.4g}; give the algorithm a step_size, or compile one by one"
        )
    if not sizes.min() > 0:
        raise EmulonError(
            f"{descent.loss.name} finds no step size in these data: targets that are all zero, or numbers too large to "
            "square; give step_size"
        )
    return sizes.min().item()


def strong_convexity_of(descent: GradientDescent, data: Data | None) -> float:
    """λmin(XᵀX/n), which makes errors of the squared loss shrink from step to step; 0 where it is not known."""
    if data is None or descent.loss.derivative != "t":
        return 0.0
    return smallest_eigenvalue(data[0]).min().item() * (1 - SLACK)


def max_step_times_smoothness(descent: GradientDescent, step_size: float, domain: Domain, data: Data | None) -> float:
    """1 where steps are no longer than 1/L, and convexity makes errors shrink; 2, what descent can bear, elsewhere."""
    if math.isinf(descent.loss.curvature):
        return 2.0 if descent.step_size is not None else 1.0
    largest = domain.spectrum.largest if data is None else largest_eigenvalue(data[0]).max().item()
    if data is not None:
        require_gentle(step_size, descent.loss.curvature * largest + descent.l2, 2.0)
    return 1.0 if largest and step_size * (descent.loss.curvature * largest + descent.l2) <= 1 + SLACK else 2.0


def require_gentle(step_size: float, smoothness: float, most: float) -> None:
    """Refuse steps longer than `most`/L, for which certificates do not hold."""
    if not step_size * smoothness <= most * (1 + SLACK):
        raise OutOfDomain(
            f"step_size {step_size:.4g} is too long for this data: at most {most:g}/L = {most / smoothness:.4g}; "
            "give a smaller step_size"
        )


def negative_curvature(loss: Loss, reach: float) -> tuple[float, float]:
    """(sup −ℓ″ on residuals up to `reach`, the reach for which that is proved): 0 for a convex loss.

    Where no enclosure can be had, the supremum is sampled, a twentieth is added, and nothing is proved.
    """
    found = enclosed_negative_curvature(loss, reach)
    if found is not None:
        return found, reach
    s = torch.linspace(-reach, reach, 4001, dtype=torch.float64, device="cpu")
    lowest = parse(loss.derivative).derivative()(s).nan_to_num(nan=0.0).min().item()
    return max(0.0, -1.05 * lowest), 0.0


@lru_cache(maxsize=256)
def curvature_holds(derivative: str, curvature: float, reach: float) -> bool:
    """Whether ℓ″ ≤ curvature on residuals up to `reach`, proved in ball arithmetic."""
    return math.isinf(curvature) or Slopes(parse(derivative)).at_most(curvature * (1 + 1e-12), -reach, reach)


@lru_cache(maxsize=256)
def enclosed_negative_curvature(loss: Loss, reach: float) -> float | None:
    """sup −ℓ″ in ball arithmetic, 0 where it is below a part SLACK of sup ℓ″; None where it cannot be bounded."""
    if loss.derivative == "t":  # ℓ″ = 1: nothing to enclose, and no second to wait for sympy
        return 0.0
    lowest, highest = Slopes(parse(loss.derivative)).between(-reach, reach)
    if not math.isfinite(lowest):
        return None
    return 0.0 if lowest >= -SLACK * highest else -lowest


class Slopes:
    """The range of f′, jumps of f left out, in ball arithmetic.

    On a cell around c, f′ lies in Σ_k f′_k(c)·(cell − c)ᵏ, its Taylor coefficients at c but for the last one, which is
    that of the whole cell (Lagrange). Where a cell holds a break of f, both of its branches are counted.
    """

    def __init__(self, f: Function) -> None:
        self.slope = f.derivative()
        self._known: dict[tuple[float, int], float] = {}

    def between(self, lo: float, hi: float) -> tuple[float, float]:
        """(below the infimum, above the supremum) of f′ on [lo, hi]."""
        with ball_arithmetic(order=ORDER):
            edges = [lo + (hi - lo) * k / CELLS for k in range(CELLS)] + [hi]
            cells = [self._enclose(left, right) for left, right in pairwise(edges)]
            highest = self._refined(cells)
            lowest = -self._refined([(left, right, -upper, -lower) for left, right, lower, upper in cells], -1)
        return lowest, highest

    def at_most(self, top: float, lo: float, hi: float) -> bool:
        """Whether f′ ≤ top on [lo, hi] for certain: cells are halved until each says so, or one says no."""
        with ball_arithmetic(order=ORDER):
            cells = [(lo, hi)]
            for _ in range(MOST_HALVINGS):
                if not cells:
                    return True
                left, right, lower, upper = self._enclose(*cells.pop())
                if upper <= top:
                    continue
                middle = (left + right) / 2
                if lower > top or not left < middle < right:
                    return False
                cells += [(left, middle), (middle, right)]
        return not cells

    def steepest(self, lo: float, hi: float) -> float:
        """Above the supremum of f′ on [lo, hi]; cells are kept, so that an interval like the last one costs little."""
        if not math.isfinite(hi - lo):
            return math.inf
        width = 2.0 ** math.floor(math.log2(max((hi - lo) / CELLS**2, 1e-300 + 1e-12 * max(abs(lo), abs(hi)))))
        first, last = math.floor(lo / width) + 1, math.floor(hi / width)
        with ball_arithmetic(order=ALONG_A_PATH):
            for cell in range(first, last):
                if (width, cell) not in self._known:
                    self._known[width, cell] = self._enclose(cell * width, (cell + 1) * width)[3]
            ends = [(lo, first * width), (last * width, hi)] if first <= last else [(lo, hi)]
            tops = [self._enclose(*end)[3] for end in ends]
        return max([*tops, *(self._known[width, cell] for cell in range(first, last))])

    def lowest_of(self, low: Tensor, high: Tensor) -> Tensor:
        """Below the infimum of f′ on each of these intervals, from cells that all of them share."""
        start, stop = low.min().item(), high.max().item()
        if not math.isfinite(stop - start):
            return torch.full_like(low, -math.inf)
        width = max((stop - start) / SHARED, 1e-300 + 1e-12 * max(abs(start), abs(stop)))
        edges = [start + width * k for k in range(-1, SHARED + 2)]
        with ball_arithmetic(order=ALONG_A_PATH):
            below = torch.tensor([self._enclose(*edge)[2] for edge in pairwise(edges)], dtype=low.dtype, device="cpu")
        # An index may be off by one where an end is next to an edge: one cell more is looked at on each side.
        first = ((low - start) / width).floor().long().clamp(0, SHARED - 1)
        last = ((high - start) / width).floor().long().clamp(0, SHARED - 1) + 2
        least = torch.full((len(below), len(below)), -math.inf, dtype=low.dtype, device="cpu")
        for cell in range(len(below)):
            least[cell, cell:] = below[cell:].cummin(dim=0).values
        return least[first, last]

    def _enclose(self, left: float, right: float) -> Cell:
        from flint import arb, arb_series, ctx

        ball, center = arb(left).union(arb(right)), arb((left + right) / 2)
        values, last, unknown = [], ctx.cap - 1, (left, right, -math.inf, math.inf)
        try:
            for signs in self.slope.arb_branches(left, right):
                whole = arb_series([0]) + self.slope.arb_series(arb_series([ball, 1]), signs)
                at_center = arb_series([0]) + self.slope.arb_series(arb_series([center, 1]), signs)
                value = whole[last]
                for k in reversed(range(last)):
                    value = at_center[k] + value * (ball - center)
                values.append(value)
        except (ValueError, ZeroDivisionError):  # a division by a ball around zero, or too many branches
            return unknown
        if not all(value.is_finite() for value in values):
            return unknown
        # Of balls with 53 bits both ends are floats: converting them rounds nothing.
        return left, right, min(float(v.lower()) for v in values), max(float(v.upper()) for v in values)

    def _refined(self, cells: list[Cell], side: int = 1) -> float:
        """Above side·f′ on all cells, which hold its ranges; the worst is halved as long as none may come near it.

        At a kink no cell ever gets tight, but what it may be is soon seen beside it.
        """
        heap = [(-cell[3], cell) for cell in cells]
        heapify(heap)
        scale, reached = _steepest(cells), max(cell[2] for cell in cells)
        for _ in range(MOST_CELLS):
            left, right, lower, upper = heap[0][1]
            if math.isfinite(upper) and upper - reached <= max(TIGHT * abs(upper), NEGLIGIBLE * scale):
                break
            middle = (left + right) / 2
            halves = [self._enclose(left, middle), self._enclose(middle, right)]
            halves = halves if side > 0 else [(a, b, -top, -least) for a, b, least, top in halves]
            heapreplace(heap, (-halves[0][3], halves[0]))
            heappush(heap, (-halves[1][3], halves[1]))
            reached = max(reached, halves[0][2], halves[1][2])
            if upper >= scale or -lower >= scale:
                scale = _steepest([cell for _, cell in heap])
        return -heap[0][0]


def _steepest(cells: list[Cell]) -> float:
    return max((max(-cell[2], cell[3]) for cell in cells if math.isfinite(cell[3])), default=0.0)
