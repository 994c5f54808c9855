"""Rounding as a bound, not a guess: the standard model of floating point, fl(a∘b) = (a∘b)(1+η), |η| ≤ u."""

from __future__ import annotations

import math

import torch

# Figures that are stored as proved have so many bits: the last digits, in which processors may differ, are rounded off.
STORED_BITS = 32


def rounded_up(value: float) -> float:
    """The smallest number of STORED_BITS bits that is not below `value`."""
    if not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, STORED_BITS)), exponent - STORED_BITS)


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff u: half the spacing of numbers at 1."""
    return torch.finfo(dtype).eps / 2


def gamma(operations: int, dtype: torch.dtype) -> float:
    """γ_k = k·u/(1 − k·u), which bounds the relative growth of k roundings in any order (Higham, Lemma 3.1)."""
    steps = operations * unit(dtype)
    return steps / (1 - steps) if steps < 1 else float("inf")


def dot(length: int, magnitude: float, dtype: torch.dtype) -> float:
    """|fl(q·k) − q·k| for vectors of this length with Σ|q_i k_i| ≤ magnitude, in any order of summation."""
    return gamma(length, dtype) * magnitude


# torch evaluates exp to within one unit in the last place (Sleef's 1.0-ULP routines): so its sources say and our tests
# measure; it is not proved. 4u leaves a factor of two.
EXP_ROUNDINGS = 4
EXP_ASSUMED = "torch's exp is within two units in the last place"


def softmax_weights(score_error: float, spread: float, dtype: torch.dtype) -> float:
    """How far, in log, a computed weight may be from exp(score): the score's error, exp, and x − max(x).

    Claim: |log ŵ_r − log w_r − common| ≤ this for every weight that matters. Subtracting the maximum costs
    u·|x_r − max|; `spread` bounds that difference. 64 suffices: weights further down are below e⁻⁶⁴ all together times
    their number, and so is what becomes of them.
    """
    return score_error + (EXP_ROUNDINGS + spread) * unit(dtype)


def average(terms: int, magnitude: float, dtype: torch.dtype) -> float:
    """Error of dividing by the sum of the weights and of summing weight·value, when `terms` tokens carry the weight.

    Claim: 2·γ_{terms+2}·magnitude, with magnitude ≥ Σ w_r |v_r|. Adding a term t to a partial sum s errs by at most
    min(u·|s+t|, |t|), since s itself is a floating-point number. So tokens of negligible weight add at most their own
    weight, which the leak term counts, and only the tokens that carry weight count towards the depth.
    """
    return 2 * gamma(terms + 2, dtype) * magnitude


def total_variation(delta: float) -> float:
    """Claim: if every score moves by at most delta, the weights move by at most tanh(delta/2) in total variation.

    Proof. Take any set A of tokens with weight p. Its odds p/(1−p) change by a factor within e^{±2·delta}, so its logit
    moves by at most 2·delta; the sigmoid changes most when the logit goes from −delta to +delta: σ(δ) − σ(−δ) =
    tanh(δ/2). Total variation is the largest change over all A. (The 1-norm is twice this, below e^{2δ} − 1.) QED
    """
    return math.tanh(delta / 2) if delta < 700 else 1.0


def shifted_average(delta: float, spread: float, deviation: float = math.inf) -> float:
    """Claim: |Σ w'v − Σ wv| ≤ min(tanh(δ/2)·spread, (e^{2δ} − e^δ)·deviation) when every score moves by at most δ.

    `spread` is max v − min v; `deviation` bounds Σ w_r |v_r − Σ wv|, much smaller where the weights are peaked.
    Proof of the second. Σ w'v − F = Σ w_r (e^{δ_r} − 1)(v_r − F) / Σ w_r e^{δ_r}; numerator ≤ (e^δ − 1)·deviation,
    denominator ≥ e^{−δ}. QED
    """
    if delta == 0:
        return 0.0
    if delta > 300:
        return spread
    # e^{2δ} − e^δ = e^δ·expm1(δ), without the cancellation.
    return min(total_variation(delta) * spread, math.exp(delta) * math.expm1(delta) * deviation)
