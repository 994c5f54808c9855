"""Codes that let a query find its own sample's tokens: unit vectors whose products tell i = j from i ≠ j by a gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Codes:
    """`vectors` (samples, width) of length 1, with code_i·code_j ≤ 1 − gap for i ≠ j."""

    vectors: Float[Tensor, "samples width"]
    gap: float

    @property
    def width(self) -> int:
        return self.vectors.shape[1]


def one_hot(samples: int, dtype: torch.dtype) -> Codes:
    """The paper's code: as many dimensions as samples."""
    return Codes(torch.eye(samples, dtype=dtype), 1.0)


def circular(samples: int, dtype: torch.dtype, pairs: int | None = None) -> Codes:
    """Points on `pairs` circles turning at different whole speeds: width 2·pairs, whatever the number of samples.

    code_i·code_j = mean_k cos(2π f_k (i − j)/samples), so the gap depends on the speeds f alone. Three pairs by
    default, four from 256 samples on, five from 2048 on: a wider gap rounds better. No code is longer than it need be:
    up to 2·pairs samples the one-hot code is as short, and wider apart.
    """
    if pairs is None:
        pairs = 3 + (samples >= 256) + (samples >= 2048)
    if samples <= 2 * pairs:
        return one_hot(samples, dtype)
    speeds = _speeds(samples, pairs)
    angles = 2 * np.pi * np.outer(np.arange(samples), speeds) / samples
    vectors = torch.tensor(np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(pairs), dtype=dtype)
    # Measured on the stored numbers. A product of 2·pairs terms in [−1, 1] rounds by less than 10⁻¹⁴ in any order of
    # summation, and 1 less a code's own square is at most 2·pairs roundings of its entries: both have their room.
    exact = vectors.double()
    products = exact @ exact.T - 2 * torch.eye(samples, dtype=torch.float64)
    return Codes(vectors, 1.0 - products.max().item() - 1e-12 - 8 * pairs * torch.finfo(dtype).eps)


@lru_cache(maxsize=64)
def _speeds(samples: int, pairs: int) -> tuple[int, ...]:
    """Whole speeds with the widest gap among a few thousand seeded draws; the first is 1, so that all codes differ."""
    draws = np.random.default_rng(0).integers(1, samples // 2 + 1, size=(4000, pairs))
    draws[:, 0] = 1
    step = max(1, round(samples ** (1 / pairs)))
    draws[0] = [step**k for k in range(pairs)]
    shifts = np.arange(1, samples // 2 + 1)
    table = np.cos(2 * np.pi * np.outer(np.arange(samples // 2 + 1), shifts) / samples)
    worst = np.zeros(len(draws))
    for start in range(0, len(draws), 500):
        chunk = draws[start : start + 500] % samples
        chunk = np.minimum(chunk, samples - chunk)
        worst[start : start + 500] = table[chunk].mean(axis=1).max(axis=1)
    return tuple(int(speed) for speed in draws[worst.argmin()])
