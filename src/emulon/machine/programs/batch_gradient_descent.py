"""Gradient descent on the mean squared error of all examples seen so far, any number of steps."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.machine.affine import Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
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
    examples = Examples.of("batch_gradient_descent", gaussian(features, samples) if domain is None else domain)
    return examples.program.returns(descent_steps(examples, step_size, steps, ridge=ridge, initial=initial))


def descent_steps(
    examples: Examples, step_size: float, steps: int, *, ridge: float = 0.0, initial: Tensor | None = None
) -> Register:
    """The instructions of `batch_gradient_descent` on these examples; the register that holds ŷ."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    features = domain.features
    start = torch.zeros(features, dtype=torch.float64, device="cpu") if initial is None else initial.to(torch.float64)
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
