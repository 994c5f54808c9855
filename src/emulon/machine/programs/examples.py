"""The examples that a learner reads, the domain used when none is given, and learners that copy or average targets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from emulon.certify import Domain, Spectrum
from emulon.core.arrays import eye, zeros
from emulon.machine.instruction import Invariant, Register
from emulon.machine.program import RegisterProgram, Shape
from emulon.machine.tokens import Interleaved, Lookup, Matched

BEYOND = 4.0
# A match may reach a little further than the domain says: registers are ranged with room for rounding.
ROOM = 1 + 2.0**-5


def gaussian(features: int, samples: int) -> Domain:
    """Bounds on |x|, |y| and |w| in every entry, and on ‖x‖₂.

    A standard normal vector is longer than √d + 4 with probability below 6e-7 (d = 1; less for larger d), and
    targets w·x are below that length squared. Iterates may be twice as long as w. Data outside are refused: then
    pass a wider `domain`.
    """
    norm = math.sqrt(features) + BEYOND
    return Domain(samples, features, x=norm, y=norm**2, w=2 * norm, spectrum=Spectrum(norm=norm))


@dataclass(frozen=True)
class Examples:
    """A program over x₁, y₁, x₂, …, and the prefix of the names of whatever a learner keeps there."""

    program: RegisterProgram
    prompt: Interleaved
    x: Register
    y: Register
    domain: Domain
    prefix: str = ""

    @classmethod
    def of(cls, name: str, domain: Domain) -> Examples:
        return cls(*RegisterProgram.online(name, domain), domain)

    def register(
        self, name: str, shape: Shape = 1, *, initial: Tensor | None = None, symmetric: bool = False
    ) -> Register:
        return self.program.register(self.prefix + name, shape, initial=initial, symmetric=symmetric)

    def own_x(self) -> Register:
        """x_i at both tokens of example i: read once, at its first use."""
        if not any(one.target is self.x for one in self.program.instructions):
            self.program.mov(self.x, self.x, at=self.prompt.own_example)
        return self.x

    def first(self) -> Register:
        """1 at the tokens of the first example, where a recurrence takes its initial value."""
        known = self.program.registers.get("first")
        flags = zeros(self.prompt.tokens, 1)
        flags[:2] = 1.0
        return self.program.constant("first", flags) if known is None else known


def copied(examples: Examples) -> Register:
    """ŷ_i = y_{i−1}, from ŷ_1 = 0; one layer. Returns the register that holds ŷ, like all that follow."""
    last = examples.register("last")
    examples.program.mov(last, examples.y, at=examples.prompt.previous_example)
    return last


def weighed(examples: Examples, sharp: float) -> Register:
    """ŷ_i = Σ_{j<i} e^{sharp·x_i·x_j} y_j / Σ_{j<i} e^{sharp·x_i·x_j}: with a large `sharp` the most alike decides."""
    x, mean = examples.own_x(), examples.register("mean")
    reach, past = sharp * (examples.domain.norm * ROOM) ** 2, examples.prompt.past_examples.members
    alike = Matched(f"examples like {x.name}", past, True, x.name, x.name, examples.domain.features, sharp, reach)
    examples.program.mov(mean, examples.y, at=alike)
    return mean


def moving_average(samples: int, decay: float = 0.9, *, bound: float = 100.0) -> RegisterProgram:
    """ŷ_{i+1} = decay·ŷ_i + (1 − decay)·y_i from ŷ_1 = 0; the inputs x (one feature) play no part. One layer a
    round.
    """
    examples = Examples.of("moving_average", Domain(samples, 1, x=bound, y=bound, w=1.0))
    return examples.program.returns(average_rounds(examples, decay))


def average_rounds(examples: Examples, decay: float) -> Register:
    """The instructions of `moving_average` on these examples."""
    program, prompt, y, domain = examples.program, examples.prompt, examples.y, examples.domain
    average = examples.register("average", initial=zeros(1))
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
    cue = x.map(eye(x.entries)[:1], (1, 1), "x[0]")
    if not own:
        held = examples.register("cue")
        program.aff(held, cue, at=Lookup("first token", (1,) * program.tokens))
        cue = 1.0 * held
    gate, chosen, answer = (examples.register(name) for name in ("gate", "chosen", "answer"))
    program.clip(gate, sharp * cue, 0.5)
    program.mul(chosen, gate + 0.5, first - second)
    program.aff(answer, second + chosen)
    return answer
