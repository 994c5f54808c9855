"""What happens to a softmax average when its scores move."""

from __future__ import annotations

import math


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
