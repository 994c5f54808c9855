"""Rounding as a bound, not a guess: the standard model of floating point, fl(a∘b) = (a∘b)(1+η), |η| ≤ u; how errors of
single steps add up over iterations; and float64 operations whose rounding is known.

The last are the error-free transformations of Knuth, Dekker and Veltkamp, the fixed-point splitting of Ozaki et al.
2012, and the exponential: nothing is assumed but that + − × ÷ √ round to nearest.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from emulon.expressions.evaluation import ball_arithmetic

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


def accumulated(step_error: float, steps: int, contraction: float) -> float:
    """Claim: ‖ŵ_T − w_T‖ ≤ ε·(1 + ρ + … + ρ^{T−1}) when each step errs by ε and the exact step is ρ-Lipschitz.

    For convex loss with smoothness L and 0 ≤ η ≤ 2/L a gradient step is 1-Lipschitz in the 2-norm (Lemma D.4's T·ε);
    strong convexity μ makes ρ = max(|1 − ημ|, |1 − ηL|) < 1 and the sum stays below ε/(1 − ρ).
    """
    if contraction == 1.0:
        return step_error * steps
    # (ρ^T − 1)/(ρ − 1) without the cancellation close to 1, and lifted over its own rounding.
    growth = steps * math.log(contraction) if contraction else -math.inf if steps else 0.0
    return step_error * math.expm1(growth) / (contraction - 1) * (1 + 1e-12) if growth < 700 else math.inf


def accumulated_with_momentum(step_error: float, steps: int, spread: float, momentum: float) -> float:
    """`accumulated` for w ← w − η∇f(w) + m·(w − w_before) on a quadratic f, in the 2-norm.

    Claim: an error of ε made k steps ago has become at most ε·p_k, p_0 = 1, p_1 = a, p_{k+1} = a·p_k − m·p_{k−1}, with
    a = max(spread, 2√m) and `spread` a bound on |1 + m − ηλ| over the eigenvalues λ of the Hessian.
    Proof: it has become p_k(λ)·ε on the eigenspace of λ, with a = 1 + m − ηλ in the recursion, and this p_k is
    m^{k/2}·U_k(a/(2√m)), U_k Chebyshev's polynomial of the second kind: even or odd, at most k + 1 = U_k(1) on [−1, 1],
    and increasing beyond.
    """
    return step_error * sum(momentum_gains(steps, spread, momentum)) * (1 + 1e-9)


def momentum_gains(steps: int, spread: float, momentum: float) -> list[float]:
    """p_0, …, p_{steps−1} of `accumulated_with_momentum`, from above."""
    a = max(spread, 2 * math.sqrt(momentum))
    gains, p, ratio = [], 1.0, a
    for _ in range(steps):
        gains.append(p)
        # p_{k+1}/p_k = a − m/(p_k/p_{k−1}) grows with the ratio before it: lifted over its rounding, it is a bound.
        p, ratio = p * ratio * (1 + 2e-15), (a - momentum / ratio) * (1 + 2e-15)
    return gains


def accumulated_ahead(step_error: float, steps: int, contraction: float) -> float:
    """`accumulated` where step k = 0, 1, … starts from w + β·(w − w_before), β = k/(k + 3).

    Claim: then e ≤ ρ·((1 + β)·e + β·e_before) + ε.
    It grows as 3^T: where nothing is known of how steps are related, errors may be thrown ahead every time.
    """
    before = total = 0.0
    for number in range(steps):
        ahead = number / (number + 3)
        before, total = total, (contraction * ((1 + ahead) * total + ahead * before) + step_error) * (1 + 1e-15)
    return total


def accumulated_ahead_on_quadratics(step_error: float, steps: int, beyond: float) -> float:
    """The same on a convex quadratic, whose Hessian H is the same at every step, with η·H ≤ 1 + beyond.

    Claim: an error of ε made k steps ago has become at most ε·(1 + k·√2·c), c = (1 + 5·beyond)^{(k + 1)/2}.
    Proof. On the eigenspace of z/η, an error p with last change d goes to p⁺ = (1 − z)·y, y = p + βd. Let E = (z·p² +
    d²)/2. Then E − E⁺ ≥ z·((p − y)² + z·(1 − z)·y²)/2, since β ≤ 1: at least 0 for z ≤ 1, and for z ≤ 1 + s at least
    −5s·E, as y² ≤ 4E·(1 + 1/z). At first p = d = 1 and E ≤ 1 + s/2, so that |d| ≤ √2·c ever after. QED
    """
    lifted = math.sqrt(2) * math.pow(1 + 5 * beyond, (steps + 1) / 2) * (1 + 1e-12)
    return step_error * (steps + lifted * steps * (steps - 1) / 2)


def step_lipschitz(step_size: float, smoothness: float, strong: float) -> float:
    """The 2-norm Lipschitz constant of w ↦ w − η∇f(w) for a `strong`-convex, `smoothness`-smooth f."""
    return max(abs(1 - step_size * strong), abs(1 - step_size * smoothness))


f64 = torch.float64
U = unit(f64)
SPLITTER = 2.0**27 + 1
# Powers of two between 1 and 2 that the exponential has at hand, and how large its arguments may be.
EXP_STEPS, EXP_MOST = 1024, 692.0
# Points in a unit around which erf is expanded, and coefficients of each series.
ERF_STEPS, ERF_TERMS = 64, 8
# To within 1e-59.
LOG_2 = "0.69314718055994530941723212145817656807550013436025525412068"


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to an integer between −1000 and 1000, to the last bit; others are taken to be the nearest of these."""
    bits = (exponent.to(f64).nan_to_num().clamp(-1000, 1000).to(torch.int64) + 1023) << 52
    return bits.view(f64)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b = sum + off exactly (Knuth)."""
    total = a + b
    back = total - a
    off = a - (total - back)
    return total, off.add_(b - back)


def quick_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same where |a| ≥ |b| or a = 0 (Dekker)."""
    total = a + b
    return total, b - (total - a)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a·b = product + off exactly, if nothing underflows (Veltkamp and Dekker)."""
    total = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return total, a2 * b2 - (((total - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    lifted = SPLITTER * a
    high = lifted - (lifted - a)
    return high, a - high


def fixed_point(a: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    most = a.abs().amax(dim=dim, keepdim=True) if a.shape[dim] else a.new_zeros(())
    exponent = torch.frexp(most).exponent
    top = torch.where(most > 0, torch.where(exponent < 960, power_of_two(exponent.clamp(min=-960)), math.inf), 0.0)
    lift = 1.5 * 2.0 ** (52 - bits) * top
    first = (a + lift).sub_(lift)
    return first, a - first, top


def power_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """k, with x nearest to k·log 2/1024, and 2^(k/1024): two parts of what is between 1 and 2, and a power of two."""
    step, _, high, low = exp_table()
    k = (x * (1 / step)).round_()
    whole = k.clamp(-1000 * EXP_STEPS, 1000 * EXP_STEPS).nan_to_num_().to(torch.int64)
    place = (whole & (EXP_STEPS - 1)).flatten()
    scale = (whole >> (EXP_STEPS.bit_length() - 1)).add_(1023).bitwise_left_shift_(52).view(f64)
    return k, high.index_select(0, place).view_as(x), low.index_select(0, place).view_as(x), scale


def exp_of_floats(x: Tensor) -> Tensor:
    """As `FloatBall.exp` claims."""
    step, rest, _, _ = exp_table()
    k, t, t_low, scale = power_parts(x)
    r = (x - k * step).sub_(k.mul_(rest))
    more = (r / 24).add_(1 / 6).mul_(r).add_(0.5).mul_(r).mul_(r).add_(r)
    return more.mul_(t).add_(t_low).add_(t).mul_(scale)


@cache
def exp_table() -> tuple[float, float, Tensor, Tensor]:
    """log 2/1024 in two parts, the first of 32 bits, and 2^(j/1024) in two parts, j = 0, …, 1023.

    The powers are integers over 2^200: square roots of 2 rounded down, then products rounded down, so that none is off
    by more than 2^−188, and both parts together by no more than 2^−106.
    """
    exact = Fraction(LOG_2) / EXP_STEPS
    step = float(round(exact * 2**42)) / 2**42
    root, bits = 2 << 200, 200
    for _ in range(EXP_STEPS.bit_length() - 1):
        root = math.isqrt(root << bits)
    powers = [1 << bits]
    for _ in range(EXP_STEPS - 1):
        powers.append(powers[-1] * root >> bits)
    # Quotients of integers are rounded once.
    high = [power / (1 << bits) for power in powers]
    low = [(power - int(math.ldexp(one, bits))) / (1 << bits) for power, one in zip(powers, high, strict=True)]
    return (
        step,
        float(exact - Fraction(step)),
        torch.tensor(high, dtype=f64, device="cpu"),
        torch.tensor(low, dtype=f64, device="cpu"),
    )


@cache
def erf_table() -> Tensor:
    """(ERF_TERMS, 6·ERF_STEPS + 1) Taylor coefficients of erf at 0, 1/64, …, 6, each rounded once."""
    from flint import arb, arb_series

    with ball_arithmetic(128, ERF_TERMS):
        series = [arb_series([arb(k) / ERF_STEPS, 1]).erf() for k in range(6 * ERF_STEPS + 1)]
        return torch.tensor([[float(one[n]) for one in series] for n in range(ERF_TERMS)], dtype=f64, device="cpu")
