"""Names for the directions of a token: nothing in emulon indexes a row by number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class Slots:
    """An ordered layout of named, contiguous groups of features.

    Args:
        sizes: Number of features of each group, by name.

    Example:
        >>> slots = Slots(x=2, y=1)
        >>> slots.width, slots["y"], slots.labels
        (3, slice(2, 3, None), ('x[0]', 'x[1]', 'y'))
    """

    def __init__(self, **sizes: int) -> None:
        self._slices: dict[str, slice] = {}
        start = 0
        for name, size in sizes.items():
            self._slices[name] = slice(start, start + size)
            start += size
        self.width = start

    def __getitem__(self, name: str) -> slice:
        return self._slices[name]

    def __contains__(self, name: str) -> bool:
        return name in self._slices

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __repr__(self) -> str:
        return f"Slots({', '.join(f'{name}={self.size(name)}' for name in self)})"

    def size(self, name: str) -> int:
        where = self._slices[name]
        return int(where.stop - where.start)

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per feature, for traces and pictures."""
        out: list[str] = []
        for name in self:
            size = self.size(name)
            out += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        return tuple(out)

    def pack(self, **parts: Tensor | float) -> Tensor:
        """Tokens (..., tokens, width) from their named parts, broadcast together; what is not named is zero."""
        tensors = [part for part in parts.values() if isinstance(part, Tensor)]
        lead = np.broadcast_shapes(*(part.shape[:-1] for part in tensors))  # torch's imports sympy
        out = tensors[0].new_zeros(*lead, self.width)
        for name, part in parts.items():
            out[..., self._slices[name]] = part
        return out

    def select(self, *names: str, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
        """The 0/1 matrix (rows, width) that reads the named slots, in this order, out of a token."""
        every = torch.eye(self.width, dtype=dtype, device=device)
        return torch.cat([every[self._slices[name]] for name in names])
