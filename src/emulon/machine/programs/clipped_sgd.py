"""SGD whose residuals are clipped: stochastic gradient descent on Huber's loss."""

from __future__ import annotations

import torch

from emulon.certify import Domain
from emulon.machine.affine import Register
from emulon.machine.instruction import Invariant
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.machine.programs.gaussian import gaussian


def clipped_sgd(
    features: int, samples: int, step_size: float, limit: float, *, domain: Domain | None = None
) -> RegisterProgram:
    """ŷ_i = w_i·x_i with w ← w − α·x·clip(w·x − y, ±limit), one example after the other, from w = 0."""
    examples = Examples.of("clipped_sgd", gaussian(features, samples) if domain is None else domain)
    return examples.program.returns(clipped_rounds(examples, step_size, limit))


def clipped_rounds(examples: Examples, step_size: float, limit: float) -> Register:
    """The instructions of `clipped_sgd` on these examples; the register that holds ŷ.

    An error e in w becomes (I − α·s·xxᵀ)e with a slope s between 0 and 1: it grows by max(1, |1 − α‖x‖²|) at most.
    """
    program, y, domain = examples.program, examples.y, examples.domain
    w = examples.register("w", domain.features, initial=torch.zeros(domain.features, device="cpu"))
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
