"""Answers that attention alone can give: the target before, and an average of targets weighed by likeness."""

from __future__ import annotations

from emulon.certify import Domain
from emulon.machine.affine import Register
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples

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
