"""What probes look for: quantities that an algorithm must hold after so many examples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms.algorithm import Algorithm


def moments(
    xs: Float[Tensor, "datasets points features"], ys: Float[Tensor, "datasets points"]
) -> Float[Tensor, "datasets prefixes features"]:
    """Xᵀy of the first 0, 1, 2, … examples."""
    sums = (xs * ys.unsqueeze(-1)).cumsum(dim=1)
    return torch.cat([torch.zeros_like(sums[:, :1]), sums], dim=1)


def prefix_weights(
    algorithm: Algorithm, xs: Float[Tensor, "datasets points features"], ys: Float[Tensor, "datasets points"]
) -> Float[Tensor, "datasets prefixes features"]:
    """The algorithm's w on the first 0, 1, 2, … examples (zero on none)."""
    solved = [algorithm.run(xs[:, :n], ys[:, :n]) for n in range(1, xs.shape[1] + 1)]
    return torch.stack([torch.zeros_like(solved[0]), *solved], dim=1)
