"""A specimen while disguises are put on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from emulon.machine.compiler import Plan
from emulon.machine.layout import DIVIDE, PAD
from emulon.machine.transformer import Transformer
from emulon.planted.specimen import Build
from emulon.planted.truth import Truth


@dataclass
class Draft:
    """Weights (float64, by GPT2Model's names), the truth about them, and what they cost the certificate so far."""

    machine: Transformer
    plan: Plan
    state: dict[str, Tensor]
    truth: Truth
    generator: torch.Generator
    build: Build
    # Where the machine's own blocks are now.
    places: list[int] = field(default_factory=list)
    weight_noise: float = 0.0
    turned: bool = False
    # What idle heads and neurons write at most, into directions that nothing reads; in 2-norm, all blocks together.
    beside: float = 0.0

    def __post_init__(self) -> None:
        self.places = list(range(self.truth.blocks))

    def block(self, index: int, part: str) -> str:
        return f"h.{index}.{part}"

    def random(self, *size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=self.generator, device="cpu")

    @property
    def strength(self) -> float:
        return self.build.strength

    @property
    def head_width(self) -> int:
        return self.truth.width // self.truth.heads


def kept_apart(machine: Transformer) -> list[int]:
    """The slots that no rotation may touch: pads and divisors are 1e5 to 1e10 times as large as the rest."""
    slots = machine.layout.slots
    return [i for name in (PAD, DIVIDE) if name in slots for i in range(slots[name].start, slots[name].stop)]
