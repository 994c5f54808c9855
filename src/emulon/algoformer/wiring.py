"""Weight matrices written by the names of the slots they read and write."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.attention import Slots


def read(slots: Slots, **terms: float | Tensor) -> Tensor:
    """The matrix (rows, width) of a sum of slots, each times a number or a matrix: read(s, x=1.0) is 'x' itself.

    >>> read(Slots(x=2, y=1), x=2.0)
    tensor([[2., 0., 0.],
            [0., 2., 0.]], dtype=torch.float64)
    """
    blocks = []
    for name, factor in terms.items():
        matrix = factor if isinstance(factor, Tensor) else factor * torch.eye(slots.size(name), dtype=torch.float64)
        block = torch.zeros(matrix.shape[0], slots.width, dtype=torch.float64)
        block[:, slots[name]] = matrix
        blocks.append(block)
    return torch.stack(blocks).sum(dim=0)


def write(slots: Slots, into: str, rows: Tensor) -> Tensor:
    """The matrix (width, columns) that puts `rows` into one slot and zero everywhere else."""
    out = torch.zeros(slots.width, rows.shape[-1], dtype=torch.float64)
    out[slots[into]] = rows
    return out


Heads = tuple[Tensor, Tensor, Tensor]


def no_heads(slots: Slots) -> Heads:
    """Identity attention."""
    empty = torch.zeros(0, 1, slots.width, dtype=torch.float64)
    return empty, empty, torch.zeros(0, slots.width, slots.width, dtype=torch.float64)


def join(*groups: Heads) -> Heads:
    """Heads side by side; shorter queries and keys are padded with zero rows, which changes no score."""
    depth = max(group[0].shape[1] for group in groups)
    keys = [torch.nn.functional.pad(group[0], (0, 0, 0, depth - group[0].shape[1])) for group in groups]
    queries = [torch.nn.functional.pad(group[1], (0, 0, 0, depth - group[1].shape[1])) for group in groups]
    return torch.cat(keys), torch.cat(queries), torch.cat([group[2] for group in groups])
