"""Gradient descent on the mean squared error of all examples seen so far, any number of steps."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.gaussian import gaussian
from emulon.machine.programs.sgd import stable, step_gain


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
    domain = gaussian(features, samples) if domain is None else domain
    start = torch.zeros(features, dtype=torch.float64) if initial is None else initial.to(torch.float64)
    program, prompt, x, y = RegisterProgram.online("batch_gradient_descent", domain)
    outer = program.register("outer", (features, features), symmetric=True)
    moment = program.register("moment", (features, features), symmetric=True)
    cross, target = program.register("cross", features), program.register("target", features)
    w = program.register("w", features, initial=start)
    product, guess = program.register("product", features), program.register("guess")

    program.mov(x, x, at=prompt.own_example)
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
    return program.returns(guess)
