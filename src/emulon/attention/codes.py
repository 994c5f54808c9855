"""Codes that let a query find its own sample's tokens: unit vectors whose products tell i = j from i ≠ j by a gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Speeds are drawn so many times; draws are compared at so many shifts first; and shifts are looked up so often at most.
DRAWS, FIRST, LOOKUPS = 4000, 512, 1 << 25


@dataclass(frozen=True)
class Codes:
    """`vectors` (samples, width) of length 1, with code_i·code_j ≤ 1 − gap for i ≠ j."""

    vectors: Float[Tensor, "samples width"]
    gap: float

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    @cached_property
    def largest(self) -> float:
        """The largest entry."""
        return float(self.vectors.abs().max())


def one_hot(samples: int, dtype: torch.dtype) -> Codes:
    """The paper's code: as many dimensions as samples."""
    return Codes(torch.eye(samples, dtype=dtype, device="cpu"), 1.0)


def circular(samples: int, dtype: torch.dtype, pairs: int | None = None) -> Codes:
    """Points on `pairs` circles turning at different whole speeds f: width 2·pairs, in time and memory O(samples).

    Three pairs by default, four from 256 samples on, and one more for every eightfold: a wider gap rounds better. Up
    to 2·pairs samples the one-hot code is as short and has a wider gap, and is taken.

    Claim: no two stored codes are nearer than the gap. Proof. But for rounding, code_i·code_j is mean_k cos(2π f_k
    (i − j)/samples), so that the largest product is that of some shift i − j, and all of them are looked up. Turns f·i
    are reduced in whole numbers, so that an angle is off by less than 2·10⁻¹⁵, an entry by e ≤ (4·10⁻¹⁵ + u)/√pairs, u
    the dtype's unit, and a product, own or other, by less than 3·√(2·pairs)·e < 2·10⁻¹⁴ + 5u; the table is off by
    less than 5·10⁻¹³. What is subtracted below is more than all of these. QED
    """
    if pairs is None:
        pairs = 3 + max(0, (samples.bit_length() - 6) // 3)
    if samples <= 2 * pairs:
        return one_hot(samples, dtype)
    speeds = np.array(_speeds(samples, pairs))
    angles = 2 * np.pi * (np.outer(np.arange(samples), speeds) % samples) / samples
    vectors = torch.tensor(
        np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(pairs), dtype=dtype, device="cpu"
    )
    nearest = _nearest(speeds[None], _cosines(samples), np.arange(1, samples // 2 + 1))
    return Codes(vectors, 1.0 - float(nearest[0]) - 1e-12 - 8 * pairs * torch.finfo(dtype).eps)


@lru_cache(maxsize=64)
def _speeds(samples: int, pairs: int) -> tuple[int, ...]:
    """Whole speeds with the widest gap among a few thousand seeded draws; the first is 1, so that all codes differ.

    How near codes come at some shifts is no more than how near they come at all: draws are looked at in that order,
    until none of the others can be better, or LOOKUPS are spent, as on many samples.
    """
    random = np.random.default_rng(0)
    draws = random.integers(1, samples // 2 + 1, size=(DRAWS, pairs))
    draws[:, 0] = 1
    step = max(1, round(samples ** (1 / pairs)))
    draws[0] = [step**k for k in range(pairs)]
    shifts, cosines = np.arange(1, samples // 2 + 1), _cosines(samples)
    some = shifts
    if len(shifts) > FIRST:
        some = np.unique(np.concatenate([shifts[: FIRST // 4], random.choice(shifts, FIRST, replace=False)]))
    least = np.concatenate([_nearest(part, cosines, some) for part in np.array_split(draws, 8)])
    order = np.argsort(least, kind="stable")
    best, chosen = np.inf, draws[order[0]]
    for number in order[: max(1, LOOKUPS // (pairs * len(shifts)))]:
        if least[number] >= best:
            break
        if (found := float(_nearest(draws[number][None], cosines, shifts)[0])) < best:
            best, chosen = found, draws[number]
    return tuple(int(speed) for speed in chosen)


def _cosines(samples: int) -> np.ndarray:
    """Of every whole number of turns over samples, to 2⁻⁴⁰: sums are exact, and draws that are as good are equal.

    With more digits the processor's cos and the order of the speeds would choose among those.
    """
    table: np.ndarray = np.round(np.cos(2 * np.pi * np.arange(samples) / samples) * 2.0**40) / 2.0**40
    return table


def _nearest(speeds: np.ndarray, cosines: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """For each row of speeds the largest product of two codes whose indices differ by one of these shifts."""
    products = np.zeros((len(speeds), len(shifts)))
    for column in speeds.T:
        products += cosines[np.outer(column, shifts) % len(cosines)]
    nearest: np.ndarray = products.max(axis=1) / speeds.shape[1]
    return nearest
