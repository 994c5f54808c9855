"""What a layer of a network is on the interpreter: prompts, what is written back, and how far that may be off.

Inside attention is everything that a layer computes. Outside are, at every phase: putting registers into the slots of
tokens, times constants (grid slopes, grid values, powers of two); writing answers back into a register, times a power
of two; putting heads side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from emulon.certify.domain import require_within
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.layers import Constant, Known, Layer

# The number line is best at numbers up to this: larger ones are read after a division by a power of two.
SMALL = 16.0
# Numbers that layer 1 may hold at once, over all prompts of a batch.
AT_ONCE = 1 << 23


class Prompt(NamedTuple):
    """Token matrices (batch, tokens, features), the head that they carry, and how many of their tokens ask."""

    tokens: Tensor
    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    queries: int


@dataclass(frozen=True, eq=False)
class NetworkPhase(ABC):
    """One layer, planned for the numbers that it will meet."""

    layer: Layer
    known: Known
    kind: ClassVar[str]

    @property
    def proved(self) -> bool:
        """Whether every function in it was interpolated with proof."""
        return True

    @property
    @abstractmethod
    def capacity(self) -> Capacity: ...

    @abstractmethod
    def prompts(self, x: Float64[Tensor, "rows positions features"]) -> Iterator[Prompt]:
        """What the interpreter is given: a batch of prompts for every head that is emulated."""

    @abstractmethod
    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Float64[Tensor, "rows positions out"]:
        """What is written back, from the answers to all prompts; `shape` is that of the input."""

    @abstractmethod
    def fast(
        self, interpreter: Interpreter, x: Float64[Tensor, "rows positions features"]
    ) -> Float64[Tensor, "rows positions out"]:
        """The same without what is certified negligible: rows and tokens that only pad, tokens that a mask hides."""

    @abstractmethod
    def own_error(self, line: IdentityGrid) -> float:
        """A bound on what the interpreter adds to the exact layer, in every entry, in either mode."""

    @abstractmethod
    def shown(self) -> str:
        """Its prompt in words."""

    def run(self, interpreter: Interpreter, x: Tensor, mode: Mode) -> Tensor:
        if mode == "fast":
            return self.fast(interpreter, x)
        answers = [answered(interpreter, prompt) for prompt in self.prompts(x)]
        return self.written(answers, x.shape)


def answered(interpreter: Interpreter, prompt: Prompt) -> Tensor:
    """Faithfully, a few prompts at a time."""
    each = prompt.tokens.shape[-2] * 3 * interpreter.capacity.width * len(interpreter.slopes)
    parts = prompt.tokens.split(max(1, AT_ONCE // each))
    return torch.cat([interpreter(part, *prompt[1:4], queries=prompt.queries) for part in parts])


def read(interpreter: Interpreter, numbers: Tensor) -> Tensor:
    """Layer 1 on these numbers, refused where the line does not reach."""
    require_within(interpreter.capacity.reach, **{"a number of the prompt": numbers})
    return interpreter.read_quickly(numbers)


def power_for(size: float) -> float:
    """The power of two that brings numbers of this size to at most `SMALL`, and near to it."""
    return 2.0 ** max(math.ceil(math.log2(size / SMALL)), -60) if size > 0 else 1.0


@dataclass(frozen=True, eq=False)
class ConstantPhase(NetworkPhase):
    """No phase at all: numbers that stand in the prompt of whoever reads them."""

    kind = "constant"
    layer: Constant

    @property
    def capacity(self) -> Capacity:
        return Capacity(1, 1, 1, 0.0)

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        return iter(())

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return self.layer.values[: shape[-2]].expand(shape[0], -1, -1)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        return self.written((), x.shape)

    def own_error(self, line: IdentityGrid) -> float:
        return 0.0

    def shown(self) -> str:
        return f"{self.layer.values.shape[0]} rows of {self.layer.values.shape[1]} numbers, in the prompt"
