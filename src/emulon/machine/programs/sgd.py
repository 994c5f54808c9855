"""Gradient descent as programs (Akyürek et al. 2022, Theorem 1): stochastic, clipped, with momentum, in batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.core.arrays import zeros
from emulon.machine.instruction import Invariant, Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples, gaussian


def sgd(
    features: int,
    samples: int,
    step_size: float,
    *,
    ridge: float = 0.0,
    initial: Tensor | None = None,
    steps: int | None = None,
    domain: Domain | None = None,
) -> RegisterProgram:
    """ŷ_i = w_i·x_i, w_{i+1} = w_i − α(x_i(w_i·x_i − y_i) + 2λw_i): Eq. 11, one example after the other.

    Claim: after round t every token of example i holds the w that t steps on the examples i − t, …, i − 1 give (all of
    i − 1 where there are fewer). Proof. A round takes one step at every token with that token's example and then reads
    the result from the example before; the first example reads zeros and takes w₁. Induct on t. QED
    So `samples` − 1 rounds run the whole pass at every position; `steps` stops earlier (1 is Theorem 1).
    Cost: two layers a round (the paper: O(N) in all), width O(d).
    The paper's chain has −2λ where its Eq. 11 has +2λ; Eq. 11 is the gradient.
    """
    examples = Examples.of("sgd", gaussian(features, samples) if domain is None else domain)
    return examples.program.returns(sgd_rounds(examples, step_size, ridge=ridge, initial=initial, steps=steps))


def sgd_rounds(
    examples: Examples, step_size: float, *, ridge: float = 0.0, initial: Tensor | None = None, steps: int | None = None
) -> Register:
    """The instructions of `sgd` on these examples; the register that holds ŷ."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    features, samples = domain.features, domain.samples
    start = zeros(features) if initial is None else initial.to(torch.float64)
    rounds = samples - 1 if steps is None else min(steps, samples - 1)
    first = examples.first()
    w = examples.register("w", features, initial=start)
    guess, gradient = examples.register("guess"), examples.register("gradient", features)

    x = examples.own_x()
    program.dot(guess, w, x)
    reach = float(start.norm())
    begin = first.map(start[:, None], (features, 1), "first·w₁") if start.any() else None
    for _ in range(rounds):
        reach = step_gain(step_size, ridge, domain.norm) * reach + step_size * domain.norm * domain.y
        reach += float(start.norm())
        invariant = stable(step_size, ridge, reach, domain)
        program.mul(gradient, x, guess - y)
        kept = (1 - 2 * step_size * ridge) * w - step_size * gradient
        program.aff(w, kept, at=prompt.previous_example, plus=begin, invariant=invariant)
        program.dot(guess, w, x)
    return guess


def step_gain(step_size: float, ridge: float, norm: float) -> float:
    """‖I − α(xxᵀ + 2λI)‖₂ for ‖x‖₂ ≤ norm: the eigenvalues are 1 − 2αλ and 1 − α(‖x‖² + 2λ)."""
    return max(abs(1 - 2 * step_size * ridge), abs(1 - step_size * (norm**2 + 2 * ridge)))


def stable(step_size: float, ridge: float, reach: float, domain: Domain) -> Invariant:
    """w as bounded by the recurrence, or by the domain; an error in w is multiplied by I − α(xxᵀ + 2λI)."""
    within = min(reach, math.sqrt(domain.features) * domain.w)
    return Invariant(
        "‖w − α∇‖ ≤ ‖I − α(xxᵀ + 2λ)‖·‖w‖ + α‖x‖|y|, and the domain's |w|",
        low=-domain.w,
        high=domain.w,
        norm=within,
        growth=step_gain(step_size, ridge, domain.norm),
    )


