"""A claim, checked in the running stream: data that break it are refused, never silently wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.errors import OutOfDomain
from emulon.machine.ranges import Range


@dataclass(frozen=True)
class Watch:
    """After an instruction: its target, in the stream's slots `where`, must lie in `reach`."""

    where: slice
    scale: float
    reach: Range
    label: str
    reason: str

    def check(self, stream: Float[Tensor, "... tokens width"]) -> None:
        values = stream[..., 1:, self.where] * self.scale
        low, high = values.min().item(), values.max().item()
        norm = torch.linalg.vector_norm(values, dim=-1).max().item()
        # A NaN fails every comparison, so the condition is written for what is right.
        if not (self.reach.low <= low and high <= self.reach.high and norm <= self.reach.norm):
            raise OutOfDomain(
                f"{self.label} gave values in [{low:.6g}, {high:.6g}] of norm {norm:.6g}; the program was built for "
                f"[{self.reach.low:.6g}, {self.reach.high:.6g}] and {self.reach.norm:.6g} ({self.reason}); "
                "rescale the data or build a wider domain"
            )
