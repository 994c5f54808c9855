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

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from emulon.certify import rounding
from emulon.certify.certificate import Band
from emulon.core.errors import BadExpression
from emulon.expressions.evaluation import ball_arithmetic
from emulon.expressions.expression import Function, OpenSwitches, Signs, halve_until_certain

ORDER = 16
PRECISION = 160
# Keys whose score is this far below the largest in the cell cannot matter: e^{-110} is below 1e-47.
NEGLIGIBLE = 110.0
MAX_CELLS = 20_000
# A proof that should take so many times more cells is not waited for.
HOPELESS = 8
# Relative to the values, errors below this are what precision and left-out keys leave: no use in halving further.
NOISE = 1e-36


@dataclass(frozen=True)
class Interpolation:
    """What was proved: `error` ≥ sup |F − f| ≥ `attained`; `deviation` ≥ sup Σ_r w_r |v_r − F|; `size` ≥ sup |F|.

    `prove` rounds the bounds up, and `attained` down, to `rounding.STORED_BITS`: `holds` confirms them on any machine.
    """

    error: float
    attained: float
    deviation: float
    size: float
    proved: bool = True


@dataclass(frozen=True)
class Keys:
    """The three numbers of every key, as float64 arrays that hold the stored weights exactly.

    There may be up to `others` more, with `deficits` of NEGLIGIBLE at least and values up to `spread`: what is proved
    holds with and without them.
    """

    slopes: np.ndarray
    intercepts: np.ndarray
    values: np.ndarray
    others: int = field(default=0, kw_only=True)
    spread: float = field(default=0.0, kw_only=True)

    def weights(self, s: np.ndarray) -> np.ndarray:
        """Softmax weights (points, keys) in float64: good to pick cells by, not part of any proof."""
        return weights(self.slopes, self.intercepts, s)


def weights(slopes: np.ndarray, intercepts: np.ndarray, s: np.ndarray) -> np.ndarray:
    """`Keys.weights` of many at once: slopes and intercepts (..., keys) give (..., points, keys)."""
    scores: np.ndarray = slopes[..., None, :] * s[:, None]
    scores += intercepts[..., None, :]
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def deficits(keys: Keys, lo: float, hi: float) -> np.ndarray:
    """By how much each key at least scores less than another one throughout [lo, hi], whatever rounding does to this.

    Scores are affine: what is below by so much at both ends is so between them. The other one is a key that is on top
    at an end.
    """
    ends = np.array([lo, hi])
    scores = keys.slopes * ends[:, None] + keys.intercepts
    doubt = 2.0**-49 * float((np.abs(keys.slopes) * np.abs(ends).max() + np.abs(keys.intercepts)).max())
    tops = scores[:, scores.argmax(axis=1)].T[:, :, None]
    less: np.ndarray = (tops - scores).min(axis=1).max(axis=0) - doubt
    return less


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
    function.require_defined(lo, hi)
    cells = _cells(keys, function, lo, hi, bands)
    with ball_arithmetic(PRECISION, ORDER + 1):
        return _prove(keys, function, cells, target, tightness)


def holds(
    keys: Keys, function: Function, lo: float, hi: float, claimed: Interpolation, *, bands: Sequence[Band] = ()
) -> bool:
    """Whether |F − f|, deviation and size are within what is claimed on [lo, hi], outside the bands: proved, or False.

    Cells are halved until each is within all three. Cheaper than `prove`, which has to find out what is true.
    """
    try:
        function.require_defined(lo, hi)
    except BadExpression:
        return False
    queue = _cells(keys, function, lo, hi, bands)
    with ball_arithmetic(PRECISION, ORDER + 1):
        for _ in range(MAX_CELLS):
            if not queue:
                return True
            left, right = queue.pop()
            error, _, deviation, size = _cell(keys, function, left, right)
            if error <= claimed.error and deviation <= claimed.deviation and size <= claimed.size:
                continue
            if right - left <= _narrowest(max(abs(left), abs(right))):
                return False
            queue += [(left, (left + right) / 2), ((left + right) / 2, right)]
    return False


def require_smooth(function: Function, lo: float, hi: float) -> None:
    """Refuse a function with a pole, a branch point or an undefined interval in [lo, hi]."""
    from flint import arb, arb_series

    def wrong(left: float, right: float) -> str | None:
        try:
            branches = function.arb_branches(left, right)
        except OpenSwitches:
            return "one of its switches"
        ball = arb_series([arb(left).union(arb(right)), 1])
        every = (_series(function, ball, signs) for signs in branches)
        finite = all(series is not None and series[0].is_finite() and series[1].is_finite() for series in every)
        return None if finite else "its value or its slope"

    function.require_defined(lo, hi)
    with ball_arithmetic():
        # Between two breaks every switch is one way: no more branches are looked at than there are.
        halve_until_certain(
            pairwise([lo, *(one.at for one in function.breaks(lo, hi)), hi]),
            wrong,
            f"{function.text} is not seen to be finite and smooth on ({lo:g}, {hi:g}) with {{}} cells; "
            "choose a shorter interval, or rescale",
            f"{function.text} is not finite and smooth at t = {{:.6g}}; choose an interval without it",
        )


