"""Mechanisms of two others: a mixture that averages them, and a switch that runs one of them, as the prompt says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.machine.affine import Register
from emulon.machine.programs.combined import mixed, switched
from emulon.machine.programs.examples import Examples
from emulon.planted.learners import ClippedSgd, LastValue, MovingAverage, NearestAverage, Sgd
from emulon.planted.mechanism import Mechanism, between, scale_between, sizes, whole

# What compounds are drawn of: short programs.
PARTS: tuple[type[Mechanism], ...] = (Sgd, ClippedSgd, MovingAverage, LastValue, NearestAverage)


@dataclass(frozen=True)
class _Pair(Mechanism):
    """Two mechanisms side by side in one stream; of one size, the first's."""

    first: Mechanism = field(default_factory=Sgd)
    second: Mechanism = field(default_factory=LastValue)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("first", "second"):
            part = getattr(self, name)
            if isinstance(part, _Pair):
                raise EmulonError(f"{self.name} takes two plain mechanisms, and its {name} is {part.name}")
            object.__setattr__(self, name, replace(part, features=self.features, samples=self.samples))

    @property
    def entries(self) -> int:
        return self.first.entries + self.second.entries

    @property
    def reach(self) -> float:
        return max(self.first.reach, self.second.reach)

    def both(self, examples: Examples) -> tuple[Register, Register]:
        """The two answers; names of registers begin with a and b."""
        return self.first.add(replace(examples, prefix="a ")), self.second.add(replace(examples, prefix="b "))

    def answers(self, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
        return self.first.algorithm(xs, ys), self.second.algorithm(xs, ys)

    @staticmethod
    def drawn_parts(generator: torch.Generator) -> dict[str, Any]:
        order = torch.randperm(len(PARTS), generator=generator, device="cpu")[:2].tolist()
        parts = {name: PARTS[i].drawn(generator) for name, i in zip(("first", "second"), order, strict=True)}
        return {**sizes(generator), "samples": whole(generator, 3, 5), **parts}


@dataclass(frozen=True)
class Mixture(_Pair, name="mixture"):
    """share·first + (1 − share)·second.

    Drawn: two of sgd, clipped sgd, moving average, last value, nearest average, as theirs say; 3 to 5 samples, share
    uniform in 0.2 … 0.8.
    """

    share: float = 0.5

    def add(self, examples: Examples) -> Register:
        return mixed(examples, *self.both(examples), self.share)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        first, second = self.answers(xs, ys)
        return self.share * first + (1 - self.share) * second

    @classmethod
    def drawn(cls, generator: torch.Generator) -> Mechanism:
        return cls(**cls.drawn_parts(generator), share=between(generator, 0.2, 0.8))


@dataclass(frozen=True)
class Switch(_Pair, name="switch"):
    """first where the first feature of the first example is positive, second where it is negative; within 1/(2·sharp)
    of zero a bit of both.

    Drawn: two of those that a mixture has; 3 to 5 samples, sharp log-uniform in 4 … 16.
    """

    sharp: float = 8.0

    def add(self, examples: Examples) -> Register:
        return switched(examples, *self.both(examples), self.sharp)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        first, second = self.answers(xs, ys)
        gate = (self.sharp * xs[..., 0, :1]).clamp(-0.5, 0.5) + 0.5
        return gate * first + (1 - gate) * second

    @classmethod
    def drawn(cls, generator: torch.Generator) -> Mechanism:
        return cls(**cls.drawn_parts(generator), sharp=scale_between(generator, 4.0, 16.0))