def clipped_rounds(examples: Examples, step_size: float, limit: float) -> Register:
    """ŷ_i = w_i·x_i with w ← w − α·x·clip(w·x − y, ±limit), one example after the other, from w = 0.

    An error e in w becomes (I − α·s·xxᵀ)e with a slope s between 0 and 1: it grows by max(1, |1 − α‖x‖²|) at most.
    """
    program, y, domain = examples.program, examples.y, examples.domain
    w = examples.register("w", domain.features, initial=zeros(domain.features))
    guess, residual = examples.register("guess"), examples.register("residual")
    gradient = examples.register("gradient", domain.features)
    x = examples.own_x()
    program.dot(guess, w, x)
    for done in range(1, domain.samples):
        invariant = Invariant(
            "‖w‖ grows by α‖x‖·limit a step at most, and errors by ‖I − αs·xxᵀ‖, 0 ≤ s ≤ 1",
            norm=done * step_size * domain.norm * limit,
            growth=max(1.0, abs(1 - step_size * domain.norm**2)),
        )
        program.clip(residual, guess - y, limit)
        program.mul(gradient, x, residual)
        program.aff(w, w - step_size * gradient, at=examples.prompt.previous_example, invariant=invariant)
        program.dot(guess, w, x)
    return guess


def momentum_rounds(examples: Examples, step_size: float, decay: float) -> Register:
    """ŷ_i = w_i·x_i with v ← μv + x(w·x − y) and w ← w − αv, one example after the other, from v = w = 0.

    How far they may come is followed step by step, so that many examples or long steps leave no certificate.
    """
    program, y, domain = examples.program, examples.y, examples.domain
    start = zeros(domain.features)
    w, v = (examples.register(name, domain.features, initial=start) for name in ("w", "v"))
    guess, gradient = examples.register("guess"), examples.register("gradient", domain.features)
    x = examples.own_x()
    program.dot(guess, w, x)
    for _ in range(domain.samples - 1):
        program.mul(gradient, x, guess - y)
        with program.together():
            before = examples.prompt.previous_example
            program.aff(w, w - step_size * decay * v - step_size * gradient, at=before)
            program.aff(v, decay * v + gradient, at=before)
        program.dot(guess, w, x)
    return guess


def batch_gradient_descent(
    features: int,
    samples: int,
    step_size: float,
    steps: int = 1,
    *,
    ridge: float = 0.0,
    initial: Tensor | None = None,
    domain: Domain | None = None,
) -> RegisterProgram:
    """ŷ_i = w·x_i after `steps` steps w ← w − α(1/(i−1)·Σ_{j<i} x_j(w·x_j − y_j) + 2λw) from `initial`.

    Uniform attention over the past examples brings the means of x xᵀ and x·y to every token; from there each step is
    local and takes one layer (no example before x₁: the means are zero). Cost: steps + 2 layers, width O(d²).
    """
    examples = Examples.of("batch_gradient_descent", gaussian(features, samples) if domain is None else domain)
    return examples.program.returns(descent_steps(examples, step_size, steps, ridge=ridge, initial=initial))


def descent_steps(
    examples: Examples, step_size: float, steps: int, *, ridge: float = 0.0, initial: Tensor | None = None
) -> Register:
    """The instructions of `batch_gradient_descent` on these examples; the register that holds ŷ."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    features = domain.features
    start = zeros(features) if initial is None else initial.to(torch.float64)
    outer = examples.register("outer", (features, features), symmetric=True)
    moment = examples.register("moment", (features, features), symmetric=True)
    cross, target = examples.register("cross", features), examples.register("target", features)
    w = examples.register("w", features, initial=start)
    product, guess = examples.register("product", features), examples.register("guess")

    x = examples.own_x()
    with program.together():
        program.mul(outer, x, x.T)
        program.mul(cross, x, y)
    with program.together():
        program.mov(moment, outer, at=prompt.past_examples)
        program.mov(target, cross, at=prompt.past_examples)
    reach = float(start.norm())
    for _ in range(steps):
        reach = step_gain(step_size, ridge, domain.norm) * reach + step_size * domain.norm * domain.y
        program.mul(product, moment, w)
        kept = (1 - 2 * step_size * ridge) * w - step_size * product + step_size * target
        program.aff(w, kept, invariant=stable(step_size, ridge, reach, domain))
    program.dot(guess, w, x)
    return guess