def _series(function: Function, at: Any, signs: Signs) -> list[Any] | None:
    """Taylor coefficients, or None where the enclosure breaks down (a division by a ball around zero)."""
    try:
        return _coefficients(function.arb_series(at, signs))
    except (ValueError, ZeroDivisionError):
        return None


def _prove(
    keys: Keys, function: Function, cells: list[tuple[float, float]], target: float, tightness: float
) -> Interpolation:
    narrowest = _narrowest(max(abs(edge) for cell in cells for edge in cell))
    target = max(target, NOISE * float(np.abs(keys.values).max()))
    done: list[tuple[float, float, float]] = []
    attained = 0.0
    queue = [(*cell, math.inf) for cell in cells]
    evaluated = 0
    while queue:
        results = [(cell, _cell(keys, function, *cell[:2])) for cell in queue]
        evaluated += len(results)
        attained = max([attained, *(result[1] for _, result in results)])
        enough = max(tightness * attained, target)
        ahead = sum(_expected_cells(result[0], cell[2], enough) for cell, result in results)
        ended = evaluated > MAX_CELLS or ahead > HOPELESS * MAX_CELLS
        queue = []
        for (left, right, _), (error, _, deviation, size) in results:
            narrow = right - left <= narrowest
            if narrow and not np.isfinite(error):
                raise BadExpression(
                    f"{function.text} is not finite and smooth at t = {left:.6g}; choose an interval without it"
                )
            if error <= enough or narrow or ended:
                done.append((error, deviation, size))
            else:
                middle = (left + right) / 2
                queue += [(left, middle, error), (middle, right, error)]
    error, deviation, size = (rounding.rounded_up(float(worst)) for worst in np.array(done).max(axis=0))
    return Interpolation(error, -rounding.rounded_up(-attained), deviation, size)


def _narrowest(largest: float) -> float:
    """The width of cells that are not halved: about as close as floats of this size are, but not below 1e-15 of 1."""
    return 1e-15 * (min(1.0, largest) + largest)


def _expected_cells(error: float, before: float, enough: float) -> float:
    """Cells that halving this one should take, `before` being what was proved of the one it is half of.

    Taylor models gain up to 2^ORDER by halving, and more only where exponentials of large numbers rule, which is seen.
    """
    if not enough < error < before < math.inf:
        return 0.0
    gained = max(math.log(before) - math.log(error), 2 * ORDER * math.log(2))
    halvings = (math.log(error) - math.log(enough)) / gained if enough else math.inf
    return math.exp2(min(halvings, 64.0))


def _cells(keys: Keys, function: Function, lo: float, hi: float, bands: Sequence[Band]) -> list[tuple[float, float]]:
    """A first cut: cells about as wide as the softmax takes to change, with edges at bands and around breaks.

    Where exactly a break is known only to a few last places: a cell of that width on either side takes all the doubt.
    """
    stops = {lo, hi}
    for one in function.breaks(lo, hi):
        stops |= {one.at - one.nearby, one.at, one.at + one.nearby}
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
        variance = (weights * (keys.slopes - mean[:, None]) ** 2).sum(axis=1)
        # `exp` and BLAS differ between processors in the last digits: rounded off, they leave the same cells to all.
        change = _rounded(np.sqrt(variance)).clip(max=2000 / (right - left))
        # Half a standard deviation of the slopes to a cell, and at least four cells to an interval.
        rate = np.maximum(change, 4 / (right - left))
        mass = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2 * (s[1] - s[0]))])
        cuts = np.interp(np.linspace(0, mass[-1], max(4, int(np.ceil(mass[-1] * 2.0))) + 1), mass, s)
        cuts[0], cuts[-1] = left, right
        cells += list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return cells


def _rounded(numbers: np.ndarray) -> np.ndarray:
    """To the nearest numbers of 20 bits."""
    mantissas, exponents = np.frexp(numbers)
    rounded: np.ndarray = np.ldexp(np.round(mantissas * 2.0**20), exponents - 20)
    return rounded


@dataclass(frozen=True)
class _Softmax:
    """F − guess = (numerator + rest_n) / (denominator + rest_d) on s = center + radius·τ, |τ| ≤ 1.

    `spread` bounds Σ e_r·exp(κ_r τ)·|v_r − guess|, the denominator's own terms weighted with the values.
    """

    center: Any
    radius: Any
    guess: float
    numerator: Any
    denominator: Any
    rest_n: Any
    rest_d: Any
    spread: Any


