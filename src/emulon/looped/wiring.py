"""Weight matrices written by the names of the slots they read and write: heads side by side, and the MLP's units."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.core.errors import OutOfDomain

# Of numbers that a gate shuts out: their sum with the gate is still a float64.
HIGHEST = 1e300


def zeros(*size: int) -> Tensor:
    """float64, on the CPU, whatever the defaults are."""
    return torch.zeros(*size, dtype=torch.float64, device="cpu")


def eye(size: int) -> Tensor:
    """The identity, like `zeros`."""
    return torch.eye(size, dtype=torch.float64, device="cpu")


def read(slots: Slots, **terms: float | Tensor) -> Tensor:
    """The matrix (rows, width) of a sum of slots, each times a number or a matrix: read(s, x=1.0) is 'x' itself.

    >>> read(Slots(x=2, y=1), x=2.0)
    tensor([[2., 0., 0.],
            [0., 2., 0.]], dtype=torch.float64)
    """
    blocks = []
    for name, factor in terms.items():
        matrix = factor if isinstance(factor, Tensor) else factor * eye(slots.size(name))
        block = zeros(matrix.shape[0], slots.width)
        block[:, slots[name]] = matrix
        blocks.append(block)
    return torch.stack(blocks).sum(dim=0)


def write(slots: Slots, into: str, rows: Tensor) -> Tensor:
    """The matrix (width, columns) that puts `rows` into one slot and zero everywhere else."""
    out = zeros(slots.width, rows.shape[-1])
    out[slots[into]] = rows
    return out


Heads = tuple[Tensor, Tensor, Tensor]


def no_heads(slots: Slots) -> Heads:
    """Identity attention."""
    empty = zeros(0, 1, slots.width)
    return empty, empty, zeros(0, slots.width, slots.width)


def join(*groups: Heads) -> Heads:
    """Heads side by side; shorter queries and keys are padded with zero rows, which changes no score."""
    depth = max(group[0].shape[1] for group in groups)
    keys = [torch.nn.functional.pad(group[0], (0, 0, 0, depth - group[0].shape[1])) for group in groups]
    queries = [torch.nn.functional.pad(group[1], (0, 0, 0, depth - group[1].shape[1])) for group in groups]
    return torch.cat(keys), torch.cat(queries), torch.cat([group[2] for group in groups])


def constant(slots: Slots, *indicators: str) -> Tensor:
    """The row that reads 1 at every token: the sum of indicators of which exactly one is set."""
    return read(slots, **{name: 1.0 for name in indicators})


def others(slots: Slots, *names: str, kinds: tuple[str, ...]) -> Tensor:
    """The row that is 0 on tokens of these kinds and 1 on all others."""
    return constant(slots, *(name for name in kinds if name not in names))


def gate_height(bound: float) -> float:
    """A power of two safely above every number a gate has to shut out."""
    if not bound < HIGHEST:
        raise OutOfDomain(f"numbers on this domain may grow to {bound:.1e}, which no gate shuts out; rescale the data")
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
        self._biases.append(torch.as_tensor(bias, dtype=torch.float64, device="cpu").expand(rows.shape[0]))
        self._writes.append(writes)
        return self

    def move(self, rows: Tensor, into: str, *, off: Tensor | None = None, bound: float = 1.0) -> Circuit:
        """Add rows·token to a slot, where the indicators in `off` (one row) are all zero; elsewhere add nothing."""
        shut = self._shut(off, bound)
        one = eye(rows.shape[0])
        self.unit(rows - shut, 0.0, write(self.slots, into, one))
        return self.unit(-rows - shut, 0.0, write(self.slots, into, -one))

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
        one = scale * eye(rows.shape[0])
        offset = zeros(rows.shape[0]) if bias is None else bias
        self.unit(rows - shut, offset, write(self.slots, into, one))
        return self.unit(-rows - shut, -offset, write(self.slots, into, -slope * one))

    def _shut(self, off: Tensor | None, bound: float) -> Tensor:
        return zeros(1, self.slots.width) if off is None else gate_height(bound) * off

    @property
    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        width = self.slots.width
        if not self._reads:
            return zeros(0, width), zeros(0), zeros(width, 0), zeros(width)
        return torch.cat(self._reads), torch.cat(self._biases), torch.cat(self._writes, dim=1), zeros(width)
