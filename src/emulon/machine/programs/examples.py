"""The examples that a learner reads, registers of its own beside others', and the domain used when none is given."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from emulon.certify import Domain, Spectrum
from emulon.machine.instruction import Register
from emulon.machine.program import RegisterProgram, Shape
from emulon.machine.tokens import Interleaved

BEYOND = 4.0


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
        return self.program.constant("first", self.prompt.first()) if known is None else known
