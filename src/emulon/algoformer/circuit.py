"""The ReLU MLP of one layer, written unit by unit; everything here is exact, in floating point too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.algoformer.wiring import read, write
from emulon.attention import Slots


def gate_height(bound: float) -> float:
    """A power of two safely above every number a gate has to shut out."""
    return 2.0 ** math.ceil(math.log2(max(bound, 1e-300)) + 2)


class Circuit:
    """Collects ReLU units; `matrices` are W_1, b_1, W_2, b_2 of Eq. 1.

    Products of an entry by a 0-1 indicator are exact where the *other* indicators are read: z·1[on] =
    ReLU(z − B·off) − ReLU(−z − B·off) for |z| ≤ B, and off = 0 leaves z untouched by any rounding.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._reads: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._writes: list[Tensor] = []

    def unit(self, rows: Tensor, bias: Tensor | float, writes: Tensor) -> Circuit:
        """Hidden units ReLU(rows·token + bias), written back through `writes` (width, units)."""
        self._reads.append(rows)
        self._biases.append(torch.as_tensor(bias, dtype=torch.float64).expand(rows.shape[0]))
        self._writes.append(writes)
        return self

    def move(self, rows: Tensor, into: str, *, off: Tensor | None = None, bound: float = 1.0) -> Circuit:
        """Add rows·token to a slot, where the indicators in `off` (one row) are all zero; elsewhere add nothing."""
        shut = self._shut(off, bound)
        eye = torch.eye(rows.shape[0], dtype=torch.float64)
        self.unit(rows - shut, 0.0, write(self.slots, into, eye))
        return self.unit(-rows - shut, 0.0, write(self.slots, into, -eye))

    def clear(self, name: str, *, off: Tensor | None = None, bound: float = 1.0) -> Circuit:
        """Set a slot to zero where `off` is zero."""
        return self.move(read(self.slots, **{name: -1.0}), name, off=off, bound=bound)

    def leaky(
        self,
        rows: Tensor,
        into: str,
        *,
        slope: float,
        bias: Tensor | None = None,
        scale: float = 1.0,
        off: Tensor | None = None,
        bound: float = 1.0,
    ) -> Circuit:
        """Add scale·(ReLU(z) − slope·ReLU(−z)), z = rows·token + bias, to a slot, where `off` is zero."""
        shut = self._shut(off, bound)
        eye = scale * torch.eye(rows.shape[0], dtype=torch.float64)
        offset = torch.zeros(rows.shape[0], dtype=torch.float64) if bias is None else bias
        self.unit(rows - shut, offset, write(self.slots, into, eye))
        return self.unit(-rows - shut, -offset, write(self.slots, into, -slope * eye))

    def _shut(self, off: Tensor | None, bound: float) -> Tensor:
        return torch.zeros(1, self.slots.width, dtype=torch.float64) if off is None else gate_height(bound) * off

    @property
    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        width = self.slots.width
        zeros = torch.zeros(width, dtype=torch.float64)
        if not self._reads:
            return torch.zeros(0, width, dtype=torch.float64), zeros[:0], torch.zeros(width, 0).double(), zeros
        return torch.cat(self._reads), torch.cat(self._biases), torch.cat(self._writes, dim=1), zeros
