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


def step_lipschitz(step_size: float, smoothness: float, strong: float) -> float:
    """The 2-norm Lipschitz constant of w ↦ w − η∇f(w) for a `strong`-convex, `smoothness`-smooth f."""
    return max(abs(1 - step_size * strong), abs(1 - step_size * smoothness))
