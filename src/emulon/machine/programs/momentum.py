"""Stochastic gradient descent with momentum (the heavy ball) over the examples seen so far."""

from __future__ import annotations

import torch

from emulon.certify import Domain
from emulon.machine.affine import Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.machine.programs.gaussian import gaussian


def momentum(
    features: int, samples: int, step_size: float, decay: float, *, domain: Domain | None = None
) -> RegisterProgram:
    """ŷ_i = w_i·x_i with v ← μv + x(w·x − y) and w ← w − αv, one example after the other, from v = w = 0.

    Rounds run as in `sgd`: every token updates both with its example, then reads them from the example before. How far
    they may come is followed step by step, so that many examples or long steps leave no certificate.
    """
    examples = Examples.of("momentum", gaussian(features, samples) if domain is None else domain)
    return examples.program.returns(momentum_rounds(examples, step_size, decay))


def momentum_rounds(examples: Examples, step_size: float, decay: float) -> Register:
    """The instructions of `momentum` on these examples; the register that holds ŷ."""
    program, y, domain = examples.program, examples.y, examples.domain
    start = torch.zeros(domain.features, device="cpu")
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
