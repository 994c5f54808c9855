"""The target before, averages of targets, and two learners in one stream: mixed, or chosen by the prompt."""

from __future__ import annotations

import torch

from emulon.certify import Domain
from emulon.machine.instruction import Invariant, Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.machine.tokens import Lookup

# A match may reach a little further than the domain says: registers are ranged with room for rounding.
ROOM = 1 + 2.0**-5


def last_value(samples: int, *, bound: float = 100.0) -> RegisterProgram:
    """ŷ_i = y_{i−1}, from ŷ_1 = 0. One layer."""
    examples = Examples.of("last_value", Domain(samples, 1, x=bound, y=bound, w=1.0))
    return examples.program.returns(copied(examples))


def copied(examples: Examples) -> Register:
    """The instruction of `last_value` on these examples; the register that holds ŷ."""
    last = examples.register("last")
    examples.program.mov(last, examples.y, at=examples.prompt.previous_example)
    return last


def nearest_average(sharp: float, domain: Domain) -> RegisterProgram:
    """ŷ_i = Σ_{j<i} e^{sharp·x_i·x_j} y_j / Σ_{j<i} e^{sharp·x_i·x_j}: with a large `sharp` the most alike decides."""
    examples = Examples.of("nearest_average", domain)
    return examples.program.returns(weighed(examples, sharp))


def weighed(examples: Examples, sharp: float) -> Register:
    """The instructions of `nearest_average` on these examples; the register that holds ŷ."""
    x, mean = examples.own_x(), examples.register("mean")
    reach = sharp * (examples.domain.norm * ROOM) ** 2
    examples.program.mov(mean, examples.y, at=examples.prompt.similar_examples(x.name, x.name, sharp, reach))
    return mean


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


def mixed(examples: Examples, first: Register, second: Register, share: float) -> Register:
    """share·first + (1 − share)·second."""
    mixture = examples.register("mixture")
    examples.program.aff(mixture, share * first + (1 - share) * second)
    return mixture


def switched(examples: Examples, first: Register, second: Register, sharp: float, *, own: bool = False) -> Register:
    """g·first + (1 − g)·second with g = clip(sharp·x₁[0], ±½) + ½: the first feature of the first example decides.

    With `own` that of the own example does. Where it is at least 1/(2·sharp) in absolute value, one answers alone.
    """
    program, x = examples.program, examples.own_x()
    cue = x.map(torch.eye(x.entries, dtype=torch.float64, device="cpu")[:1], (1, 1), "x[0]")
    if not own:
        held = examples.register("cue")
        program.aff(held, cue, at=Lookup("first token", (1,) * program.tokens))
        cue = 1.0 * held
    gate, chosen, answer = (examples.register(name) for name in ("gate", "chosen", "answer"))
    program.clip(gate, sharp * cue, 0.5)
    program.mul(chosen, gate + 0.5, first - second)
    program.aff(answer, second + chosen)
    return answer
