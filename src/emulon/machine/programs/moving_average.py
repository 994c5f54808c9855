"""An example of a program a user might write: the exponential moving average of past targets."""

from __future__ import annotations

import torch

from emulon.certify import Domain
from emulon.machine.instruction import Invariant
from emulon.machine.program import RegisterProgram


def moving_average(samples: int, decay: float = 0.9, *, bound: float = 100.0) -> RegisterProgram:
    """ŷ_{i+1} = decay·ŷ_i + (1 − decay)·y_i from ŷ_1 = 0; the inputs x (one feature) play no part. One layer a
    round.
    """
    program, prompt, _, y = RegisterProgram.online("moving_average", Domain(samples, 1, x=bound, y=bound, w=1.0))
    average = program.register("average", initial=torch.zeros(1))
    within = Invariant("an average of targets", low=-bound, high=bound, growth=decay)
    for _ in range(samples - 1):
        program.aff(average, decay * average + (1 - decay) * y, at=prompt.previous_example, invariant=within)
    return program.returns(average)
