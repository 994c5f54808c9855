"""An example of a program a user might write: the exponential moving average of past targets."""

from __future__ import annotations

import torch

from emulon.certify import Domain
from emulon.machine.affine import Register
from emulon.machine.instruction import Invariant
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples


def moving_average(samples: int, decay: float = 0.9, *, bound: float = 100.0) -> RegisterProgram:
    """ŷ_{i+1} = decay·ŷ_i + (1 − decay)·y_i from ŷ_1 = 0; the inputs x (one feature) play no part. One layer a
    round.
    """
    examples = Examples.of("moving_average", Domain(samples, 1, x=bound, y=bound, w=1.0))
    return examples.program.returns(average_rounds(examples, decay))


def average_rounds(examples: Examples, decay: float) -> Register:
    """The instructions of `moving_average` on these examples; the register that holds ŷ."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    average = examples.register("average", initial=torch.zeros(1, device="cpu"))
    within = Invariant("an average of targets", low=-domain.y, high=domain.y, growth=decay)
    for _ in range(domain.samples - 1):
        program.aff(average, decay * average + (1 - decay) * y, at=prompt.previous_example, invariant=within)
    return average
