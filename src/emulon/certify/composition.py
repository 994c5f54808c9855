"""How errors of single steps add up over layers and iterations."""

from __future__ import annotations

import math


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
