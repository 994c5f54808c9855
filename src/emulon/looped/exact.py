"""The exact iterations of the looped transformers in Arb balls: what the audit of a run compares its answer with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from emulon.certify.rounding import unit
from emulon.expressions.evaluation import arb_matrix, ball_arithmetic

# Bits to begin with, and where doubling them ends: a ball that is still too wide then counts with its radius.
FIRST_BITS, MOST_BITS = 192, 6144


def distance(exact: Callable[[], Sequence[Any]], observed: Tensor) -> float:
    """Bound on max |observed − exact|, at most a millionth of it, or of a float64 rounding, above the true distance.

    Args:
        exact: Returns the exact values as Arb balls, at the precision of the context it is called in.
        observed: As many numbers.
    Returns:
        The bound; infinite where Arb cannot enclose the values.
    """
    bits, bound, numbers = FIRST_BITS, math.inf, observed.double().flatten().tolist()
    rounding = [unit(observed.dtype) * abs(number) for number in numbers]
    while bits <= MOST_BITS:
        with ball_arithmetic(bits):
            off = [abs(value - number) for value, number in zip(exact(), numbers, strict=True)]
            farthest = [_above(each) for each in off]
            radii = [_above(each.rad()) for each in off]
        # NaN compares as smaller than anything: it must not be lost in a maximum.
        if all(each < math.inf for each in farthest):
            bound = min(bound, max(farthest, default=0.0))
            rooms = (1e-6 * max(parts) for parts in zip(farthest, rounding, strict=True))
            if all(radius <= room for radius, room in zip(radii, rooms, strict=True)):
                break
        bits *= 2
    return bound


def _above(ball: Any) -> float:
    """A float64 number that nothing in the ball exceeds."""
    return 0.0 if ball.is_zero() else math.nextafter(float(ball.upper()), math.inf)


def descent(xs: Any, labels: Any, step_size: float, loops: int) -> Any:
    """A_Tᵀ as a matrix (features, outputs): T gradient steps from 0 on (1/2N)·Σ‖A x_i − y_i‖².

    A_T = Σ_{i<T} (I − ηG)^i · η·moment, summed by doubling T: balls grow with log T products instead of T.
    """
    from flint import arb

    rate, one = arb(step_size) / xs.nrows(), identity(xs.ncols())
    step = one - xs.transpose() * xs * rate
    total, power = 0 * one, one
    for bit in f"{loops:b}":
        total, power = total + power * total, power * power
        if bit == "1":
            total, power = one + step * total, power * step
    return total * (xs.transpose() * labels) * rate


def newton(xs: Any, labels: Any, scale: float, loops: int, *, ridge: float | None = None) -> Any:
    """M_T·Xᵀy of M ← 2M − MSM from M_0 = scale·S, S = XᵀX; with a ridge of XᵀX/N + ridge·I, and Xᵀy/N."""
    from flint import arb

    gram, moment = xs.transpose() * xs, xs.transpose() * labels
    if ridge is not None:
        gram, moment = gram / xs.nrows() + arb(ridge) * identity(xs.ncols()), moment / xs.nrows()
    inverse = gram * arb(scale)
    for _ in range(loops):
        inverse = 2 * inverse - inverse * gram * inverse
    return inverse * moment


def identity(size: int) -> Any:
    """The identity as an Arb matrix."""
    from flint import arb_mat

    return arb_mat(size, size, [int(i == j) for i in range(size) for j in range(size)])


def affine(x: Any, weight: Tensor, bias: Tensor) -> Any:
    """x Wᵀ + b for the rows of an Arb matrix."""
    from flint import arb_mat

    return x * arb_matrix(weight.mT) + arb_mat(x.nrows(), 1, [1] * x.nrows()) * arb_matrix(bias.unsqueeze(0))


def product(x: Any, weights: Any) -> list[Any]:
    """The entries of x·weights, Arb matrices."""
    entries: list[Any] = (x * weights).entries()
    return entries


def leaky(values: Any, slope: float, *, inverse: bool = False) -> Any:
    """max(z, 0) + slope·min(z, 0), entry by entry, or the inverse of that function."""
    from flint import arb, arb_mat

    below = 1 / arb(slope) if inverse else arb(slope)
    return arb_mat(values.nrows(), values.ncols(), [z.max(0) + below * z.min(0) for z in values.entries()])


def causal_answers(xs: Tensor, labels: Tensor, x_query: Tensor, fit: Callable[[Any, Any], Any]) -> list[Any]:
    """x_i·fit(the pairs before it) at every position of a decoder, the query's last; 0 at the first."""
    from flint import arb

    answers = [arb(0)]
    for i, point in enumerate([*xs[1:], x_query], 1):
        fitted = fit(arb_matrix(xs[:i]), arb_matrix(labels[:i]))
        answers.append((arb_matrix(point.unsqueeze(0)) * fitted)[0, 0])
    return answers