def _softmax(keys: Keys, left: float, right: float) -> _Softmax:
    from flint import arb, arb_mat, arb_poly

    middle = (left + right) / 2
    c, radius = arb(middle), (arb(right) - arb(left)) / 2
    # The float centre is not the exact middle: the ball [c − r, c + r] must cover both ends.
    radius = (radius + abs(c - (arb(left) + arb(right)) / 2)).upper()
    rough = keys.slopes * middle + keys.intercepts
    first = int(rough.argmax())
    top = float(rough[first])
    # Keys that cannot matter are left out: below the first by NEGLIGIBLE throughout, whatever rounding did to `rough`.
    change = np.abs(keys.slopes - keys.slopes[first]) * float(radius)
    doubt = 2.0**-49 * (np.abs(keys.slopes * middle) + np.abs(keys.intercepts) + change).max()
    near = np.flatnonzero(rough + change >= top - NEGLIGIBLE - doubt)
    a, values = ([arb(x) for x in part[near].tolist()] for part in (keys.slopes, keys.values))
    e = [(ar * c + arb(br) - arb(top)).exp() for ar, br in zip(a, keys.intercepts[near].tolist(), strict=True)]
    # Any mean and guess are right; from balls, which are integers, they are the same on every processor.
    means = arb_mat([e]) * arb_mat([list(pair) for pair in zip(a, values, strict=True)]) / sum(e)
    mean, guess = (float(number) for number in means.entries())
    v = [value - arb(guess) for value in values]
    kappa = [(ar - arb(mean)) * radius for ar in a]
    powers = [[arb(1)] * len(a)]
    for _ in range(ORDER):
        powers.append([p * x for p, x in zip(powers[-1], kappa, strict=True)])
    rows = arb_mat([[er * vr for er, vr in zip(e, v, strict=True)], e])
    moments = rows * arb_mat([list(column) for column in zip(*powers[:ORDER], strict=True)])

    # What is left: the exponentials' remainders, and the keys left out.
    growth = [er * abs(x).exp() for er, x in zip(e, kappa, strict=True)]
    tails = [abs(p) * g / math.factorial(ORDER) for p, g in zip(powers[ORDER], growth, strict=True)]
    dropped = len(rough) - len(near)
    rest = dropped * (abs((arb(float(keys.slopes[first])) - arb(mean)) * radius) + 1 - arb(NEGLIGIBLE)).exp()
    rest = rest + keys.others * arb(-NEGLIGIBLE).exp() * sum(growth, rest)
    extremes = [float(keys.values.min()), float(keys.values.max())]
    extremes += [keys.spread, -keys.spread] if keys.others else []
    largest = reduce(arb.max, (abs(arb(x) - arb(guess)) for x in extremes))
    weighted = [g * abs(vr) for g, vr in zip(growth, v, strict=True)]
    return _Softmax(
        c,
        radius,
        guess,
        numerator=arb_poly([moments[0, k] / math.factorial(k) for k in range(ORDER)]),
        denominator=arb_poly([moments[1, k] / math.factorial(k) for k in range(ORDER)]),
        rest_n=sum((t * abs(vr) for t, vr in zip(tails, v, strict=True)), rest * largest),
        rest_d=sum(tails, rest),
        spread=sum(weighted, rest * largest),
    )


def _cell(keys: Keys, function: Function, left: float, right: float) -> tuple[float, float, float, float]:
    """(upper bound on |F − f|, |F − f| at the centre, upper bound on the deviation, on |F|) over one cell."""
    from flint import arb, arb_poly, arb_series

    unknown = (np.inf, 0.0, np.inf, np.inf)
    softmax = _softmax(keys, left, right)
    c, radius, guess = softmax.center, softmax.radius, arb(softmax.guess)
    d0, d_size = _sizes(softmax.denominator)
    highest, lowest = d0 + d_size + softmax.rest_d, d0 - d_size - softmax.rest_d
    if not lowest > 0:
        return unknown
    try:
        branches = function.arb_branches(left, right)
    except OpenSwitches:
        return unknown
    worst, at_center, swing = arb(0), arb(0), arb(0)
    for signs in branches:
        phi = _series(function, arb_series([c, radius]), signs)
        remainder = _series(function, arb_series([c + radius * arb(0, 1), radius]), signs)
        if phi is None or remainder is None:
            return unknown
        tail = abs(remainder[ORDER])
        phi[0] = phi[0] - guess
        target = arb_poly(phi[:ORDER])
        difference, size = softmax.numerator - target * softmax.denominator, _absolute(target)
        more = (softmax.rest_n, tail * highest, size * softmax.rest_d)
        worst = _largest(worst, sum(more, _absolute(difference)) / lowest)
        at_center = _largest(at_center, abs(softmax.numerator[0] / d0 - phi[0]))
        swing = _largest(swing, size + tail)
    if not (worst.is_finite() and swing.is_finite()):
        return unknown
    # Σ w|v − F| ≤ Σ w|v − guess| + |guess − f| + |f − F|, and |F| ≤ |guess| + |f − guess| + |F − f|.
    deviation, size = softmax.spread / lowest + swing + worst, abs(guess) + swing + worst
    # A centre on which several branches are possible attains none of their errors for certain.
    return _up(worst), 0.0 if len(branches) > 1 else _down(at_center), _up(deviation), _up(size)


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
