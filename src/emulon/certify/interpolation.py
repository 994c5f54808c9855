"""sup |F − f| enclosed with certainty, for F(s) = Σ_r softmax_r(a_r·s + b_r)·v_r, by Taylor models in ball arithmetic.

On a cell |s − c| ≤ ρ write s = c + ρτ. With scores taken relative to their value at c and slopes relative to their mean
ā there (a common factor e^{āρτ} cancels between numerator and denominator, and with it what would make the enclosure
explode), F − f − const = (N(τ) − φ(τ)·D(τ)) / D(τ), where N, D and φ are polynomials in τ with ball coefficients plus
a remainder ball each:
    exp(κτ) = Σ_{k<n} κᵏτᵏ/k! + R,   |R| ≤ |κ|ⁿ/n!·e^{|κ|}      (κ = (a_r − ā)ρ)
    f(c+ρτ) = Σ_{k<n} φ_k τᵏ + φ_n(ξ)τⁿ                          (φ_n evaluated on the whole cell: Lagrange)
The sup of a polynomial on [−1, 1] is at most the sum of its |coefficients|. Cells that are not tight enough are halved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from emulon.certify.certificate import Band
from emulon.errors import BadExpression
from emulon.expression import Function

ORDER = 16
PRECISION = 160
# Keys whose score is this far below the largest in the cell cannot matter: e^{-110} is below 1e-47.
NEGLIGIBLE = 110.0
MAX_CELLS = 20_000


@dataclass(frozen=True)
class Interpolation:
    """What was proved: `error` ≥ sup |F − f| ≥ `attained`; `deviation` ≥ sup Σ_r w_r |v_r − F|; `size` ≥ sup |F|."""

    error: float
    attained: float
    deviation: float
    size: float
    proved: bool = True


@dataclass(frozen=True)
class Keys:
    """The three numbers of every key, as float64 arrays that hold the stored weights exactly."""

    slopes: np.ndarray
    intercepts: np.ndarray
    values: np.ndarray

    def weights(self, s: np.ndarray) -> np.ndarray:
        """Softmax weights (points, keys) in float64: good to pick cells by, not part of any proof."""
        scores = np.multiply.outer(s, self.slopes) + self.intercepts
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        return weights / weights.sum(axis=1, keepdims=True)


def prove(
    keys: Keys,
    function: Function,
    lo: float,
    hi: float,
    *,
    bands: Sequence[Band] = (),
    target: float = 0.0,
    tightness: float = 1.3,
) -> Interpolation:
    """Claim: |F(s) − f(s)| ≤ error for every s in [lo, hi] outside the bands.

    Cells are halved until each is within `tightness` of an error really attained at some centre, or below `target`.
    """
    from flint import ctx

    precision, cap = ctx.prec, ctx.cap
    ctx.prec, ctx.cap = PRECISION, ORDER + 1
    try:
        breaks = frozenset(b.at for b in function.breaks(lo, hi))
        return _prove(keys, function, breaks, _cells(keys, breaks, lo, hi, bands), target, tightness)
    finally:
        ctx.prec, ctx.cap = precision, cap


def require_smooth(function: Function, lo: float, hi: float) -> None:
    """Refuse a function with a pole, a branch point or an undefined stretch in [lo, hi].

    Cells on which the value or the slope cannot be enclosed are halved; one that resists down to a billionth is bad.
    """
    from flint import ctx

    cap, ctx.cap = ctx.cap, 2
    try:
        queue = [(lo, hi)]
        while queue:
            left, right = queue.pop()
            if _finite(function, left, right):
                continue
            if right - left < 1e-9 * (hi - lo):
                raise BadExpression(
                    f"{function.text} is not finite and smooth at t = {left:.6g}; choose an interval without it, "
                    "or pass a Python callable"
                )
            middle = (left + right) / 2
            queue += [(left, middle), (middle, right)]
    finally:
        ctx.cap = cap


def _finite(function: Function, left: float, right: float) -> bool:
    from flint import arb, arb_series

    ball = arb((left + right) / 2, (right - left) / 2)
    for signs in function.arb_branches(ball):
        series = _series(function, arb_series([ball, 1]), signs)
        if series is None or not all(series[k].is_finite() for k in range(2)):
            return False
    return True


def _series(function: Function, at: Any, signs: dict[str, Any]) -> list[Any] | None:
    """Taylor coefficients, or None where the enclosure breaks down (a division by a ball around zero)."""
    try:
        return _coefficients(function.arb_series(at, signs))
    except (ValueError, ZeroDivisionError):
        return None


def _prove(
    keys: Keys,
    function: Function,
    breaks: frozenset[float],
    cells: list[tuple[float, float]],
    target: float,
    tightness: float,
) -> Interpolation:
    narrowest = 1e-15 * (1 + max(abs(edge) for cell in cells for edge in cell))
    done: list[tuple[float, float, float]] = []
    attained = 0.0
    queue = cells
    evaluated = 0
    while queue:
        results = [(cell, _cell(keys, function, breaks, *cell)) for cell in queue]
        evaluated += len(results)
        attained = max([attained, *(result[1] for _, result in results)])
        queue = []
        for (left, right), (error, _, deviation, size) in results:
            if error <= max(tightness * attained, target):
                done.append((error, deviation, size))
            elif right - left <= narrowest:
                if not np.isfinite(error):
                    raise BadExpression(
                        f"{function.text} is not finite and smooth at t = {left:.6g}; choose an interval without it"
                    )
                done.append((error, deviation, size))
            elif evaluated > MAX_CELLS:
                done.append((error, deviation, size))
            else:
                middle = (left + right) / 2
                queue += [(left, middle), (middle, right)]
    worst = np.array(done).max(axis=0)
    return Interpolation(float(worst[0]), attained, float(worst[1]), float(worst[2]))


def _cells(
    keys: Keys, breaks: frozenset[float], lo: float, hi: float, bands: Sequence[Band]
) -> list[tuple[float, float]]:
    """A first cut: cells about as wide as the softmax takes to change, and edges at breaks and bands."""
    stops = {lo, hi, *breaks}
    for band in bands:
        stops = {stop for stop in stops if not band.lo < stop < band.hi} | {max(lo, band.lo), min(hi, band.hi)}
    edges = sorted(stop for stop in stops if lo <= stop <= hi)
    cells: list[tuple[float, float]] = []
    for left, right in pairwise(edges):
        if any(band.lo <= left and right <= band.hi for band in bands) or left == right:
            continue
        s = np.linspace(left, right, 65)
        weights = keys.weights(s)
        mean = weights @ keys.slopes
        change = np.sqrt(np.maximum(weights @ keys.slopes**2 - mean**2, 0)).clip(max=2000 / (right - left))
        # Half a standard deviation of the slopes to a cell, and at least four cells to a stretch.
        rate = np.maximum(change, 4 / (right - left))
        mass = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2 * (s[1] - s[0]))])
        cuts = np.interp(np.linspace(0, mass[-1], max(4, int(np.ceil(mass[-1] * 2.0))) + 1), mass, s)
        cuts[0], cuts[-1] = left, right
        cells += list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return cells


def _cell(
    keys: Keys, function: Function, breaks: frozenset[float], left: float, right: float
) -> tuple[float, float, float, float]:
    """(upper bound on |F − f|, |F − f| at the centre, upper bound on the deviation, on |F|) over one cell."""
    from flint import arb, arb_mat, arb_poly, arb_series

    center = (left + right) / 2
    c, radius = arb(center), (arb(right) - arb(left)) / 2
    # The float centre is not the exact middle: the ball [c − r, c + r] must cover both ends.
    radius = (radius + abs(c - (arb(left) + arb(right)) / 2)).upper()
    rough = keys.slopes * center + keys.intercepts
    top = rough.max()
    reach = np.abs(keys.slopes - keys.slopes[rough.argmax()]) * float(radius)
    near = np.flatnonzero(rough + reach >= top - NEGLIGIBLE)
    dropped = len(rough) - len(near)
    w = np.exp(rough[near] - top)
    mean = float(w @ keys.slopes[near] / w.sum())
    guess = float(w @ keys.values[near] / w.sum())

    n = len(near)
    a = [arb(x) for x in keys.slopes[near].tolist()]
    e = [(ar * c + arb(br) - arb(float(top))).exp() for ar, br in zip(a, keys.intercepts[near].tolist(), strict=True)]
    v = [arb(x) - arb(guess) for x in keys.values[near].tolist()]
    kappa = [(ar - arb(mean)) * radius for ar in a]
    powers = [[arb(1)] * n]
    for k in range(1, ORDER + 1):
        powers.append([p * x / k for p, x in zip(powers[-1], kappa, strict=True)])
    rows = arb_mat([[er * vr for er, vr in zip(e, v, strict=True)], e])
    moments = rows * arb_mat([[powers[k][r] for k in range(ORDER)] for r in range(n)])
    numerator = arb_poly([moments[0, k] for k in range(ORDER)])
    denominator = arb_poly([moments[1, k] for k in range(ORDER)])

    # Remainders of the exponentials, and the keys left out (each below e^{1−NEGLIGIBLE}, one e for the rough scores).
    tails = [abs(er * p) * abs(x).exp() for er, p, x in zip(e, powers[ORDER], kappa, strict=True)]
    rest = dropped * arb(1 - NEGLIGIBLE).exp()
    rest_d = sum(tails, arb(0)) + rest
    largest = max(1.0, float(np.abs(keys.values - guess).max()))
    rest_n = sum((t * abs(vr) for t, vr in zip(tails, v, strict=True)), arb(0)) + rest * arb(largest)

    d0, d_size = _sizes(denominator)
    lowest = d0 - d_size - rest_d
    if not lowest > 0:
        return np.inf, 0.0, np.inf, np.inf
    ball = c + radius * arb(0, 1)
    branches = function.arb_branches(_inside(left, right, breaks))
    worst, at_center, swing = arb(0), arb(0), arb(0)
    for signs in branches:
        phi = _series(function, arb_series([c, radius]), signs)
        remainder = _series(function, arb_series([ball, radius]), signs)
        if phi is None or remainder is None:
            return np.inf, 0.0, np.inf, np.inf
        tail = remainder[ORDER]
        phi[0] = phi[0] - arb(guess)
        target = arb_poly(phi[:ORDER])
        difference = _absolute(numerator - target * denominator)
        sized = _absolute(target)
        above = difference + rest_n + abs(tail) * (d0 + d_size + rest_d) + sized * rest_d
        worst = _largest(worst, above / lowest)
        at_center = _largest(at_center, abs((moments[0, 0] - phi[0] * moments[1, 0]) / moments[1, 0]))
        swing = _largest(swing, sized + abs(tail))
    if not worst.is_finite():
        return np.inf, 0.0, np.inf, np.inf
    error = _up(worst)
    # Σ w|v − F| ≤ Σ w|v − guess| + |guess − f| + |f − F|. The first sum in float64, lifted by 1 % over its rounding.
    spread = float(
        (w * np.exp(np.array([float(abs(x)) for x in kappa])) * np.abs(keys.values[near] - guess)).sum() / w.sum()
    )
    spread *= 1.01 * float((moments[1, 0] / lowest).upper())
    moved = _up(swing) + error
    return error, 0.0 if len(branches) > 1 else _down(at_center), spread + moved, abs(guess) + moved


def _inside(left: float, right: float, breaks: frozenset[float]) -> Any:
    """The cell as a ball, a few last places short of an end that is a break.

    A break is known to the last place and belongs, as a point, to the branch that is continued there (bands see to it
    at jumps; at kinks both agree), so the cell up to it follows one branch.
    """
    from flint import arb

    left += 4e-16 * (1 + abs(left)) if left in breaks else 0.0
    right -= 4e-16 * (1 + abs(right)) if right in breaks else 0.0
    return arb(left).union(arb(max(left, right)))


def _coefficients(series: Any) -> list[Any]:
    """ORDER + 1 coefficients of a series, which may have collapsed to a number."""
    from flint import arb, arb_series

    if not isinstance(series, arb_series):
        return [arb(series)] + [arb(0)] * ORDER
    return [series[k] for k in range(ORDER + 1)]


def _sizes(poly: Any) -> tuple[Any, Any]:
    from flint import arb

    return poly[0], sum((abs(poly[k]) for k in range(1, poly.degree() + 1)), arb(0))


def _absolute(poly: Any) -> Any:
    """Σ |coefficients|: bounds the polynomial on [−1, 1]."""
    first, others = _sizes(poly)
    return abs(first) + others


def _largest(a: Any, b: Any) -> Any:
    return a.max(b) if b.is_finite() else b


def _up(x: Any) -> float:
    """A float not below the ball."""
    return float(np.nextafter(float(x.upper()), np.inf))


def _down(x: Any) -> float:
    return max(0.0, float(np.nextafter(float(x.lower()), -np.inf)))
