"""Leaky-ReLU networks: one fixed for all datasets, or one drawn for each."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@functools.cache
def fixed_network(seed: int, widths: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """The weight matrices (out, in) of one network for all: the same on every device, and made once.

    Entries are N(0, 2/fan_in), so that signals keep their size from layer to layer.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(widths)
    return tuple((torch.randn(b, a, generator=generator, device="cpu") * math.sqrt(2 / a)).to(device) for a, b in pairs)


def leaky_network(weights: Iterable[Tensor], x: Float[Tensor, "*batch fan_in"]) -> list[Float[Tensor, "*batch _"]]:
    """The state after every layer, leaky ReLU of slope 0.01 in each."""
    states = []
    for weight in weights:
        x = F.leaky_relu(x @ weight.to(x.dtype).mT)
        states.append(x)
    return states
