"""Stochastic gradient descent over the examples seen so far (Akyürek et al. 2022, Theorem 1, for any number)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.machine.affine import Register
from emulon.machine.instruction import Invariant
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.machine.programs.gaussian import gaussian


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
    examples: Examples,
    step_size: float,
    *,
    ridge: float = 0.0,
    initial: Tensor | None = None,
    steps: int | None = None,
) -> Register:
    """The instructions of `sgd` on these examples; the register that holds ŷ."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    features, samples = domain.features, domain.samples
    start = torch.zeros(features, dtype=torch.float64, device="cpu") if initial is None else initial.to(torch.float64)
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
